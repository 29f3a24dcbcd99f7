"""Points in columns: problems and configurations mapped to what the GPU sees.

The same mapping functions as everywhere, applied to arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, KernelSpec
from wavetune.core.dtype import DType
from wavetune.mapping.gemm import ceil_div, compulsory_bytes, loop_trips, positive_part, reread_bytes, workspace_bytes
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray
from wavetune.waves.occupancy import ctas_per_sm
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, latency_terms, sustained_onset_gflop


def encode_configs(configs: Sequence[CompiledConfig], spec: KernelSpec = GEMM) -> IntArray:
    """Encode configurations as numbers, words by their position.

    Returns
    -------
    ndarray of shape (n_configs, len(spec.fields))
        Columns in the order of ``spec.fields``.
    """
    return np.array(
        [
            [
                spec.words[name].index(str(value)) if name in spec.words else int(value)
                for name, value in c.config.items()
            ]
            for c in configs
        ],
        dtype=np.int64,
    ).reshape(len(configs), len(spec.fields))


def resident_ctas(configs: Sequence[CompiledConfig], arch: ArchSpec) -> IntArray:
    """Count the CTAs of each configuration that fit on an SM; raises as `wavetune.waves.occupancy.ctas_per_sm`."""
    return np.array(
        [
            ctas_per_sm(arch, num_warps=int(c.config["num_warps"]), num_regs=c.num_regs, smem_bytes=c.smem_bytes)
            for c in configs
        ],
        dtype=np.int64,
    )


@dataclass(frozen=True)
class GemmPoints:
    """GEMM points by column; every array has shape (n_points,).

    Sizes and counts are int64; ``*_mb`` (1e6 bytes) and ``sustained_gflop`` are float64.
    """

    m: IntArray
    n: IntArray
    k: IntArray
    block_m: IntArray
    block_n: IntArray
    block_k: IntArray
    split_k: IntArray
    schedule: IntArray
    group_m: IntArray
    num_warps: IntArray
    num_stages: IntArray
    load: IntArray
    epilogue_split: IntArray
    ctas_per_sm: IntArray
    tiles_m: IntArray
    tiles_n: IntArray
    grid_size: IntArray
    loop_trips: IntArray
    waves: IntArray
    depth: IntArray
    compulsory_mb: FloatArray
    reread_mb: FloatArray
    workspace_mb: FloatArray
    sustained_gflop: FloatArray
    num_sms: int

    def terms(self) -> FloatArray:
        """Return the design matrix, shape (n_points, len(TERMS))."""
        values = latency_terms(
            grid_size=self.grid_size.astype(np.float64),
            loop_trips=self.loop_trips.astype(np.float64),
            waves=self.waves.astype(np.float64),
            depth=self.depth.astype(np.float64),
            num_sms=self.num_sms,
            compulsory_mb=self.compulsory_mb,
            reread_mb=self.reread_mb,
            workspace_mb=self.workspace_mb,
            sustained_gflop=self.sustained_gflop,
        )
        return np.stack(np.broadcast_arrays(*values), axis=1)


class GemmGeometry:
    """Maps problems and configurations of one table to `GemmPoints`.

    Parameters
    ----------
    configs : sequence of CompiledConfig
        The configurations that indices refer to.
    arch : ArchSpec
        The GPU.
    dtype : DType
        Element type.
    """

    def __init__(self, configs: Sequence[CompiledConfig], arch: ArchSpec, dtype: DType) -> None:
        self.configs = tuple(configs)
        self.arch = arch
        self.dtype = dtype
        self.ctas_per_sm = resident_ctas(configs, arch)
        self._columns = dict(zip(GEMM.fields, encode_configs(configs).T, strict=True))

    def points(self, dims: IntArray, config_index: IntArray) -> GemmPoints:
        """Map rows of ``dims`` (shape (n, 3)), each with its configuration (shape (n,))."""
        m, n, k = (np.ascontiguousarray(column) for column in dims.T.astype(np.int64))
        field = {name: column[config_index] for name, column in self._columns.items()}
        resident = self.ctas_per_sm[config_index]
        num_sms = self.arch.num_sms
        tiles_m, tiles_n = ceil_div(m, field["block_m"]), ceil_div(n, field["block_n"])
        grid = tiles_m * tiles_n * field["split_k"]
        input_bytes, output_bytes = self.dtype.input_bytes, self.dtype.output_bytes
        onset = sustained_onset_gflop(self.arch)
        return GemmPoints(
            m=m,
            n=n,
            k=k,
            block_m=field["block_m"],
            block_n=field["block_n"],
            block_k=field["block_k"],
            split_k=field["split_k"],
            schedule=field["schedule"],
            group_m=field["group_m"],
            num_warps=field["num_warps"],
            num_stages=field["num_stages"],
            load=field["load"],
            epilogue_split=field["epilogue_split"],
            ctas_per_sm=resident,
            tiles_m=tiles_m,
            tiles_n=tiles_n,
            grid_size=grid,
            loop_trips=loop_trips(k, field["block_k"], field["split_k"]),
            waves=ceil_div(grid, resident * num_sms),
            depth=ceil_div(grid, num_sms),
            compulsory_mb=compulsory_bytes(m, n, k, input_bytes, output_bytes) / BYTES_PER_MB,
            reread_mb=reread_bytes(n, k, tiles_m, field["group_m"], input_bytes, self.arch.l2_bytes) / BYTES_PER_MB,
            workspace_mb=workspace_bytes(m, n, field["split_k"]) / BYTES_PER_MB,
            # In floating point: 2 m n k exceeds 64 bits long before a size exceeds 31.
            sustained_gflop=positive_part(2.0 * m * n * k / FLOPS_PER_GFLOP - onset),
            num_sms=num_sms,
        )

    def grid(self, dims: IntArray) -> GemmPoints:
        """Map every problem with every configuration: problem-major, shape (n_problems * n_configs,)."""
        n_configs = len(self.configs)
        return self.points(np.repeat(dims, n_configs, axis=0), np.tile(np.arange(n_configs, dtype=np.int64), len(dims)))

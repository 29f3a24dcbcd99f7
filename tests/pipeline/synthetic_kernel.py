"""Two kernels whose truth is known: a row reduction and a GEMM with a row norm, measured by formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.mapping.kernel_mapping import KernelMapping, LaunchShape
from wavetune.mapping.source_digest import mapping_digest
from wavetune.measure.runner import PreparedConfigs, Progress, no_progress
from wavetune.pipeline.user_kernel import KernelJob
from wavetune.plan.kernel_points import keys_in_ranges
from wavetune.runtime.family_file import FamilyForm
from wavetune.runtime.family_forms import form_latency_us
from wavetune.store.record import CompiledConfig, Measurement, Point, Status
from wavetune.store.table import FloatArray

ARCH = find_arch("nvidia-h200")
NOISE = 0.01

ROW_SUM = KernelMapping(
    "row-sum",
    ("M", "N"),
    grid_size=lambda key, config: -(-key["M"] // config["ROWS"]),
    loop_trips=lambda key, config: -(-key["N"] // config["BLOCK"]),
    bytes_moved=lambda key, config: 2 * key["M"] * key["N"],
)

NORM_GEMM = KernelMapping(
    "norm-gemm",
    ("M", "N", "K"),
    grid_size=lambda key, config: -(-key["M"] // config["BLOCK_M"]),
    loop_trips=lambda key, config: -(-key["N"] // config["BLOCK_N"]) * -(-key["K"] // config["BLOCK_K"]),
    bytes_moved=lambda key, config: 2 * (key["M"] * key["K"] + key["N"] * key["K"] + key["M"] * key["N"]),
)


def row_sum_configs() -> tuple[CompiledConfig, ...]:
    """Return nine configurations of the reduction."""
    return tuple(
        CompiledConfig(
            KernelConfig(ROWS=rows, BLOCK=block, num_warps=warps, num_stages=1),
            24 + block * rows // (64 * warps), 0, 64,
        )
        for rows, block, warps in (
            (1, 256, 1), (1, 1024, 4), (1, 4096, 8), (2, 512, 2), (4, 128, 1), (4, 1024, 4), (8, 256, 4), (16, 64, 2),
            (32, 32, 4),
        )
    )  # fmt: skip


def norm_gemm_configs() -> tuple[CompiledConfig, ...]:
    """Return eight configurations of the GEMM."""
    return tuple(
        CompiledConfig(
            KernelConfig(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, num_warps=warps, num_stages=stages),
            40 + m * n // (32 * warps), 0, (m + n) * k * 2 * stages,
        )
        for m, n, k, warps, stages in (
            (16, 64, 64, 4, 4), (16, 128, 128, 4, 3), (32, 64, 64, 4, 4), (32, 128, 64, 4, 3), (64, 64, 64, 4, 4),
            (64, 128, 64, 8, 3), (128, 64, 64, 8, 3), (128, 128, 64, 8, 3),
        )
    )  # fmt: skip


@dataclass
class SyntheticKernel:
    """Measures one kernel by formula; conforms to `wavetune.measure.runner.Runner`.

    Parameters
    ----------
    mapping : KernelMapping
        The kernel.
    compiled : tuple of CompiledConfig
        Its configurations.
    coefficients : ndarray of shape (n_configs, 9)
        The truth.
    """

    mapping: KernelMapping
    compiled: tuple[CompiledConfig, ...]
    coefficients: FloatArray
    refuse: frozenset[KernelConfig] = frozenset()
    seed: int = 0
    measured: list[Point] = field(default_factory=list)
    arch: ArchSpec = ARCH

    def __post_init__(self) -> None:
        from wavetune.fit.points import resident_ctas

        resident = resident_ctas(self.compiled, self.arch)
        self._rng = np.random.default_rng(self.seed)
        self.forms = {
            entry.config: FamilyForm(entry.config, int(n), entry.num_regs, entry.smem_bytes, tuple(row))
            for entry, n, row in zip(self.compiled, resident, self.coefficients.tolist(), strict=True)
        }

    def shape(self, dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        """Map a launch."""
        return self.mapping.shape(dict(zip(self.mapping.dims, dims, strict=True)), config)

    def truth_us(self, dims: tuple[int, ...], config: KernelConfig) -> float:
        """Return the true latency."""
        return form_latency_us(self.forms[config], self.shape(dims, config), self.arch.num_sms)

    def job(self, ranges: Sequence[tuple[int, int]], **changes: Any) -> KernelJob:
        """Return the job of calibrating it on keys from ranges."""
        fields: dict[str, Any] = {
            "kernel": self.mapping.name, "dtype": "fp16+fp16", "layout": "", "dims": self.mapping.dims,
            "configs": tuple(entry.config for entry in self.compiled), "shape": self.shape,
            "mapping_digest": mapping_digest(self.mapping), "pool": keys_in_ranges(ranges), **changes,
        }  # fmt: skip
        return KernelJob(**fields)

    def environment(self) -> dict[str, str]:
        """Return a fingerprint."""
        return {"gpu_name": "synthetic", "triton": "3.6.0"}

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile everything but ``refuse``."""
        by_config = {entry.config: entry for entry in self.compiled}
        wanted = list(configs)
        problem = self.job([(1, 1)] * len(self.mapping.dims)).problem((1,) * len(self.mapping.dims))
        failures = [
            Measurement(problem, config, Status.OUT_OF_RESOURCES, stratum="prepare", detail="too much shared memory")
            for config in wanted
            if config in self.refuse
        ]
        return PreparedConfigs(
            tuple(by_config[config] for config in wanted if config not in self.refuse), tuple(failures)
        )

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Measure by formula, with noise."""
        for n_done, point in enumerate(points, start=1):
            self.measured.append(point)
            latency = self.truth_us(point.problem.dims, point.config) * np.exp(self._rng.normal(0.0, NOISE))
            progress(n_done, len(points))
            yield Measurement(point.problem, point.config, Status.OK, latency, 0.1, 5, "made-up", point.stratum)


def row_sum(seed: int = 0, **options: Any) -> SyntheticKernel:
    """Return the reduction: bytes and launches cost most, more warps make a trip cheaper and a CTA dearer."""
    rng = np.random.default_rng(seed + 1)
    rows = []
    for entry in row_sum_configs():
        fields: Mapping[str, Any] = entry.config
        volume = fields["ROWS"] * fields["BLOCK"]
        trip = volume * 4e-5 * rng.uniform(0.8, 1.2)
        rows.append(
            (
                rng.uniform(3.0, 4.0), rng.uniform(0.3, 1.2), 0.15 + 0.3 * trip, 0.5 * trip,
                rng.uniform(0.02, 0.1) * fields["num_warps"], 0.02, 0.03, 0.0, rng.uniform(0.22, 0.3),
            )
        )  # fmt: skip
    return SyntheticKernel(ROW_SUM, row_sum_configs(), np.array(rows), seed=seed, **options)


def norm_gemm(seed: int = 0, **options: Any) -> SyntheticKernel:
    """Return the GEMM: tall tiles do more work a trip, and do it better."""
    rng = np.random.default_rng(seed + 2)
    rows = []
    for entry in norm_gemm_configs():
        tile = int(entry.config["BLOCK_M"]) * int(entry.config["BLOCK_N"]) * int(entry.config["BLOCK_K"])
        trip = tile * 3.2e-7 * (0.4 + 64 / int(entry.config["BLOCK_M"])) * rng.uniform(0.9, 1.1)
        rows.append(
            (
                rng.uniform(3.5, 5.0), rng.uniform(0.5, 2.0), 0.1 + 0.3 * trip, 0.4 * trip, rng.uniform(0.1, 0.8),
                0.2 * trip, 0.0, 0.1 * trip, rng.uniform(0.05, 0.12),
            )
        )  # fmt: skip
    return SyntheticKernel(NORM_GEMM, norm_gemm_configs(), np.array(rows), seed=seed, **options)


def random_keys(ranges: Sequence[tuple[int, int]], n_keys: int, seed: int = 5) -> list[tuple[int, ...]]:
    """Return log-uniform, ragged keys within ranges."""
    rng = np.random.default_rng(seed)
    columns = [np.exp2(rng.uniform(np.log2(low), np.log2(high), n_keys)).astype(int) for low, high in ranges]
    return [tuple(map(int, key)) for key in np.stack(columns, axis=1)]

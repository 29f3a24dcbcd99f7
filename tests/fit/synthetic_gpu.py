"""A GPU whose truth is known: latencies from chosen coefficients, with noise, stalls and a smooth deviation."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.points import GemmGeometry
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import decode_model, encode_model
from wavetune.runtime.model_file import ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray, MeasurementTable, sort_configs
from wavetune.tables.build import build_model_file
from wavetune.waves.terms import TERMS

ARCH = find_arch("nvidia-h200")
NOISE = 0.01

# block_m, block_n, block_k, split_k, schedule, num_warps, num_stages, load, epilogue_split, num_regs
_CONFIGS = (
    (16, 32, 128, 1, "tile", 4, 4, "pointer", 1, 48),
    (16, 64, 128, 1, "tile", 4, 4, "pointer", 1, 56),
    (16, 128, 128, 1, "tile", 4, 3, "tma", 1, 64),
    (16, 64, 64, 4, "split_k", 4, 4, "pointer", 1, 56),
    (16, 128, 64, 2, "split_k", 4, 4, "tma", 1, 64),
    (32, 32, 128, 1, "tile", 4, 4, "pointer", 1, 52),
    (32, 64, 128, 1, "tile", 4, 3, "pointer", 1, 64),
    (32, 128, 64, 1, "tile", 4, 4, "pointer", 1, 72),
    (32, 64, 64, 3, "split_k", 4, 3, "pointer", 1, 64),
    (64, 64, 64, 1, "tile", 4, 4, "pointer", 1, 80),
    (64, 64, 128, 1, "tile", 4, 3, "tma", 1, 96),
    (64, 128, 64, 1, "tile", 4, 3, "pointer", 1, 112),
    (64, 256, 64, 1, "tile", 8, 3, "pointer", 1, 128),
    (128, 64, 64, 1, "tile", 4, 4, "pointer", 1, 112),
    (128, 64, 128, 1, "tile", 8, 3, "tma", 1, 112),
    (128, 128, 64, 1, "tile", 4, 4, "pointer", 1, 190),
    (128, 128, 64, 1, "tile", 8, 3, "tma", 1, 120),
    (128, 256, 64, 1, "persistent", 8, 3, "tma", 2, 190),
    (128, 256, 64, 1, "tile", 8, 3, "tma", 1, 200),
    (256, 128, 64, 1, "tile", 8, 3, "pointer", 1, 230),
)

LAYERS = (
    (4096, 4096), (6144, 4096), (11008, 4096), (4096, 11008), (5120, 5120), (13824, 5120), (5120, 13824), (2048, 2048),
    (8192, 1024), (1024, 8192), (3072, 768), (768, 3072), (28672, 4096), (2560, 9728),
)  # fmt: skip
TOKENS = (1, 7, 16, 33, 64, 100, 128, 250, 512, 777, 1024, 2048, 4096)


def synthetic_configs() -> tuple[CompiledConfig, ...]:
    """Return twenty compiled configurations: all schedules, both ways of loading, decode to prefill tiles."""
    compiled = []
    for block_m, block_n, block_k, split_k, schedule, num_warps, num_stages, load, epilogue_split, num_regs in _CONFIGS:
        config = GEMM.config(
            {
                "block_m": block_m, "block_n": block_n, "block_k": block_k, "split_k": split_k, "schedule": schedule,
                "group_m": 8, "num_warps": num_warps, "num_stages": num_stages, "load": load,
                "epilogue_split": epilogue_split,
            }
        )  # fmt: skip
        smem_bytes = min((block_m + block_n) * block_k * 2 * num_stages, 220_000)
        compiled.append(CompiledConfig(config, num_regs, 0, smem_bytes))
    return sort_configs(compiled)


def true_coefficients(configs: tuple[CompiledConfig, ...], seed: int = 7) -> FloatArray:
    """Return plausible coefficients, shape (n_configs, n_terms): large tiles cost more a trip, less for their work."""
    rng = np.random.default_rng(seed)
    rows = []
    for entry in configs:
        tile = int(entry.config["block_m"]) * int(entry.config["block_n"]) * int(entry.config["block_k"])
        trip = tile * 3.2e-7 * rng.uniform(0.9, 1.1)
        resident = GemmGeometry([entry], ARCH, find_dtype("bf16")).ctas_per_sm[0]
        values = {
            "launch": rng.uniform(3.5, 5.0),
            "wave": rng.uniform(0.4, 2.0),
            "wave_trip": 0.08 + trip * resident * 0.3 * rng.uniform(0.8, 1.2),
            "depth_trip": trip * 0.4 * rng.uniform(0.8, 1.2),
            "work": rng.uniform(0.1, 0.8),
            "work_trip": 0.02 + trip * 0.2 * rng.uniform(0.8, 1.2),
            "compulsory": rng.uniform(0.05, 0.12),
            "reread": rng.uniform(0.0, 0.1),
            "workspace": rng.uniform(0.1, 0.3) if entry.config["split_k"] != 1 else 0.0,
            "sustained": rng.uniform(0.2, 0.6),
        }
        rows.append([values[name] for name in TERMS])
    return np.array(rows)


@dataclass(frozen=True)
class Stalls:
    """Rows that the host slowed down: where, and by how much."""

    rows: IntArray
    factor: FloatArray


class SyntheticGpu:
    """Measures by formula.

    Parameters
    ----------
    deviation : float
        Strength of a smooth factor that no form can express: a wave in log2(m) whose phase is the configuration's.
    """

    def __init__(self, deviation: float = 0.0) -> None:
        self.configs = synthetic_configs()
        self.coefficients = true_coefficients(self.configs)
        self.deviation = deviation
        self.geometry = GemmGeometry(self.configs, ARCH, find_dtype("bf16"))

    def index_of(self, config: KernelConfig) -> int:
        """Return the position of a configuration."""
        return [entry.config for entry in self.configs].index(config)

    def latency_us(self, dims: IntArray, config_index: IntArray) -> FloatArray:
        """Return the true latency of each row."""
        terms = self.geometry.points(dims, config_index).terms()
        latency = (terms * self.coefficients[config_index]).sum(axis=1)
        phase = config_index * 2.4
        return latency * np.exp(self.deviation * np.sin(np.log2(dims[:, 0]) * 0.9 + phase))

    def all_latencies(self, dims: IntArray) -> FloatArray:
        """Return the true latency of every configuration, shape (n_problems, n_configs)."""
        n_configs = len(self.configs)
        rows, columns = np.repeat(dims, n_configs, axis=0), np.tile(np.arange(n_configs), len(dims))
        return self.latency_us(rows, columns).reshape(len(dims), n_configs)

    def anchors(self) -> tuple[IntArray, IntArray]:
        """Return wave-structured rows of every configuration: dims and config index."""
        dims, columns = [], []
        for index, entry in enumerate(self.configs):
            block_m, block_n, block_k, split_k = (
                int(entry.config[name]) for name in ("block_m", "block_n", "block_k", "split_k")
            )
            for grid in (20, 66, 132, 140, 264, 400, 792, 1500):
                for rows_of_tiles in (1, 4, 16):
                    for trips in (4, 16, 64, 160):
                        tiles_n = -(-grid // (rows_of_tiles * split_k))
                        dims.append((rows_of_tiles * block_m, tiles_n * block_n, trips * block_k * split_k))
                        columns.append(index)
        # B larger than the last-level cache, and work beyond the sustained onset.
        for index, entry in enumerate(self.configs):
            for m_tiles, n, k in ((1, 16384, 4096), (24, 16384, 4096), (40, 8192, 8192), (64, 28672, 2048)):
                dims.append((m_tiles * int(entry.config["block_m"]), n, k))
                columns.append(index)
        return np.array(dims, dtype=np.int64), np.array(columns, dtype=np.int64)

    def sweep(self, problems: IntArray) -> tuple[IntArray, IntArray]:
        """Return every configuration on every problem, problem by problem."""
        n_configs = len(self.configs)
        return np.repeat(problems, n_configs, axis=0), np.tile(np.arange(n_configs), len(problems))

    def table(self, *, sweep: bool = True, stalls: int = 0, seed: int = 0) -> tuple[MeasurementTable, Stalls]:
        """Measure anchors and, if asked, an exhaustive sweep of `realistic_problems` with stalled blocks in it.

        Parameters
        ----------
        sweep : bool
            Whether to add exhaustive rows.
        stalls : int
            Blocks of 20 to 60 consecutive rows of the sweep, each 1.3 to 7 times too slow.
        seed : int
            Seed of noise and stalls.
        """
        rng = np.random.default_rng(seed)
        dims, columns = self.anchors()
        n_anchors = len(dims)
        if sweep:
            more_dims, more_columns = self.sweep(realistic_problems())
            dims, columns = np.vstack([dims, more_dims]), np.concatenate([columns, more_columns])
        factor = np.ones(len(dims))
        n_sweep = len(dims) - n_anchors
        if stalls:
            # One block in each stretch of the sweep, so that blocks do not touch.
            for start in np.linspace(0, n_sweep - 80, stalls).astype(int) + rng.integers(0, 20, stalls):
                length = int(rng.integers(20, 61))
                factor[n_anchors + start : n_anchors + start + length] = rng.uniform(1.3, 7.0)
        latency = self.latency_us(dims, columns) * np.exp(rng.normal(0.0, NOISE, len(dims))) * factor
        table = MeasurementTable(
            spec=GEMM,
            dtype="bf16",
            layout="nk",
            configs=self.configs,
            dims=dims,
            config_index=columns,
            latency_us=latency,
            exhaustive=np.arange(len(dims)) >= n_anchors,
        )
        rows = np.flatnonzero(factor > 1.0)
        return table, Stalls(rows, factor[rows])


def realistic_problems() -> IntArray:
    """Return the layers of language models at decode to prefill lengths."""
    return np.array([(m, n, k) for n, k in LAYERS for m in TOKENS], dtype=np.int64)


def held_out_problems(n_problems: int, seed: int = 3) -> IntArray:
    """Return random layers that `realistic_problems` does not have, ragged in m."""
    rng = np.random.default_rng(seed)
    m = np.exp2(rng.uniform(0, 12, n_problems)).astype(np.int64)
    n = rng.integers(12, 400, n_problems) * 64
    k = rng.integers(12, 200, n_problems) * 64
    return np.stack([m, n, k], axis=1)


@dataclass(frozen=True)
class Fitted:
    """A fit of one synthetic GPU: its truth, its rows and everything made from them."""

    gpu: SyntheticGpu
    table: MeasurementTable
    stalls: Stalls
    model: WaveLatencyModel
    file: ModelFile
    encoded: bytes

    def chooser(self, *, use_exact: bool = False) -> GemmChooser:
        """Return the runtime of the encoded file."""
        return GemmChooser(decode_model(self.encoded, "synthetic.json"), ARCH, use_exact=use_exact)


def fitted(stalls: int = 0, deviation: float = 0.0) -> Fitted:
    """Fit once a session; fits are deterministic, and tests only read them."""
    return _fitted(stalls, deviation)


@functools.cache
def _fitted(stalls: int, deviation: float) -> Fitted:
    gpu = SyntheticGpu(deviation)
    table, planted = gpu.table(stalls=stalls)
    # One thread: on a busy machine the threads of small fits mostly wait for each other.
    with threadpool_limits(1):
        model = WaveLatencyModel(n_configs=18).fit_table(table)
    file = build_model_file(model, table, provenance={"made_by": "synthetic GPU"})
    return Fitted(gpu, table, planted, model, file, encode_model(file))

"""Other people's ways to rank configurations, fitted to the same measurements. For comparison only.

`PaperScheme` is a reconstruction of the WaveTune paper (arXiv 2604.10187) from what others report of it; no code by its
authors is known. `FourTermForm` is the form reported of RaMP (arXiv 2604.26039), which was made for the experts of one
model and is taken here beyond its purpose. Neither is a judgement of the work it stands for.
"""

from __future__ import annotations

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import find_dtype
from wavetune.fit.points import GemmGeometry, GemmPoints
from wavetune.mapping.gemm import ceil_div
from wavetune.store.roofline import SM_PORT_BYTES_PER_CLOCK
from wavetune.store.table import FloatArray, IntArray, MeasurementTable

MIN_BUCKET_POINTS = 4
"""A bilinear bucket has four coefficients."""

LOAD_LATENCY_US = 0.6
"""A load from DRAM takes 0.5 to 0.8 us on recent NVIDIA GPUs, as public microbenchmarks say. Not measured here."""

MATRIX_OPS_PER_CLOCK = 4096
"""Dense bf16 operations of an SM in a clock: 989.4 TFLOP/s over 132 SMs at 1.83 GHz (H100 datasheet)."""

MAX_ACCUMULATORS = 128
"""Accumulators of a thread; twice as many leave no registers for anything else (255 is the limit)."""

THREADS_PER_WARP = 32


class PaperScheme:
    """Reconstruction of the paper: one bilinear least-squares fit per macro-configuration and wave count.

    Stage I takes the macro-configuration with the smallest

        T(G, L) = alpha G L + beta G + gamma L + delta,

    with coefficients of the bucket ``(macro, ceil(G / SMs))``, fitted by ordinary least squares to the best micro
    choice at each measured problem; a wave count that was not measured takes the nearest bucket that was. Predictions
    that are not positive are passed over. Stage II takes the micro fields that were fastest around the nearest loop
    anchor of that macro-configuration.
    """

    def fit(self, training: MeasurementTable, arch: ArchSpec) -> PaperScheme:
        """Fit buckets and micro table to measurements."""
        self._configs, self._arch = training.configs, arch
        self._geometry = GemmGeometry(training.configs, arch, find_dtype(training.dtype))
        macros = [training.spec.macro_of(entry.config) for entry in training.configs]
        distinct = list(dict.fromkeys(macros))
        self._macro_of = np.array([distinct.index(macro) for macro in macros], dtype=np.int64)
        self._members = [np.flatnonzero(self._macro_of == macro) for macro in range(len(distinct))]
        points = self._geometry.points(training.dims, training.config_index)
        waves = ceil_div(points.grid_size, arch.num_sms)
        macro = self._macro_of[training.config_index]
        problem = training.problems()[1]
        self._buckets: list[tuple[IntArray, FloatArray]] = []
        self._micro: list[tuple[FloatArray, IntArray]] = []
        for index, members in enumerate(self._members):
            rows = np.flatnonzero(macro == index)
            best, loss = _best_of_micro(problem[rows], training.latency_us[rows])
            self._buckets.append(_fit_buckets(points, waves, rows[best], training.latency_us))
            self._micro.append(_micro_table(points.loop_trips[rows], training.config_index[rows], loss, members))
        return self

    def choose(self, dims: IntArray) -> IntArray:
        """Choose a configuration for each problem, shape (n_problems,): indices into the training table's."""
        latency = np.stack([self._predict_macro(dims, macro) for macro in range(len(self._members))], axis=1)
        chosen = np.argmin(np.where(latency > 0.0, latency, np.inf), axis=1)
        return np.array([self._pick_micro(dims[row], int(macro)) for row, macro in enumerate(chosen)], dtype=np.int64)

    def _predict_macro(self, dims: IntArray, macro: int) -> FloatArray:
        counts, coefficients = self._buckets[macro]
        if not len(counts):
            return np.full(len(dims), np.inf)
        points = self._geometry.points(dims, np.full(len(dims), self._members[macro][0]))
        waves = ceil_div(points.grid_size, self._arch.num_sms)
        nearest = np.argmin(np.abs(np.log(counts[None, :] / waves[:, None])), axis=1)
        latency: FloatArray = (_bilinear(points) * coefficients[nearest]).sum(axis=1)
        return latency

    def _pick_micro(self, dims: IntArray, macro: int) -> int:
        anchors, picks = self._micro[macro]
        trips = self._geometry.points(dims[None, :], self._members[macro][:1]).loop_trips[0]
        return int(picks[np.argmin(np.abs(anchors - np.log2(trips)))])


def _bilinear(points: GemmPoints) -> FloatArray:
    g, trips = points.grid_size.astype(np.float64), points.loop_trips.astype(np.float64)
    return np.stack([g * trips, g, trips, np.ones_like(g)], axis=1)


def _best_of_micro(problem: IntArray, latency_us: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the fastest row of each problem, and every row's log ratio to it."""
    _, inverse = np.unique(problem, return_inverse=True)
    order = np.lexsort((latency_us, inverse))
    first = order[np.unique(inverse[order], return_index=True)[1]]
    loss: FloatArray = np.log(latency_us / latency_us[first][inverse])
    return first, loss


def _fit_buckets(
    points: GemmPoints, waves: IntArray, rows: IntArray, latency_us: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Fit each wave count that has enough different points; return the counts and their coefficients."""
    design = _bilinear(points)
    counts, coefficients = [], []
    for count in np.unique(waves[rows]).tolist():
        bucket = rows[waves[rows] == count]
        if len(bucket) < MIN_BUCKET_POINTS or np.linalg.matrix_rank(design[bucket]) < MIN_BUCKET_POINTS:
            continue
        counts.append(count)
        coefficients.append(np.linalg.lstsq(design[bucket], latency_us[bucket], rcond=None)[0])
    return np.array(counts, dtype=np.int64), np.array(coefficients).reshape(-1, MIN_BUCKET_POINTS)


def _micro_table(
    trips: IntArray, config_index: IntArray, loss: FloatArray, members: IntArray
) -> tuple[FloatArray, IntArray]:
    """For each octave of trips, pick the configuration that loses least where it was measured."""
    octave = np.round(np.log2(trips))
    anchors, picks = [], []
    for anchor in np.unique(octave).tolist():
        here = octave == anchor
        measured = [member for member in members if np.any(here & (config_index == member))]
        mean = [float(loss[here & (config_index == member)].mean()) for member in measured]
        anchors.append(anchor)
        picks.append(measured[int(np.argmin(mean))])
    return np.array(anchors), np.array(picks, dtype=np.int64)


class FourTermForm:
    """The form reported of RaMP, for each configuration: ``T = a + b ceil(g / SMs) + c g + d log(g + 1)``.

    ``g`` is the number of CTAs. The form has no loop length, since it was made for layers of one model; here it is
    the time of one trip, so all four terms are multiplied by the trips. Coefficients by least squares on relative
    errors.
    """

    def fit(self, training: MeasurementTable, arch: ArchSpec) -> FourTermForm:
        """Fit every configuration."""
        self._arch = arch
        self._geometry = GemmGeometry(training.configs, arch, find_dtype(training.dtype))
        points = self._geometry.points(training.dims, training.config_index)
        design = self._design(points) / training.latency_us[:, None]
        n_terms = design.shape[1]
        self._coefficients = np.full((len(training.configs), n_terms), np.nan)
        for index in range(len(training.configs)):
            rows = training.config_index == index
            if rows.sum() >= n_terms:
                self._coefficients[index] = np.linalg.lstsq(design[rows], np.ones(int(rows.sum())), rcond=None)[0]
        return self

    def choose(self, dims: IntArray) -> IntArray:
        """Choose a configuration for each problem, shape (n_problems,)."""
        n_configs = len(self._coefficients)
        design = self._design(self._geometry.grid(dims)).reshape(len(dims), n_configs, -1)
        latency = np.einsum("pct,ct->pc", design, self._coefficients)
        choice: IntArray = np.argmin(np.where(latency > 0.0, latency, np.inf), axis=1)
        return choice

    def _design(self, points: GemmPoints) -> FloatArray:
        g, trips = points.grid_size.astype(np.float64), points.loop_trips.astype(np.float64)
        waves = ceil_div(points.grid_size, self._arch.num_sms).astype(np.float64)
        return np.stack([np.ones_like(g), waves, g, np.log(g + 1.0)], axis=1) * trips[:, None]


class RooflineAndWaves:
    """An analytical ranking without any measurement: waves of CTAs, each trip at a roofline, then the bytes.

    A trip of the CTAs that an SM holds takes the longest of: their multiply-adds at the SM's share of the peak rate,
    their operands through its port to the last-level cache, and the latency of a load divided by the loads in flight.
    Waves of trips, and all DRAM bytes at peak bandwidth, add up. Configurations that need more than
    `MAX_ACCUMULATORS` are passed over; of those within a hundredth the one with the least operand traffic is taken.
    """

    def fit(self, training: MeasurementTable, arch: ArchSpec) -> RooflineAndWaves:
        """Note the configurations; nothing is learned."""
        self._arch, self._dtype = arch, find_dtype(training.dtype)
        self._geometry = GemmGeometry(training.configs, arch, self._dtype)
        return self

    def choose(self, dims: IntArray) -> IntArray:
        """Choose a configuration for each problem, shape (n_problems,)."""
        points = self._geometry.grid(dims)
        shape = (len(dims), len(self._geometry.configs))
        latency = np.where(
            points.block_m * points.block_n <= MAX_ACCUMULATORS * THREADS_PER_WARP * points.num_warps,
            self._latency_us(points),
            np.inf,
        ).reshape(shape)
        traffic = (points.grid_size * points.loop_trips * self._trip_bytes(points)).reshape(shape)
        tied = latency <= 1.01 * latency.min(axis=1, keepdims=True)
        choice: IntArray = np.argmin(np.where(tied, traffic, np.inf), axis=1)
        return choice

    def _trip_bytes(self, points: GemmPoints) -> FloatArray:
        n_bytes = (points.block_m + points.block_n) * points.block_k * self._dtype.input_bytes
        return np.asarray(n_bytes, dtype=np.float64)

    def _latency_us(self, points: GemmPoints) -> FloatArray:
        arch = self._arch
        rate = arch.bf16_tflops * 2.0 / self._dtype.input_bytes * 1e6 / arch.num_sms
        # An SM's matrix unit does 4096 operations a clock on compute capability 9.0; that gives the clock of the rate.
        clock_ghz = arch.bf16_tflops * 1e3 / arch.num_sms / MATRIX_OPS_PER_CLOCK
        compute = 2.0 * points.block_m * points.block_n * points.block_k / rate
        port = self._trip_bytes(points) / (SM_PORT_BYTES_PER_CLOCK * clock_ghz * 1e3)
        load = LOAD_LATENCY_US / np.maximum(points.num_stages - 1, 1)
        full_waves = points.waves - 1
        last = ceil_div(points.grid_size - full_waves * points.ctas_per_sm * arch.num_sms, arch.num_sms)
        busiest = np.maximum(compute, port)
        full_us, last_us = (np.maximum(resident * busiest, load) for resident in (points.ctas_per_sm, last))
        moved_mb = points.compulsory_mb + points.reread_mb + points.workspace_mb
        trips_us = points.loop_trips * (full_waves * full_us + last_us)
        return np.asarray(trips_us + moved_mb * 1e3 / arch.dram_gb_per_s, dtype=np.float64)

"""The wave staircase and the bilinear surface: points of one configuration beside the fitted form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.shorthand import describe_config
from wavetune.fit.points import GemmPoints
from wavetune.mapping.gemm import ceil_div, compulsory_bytes, positive_part, reread_bytes, workspace_bytes
from wavetune.report.datatable import DataTable, make_table
from wavetune.report.predictions import Predictions
from wavetune.runtime.model_file import ModelFile
from wavetune.store.table import BoolArray, FloatArray, IntArray
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, latency_terms, sustained_onset_gflop

N_FORMS = 4
"""Configurations that are drawn: those chosen most often among the ones with enough points."""

N_LOOPS = 3
"""Loop lengths that are drawn for each configuration."""

MIN_POINTS = 5
"""A staircase needs at least so many different grids."""

MAX_WAVES = 8
"""Later steps are a small part of the latency and cannot be told apart in a picture."""

SQUARE = 4.0
"""Rows and columns of tiles within this ratio count as square: the curve is that of square grids, and flat ones move
more bytes."""


@dataclass(frozen=True)
class WavePictures:
    """Tables behind the staircase and the surface.

    Parameters
    ----------
    series : DataTable
        What is drawn: one row a configuration and loop length.
    points : DataTable
        Measured points of the drawn configurations.
    curve : DataTable
        The form over grid sizes, for each of ``series``.
    surface : DataTable
        The form over grid sizes and trips, for each configuration.
    """

    series: DataTable
    points: DataTable
    curve: DataTable
    surface: DataTable


def draw_waves(model: ModelFile, points: Predictions, frequency: Sequence[int]) -> WavePictures:
    """Choose what to draw, and compute it.

    Parameters
    ----------
    model : ModelFile
        The model.
    points : Predictions
        Wave-structured points of it, measured and predicted.
    frequency : sequence of int
        How often each form is chosen; the most frequent ones are drawn.
    """
    forms = _forms_to_draw(points, frequency)
    series, measured, curve, surface = [], [], [], []
    for form in forms:
        name, launch = describe_config(model.forms[form].config), model.forms[form]
        width = launch.ctas_per_sm * model.num_sms
        of_form = points.select(points.form == form)
        measured += _point_rows(name, of_form)
        for trips in _loops_to_draw(of_form.points):
            series.append((name, trips, width, launch.ctas_per_sm))
            drawn = of_form.points.grid_size[(of_form.points.loop_trips == trips) & _early(of_form.points)]
            grid = _curve_grid(int(launch.config["split_k"]), width, model.num_sms, int(drawn.max()))
            latency = form_latency(model, form, grid, np.full(len(grid), float(trips)))
            curve += [(name, trips, int(g), float(us)) for g, us in zip(grid, latency, strict=True)]
        surface += _surface_rows(model, form, name, of_form.points)
    keys = ("config", "loop_trips", "grid_size")
    return WavePictures(
        make_table(
            "wave_series",
            "Staircases that are drawn",
            ("config", "loop_trips", "wave_width", "ctas_per_sm"),
            series,
        ),
        make_table(
            "wave_points",
            "Measured points of the drawn configurations; square grids have tile rows and columns within a ratio of 4",
            (*keys, "waves", "square", "m", "n", "k", "measured_us", "predicted_us"),
            measured,
        ),
        make_table("staircase", "The fitted form over square grids of tiles", (*keys, "predicted_us"), curve),
        make_table("surface", "The fitted form over square grids and loop trips", (*keys, "predicted_us"), surface),
    )


def form_latency(model: ModelFile, form: int, grid_size: FloatArray, loop_trips: FloatArray) -> FloatArray:
    """Evaluate one form, corrected, where the grid is a square of tiles.

    Parameters
    ----------
    grid_size, loop_trips : ndarray of shape (n,)
        CTAs and trips; the problem that has them need not be whole tiles.

    Returns
    -------
    ndarray of shape (n,)
        Microseconds.
    """
    launch, arch, dtype = model.forms[form], find_arch(model.arch), find_dtype(model.dtype)
    assert launch.coefficients is not None
    block_m, block_n, block_k, split_k, group_m = (
        int(launch.config[name]) for name in ("block_m", "block_n", "block_k", "split_k", "group_m")
    )
    side = np.sqrt(grid_size / split_k)
    m, n, k = side * block_m, side * block_n, loop_trips * block_k * split_k
    values = latency_terms(
        grid_size=grid_size,
        loop_trips=loop_trips,
        waves=ceil_div(grid_size, launch.ctas_per_sm * model.num_sms),
        depth=ceil_div(grid_size, model.num_sms),
        num_sms=model.num_sms,
        compulsory_mb=compulsory_bytes(m, n, k, dtype.input_bytes, dtype.output_bytes) / BYTES_PER_MB,
        reread_mb=reread_bytes(n, k, np.ceil(side), group_m, dtype.input_bytes, arch.l2_bytes) / BYTES_PER_MB,
        workspace_mb=workspace_bytes(m, n, split_k) / BYTES_PER_MB,
        sustained_gflop=positive_part(2.0 * m * n * k / FLOPS_PER_GFLOP - sustained_onset_gflop(arch)),
    )
    latency = np.asarray(sum(c * value for c, value in zip(launch.coefficients, values, strict=True)), dtype=np.float64)
    return latency * _factors(model, form, np.ceil(np.stack([m, n, k], axis=1)).astype(np.int64))


def _factors(model: ModelFile, form: int, dims: IntArray) -> FloatArray:
    cells = [model.cells.get(tuple((size - 1).bit_length() for size in sizes)) for sizes in dims.tolist()]
    permille = [cell.correction_permille[form] if cell is not None else 0 for cell in cells]
    factors: FloatArray = np.exp(np.array(permille) / 1000.0)
    return factors


def _is_square(points: GemmPoints) -> BoolArray:
    square: BoolArray = (points.tiles_m <= SQUARE * points.tiles_n) & (points.tiles_n <= SQUARE * points.tiles_m)
    return square


def _early(points: GemmPoints) -> BoolArray:
    early: BoolArray = (points.waves <= MAX_WAVES) & _is_square(points)
    return early


def _loops_to_draw(points: GemmPoints) -> list[int]:
    """Return the loop lengths with the most different square grids, increasing."""
    early = _early(points)
    distinct = {
        trips: len(np.unique(points.grid_size[early & (points.loop_trips == trips)]))
        for trips in np.unique(points.loop_trips).tolist()
    }
    enough = [trips for trips, count in distinct.items() if count >= MIN_POINTS]
    return sorted(sorted(enough, key=lambda trips: -distinct[trips])[:N_LOOPS])


def _forms_to_draw(points: Predictions, frequency: Sequence[int]) -> list[int]:
    order = sorted(range(len(frequency)), key=lambda form: -frequency[form])
    drawable = [form for form in order if _loops_to_draw(points.select(points.form == form).points)]
    return drawable[:N_FORMS]


def _curve_grid(split_k: int, width: int, num_sms: int, largest: int) -> FloatArray:
    """Place grid sizes densely, and on both sides of every edge of a wave and of an SM's next CTA."""
    edges = np.concatenate([np.arange(0, largest + step, step) for step in (width, num_sms)])
    grid = np.concatenate([np.linspace(split_k, largest, 240), edges, edges + split_k])
    whole = np.unique(np.round(grid / split_k) * split_k)
    placed: FloatArray = whole[(whole >= split_k) & (whole <= largest)]
    return placed


def _point_rows(name: str, points: Predictions) -> list[tuple[object, ...]]:
    p = points.points
    columns = (
        p.loop_trips, p.grid_size, p.waves, _is_square(p), p.m, p.n, p.k, points.measured_us, points.predicted_us,
    )  # fmt: skip
    order = np.lexsort((p.grid_size, p.loop_trips))
    return [(name, *row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


def _surface_rows(model: ModelFile, form: int, name: str, points: GemmPoints) -> list[tuple[object, ...]]:
    """Cover the range of the square points, log-spaced: 60 grids times 30 loop lengths."""
    square = _is_square(points)
    split_k = int(model.forms[form].config["split_k"])
    tiles, trips = points.grid_size[square] / split_k, points.loop_trips[square]
    grids = split_k * _spaced(tiles, 60)
    g, t = (axis.reshape(-1) for axis in np.meshgrid(grids, _spaced(trips, 30)))
    latency = form_latency(model, form, g, t)
    return [(name, int(b), int(a), float(us)) for a, b, us in zip(g, t, latency, strict=True)]


def _spaced(values: FloatArray | IntArray, count: int) -> FloatArray:
    """Return whole numbers over the range of ``values``, log-spaced."""
    spaced: FloatArray = np.unique(np.round(np.geomspace(float(values.min()), float(values.max()), count)))
    return spaced

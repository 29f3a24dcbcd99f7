"""Where predictions and choices are good and where not: problems and launches put into bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import DType
from wavetune.fit.points import GemmPoints
from wavetune.store.table import FloatArray, IntArray

Feature = Callable[[GemmPoints, ArchSpec, DType], FloatArray]


@dataclass(frozen=True)
class Stratification:
    """One way to put launches into bands.

    Parameters
    ----------
    title : str
        What is looked at, with its unit.
    feature : callable
        Its value for each point.
    edges : tuple of float
        Inclusive upper ends of all bands but the last; a band begins beyond the one before it.
    labels : tuple of str
        One more than edges.
    """

    title: str
    feature: Feature
    edges: tuple[float, ...]
    labels: tuple[str, ...]

    def band(self, points: GemmPoints, arch: ArchSpec, dtype: DType) -> IntArray:
        """Return each point's band, an index into ``labels``."""
        bands: IntArray = np.searchsorted(self.edges, self.feature(points, arch, dtype), side="left")
        return bands


def _padding(points: GemmPoints, arch: ArchSpec, dtype: DType) -> FloatArray:
    covered = points.tiles_m * points.block_m * points.tiles_n * points.block_n
    outside: FloatArray = 1.0 - points.m * points.n / covered
    return outside


def _weight_share(points: GemmPoints, arch: ArchSpec, dtype: DType) -> FloatArray:
    share: FloatArray = points.n * points.k * float(dtype.input_bytes) / arch.l2_bytes
    return share


def _column(name: str) -> Feature:
    def value(points: GemmPoints, arch: ArchSpec, dtype: DType) -> FloatArray:
        column: FloatArray = getattr(points, name).astype(np.float64)
        return column

    return value


STRATIFICATIONS: Mapping[str, Stratification] = MappingProxyType(
    {
        "rows": Stratification(
            "rows m", _column("m"), (16, 128, 1024), ("m 1-16", "m 17-128", "m 129-1024", "m > 1024")
        ),
        "waves": Stratification(
            "waves", _column("waves"), (1, 2, 4, 8), ("1 wave", "2 waves", "3-4 waves", "5-8 waves", "9 or more waves")
        ),
        "loop": Stratification(
            "loop trips",
            _column("loop_trips"),
            (16, 32, 64, 128),
            ("1-16 trips", "17-32 trips", "33-64 trips", "65-128 trips", "> 128 trips"),
        ),
        "aspect": Stratification(
            "aspect m/n of the result",
            lambda points, arch, dtype: points.m / points.n,
            (1 / 64, 1 / 8, 1),
            ("m/n to 1/64", "m/n 1/64 to 1/8", "m/n 1/8 to 1", "m/n > 1"),
        ),
        "raggedness": Stratification(
            "share of the tiles' area outside the problem",
            _padding,
            (0.0, 0.05, 0.2),
            ("tiles fit exactly", "0-5% outside", "5-20% outside", "> 20% outside"),
        ),
        "cache": Stratification(
            "bytes of B over the last-level cache",
            _weight_share,
            (0.5, 0.85, 2.0),
            ("B to 0.5 L2", "B 0.5-0.85 L2", "B 0.85-2 L2", "B > 2 L2"),
        ),
    }
)
"""The looks that a report takes; the cache keeps 0.85 of its size of B, `wavetune.mapping.gemm.REUSABLE_L2`."""

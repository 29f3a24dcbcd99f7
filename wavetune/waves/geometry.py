"""Waves: a grid larger than what the GPU holds at once runs in several passes."""

from __future__ import annotations

from dataclasses import dataclass

from wavetune.errors import InfeasibleConfigError


@dataclass(frozen=True, slots=True)
class WaveGeometry:
    """The wave structure of one launch.

    Parameters
    ----------
    width : int
        CTAs that are resident at once: SMs times CTAs per SM.
    waves : int
        Passes over the GPU, ``ceil(grid_size / width)``.
    depth : int
        CTAs that the busiest SM runs in all, ``ceil(grid_size / num_sms)``.
    tail_ctas : int
        CTAs of the last wave, in ``[1, width]``; 0 for an empty grid.
    """

    width: int
    waves: int
    depth: int
    tail_ctas: int


def wave_geometry(grid_size: int, ctas_per_sm: int, num_sms: int) -> WaveGeometry:
    """Count the waves of a launch.

    Returns
    -------
    WaveGeometry
        ``(waves - 1) * width < grid_size <= waves * width``.

    Raises
    ------
    InfeasibleConfigError
        If ``ctas_per_sm`` or ``num_sms`` is 0: not one CTA can be resident.
    """
    if ctas_per_sm < 1 or num_sms < 1:
        raise InfeasibleConfigError(f"no CTA can be resident with {ctas_per_sm} CTAs per SM on {num_sms} SMs")
    width = ctas_per_sm * num_sms
    waves = -(-grid_size // width)
    return WaveGeometry(width, waves, -(-grid_size // num_sms), grid_size - (waves - 1) * width if grid_size else 0)

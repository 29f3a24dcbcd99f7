"""Waves and residency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.errors import InfeasibleConfigError
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.occupancy import ctas_per_sm

H200 = find_arch("h200")


@given(grid_size=st.integers(0, 2**40), resident=st.integers(1, 32), num_sms=st.integers(1, 400))
def test_the_wave_identity(grid_size: int, resident: int, num_sms: int) -> None:
    """The wave identity."""
    geometry = wave_geometry(grid_size, resident, num_sms)
    assert geometry.width == resident * num_sms
    assert (geometry.waves - 1) * geometry.width < grid_size <= geometry.waves * geometry.width
    assert (geometry.depth - 1) * num_sms < grid_size <= geometry.depth * num_sms
    if grid_size:
        assert 1 <= geometry.tail_ctas <= geometry.width
        assert (geometry.waves - 1) * geometry.width + geometry.tail_ctas == grid_size
    else:
        assert (geometry.waves, geometry.tail_ctas) == (0, 0)


@pytest.mark.parametrize(("grid_size", "waves", "tail"), [(264, 1, 264), (265, 2, 1), (528, 2, 264), (1, 1, 1)])
def test_a_full_wave_and_one_more(grid_size: int, waves: int, tail: int) -> None:
    """A full wave and one more."""
    geometry = wave_geometry(grid_size, 2, 132)
    assert (geometry.waves, geometry.tail_ctas) == (waves, tail)


@pytest.mark.parametrize(("resident", "num_sms"), [(0, 132), (1, 0), (-1, 132)])
def test_nothing_resident_is_infeasible(resident: int, num_sms: int) -> None:
    """Nothing resident is infeasible."""
    with pytest.raises(InfeasibleConfigError):
        wave_geometry(10, resident, num_sms)


@pytest.mark.parametrize(
    ("num_warps", "num_regs", "smem_bytes", "expected"),
    [
        (8, 114, 98304, 2),  # shared memory: 228 KB / 97 KB; registers allow 2
        (4, 35, 3072, 12),  # registers: 65536 / (40 registers x 32 x 4)
        (4, 32, 0, 16),  # warps: 64 / 4
        (1, 16, 0, 32),  # the limit of CTAs
        (8, 255, 0, 1),  # registers: 65536 / (256 x 256)
        (4, 128, 232448, 1),  # all the shared memory a CTA may take
        (1, 180, 1024, 8),  # registers: 11 warps in 65536, but a quarter of the SM holds two
        (2, 180, 1024, 4),  # the same in pairs
    ],
)
def test_the_scarcest_resource_decides(num_warps: int, num_regs: int, smem_bytes: int, expected: int) -> None:
    """The scarcest resource decides."""
    assert ctas_per_sm(H200, num_warps=num_warps, num_regs=num_regs, smem_bytes=smem_bytes) == expected


@pytest.mark.parametrize(
    ("num_warps", "num_regs", "smem_bytes", "limit"),
    [(4, 64, 232449, "shared memory"), (65, 16, 0, "warps"), (32, 255, 0, "registers")],
)
def test_a_cta_that_does_not_fit_names_the_limit(num_warps: int, num_regs: int, smem_bytes: int, limit: str) -> None:
    """A CTA that does not fit names the limit."""
    with pytest.raises(InfeasibleConfigError, match=limit):
        ctas_per_sm(H200, num_warps=num_warps, num_regs=num_regs, smem_bytes=smem_bytes)


@given(
    num_warps=st.sampled_from([1, 2, 4, 8]), num_regs=st.integers(1, 255), smem_bytes=st.integers(0, 200_000),
    more_regs=st.integers(0, 100), more_smem=st.integers(0, 30_000),
)  # fmt: skip
def test_needing_more_never_raises_residency(
    num_warps: int, num_regs: int, smem_bytes: int, more_regs: int, more_smem: int
) -> None:
    """Needing more never raises residency."""
    less = ctas_per_sm(H200, num_warps=num_warps, num_regs=num_regs, smem_bytes=smem_bytes)
    more_regs = min(num_regs + more_regs, 255)
    more = ctas_per_sm(H200, num_warps=num_warps, num_regs=more_regs, smem_bytes=smem_bytes + more_smem)
    assert 1 <= more <= less

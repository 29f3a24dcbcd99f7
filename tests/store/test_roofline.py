"""Bounds that recorded latencies are held against."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.arch import ARCHS, find_arch
from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.store.roofline import floor_us, roofline_us

H200 = find_arch("h200")
sizes = st.integers(1, 2**31 - 1)


@given(m=sizes, n=sizes, k=sizes, arch=st.sampled_from(list(ARCHS.values())), dtype=st.sampled_from(list(DTYPES)))
def test_the_floor_is_never_above_the_roofline(m: int, n: int, k: int, arch: object, dtype: str) -> None:
    """The floor is never above the roofline."""
    dims = np.array([[m, n, k]])
    arguments = ("gemm", dims, find_dtype(dtype), arch)
    floor, roofline = floor_us(*arguments), roofline_us(*arguments)
    assert 0 < floor[0] <= roofline[0] < np.inf


@pytest.mark.parametrize(
    ("dims", "expected_us"),
    [
        ((8192, 8192, 8192), 2 * 8192**3 / 989.4e6),
        ((1, 57344, 8192), (8192 + 57344 * 8192 + 57344) * 2 / 4.8e6),
        ((1, 8, 8), 1.0),
    ],
)
def test_the_roofline_by_hand(dims: tuple[int, int, int], expected_us: float) -> None:
    """The roofline by hand."""
    roofline = roofline_us("gemm", np.array([dims]), find_dtype("bf16"), H200)
    assert roofline == pytest.approx([expected_us], rel=1e-12)


def test_matrix_rates_follow_the_width_of_the_inputs() -> None:
    """Matrix rates follow the width of the inputs."""
    dims = np.array([[8192, 8192, 8192]])
    fp8, bf16, fp32 = (roofline_us("gemm", dims, find_dtype(name), H200)[0] for name in ("fp8", "bf16", "fp32"))
    assert (bf16 / fp8, fp32 / bf16) == pytest.approx((2.0, 2.0))


def test_only_bytes_beyond_the_cache_must_come_from_dram() -> None:
    """Only bytes beyond the cache must come from DRAM."""
    dims = np.array([[1, 57344, 8192]])
    moved_bytes = (8192 + 57344 * 8192 + 57344) * 2
    floor = floor_us("gemm", dims, find_dtype("bf16"), H200)
    assert floor == pytest.approx([(moved_bytes - H200.l2_bytes) / 4.8e6], rel=1e-12)


def test_a_family_without_a_work_formula_is_not_judged() -> None:
    """A family without a work formula is not judged."""
    assert roofline_us("softmax", np.array([[1, 2]]), find_dtype("bf16"), H200) is None
    assert floor_us("softmax", np.array([[1, 2]]), find_dtype("bf16"), H200) is None

"""The keys of the attention families: strata, spread, cost, and that nothing is judged on what was measured."""

from __future__ import annotations

from collections import Counter

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionProblem
from wavetune.errors import ProblemError
from wavetune.plan.attention_plan import (
    DECODE_STRATA,
    MAX_POINT_US,
    STRATA,
    AttentionKey,
    attention_keys,
    expected_us,
    radical_inverse,
)

H200 = find_arch("h200")


@pytest.mark.parametrize(("kernel", "strata"), [("attention", STRATA), ("attention_decode", DECODE_STRATA)])
@pytest.mark.parametrize("layout", ["d64", "d128", "d256"])
def test_strata_take_turns(kernel: str, strata: tuple[str, ...], layout: str) -> None:
    """Any prefix is balanced and distinct, more keys extend fewer, and every key is what its own key stands for."""
    keys = attention_keys(kernel, 100, H200, layout=layout)
    assert keys[:50] == attention_keys(kernel, 50, H200, layout=layout)
    assert len({key.dims for key in keys}) == 100
    for length in (10, 37, 100):
        counts = Counter(key.stratum for key in keys[:length])
        assert max(counts.values()) - min(counts[stratum] for stratum in strata) <= 1
    for key in keys:
        assert type(key.problem).from_dims(key.dims, "bf16", layout) == key.problem
        assert expected_us(key.problem, H200) <= MAX_POINT_US


def of(stratum: str) -> list[AttentionKey]:
    """Return the prefill keys of a stratum."""
    return [key for key in attention_keys("attention", 160, H200) if key.stratum == stratum]


def test_strata_are_what_they_say() -> None:
    """Raggedness, grouped heads, full attention and caches are where their names are."""
    assert all(
        key.problem.is_packed and key.problem.is_causal for key in of("ragged") if len(set(key.problem.q_lengths)) > 1
    )
    assert len({key.dims[3] for key in of("ragged")}) >= 4
    assert {key.problem.group for key in of("group")} >= {2, 4, 8, 16}
    assert not any(key.problem.is_causal for key in of("full"))
    assert all(max(key.problem.kv_lengths) > max(key.problem.q_lengths) for key in of("prefix"))
    assert max(max(key.problem.q_lengths) for key in of("short")) <= 1024
    assert all(not key.problem.window for stratum in STRATA for key in of(stratum))


def test_lengths_batches_and_heads_are_covered() -> None:
    """The uniform stratum alone has 128 to more than 8192 tokens, batches from 1 to 16, and most head counts."""
    lengths = sorted(max(key.problem.q_lengths) for key in of("uniform"))
    assert lengths[0] < 200
    assert lengths[-1] > 8192
    assert {len(key.problem.q_lengths) for key in of("uniform")} == {1, 2, 4, 8, 16}
    assert len({(key.problem.heads, key.problem.kv_heads) for key in of("uniform")}) >= 6
    assert any(length % 128 for length in lengths)


def test_others_are_judged_than_are_measured() -> None:
    """Another part of the sequences shares no key."""
    for kernel in ("attention", "attention_decode"):
        measured = {key.dims for key in attention_keys(kernel, 160, H200)}
        judged = {key.dims for key in attention_keys(kernel, 60, H200, skip=200, excluded=measured)}
        assert len(judged) == 60
        assert not measured & judged


def test_unknown_families_are_named() -> None:
    """The family and the layout must exist."""
    with pytest.raises(ProblemError, match="'gemm'"):
        attention_keys("gemm", 1, H200)
    with pytest.raises(ProblemError, match="'nk'"):
        attention_keys("attention", 1, H200, layout="nk")


def test_radical_inverse_is_the_known_sequence() -> None:
    """Van der Corput's sequence in base 2 and 3."""
    assert [radical_inverse(i, 2) for i in range(1, 6)] == [0.5, 0.25, 0.75, 0.125, 0.625]
    assert radical_inverse(5, 3) == pytest.approx(7 / 9)


def test_expected_latencies_follow_work() -> None:
    """Four times the pairs take about four times as long, once launching does not matter."""
    short, long = (AttentionProblem((length,), heads=32, kv_heads=32) for length in (8192, 16384))
    assert expected_us(long, H200) / expected_us(short, H200) == pytest.approx(4.0, rel=0.02)

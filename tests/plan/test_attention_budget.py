"""What a calibration of attention measures within its seconds, and the other problems that it is judged on."""

from __future__ import annotations

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.plan.attention_plan import CALIBRATION_KEYS, WHOLE_KEYS, holdout_keys, plan_attention, that_could_win
from wavetune.runtime.attention_choice import is_legal
from wavetune.store.record import CompiledConfig

H200 = find_arch("h200")
COMPILED = {
    "attention": [
        CompiledConfig(
            ATTENTION.config(
                {
                    "block_m": 128, "block_n": block_n, "order": order, "masking": "edges", "num_warps": 8,
                    "num_stages": 2,
                }
            ),
            200, 0, 100_000,
        )
        for block_n in (64, 128)
        for order in ("in_order", "longest_first")
    ],
    "attention_decode": [
        CompiledConfig(
            ATTENTION_DECODE.config({"block_n": 64, "splits": splits, "num_warps": 4, "num_stages": 3}), 100, 0, 40_000
        )
        for splits in (1, 4, 16, 64)
    ],
}  # fmt: skip


@pytest.mark.parametrize("kernel", list(COMPILED))
def test_a_plan_keeps_its_budget(kernel: str) -> None:
    """Whole problems with all that is legal, not beyond the seconds, a prefix of the full plan; the user's first."""
    own = AttentionProblem((777,), heads=8) if kernel == "attention" else AttentionDecodeProblem((777, 30), heads=8)
    options = {"problems": [own]}
    full = plan_attention(kernel, COMPILED[kernel], H200, **options)
    small = plan_attention(kernel, COMPILED[kernel], H200, **options, max_seconds=full.predicted_seconds / 5)
    assert len({point.problem for point in full.points}) == CALIBRATION_KEYS[kernel] + 1
    assert small.predicted_seconds <= full.predicted_seconds / 5
    assert 20 < len(small) < len(full) / 2
    assert full.points[: len(small)] == small.points
    assert small.points[0].problem.dims == own.dims
    assert len(set(full.points)) == len(full.points)
    by_problem: dict[object, int] = {}
    for point in full.points:
        assert is_legal(point.problem, point.config)
        by_problem[point.problem] = by_problem.get(point.problem, 0) + 1
    is_whole = [
        count == sum(is_legal(problem, entry.config) for entry in COMPILED[kernel])
        for problem, count in by_problem.items()
    ]
    assert is_whole[0]
    if kernel == "attention":
        assert all(is_whole)
    else:
        assert len(is_whole) / WHOLE_KEYS <= sum(is_whole) < len(is_whole)


def test_a_decode_step_that_could_be_spread_is_not_left_to_a_few_ctas() -> None:
    """Neither a GPU that is idle for long nor splits without need; a short cache or one part may be both."""
    configs = [entry.config for entry in COMPILED["attention_decode"]]

    def splits(lengths: tuple[int, ...], kv_heads: int, among: list[KernelConfig]) -> list[object]:
        problem = AttentionDecodeProblem(lengths, heads=kv_heads, kv_heads=kv_heads)
        return [config["splits"] for config in that_could_win(problem, among, H200)]

    assert splits((16384,), 8, configs) == [16, 64]
    assert splits((16384,), 8, configs[:1]) == [1]
    assert splits((16384,), 8, configs[:2]) == [4]
    assert splits((1024,), 8, configs) == [1, 4, 16, 64]
    assert splits((2048,) * 256, 8, configs) == [1]
    assert splits((2048,) * 256, 32, configs) == [1]
    assert splits((16384,) * 32, 8, configs) == [1, 4]


@pytest.mark.parametrize("kernel", list(COMPILED))
def test_held_out_problems_are_others(kernel: str) -> None:
    """No key of the plan; from short to long, from one sequence to many, and with other heads and batches."""
    measured = {point.problem.dims for point in plan_attention(kernel, COMPILED[kernel], H200).points}
    keys = holdout_keys(kernel, 64, H200)
    assert len({key.dims for key in keys} - measured) == 64
    sizes = [key.dims for key in keys]
    batches = {dims[0] for dims in sizes}
    lengths = [key.problem.dims[1] for key in keys]
    assert min(lengths) < 256
    assert max(lengths) > 12_000
    assert min(batches) == 1
    assert max(batches) >= 16
    assert batches & {3, 6, 12}
    assert {key.problem.group for key in keys} > {1, 3, 4}
    if kernel == "attention":
        assert {key.problem.is_causal for key in keys} == {True, False}
    else:
        assert max(batches) == 256

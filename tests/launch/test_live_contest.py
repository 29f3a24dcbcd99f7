"""The contest behind a live measurement, on a made-up GPU: who is read how often, and when it ends."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Sequence

import pytest

pytest.importorskip("triton")

from clock_gpu import DEFAULT, FIRST, FOURTH, SECOND, THIRD, MadeUpGpu, request

from wavetune.core.config import KernelConfig
from wavetune.launch import live
from wavetune.launch.live import MAX_ROUNDS
from wavetune.launch.live_contest import LOSER_RATIO
from wavetune.measure.cuda_timing import Candidate

ALL = (DEFAULT, FIRST, SECOND, THIRD, FOURTH)


def truth_us(gpu: MadeUpGpu, config: KernelConfig) -> float:
    """Return the latency of a configuration, microseconds."""
    latency_us = gpu.latencies_us[config]
    assert isinstance(latency_us, float)
    return latency_us


def test_candidates_are_interleaved_in_changing_order() -> None:
    """After a look at each, every round times every candidate, in an order of its own."""
    gpu = MadeUpGpu({DEFAULT: 50.0, FIRST: 20.0, SECOND: 51.0, THIRD: 90.0}, noise=0.005)
    gpu.measure(request(FIRST, SECOND, THIRD))
    assert gpu.rounds[:4] == [[FIRST], [DEFAULT], [SECOND], [THIRD]]
    rounds = gpu.full_rounds()
    assert len(rounds) == MAX_ROUNDS
    assert all(set(order) == {DEFAULT, FIRST, SECOND, THIRD} for order in rounds)
    assert len({tuple(order) for order in rounds}) > 10


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("factor", [0.7, 1.35])
def test_a_drift_of_the_clock_does_not_decide(factor: float, scale: float) -> None:
    """A GPU that becomes slower or faster at any moment, between looks too, does not make a slower candidate win."""

    class Drifting(MadeUpGpu):
        drifts_in_round = 0

        def slowdown(self, round_index: int, config: KernelConfig) -> float:
            return 1.0 if round_index < self.drifts_in_round else factor

    latencies = {DEFAULT: 100.0, FIRST: 104.0, SECOND: 101.0, THIRD: 130.0}
    for seed in range(40):
        gpu = Drifting({entry: scale * value for entry, value in latencies.items()}, noise=0.005, seed=seed)
        gpu.drifts_in_round = 1 + seed % 12
        choice = gpu.measure(request(FIRST, SECOND, THIRD))
        assert choice is not None
        assert choice.config == DEFAULT


@pytest.mark.parametrize("budget_ms", [2.0, 10.0, 50.0, 200.0])
@pytest.mark.parametrize("latency_us", [4.0, 40.0, 400.0, 4000.0, 40000.0])
def test_the_budget_holds(budget_ms: float, latency_us: float) -> None:
    """Besides compiling, a measurement of launches as long as expected takes its budget, or gives up without one."""
    gpu = MadeUpGpu(dict.fromkeys(ALL, latency_us), noise=0.02)
    gpu.expected_us, gpu.set_up_s, gpu.compile_each_s = latency_us, 1e-3, 2.0
    choice = gpu.measure(request(*ALL, budget_ms=budget_ms))
    if not gpu.bound:
        assert choice is None
        assert latency_us * live.MIN_ROUNDS * 2 > budget_ms * 1e3
        return
    spent_s = gpu.now - gpu.compile_each_s * len(gpu.bound)
    # The noise of what a round was expected to take.
    assert spent_s <= 1.05 * budget_ms / 1e3
    assert len(gpu.rounds) <= 3 * MAX_ROUNDS
    assert gpu.bound[0] == DEFAULT


def test_the_budget_holds_whatever_the_candidates_take() -> None:
    """Latencies that nobody expected: the budget is exceeded by one look at most, and the best that was seen wins."""
    dice, n_chosen, n_runs = random.Random(2), 0, 300
    for seed in range(n_runs):
        gpu = MadeUpGpu({entry: 10.0 ** dice.uniform(1.0, 4.5) for entry in ALL}, seed=seed)
        gpu.expected_us, gpu.set_up_s = 50.0, 3e-3
        budget_s = dice.choice([10e-3, 20e-3, 50e-3])
        choice = gpu.measure(request(*ALL[1:], budget_ms=budget_s * 1e3))
        slowest_s = max(truth_us(gpu, config) for order in gpu.rounds for config in order) / 1e6
        assert gpu.now <= 1.1 * (budget_s + slowest_s)
        if gpu.full_rounds():
            # Every look was in time then.
            assert gpu.now <= 1.1 * budget_s
        if choice is not None:
            n_chosen += 1
            chosen_us = truth_us(gpu, choice.config)
            assert chosen_us <= 1.02 * truth_us(gpu, DEFAULT)
            assert chosen_us <= 1.1 * min(truth_us(gpu, config) for order in gpu.rounds for config in order)
    assert n_chosen > 0.4 * n_runs


SLOW_DEFAULT = {DEFAULT: 8400.0, FIRST: 770.0, SECOND: 900.0, THIRD: 1200.0, FOURTH: 5000.0}
"""A product with a long k, as measured on an H200; the roofline says 50 us."""


@pytest.mark.parametrize(("budget_ms", "n_first"), [(24.0, 2), (36.0, 5), (50.0, 7), (100.0, 15)])
def test_a_default_that_loses_by_far_is_read_twice(budget_ms: float, n_first: int) -> None:
    """A default eleven times slower leaves after two readings, which agree; the others get the time."""
    gpu = MadeUpGpu(SLOW_DEFAULT, noise=0.005)
    gpu.set_up_s = 3e-3
    choice = gpu.measure(request(FIRST, SECOND, THIRD, FOURTH, budget_ms=budget_ms))
    assert choice is not None
    assert choice.config == FIRST
    assert choice.default_us == pytest.approx(8400.0, rel=0.02)
    launched = [config for order in gpu.rounds for config in order]
    assert launched.count(DEFAULT) == 2
    assert launched.count(FIRST) >= n_first
    assert launched.count(FOURTH) <= 1
    assert gpu.now <= 1.02e-3 * budget_ms


@pytest.mark.parametrize("budget_ms", [10.0, 20.0])
def test_what_cannot_be_told_in_time_is_given_up_early(budget_ms: float, caplog: pytest.LogCaptureFixture) -> None:
    """If there is no time for a second reading of the default, nothing else is launched, and the log says why."""
    caplog.set_level(logging.INFO, "wavetune")
    gpu = MadeUpGpu(SLOW_DEFAULT, noise=0.005)
    gpu.set_up_s = 3e-3
    assert gpu.measure(request(FIRST, SECOND, THIRD, FOURTH, budget_ms=budget_ms)) is None
    assert gpu.rounds == [[FIRST], [DEFAULT]]
    assert re.search(r"up to 8\.[345]\d? ms", caplog.text)
    assert "measure_budget_ms" in caplog.text


def test_no_second_look_without_the_time_for_it() -> None:
    """If one launch takes more than half of the budget, a second one, which is likely to take as long, is not begun."""
    gpu = MadeUpGpu(dict.fromkeys(ALL, 6000.0))
    assert gpu.measure(request(*ALL, budget_ms=10.0)) is None
    assert gpu.rounds == [[FIRST]]
    assert gpu.now < 0.010


def test_losers_leave_after_a_look() -> None:
    """A candidate that is slower by far is not read again; one that is close, or short, takes part in every round."""
    gpu = MadeUpGpu({DEFAULT: 300.0, FIRST: 280.0, SECOND: 280.0 * 1.2 * LOSER_RATIO, THIRD: 400.0})
    gpu.measure(request(FIRST, SECOND, THIRD))
    assert {frozenset(order) for order in gpu.full_rounds()} == {frozenset((DEFAULT, FIRST, THIRD))}
    gpu = MadeUpGpu({DEFAULT: 20.0, FIRST: 10.0, SECOND: 100.0})
    gpu.measure(request(FIRST, SECOND))
    assert {frozenset(order) for order in gpu.full_rounds()} == {frozenset((DEFAULT, FIRST, SECOND))}


def test_one_slow_reading_does_not_put_the_default_out() -> None:
    """A first look at the default that something made twenty times slower does not make a slower one win."""

    class Disturbed(MadeUpGpu):
        def slowdown(self, round_index: int, config: KernelConfig) -> float:
            return 20.0 if round_index == 2 else 1.0

    gpu = Disturbed({DEFAULT: 300.0, FIRST: 330.0, SECOND: 350.0})
    choice = gpu.measure(request(FIRST, SECOND))
    assert gpu.rounds[1] == [DEFAULT]
    assert choice is not None
    assert choice.config == DEFAULT


@pytest.mark.parametrize(("budget_ms", "worst_share"), [(8.0, 0.01), (12.0, 0.01), (50.0, 0.0)])
def test_a_gpu_that_others_use_misleads_nobody(budget_ms: float, worst_share: float) -> None:
    """With one launch in ten held up by another program, a slower candidate hardly ever replaces the default."""

    class Shared(MadeUpGpu):
        def slowdown(self, round_index: int, config: KernelConfig) -> float:
            return self.dice.uniform(2.0, 20.0) if self.dice.random() < 0.1 else 1.0

    wrong, n_runs = 0, 400
    for seed in range(n_runs):
        gpu = Shared({DEFAULT: 300.0, FIRST: 315.0, SECOND: 330.0, THIRD: 400.0}, seed=seed)
        choice = gpu.measure(request(FIRST, SECOND, THIRD, budget_ms=budget_ms))
        wrong += choice is not None and choice.config != DEFAULT
    assert wrong <= worst_share * n_runs


def test_more_candidates_than_time_leave_the_fastest() -> None:
    """If rounds of all candidates do not fit, the default and those with the fastest looks are compared."""
    gpu = MadeUpGpu({DEFAULT: 5000.0, FIRST: 4600.0, SECOND: 5400.0, THIRD: 4000.0, FOURTH: 5200.0}, noise=0.003)
    choice = gpu.measure(request(FIRST, SECOND, THIRD, FOURTH))
    assert choice is not None
    assert choice.config == THIRD
    assert {frozenset(order) for order in gpu.full_rounds()} == {frozenset((DEFAULT, THIRD))}
    assert gpu.now <= 0.051


def test_a_look_that_says_nothing_is_repeated_once() -> None:
    """A first reading during which the host was behind is taken again; after two such the candidate is left out."""

    class Behind(MadeUpGpu):
        starved_in_rounds: Sequence[int] = ()

        def read(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[float | None]:
            self.is_starved = len(self.rounds) + 1 in self.starved_in_rounds
            return super().read(candidates, sizes)

    gpu = Behind({DEFAULT: 30.0, FIRST: 20.0, SECOND: 10.0})
    gpu.starved_in_rounds = (1,)
    choice = gpu.measure(request(FIRST, SECOND))
    assert gpu.rounds[:4] == [[FIRST], [FIRST], [DEFAULT], [SECOND]]
    assert choice is not None
    assert choice.config == SECOND
    gpu = Behind({DEFAULT: 30.0, FIRST: 20.0, SECOND: 10.0})
    gpu.starved_in_rounds = (3, 4)
    choice = gpu.measure(request(FIRST, SECOND))
    assert gpu.rounds[:4] == [[FIRST], [DEFAULT], [SECOND], [SECOND]]
    assert choice is not None
    assert choice.config == FIRST
    gpu = Behind({DEFAULT: 30.0, FIRST: 20.0, SECOND: 10.0})
    gpu.starved_in_rounds = (2, 3)
    assert gpu.measure(request(FIRST, SECOND)) is None


def test_a_slow_setup_leaves_less_time() -> None:
    """Time spent on preparing comes out of the budget; with too little left to compare, nothing is claimed."""
    gpu = MadeUpGpu({DEFAULT: 50.0, FIRST: 25.0})
    gpu.set_up_s = 0.049
    assert gpu.measure(request(FIRST, budget_ms=60.0)) is not None
    gpu.rounds.clear()
    assert gpu.measure(request(FIRST, budget_ms=49.0)) is None
    assert gpu.rounds == []


def test_time_spent_waiting_for_another_thread_counts() -> None:
    """A measurement that waited for another one has what is left of its budget."""
    gpu = MadeUpGpu({DEFAULT: 50.0, FIRST: 25.0})
    ticks = iter([0.0, 0.045])

    def clock() -> float:
        return next(ticks, gpu.now)

    assert gpu.measurer(clock=clock).measure(request(FIRST, budget_ms=50.0)) is not None
    assert gpu.now <= 0.005

"""Proving answers: what is wrong, slower or unmeasured is found, and what is not is not."""

from __future__ import annotations

import math

import pytest
from tuning_gpu import MadeUpTuningGpu, some_configs

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.measure.check_choices import CheckedChoice
from wavetune.measure.contest import TORCH_MM
from wavetune.pipeline.proof import TOLERANCE, Proof, prove_numerics, remeasure

CHOSEN, DEFAULT, OTHER = some_configs(3)
PROBLEMS = [GemmProblem(m, 1024, 512) for m in (1, 64, 512)]


def make_proofs(*choices: KernelConfig) -> list[Proof]:
    """Return an answer for each problem, all with the same default."""
    return [Proof(problem, 10, config, DEFAULT) for problem, config in zip(PROBLEMS, choices, strict=True)]


def test_every_answer_is_timed_beside_default_and_torch() -> None:
    """Each pair once, also where the answer is the default; readings go to their own problem."""
    latency = {CHOSEN: 8.0, DEFAULT: 10.0, TORCH_MM: 9.0}
    gpu = MadeUpTuningGpu(lambda problem, config: latency[config] * problem.m)
    proofs = remeasure(make_proofs(CHOSEN, DEFAULT, CHOSEN), gpu)
    assert [(proof.chosen_us, proof.default_us, proof.library_us) for proof in proofs] == [
        (8.0, 10.0, 9.0), (640.0, 640.0, 576.0), (4096.0, 5120.0, 4608.0),
    ]  # fmt: skip
    assert len(gpu.asked) == len(set(gpu.asked)) == 8
    assert proofs[0].speedup == 1.25
    assert not any(proof.is_failed for proof in proofs)


@pytest.mark.parametrize(("excess", "is_slower"), [(-0.2, False), (0.9 * TOLERANCE, False), (1.1 * TOLERANCE, True)])
def test_an_answer_that_loses_is_slower(excess: float, is_slower: bool) -> None:
    """Beyond the tolerance only: readings of the same kernel differ by that."""
    gpu = MadeUpTuningGpu(lambda problem, config: 10.0 * (1.0 + excess) if config == CHOSEN else 10.0)
    proof = remeasure(make_proofs(CHOSEN, CHOSEN, CHOSEN)[:1], gpu)[0]
    assert (proof.is_slower, proof.is_failed) == (is_slower, is_slower)


def test_noise_alone_makes_nothing_slower() -> None:
    """Answers as fast as the default, read with 3 % of noise: the intervals are taken into account."""
    proofs = [Proof(GemmProblem(m, 1024, 512), 1, CHOSEN, DEFAULT) for m in range(1, 301)]
    found = remeasure(proofs, MadeUpTuningGpu(lambda problem, config: 20.0, noise=0.03))
    assert sum(proof.chosen_us > 1.02 * proof.default_us for proof in found) > 50
    assert sum(proof.is_slower for proof in found) <= 3


def test_what_has_no_reading_fails_with_its_reason() -> None:
    """Not compiled, or not launched; without the default's reading there is nothing to lose against."""
    gpu = MadeUpTuningGpu(lambda problem, config: 10.0, broken=[CHOSEN], crashing=[OTHER])
    found = remeasure(make_proofs(CHOSEN, OTHER, DEFAULT), gpu)
    assert [proof.unmeasured for proof in found] == ["compile_error: too big", "launch_error: crash", ""]
    assert [proof.is_failed for proof in found] == [True, True, False]
    gpu = MadeUpTuningGpu(lambda problem, config: 10.0, broken=[DEFAULT])
    proof = remeasure(make_proofs(CHOSEN, OTHER, OTHER)[:1], gpu)[0]
    assert math.isnan(proof.default_us)
    assert not proof.is_failed


def test_wrong_results_are_found_by_problem() -> None:
    """Each answer is checked on its own problem; one that is wrong there fails."""

    def check(pairs: list[tuple[GemmProblem, KernelConfig]]) -> list[CheckedChoice]:
        assert pairs == list(zip(PROBLEMS, (CHOSEN, CHOSEN, DEFAULT), strict=True))
        return [
            CheckedChoice(problem, config, 0.5 if problem.m == 64 else 1e-3, "too far" if problem.m == 64 else "")
            for problem, config in pairs
        ]

    proofs = prove_numerics(make_proofs(CHOSEN, CHOSEN, DEFAULT), check)
    assert [proof.error for proof in proofs] == [1e-3, 0.5, 1e-3]
    assert [proof.is_failed for proof in proofs] == [False, True, False]

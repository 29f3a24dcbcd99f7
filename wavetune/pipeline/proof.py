"""Proof that a workload's answers are right, and no slower than the default configuration, on the GPU that is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError
from wavetune.measure.check_choices import CheckedChoice
from wavetune.measure.contest import PAIR_RULE, TORCH_MM, ContestRunner
from wavetune.measure.runner import Progress, no_progress
from wavetune.measure.timing import GRAPH_METHOD
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device
from wavetune.store.record import Point, Status

STRATUM = "verify"

TOLERANCE = 0.02
"""As much slower than the default may an answer read: a timing repeats within 1.4 to 2.1 % (H200, 2026-11)."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One problem, what answers it, and what was found out about that.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    count : int
        Its calls.
    config, default : KernelConfig
        What the tables answer, and what they would without having measured anything.
    error : float
        Relative error against torch; NaN if it was not checked, or has no result.
    wrong : str
        Why the result does not count; empty if it is right, or was not checked.
    chosen_us, default_us, library_us : float
        Latencies of ``config``, ``default`` and torch.mm in the same rounds; NaN if not measured.
    spread_us : float
        Half-widths of the 95 % confidence intervals of ``chosen_us`` and ``default_us``, added.
    unmeasured : str
        Why the answer has no latency although it was timed.
    """

    problem: GemmProblem
    count: int
    config: KernelConfig
    default: KernelConfig
    error: float = math.nan
    wrong: str = ""
    chosen_us: float = math.nan
    default_us: float = math.nan
    library_us: float = math.nan
    spread_us: float = 0.0
    unmeasured: str = ""

    @property
    def is_slower(self) -> bool:
        """Whether the answer lost to the default, by more than `TOLERANCE` and both confidence intervals."""
        return self.chosen_us - self.spread_us > (1.0 + TOLERANCE) * self.default_us

    @property
    def speedup(self) -> float:
        """Latency of the default over that of the answer; NaN if not measured."""
        return self.default_us / self.chosen_us

    @property
    def is_failed(self) -> bool:
        """Whether anything speaks against the answer."""
        return bool(self.wrong or self.unmeasured or self.is_slower)


def answers_to_prove(problems: Iterable[tuple[GemmProblem, int]], device: Device) -> list[Proof]:
    """Return what the tables answer, nothing of it proved; problems without an answer are left out."""
    proofs = []
    for problem, count in problems:
        try:
            resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
            config = resolver.answer(problem, "model", is_listed=False).config
            proofs.append(Proof(problem, count, config, resolver.default(problem)))
        except NoModelError:
            continue
    return proofs


def prove_numerics(
    proofs: Sequence[Proof], check: Callable[[list[tuple[GemmProblem, KernelConfig]]], Sequence[CheckedChoice]]
) -> list[Proof]:
    """Check every answer on its own problem.

    Parameters
    ----------
    check : callable
        Such as `wavetune.measure.check_choices.check_choices`; answers in the order of the pairs.
    """
    checked = check([(proof.problem, proof.config) for proof in proofs])
    return [replace(proof, error=found.error, wrong=found.reason) for proof, found in zip(proofs, checked, strict=True)]


def remeasure(proofs: Sequence[Proof], runner: ContestRunner, progress: Progress = no_progress) -> list[Proof]:
    """Time every answer against the default and torch.mm, in the same interleaved rounds.

    Parameters
    ----------
    proofs : sequence of Proof
        Of the runner's dtype and layout.

    Returns
    -------
    list of Proof
        In the order of ``proofs``. Where the default could not be timed nothing is slower than it.
    """
    wanted = dict.fromkeys(config for proof in proofs for config in (proof.config, proof.default))
    prepared = runner.prepare(wanted)
    usable = {entry.config for entry in prepared.compiled} | {TORCH_MM}
    refused = {entry.config: f"{entry.status.value}: {entry.detail}" for entry in prepared.failures}
    points = dict.fromkeys(
        Point(proof.problem, config, STRATUM)
        for proof in proofs
        for config in (proof.config, proof.default, TORCH_MM)
        if config in usable
    )
    measured = {
        (entry.problem, entry.config): entry
        for entry in runner.measure(list(points), progress, method=GRAPH_METHOD, rule=PAIR_RULE)
    }

    def read(proof: Proof) -> Proof:
        chosen, default, library = (
            measured.get((proof.problem, config)) for config in (proof.config, proof.default, TORCH_MM)
        )
        sound = [entry if entry and entry.status is Status.OK else None for entry in (chosen, default, library)]
        latency = [entry.latency_us if entry and entry.latency_us is not None else math.nan for entry in sound]
        spreads = [entry.spread_us or 0.0 if entry else 0.0 for entry in sound[:2]]
        reason = "" if sound[0] else refused.get(proof.config, "no reading")
        if chosen and not sound[0]:
            reason = f"{chosen.status.value}: {chosen.detail}"
        return replace(
            proof, chosen_us=latency[0], default_us=latency[1], library_us=latency[2], spread_us=sum(spreads),
            unmeasured=reason,
        )  # fmt: skip

    return [read(proof) for proof in proofs]

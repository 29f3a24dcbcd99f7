"""Freeze the answers for a workload into a pinned table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.runtime.choose import find_resolver, policy
from wavetune.runtime.device import resolve_device
from wavetune.runtime.fingerprint import fingerprint
from wavetune.runtime.numerics import check_numerics
from wavetune.runtime.pinned import ModelKey, PinnedTable


def freeze(
    problems: Iterable[GemmProblem],
    *,
    arch: str | None = None,
    num_sms: int | None = None,
    numerics: str = "any",
    on_miss: str | None = None,
) -> PinnedTable:
    """Answer problems and keep the answers; empty ones are left out, and nothing counts as a miss.

    Parameters
    ----------
    problems : iterable of GemmProblem
        What a deployment will ask.
    arch, num_sms, numerics, on_miss
        As in `wavetune.choose_config`.

    Returns
    -------
    PinnedTable
        With the default of every model that answered.

    Raises
    ------
    WavetuneError
        As `wavetune.choose_config`: everything must have an answer.
    """
    device = resolve_device(arch, num_sms)
    on_miss = policy(on_miss)
    entries: dict[GemmProblem, tuple[KernelConfig, float]] = {}
    predicted: set[GemmProblem] = set()
    defaults: dict[ModelKey, KernelConfig] = {}
    for problem in problems:
        if problem.is_empty or problem in entries:
            continue
        resolver = find_resolver(problem, device.arch.name, device.num_sms, numerics)
        choice = resolver.explain(problem, on_miss, is_listed=False)
        entries[problem] = (choice.config, choice.latency_us)
        if not choice.is_measured:
            predicted.add(problem)
        key = (problem.kernel, problem.dtype, problem.layout)
        if key not in defaults:
            # Of the empty problem: the default without a look at any shape.
            defaults[key] = resolver.default(GemmProblem(0, problem.n, problem.k, problem.dtype, problem.layout))
    return PinnedTable(
        arch=device.arch.name,
        num_sms=device.num_sms,
        numerics=check_numerics(numerics),
        entries=entries,
        defaults=defaults,
        provenance={
            "created": time.strftime("%Y-%m-%d", time.gmtime()),
            "fingerprint": fingerprint(device.arch.name, device.num_sms),
            "versions": {"wavetune": getattr(sys.modules.get("wavetune"), "__version__", "")},
        },
        predicted=frozenset(predicted),
    )

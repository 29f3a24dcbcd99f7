"""Whether the tables answer a workload exactly, and if not, what they answer and why."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import ModelFileError, NoModelError, StoreError, WavetuneError
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.choice import Source
from wavetune.runtime.choice_file import ChoiceFile
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.codec import read_model
from wavetune.runtime.device import Device
from wavetune.runtime.installed import triton_release
from wavetune.runtime.locate import all_model_files
from wavetune.runtime.pinned import read_pinned
from wavetune.runtime.settings import settings
from wavetune.runtime.sources import check_triton
from wavetune.runtime.tables import store_path

_STORED = "SELECT arch, num_sms, dtype, layout, dims, alignment, triton FROM choices WHERE kernel = ? ORDER BY created"


class Status(StrEnum):
    """How a problem is answered.

    ``matched``: by what was measured or pinned for it. ``fellback``: by a neighbour, the model, the default, or not at
    all. ``stale``: that, too, although something was measured for it: with another Triton, or on another GPU.
    """

    MATCHED = "matched"
    FELLBACK = "fellback"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Verified:
    """How one problem is answered.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    count : int
        Its calls.
    status : Status
        See there.
    source : str
        Where the answer comes from, as in `wavetune.runtime.choice.Source`; ``none`` if there is none.
    table : str
        File that answered.
    reason : str
        Which file would have matched, and why it does not count; of stale problems only.
    is_tuned : bool
        Whether it was measured on this machine: the user's store answered.
    """

    problem: GemmProblem
    count: int
    status: Status
    source: str
    table: str
    reason: str = ""
    is_tuned: bool = False


def verify_workload(workload: Workload, device: Device) -> list[Verified]:
    """Ask the tables for every plain GEMM of a workload, without a trace.

    Returns
    -------
    list of Verified
        One for each problem, in the order of the workload.
    """
    stale = _stale_answers(device)
    store = str(store_path(settings()) or "")
    verified = []
    for problem, count in workload.gemm_problems():
        source, table = _answer(problem, device)
        if source == Source.EXACT:
            verified.append(Verified(problem, count, Status.MATCHED, source, table, is_tuned=table == store))
            continue
        reason = stale.get(problem, "")
        status = Status.STALE if reason else Status.FELLBACK
        verified.append(Verified(problem, count, status, source, table, reason))
    return verified


def summary_counts(verified: list[Verified]) -> dict[str, int]:
    """Count problems: shapes is the sum of matched, fellback and invalidated; tuned is a part of matched."""
    by_status = Counter(entry.status for entry in verified)
    return {
        "shapes": len(verified),
        "matched": by_status[Status.MATCHED],
        "fellback": by_status[Status.FELLBACK],
        "tuned": sum(entry.is_tuned for entry in verified),
        "invalidated": by_status[Status.STALE],
    }


def _answer(problem: GemmProblem, device: Device) -> tuple[str, str]:
    try:
        resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
        choice = resolver.explain(problem, "model", is_listed=False)
    except NoModelError:
        return "none", ""
    return choice.source.value, choice.table


def _stale_answers(device: Device) -> dict[GemmProblem, str]:
    """Return what was measured or pinned and does not count here, with the reason: pinned table, store, models."""
    found: dict[GemmProblem, str] = {}
    for problem, reason in (*_of_pinned(device), *_of_store(device), *_of_models(device)):
        found.setdefault(problem, reason)
    return found


def _of_pinned(device: Device) -> Iterator[tuple[GemmProblem, str]]:
    path = settings().pinned
    if path is None:
        return
    with contextlib.suppress(ModelFileError):
        table = read_pinned(path)
        reason = _elsewhere(table.arch, table.num_sms, device) or _other_triton(table.path, table.provenance)
        if reason:
            yield from ((problem, f"{table.path}: {reason}") for problem in table.entries)


def _of_models(device: Device) -> Iterator[tuple[GemmProblem, str]]:
    for path in all_model_files():
        try:
            model = read_model(path)
        except ModelFileError:
            continue
        reason = _elsewhere(model.arch, model.num_sms, device) or _other_triton(str(path), model.provenance)
        if model.kernel != GemmProblem.kernel or not reason:
            continue
        for m, n, k in model.exact:
            yield GemmProblem(m, n, k, model.dtype, model.layout, TMA_ALIGNMENT), f"{path}: {reason}"


def _of_store(device: Device) -> Iterator[tuple[GemmProblem, str]]:
    path = store_path(settings())
    for row in _stored_rows(path):
        arch, num_sms, dtype, layout, dims, alignment, triton = row
        try:
            m, n, k = json.loads(dims)
            problem = GemmProblem(m, n, k, dtype, layout, alignment)
        except (WavetuneError, ValueError, TypeError):
            continue
        release = triton_release()
        reason = _elsewhere(arch, num_sms, device)
        if not reason and release and triton and triton != release:
            reason = f"measured with Triton {triton}, this process has {release}"
        if reason:
            yield problem, f"{path}: {reason}"


def _stored_rows(path: Path | None) -> list[tuple[Any, ...]]:
    if path is None:
        return []
    try:
        # Reading neither makes nor moves a file.
        return ChoiceFile(path.absolute(), "", on_moved=lambda sentence: None).read(_STORED, (GemmProblem.kernel,))
    except StoreError:
        return []


def _elsewhere(arch: str, num_sms: int, device: Device) -> str:
    if arch != device.arch.name:
        return f"measured on {arch}, this is {device.arch.name}"
    if num_sms != device.num_sms:
        return f"measured on {num_sms} SMs, here are {device.num_sms}"
    return ""


def _other_triton(path: str, provenance: Any) -> str:
    try:
        check_triton(path, provenance)
    except ModelFileError as error:
        return str(error).removeprefix(f"{path}: ")
    return ""

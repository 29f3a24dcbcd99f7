"""Plain lists of problems: CSV with the columns m, n, k; JSON lines; and this project's own workload files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavetune.core.strict_json import json_error, load_json
from wavetune.core.workload import problem_of_cells, problems_of_text
from wavetune.core.workload_entry import ENTRY_FIELDS, WorkloadEntry
from wavetune.core.workload_table import is_bare, plain_columns
from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.intake import Intake
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import named_cells, plain_value, read_named_rows

BARE = "a header of M,N,K alone: taken for a list where each row is a call; --format aiter reads AITER's"
ROW_MAJOR = "sizes are taken as row-major: m counts tokens"


def read_csv(source: LineSource, intake: Intake) -> None:
    """Read a CSV file; repeated rows are calls, and add up."""
    account = intake.account

    def columns(cells: list[str]) -> list[str]:
        if is_bare(cells):
            account.note(BARE)
        return plain_columns(cells)

    def take(header: list[str], cells: list[str], number: int) -> None:
        row = named_cells(header, cells)
        problem = problem_of_cells(header, cells)
        extra = {name: plain_value(cell) for name, cell in row.items() if name not in ENTRY_FIELDS and cell}
        _take({**problem, "extra": extra}, number, intake)

    read_named_rows(source, account, columns, "the first line must name the columns m,n,k", take)
    account.note(ROW_MAJOR)


def read_jsonl(source: LineSource, intake: Intake) -> None:
    """Read a JSON object a line; keys that a workload does not have are kept beside the problem."""
    account = intake.account
    for number, line in source.lines():
        account.read = number
        if not line.strip():
            continue
        try:
            problem = load_json(line)
            if not isinstance(problem, dict):
                raise WorkloadError(f"must be an object with m, n and k, got {line[:80]!r}")
            # Keys mean what columns of the same names mean.
            names = plain_columns(list(problem)) or list(problem)
            problem = dict(zip(names, problem.values(), strict=True))
            unknown = {name: value for name, value in problem.items() if name not in ENTRY_FIELDS}
            known = {name: value for name, value in problem.items() if name in ENTRY_FIELDS}
            extra = known.get("extra", {})
            if isinstance(extra, Mapping):
                known["extra"] = {**extra, **unknown}
            _take(known, number, intake)
        except WavetuneError as error:
            account.refuse(number, str(error))
        except ValueError as error:
            account.refuse(number, json_error(error))
    account.note(ROW_MAJOR)


def read_workload(source: LineSource, intake: Intake) -> None:
    """Read a workload of this project, entry by entry."""
    account = intake.account
    for number, (_, problem) in enumerate(problems_of_text(source.name, source.text()), start=1):
        account.read = number
        try:
            _take(problem, number, intake)
        except WavetuneError as error:
            account.refuse(number, str(error))


def _take(problem: Mapping[str, Any], line: int, intake: Intake) -> None:
    options = intake.options
    if problem.get("m") == 0 or problem.get("n") == 0 or problem.get("k") == 0:
        intake.account.recognised += 1
        intake.account.empty += 1
        return
    entry = WorkloadEntry.from_document({"dtype": options.dtype, "layout": options.layout, **problem})
    intake.add_entry(entry, line)
    intake.account.recognised += 1

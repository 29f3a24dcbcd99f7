"""Import files, and look at what came of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wavetune.workloads.account import FileAccount
from wavetune.workloads.importing import import_files
from wavetune.workloads.intake import ImportOptions

DATA = Path(__file__).parent / "data"


def read(*paths: Path | str, strict: bool = False, format: str = "auto", **options: Any) -> list[dict[str, Any]]:
    """Return the problems of files as JSON, without their sources."""
    problems, _ = read_all(*paths, strict=strict, format=format, **options)
    return problems


def read_all(
    *paths: Path | str, strict: bool = False, format: str = "auto", **options: Any
) -> tuple[list[dict[str, Any]], list[FileAccount]]:
    """Return the problems of files as JSON, and the accounts; check what holds for every import."""
    with import_files(paths, format=format, strict=strict, options=ImportOptions(**options)) as imported:
        entries = list(imported.entries())
        # Two ways to the same text.
        assert list(imported.problem_texts()) == [json.dumps(entry.document()) for entry in entries]
        for entry in entries:
            assert sum(entry.sources.values()) == entry.count
        for account in imported.files:
            assert account.read == account.recognised + account.skipped
            assert 0 <= account.bad <= account.skipped
        keys = [entry.key for entry in entries]
        assert len(set(keys)) == len(keys)
        problems = [entry.document() for entry in entries]
    for problem in problems:
        problem.pop("sources", None)
    return problems, imported.files


def short(problems: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Return sizes, type and count of every problem."""
    return {(p["m"], p["n"], p["k"], p["dtype"], p["count"]) for p in problems}

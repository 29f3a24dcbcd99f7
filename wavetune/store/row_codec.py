"""Records to SQLite rows and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.store.record import Measurement, Status, make_problem

SELECT = """
    SELECT p.kernel, p.dims, p.dtype, p.layout, p.alignment, c.fields,
           m.stratum, m.status, m.latency_us, m.spread_us, m.rounds, m.method, m.detail
    FROM measurements m JOIN problems p ON p.id = m.problem JOIN configs c ON c.id = m.config
"""
# A later success replaces what was there; a later failure never replaces a success.
UPSERT = """
    INSERT INTO measurements
        (problem, config, stratum, status, latency_us, spread_us, rounds, method, detail)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (problem, config, stratum) DO UPDATE SET
        status = excluded.status, latency_us = excluded.latency_us, spread_us = excluded.spread_us,
        rounds = excluded.rounds, method = excluded.method, detail = excluded.detail
    WHERE excluded.status = 'ok' OR measurements.status != 'ok'
"""


def config_row(config: KernelConfig) -> dict[str, object]:
    """Return the columns of a configuration; ``key`` is the same whatever the order of its fields."""
    text = json.dumps(dict(config), separators=(",", ":"))
    return {"key": json.dumps(dict(config), separators=(",", ":"), sort_keys=True), "fields": text}


def parse_config(fields: str) -> KernelConfig:
    """Return the configuration of a stored row, its fields in their first order."""
    return KernelConfig(**json.loads(fields))


def problem_row(problem: Problem) -> dict[str, object]:
    """Return the columns of a problem."""
    row: dict[str, object] = {
        "kernel": problem.kernel,
        "dims": json.dumps(problem.dims),
        "dtype": problem.dtype,
        "layout": getattr(problem, "layout", ""),
        "alignment": getattr(problem, "alignment", 16),
    }
    return {"key": json.dumps(list(row.values()), separators=(",", ":")), **row}


def measurement_row(entry: Measurement) -> tuple[object, ...]:
    """Return the columns of a measurement after its problem and configuration, in the order of `UPSERT`."""
    return (
        entry.stratum, entry.status.value, entry.latency_us, entry.spread_us, entry.rounds, entry.method, entry.detail,
    )  # fmt: skip


def decode_rows(rows: Iterable[tuple[Any, ...]]) -> list[Measurement]:
    """Turn rows of `SELECT` into measurements that share their problems and configurations."""
    problems: dict[tuple[Any, ...], Problem] = {}
    configs: dict[str, KernelConfig] = {}
    result = []
    for kernel, dims, dtype, layout, alignment, fields, stratum, status, *numbers, method, detail in rows:
        key = (kernel, dims, dtype, layout, alignment)
        if key not in problems:
            problems[key] = make_problem(kernel, tuple(json.loads(dims)), dtype, layout, alignment)
        if fields not in configs:
            configs[fields] = parse_config(fields)
        latency_us, spread_us, rounds = numbers
        result.append(
            Measurement(
                problems[key], configs[fields], Status(status), latency_us, spread_us, rounds, method, stratum, detail
            )
        )
    return result


def row_id(sqlite: sqlite3.Connection, table: str, key: str, row: dict[str, object]) -> int:
    """Return the id of the row whose ``key`` column is ``row[key]``, inserting it if there is none."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    sqlite.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
    return int(sqlite.execute(f"SELECT id FROM {table} WHERE {key} = ?", (row[key],)).fetchone()[0])

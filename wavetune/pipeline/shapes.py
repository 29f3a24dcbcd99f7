"""Lists of GEMM sizes: the user's workload."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

from wavetune.core.problem import GemmProblem
from wavetune.errors import MeasurementError, WavetuneError

_GZIP = b"\x1f\x8b"
_COLUMNS = ("m", "n", "k")


def read_shapes(path: str | Path) -> list[tuple[int, int, int]]:
    """Read the columns ``m, n, k`` of a CSV file, plain or gzip.

    Returns
    -------
    list of tuple of int
        Distinct, in file order; other columns are ignored. Never empty.

    Raises
    ------
    MeasurementError
        If the file cannot be read, lacks a column, or holds a size that no kernel can compute; names file and line.
    """
    try:
        data = Path(path).read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MeasurementError(f"{path}: cannot read ({reason}); expected CSV with the columns m,n,k") from None
    rows = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    missing = [name for name in _COLUMNS if name not in [header.strip() for header in rows.fieldnames or ()]]
    if missing:
        raise MeasurementError(f"{path}:1: no column {missing[0]!r}; the first line must name the columns m,n,k")
    rows.fieldnames = [header.strip() for header in rows.fieldnames or ()]
    shapes: dict[tuple[int, int, int], None] = {}
    for row in rows:
        try:
            m, n, k = (int(row[name] or "") for name in _COLUMNS)
            problem = GemmProblem(m, n, k)
        except (ValueError, TypeError) as error:
            reason = error if isinstance(error, WavetuneError) else f"m,n,k must be integers, got {list(row.values())}"
            raise MeasurementError(f"{path}:{rows.line_num}: {reason}") from None
        if problem.is_empty:
            raise MeasurementError(f"{path}:{rows.line_num}: a size is zero: there is nothing to measure")
        shapes[problem.dims] = None
    if not shapes:
        raise MeasurementError(f"{path}: no shapes; add lines of m,n,k")
    return list(shapes)

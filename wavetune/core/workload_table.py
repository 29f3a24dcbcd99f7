"""What the first line of a table with the sizes m, n and k says: whose table it is, and what its columns mean.

Every reader of tables asks here. So no verb takes a column-major table for a list of row-major problems, nor one whose
types stand in columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from wavetune.core.workload_entry import ENTRY_FIELDS
from wavetune.errors import WorkloadError

SIZES = ("m", "n", "k")

PLAIN, AITER, QUICKTUNE, COLUMN_MAJOR, FUSED_EXPERTS = "csv", "aiter", "quicktune", "column-major", "fused experts"

QUICKTUNE_BASELINE = "baseline_latency(us)"

_COLUMN_MAJOR_TABLES = (
    "such tables are read as hipblaslt-bench (transA first) and QuickTune (m,n,k,lda,ldb,ldc,ldd,a_type,b_type,c_type,"
    "d_type,count) write them, others with m and n exchanged as m,n,k,count,dtype,layout"
)
_TRANSPOSITIONS = frozenset({"transa", "transb"})
_COLUMN_MAJOR = _TRANSPOSITIONS | {
    "lda", "ldb", "ldc", "ldd", "a_type", "b_type", "c_type", "d_type", QUICKTUNE_BASELINE,
}  # fmt: skip
_AITER = frozenset(
    {"gfx", "cu_num", "q_dtype_w", "outdtype", "scaleab", "bpreshuffle", "kernelid", "solidx", "soltimes"}
)
"""Columns of AITER's tables, in lower case; others, such as ``us`` and ``kernelName``, stand in anybody's lists."""

_FUSED_EXPERTS = frozenset({"token", "model_dim", "inter_dim"})
_GROUP_COUNTS = ("g", "num_groups")

_BARE = {"M", "N", "K"}
_AITER_NAME = re.compile(r"(?<![a-z0-9])a\d+w\d+|tuned_(?:batched_)?gemm|tuned_bmm")
"""Names of AITER's files, such as ``a8w8_blockscale_untuned_gemm.csv``, and of folders of such files."""

PLAIN_NAMES: Mapping[str, str] = {**{name: name for name in ENTRY_FIELDS}, "b": "batch", "batch_count": "batch"}
"""Columns of a plain list, in lower case, and the field of a workload that each is."""


def table_kind(cells: Iterable[str], path: str | PurePath = "") -> str:
    """Tell whose table begins with this line; capitals make no difference.

    Parameters
    ----------
    cells : iterable of str
        Of the line.
    path : str or path
        Of the file: AITER's untuned tables may have the columns M, N and K alone, and say the rest in their name.

    Returns
    -------
    str
        `PLAIN`, `AITER`, `QUICKTUNE`, `COLUMN_MAJOR` for another column-major table, `FUSED_EXPERTS`; empty if the line
        names no sizes.
    """
    given = {cell.strip() for cell in cells}
    names = {cell.lower() for cell in given}
    if names >= _FUSED_EXPERTS:
        return FUSED_EXPERTS
    if not names.issuperset(SIZES):
        return ""
    if names & _COLUMN_MAJOR:
        told = {"lda", "ldb", "ldd", "a_type", "b_type", "c_type", "d_type"} <= names or QUICKTUNE_BASELINE in names
        # QuickTune has none of these, and its reader would lose them.
        more = _TRANSPOSITIONS | {"batch", "b", "batch_count", "groups", "grouped_gemm", *_GROUP_COUNTS}
        return QUICKTUNE if told and not names & more else COLUMN_MAJOR
    if names & _AITER or (given == _BARE and is_aiter_name(path)):
        return AITER
    return PLAIN


def is_aiter_name(path: str | PurePath) -> bool:
    """Whether a file, or the folder that it is in, is called as AITER calls its tables."""
    path = PurePath(path)
    return any(_AITER_NAME.search(name.lower()) for name in (path.name, path.parent.name))


def is_bare(cells: Iterable[str]) -> bool:
    """Whether a header is M, N and K alone: a plain list, or one of AITER's."""
    return {cell.strip() for cell in cells} == _BARE


def why_not_plain(kind: str, cells: Iterable[str] = ()) -> str:
    """Say why a table is no plain list of problems; empty if it is one."""
    if kind == AITER:
        return "this is a table of AITER, whose types stand in columns, and in a name, of its own"
    if kind == FUSED_EXPERTS:
        return "this is AITER's table of fused experts: such a layer is several products and more, not one of m, n, k"
    if kind not in (QUICKTUNE, COLUMN_MAJOR):
        return ""
    mark = next((cell.strip() for cell in cells if cell.strip().lower() in _COLUMN_MAJOR), "")
    reason = f"this table is column-major, as its column {mark} says: its m and n are n and m of a workload"
    return reason + (f"; {_COLUMN_MAJOR_TABLES}" if kind == COLUMN_MAJOR else "")


def column_names(cells: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return what the columns of a table are called here; others keep their names.

    Parameters
    ----------
    names : mapping of str to str
        Name in lower case to the name here.

    Raises
    ------
    WorkloadError
        If two columns are the same, so that a row has two values for it; or one would be lost.
    """
    found = [names.get(cell.strip().lower(), cell.strip()) for cell in cells]
    lower = [name.lower() for name in found if name]
    for name in dict.fromkeys(lower):
        if lower.count(name) > 1:
            raise WorkloadError(f"the column {name!r} stands twice; name every column once")
        if name in _GROUP_COUNTS:
            raise WorkloadError(
                f"the column {name!r} counts the groups of a grouped GEMM, but nothing says the rows of each; list "
                "them in a column groups, such as [96, 32]"
            )
    return found


def plain_columns(cells: Sequence[str]) -> list[str]:
    """Return the columns of a plain list, row-major; empty if the line names no sizes.

    Raises
    ------
    WorkloadError
        If it is the header of another table, or names a column twice.
    """
    kind = table_kind(cells)
    reason = why_not_plain(kind, cells)
    if reason:
        raise WorkloadError(reason)
    return column_names(cells, PLAIN_NAMES) if kind == PLAIN else []

"""Which format a file has, from its beginning and its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import MappingProxyType

from wavetune.core.workload_table import COLUMN_MAJOR, FUSED_EXPERTS, table_kind, why_not_plain
from wavetune.errors import WorkloadError
from wavetune.workloads.aiter import read_aiter
from wavetune.workloads.cublaslt_log import read_cublaslt_log
from wavetune.workloads.hipblaslt_log import read_hipblaslt_log
from wavetune.workloads.hipblaslt_profile import read_hipblaslt_profile
from wavetune.workloads.hipblaslt_tables import read_bench_output, read_tuning_file
from wavetune.workloads.intake import Intake
from wavetune.workloads.plain import read_csv, read_jsonl, read_workload
from wavetune.workloads.quicktune import read_quicktune
from wavetune.workloads.source import LineSource, without_colours
from wavetune.workloads.tunableop import read_tunableop
from wavetune.workloads.tuned_json import read_tuned_json

Reader = Callable[[LineSource, Intake], None]

READERS: MappingProxyType[str, Reader] = MappingProxyType(
    {
        "hipblaslt-log": read_hipblaslt_log,
        "hipblaslt-profile": read_hipblaslt_profile,
        "hipblaslt-bench": read_bench_output,
        "hipblaslt-tuning": read_tuning_file,
        "cublaslt-log": read_cublaslt_log,
        "tunableop": read_tunableop,
        "aiter": read_aiter,
        "vllm": read_tuned_json,
        "sglang": read_tuned_json,
        "quicktune": read_quicktune,
        "csv": read_csv,
        "jsonl": read_jsonl,
        "workload": read_workload,
    }
)
"""Format to reader."""

FORMATS = ("auto", *READERS)

_LINES = (
    # What a tool prints may quote the lines of a log, so outputs come first.
    ("hipblaslt-bench", re.compile(r".*?\[\d+\]:\s*transA,")),
    ("hipblaslt-tuning", re.compile(r"Git Version:|\s*(?:transA,transB|schema_version),")),
    ("hipblaslt-log", re.compile(r".*\bhipblaslt-bench .*-m \d")),
    ("cublaslt-log", re.compile(r".*\[(?:cublasLt|HIPBLASLT)\]\[\d+\]\[(?:Trace|Api|Info|Hint|Error)\]")),
    ("hipblaslt-profile", re.compile(r"\s*-\s*\{\s*function\b")),
    ("tunableop", re.compile(r"Validator,|\w+TunableOp_[\w ]+,")),
)
_TRITON_BOUNDS = ("M_LEQ_", "M_GEQ_")


def detect_format(source: LineSource) -> str:
    """Tell the format of a file.

    Raises
    ------
    WorkloadError
        If nothing at its beginning is known; the message lists the formats.
    """
    text = without_colours(source.head()).decode("utf-8", "replace")
    if not text.strip():
        raise WorkloadError(f"{source.name}: {source.damage or 'the file is empty'}; check where it comes from")
    found = _json_format(source, text) if text.lstrip()[:1] in ("{", "[") else ""
    lines = text.splitlines()
    if not found:
        found = next((name for name, pattern in _LINES if any(pattern.match(line) for line in lines)), "")
    found = found or next((name for line in lines[:100] if (name := _table_format(source, line))), "")
    if found:
        return found
    known = ", ".join(READERS)
    raise WorkloadError(f"{source.name}: nothing at its beginning is known; name the format with --format: {known}")


def _table_format(source: LineSource, line: str) -> str:
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    kind = table_kind(cells, source.path)
    if kind == FUSED_EXPERTS:
        raise WorkloadError(
            f"{source.name}: {why_not_plain(kind)}; vLLM's and SGLang's files of fused experts are read"
        )
    if kind == COLUMN_MAJOR:
        raise WorkloadError(f"{source.name}: {why_not_plain(kind, cells)}")
    return kind


def _json_format(source: LineSource, text: str) -> str:
    first_line = text.lstrip().partition("\n")[0]
    try:
        first = json.loads(first_line)
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and table_kind(first):
        return "jsonl"
    keys = set(re.findall(r'"([^"]{1,40})"\s*:', text[:100_000]))
    if "problems" in keys:
        return "workload"
    if any(key.startswith(_TRITON_BOUNDS) for key in keys):
        raise WorkloadError(f"{source.name}: AITER's Triton configurations name ranges of M, not problems")
    if "BLOCK_SIZE_M" in keys or any(key.isdecimal() for key in keys):
        return "vllm"
    return ""

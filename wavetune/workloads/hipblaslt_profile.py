"""``HIPBLASLT_LOG_MASK=64`` and ``128``: one YAML item per distinct call with its count, written at process exit."""

from __future__ import annotations

import re

from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_options import FLAGS, BenchOptions, positive
from wavetune.workloads.blas import EXCHANGED
from wavetune.workloads.intake import Intake
from wavetune.workloads.source import LineSource

_ITEM = re.compile(r"-\s*\{\s*(.*)")
_PAIR = re.compile(r"""\s*"?([A-Za-z]\w*)"?\s*:[\s:]*("[^"]*"|'[^']*'|[^,{}]*)""")
"""Some builds print a colon twice (rocm-libraries#2003)."""

_TRUE = ("true", "1")
_COUNT_NAMES = ("call_count", "count")
_SIZE_NAMES = {"M": "m", "N": "n", "K": "k"}


def read_hipblaslt_profile(source: LineSource, intake: Intake) -> None:
    """Read the items of a profile log; a missing count means one call."""
    account = intake.account
    for number, line in source.lines():
        account.read = number
        item = _ITEM.search(line)
        if item is None or "function" not in item[1]:
            continue
        try:
            _read_item(item[1], number, intake)
        except WavetuneError as error:
            account.refuse(number, str(error))
    account.note(EXCHANGED)


def _read_item(text: str, line: int, intake: Intake) -> None:
    body, brace, _ = text.partition("}")
    if not brace:
        raise WorkloadError("no closing brace: the item is cut")
    pairs = [(match[1], match[2].strip().strip("\"'")) for match in _PAIR.finditer(body)]
    count = next((positive(name, value) for name, value in pairs if name in _COUNT_NAMES), 1)
    options = _options(pairs)
    options.check()
    key = options.key()
    intake.account.recognised += 1
    if key is None:
        intake.account.empty += count
        return
    extra: dict[str, object] = dict(options.unknown)
    extra |= {name.lower(): value for name, value in pairs if name.lower() in ("solution_name", "kernel_name")}
    index = options.one("solution_index")
    if index.lstrip("-").isdecimal():
        extra["solution_index"] = int(index)
    intake.record(key, line, count, extra)


def _options(pairs: list[tuple[str, str]]) -> BenchOptions:
    options = BenchOptions()
    for name, value in pairs:
        name = _SIZE_NAMES.get(name, name)
        if name in ("function", "solution_Name", "solution_name", "kernel_name", *_COUNT_NAMES):
            continue
        if name in FLAGS:
            if value.lower() in _TRUE:
                options.flags.add(name)
        else:
            options.values.setdefault(name, []).append(value)
    # Grouped products repeat the sizes; no flag says so.
    if len(options.values.get("m", ())) > 1:
        options.flags.add("grouped_gemm")
    return options

"""JSON without what readers of it disagree about: infinities, NaN, and keys that stand twice."""

from __future__ import annotations

import json
import math
from typing import Any

from wavetune.errors import WorkloadError


def load_json(text: str) -> Any:
    """Parse a JSON text.

    Raises
    ------
    json.JSONDecodeError
        If the text is no JSON; a `ValueError` that knows the line.
    WorkloadError
        If it holds a number that JSON does not have, or an object with one key twice, or is nested too deeply.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=_unique
        )  # fmt: skip
    except RecursionError:
        raise WorkloadError("JSON nested too deeply") from None


def json_error(error: ValueError) -> str:
    """Say what is wrong, without the place."""
    return f"no JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)


def _refuse(name: str) -> Any:
    raise WorkloadError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _whole(text: str) -> int:
    # Longer ones are no size of anything, and converting them takes quadratic time.
    if len(text) > 100:
        raise WorkloadError(f"a number of {len(text)} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in document if names.count(name) > 1)
        raise WorkloadError(f"the key {twice!r} stands twice in one object")
    return document

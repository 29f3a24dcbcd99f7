"""Lines of hipblaslt-bench in what a launcher prints: a rank, a time or a host stands before them."""

from __future__ import annotations

import re

_STARTS = (
    r"\[\d+\]:\s*transA,", r"[NTC],[NTC],", r"--(?:Solution index|Solution name|kernel name):", "Winner:",
    r"Device ID \d+ : ", "Query device success", "hipBLASLt git version:", "Git Version:", "no solution found",
)  # fmt: skip
_OWN = re.compile(rf".*?(?<![^\s:|\])>])((?:{'|'.join(_STARTS)}).*)", re.IGNORECASE | re.DOTALL)


def own_text(line: str) -> str:
    """Return what hipblaslt-bench printed in a line, without margins; the line itself if it printed none of it."""
    found = _OWN.fullmatch(line)
    return (found[1] if found else line).strip()

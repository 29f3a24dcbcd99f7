"""What became of every line of an input: nothing is lost silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_REASONS = 50
"""Different reasons that are kept per file; more of them say nothing new."""

MAX_OTHERS = 8
"""Names of other GPUs that are listed."""


@dataclass(slots=True)
class BadLines:
    """Lines of one file that were refused for one reason."""

    reason: str
    count: int
    first_line: int


@dataclass(slots=True)
class FileAccount:
    """One input. ``read == recognised + skipped``; ``bad`` of the skipped lines look like records and are none.

    Parameters
    ----------
    path : str
        As it was given.
    format : str
        How it was read.

    Attributes
    ----------
    read, recognised, bad : int
        Lines. Of a format that is one document (vLLM's JSON), its entries. Lines that say no problem but belong to the
        format, such as headers, are recognised. Skipped lines that are not bad belong to other programs.
    empty : int
        Calls with a size of zero, recognised and left out.
    repeated : int
        Rows of a table that repeat an earlier one, and count once.
    elsewhere : int
        Rows of other GPUs than the one that was asked for; skipped.
    others : list of str
        Those other GPUs, a few of them.
    notes : list of str
        What a reader should know, such as exchanged sizes.
    provenance : dict
        What the file says about GPU and versions.
    damage : str
        Why reading ended before the end of the file, where it did; nobody knows how much is missing.
    """

    path: str
    format: str
    read: int = 0
    recognised: int = 0
    bad: int = 0
    empty: int = 0
    repeated: int = 0
    elsewhere: int = 0
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    damage: str = ""
    _reasons: dict[str, BadLines] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """Lines that are not recognised."""
        return self.read - self.recognised

    @property
    def first_bad(self) -> BadLines | None:
        """The refused line nearest to the beginning."""
        return min(self._reasons.values(), key=lambda entry: entry.first_line, default=None)

    def refuse(self, line: int, reason: str, count: int = 1) -> None:
        """Note refused lines; ``line`` is the first of them."""
        self.bad += count
        entry = self._reasons.get(reason)
        if entry is not None:
            entry.count += count
            entry.first_line = min(entry.first_line, line)
            return
        if len(self._reasons) >= MAX_REASONS:
            latest = max(self._reasons.values(), key=lambda known: known.first_line)
            if line > latest.first_line:
                return
            del self._reasons[latest.reason]
        self._reasons[reason] = BadLines(reason, count, line)

    def note(self, text: str) -> None:
        """Note something once."""
        if text not in self.notes:
            self.notes.append(text)

    def leave(self, *names: str, count: int = 1) -> None:
        """Leave out rows of another GPU than the one that was asked for; ``names`` is what it is called."""
        self.elsewhere += count
        name = " ".join(filter(None, names))
        if name not in self.others and len(self.others) < MAX_OTHERS:
            self.others.append(name)

    def reasons(self) -> list[BadLines]:
        """Return why lines were refused, by first line."""
        return sorted(self._reasons.values(), key=lambda entry: (entry.first_line, entry.reason))

    def document(self) -> dict[str, Any]:
        """Return the account as JSON."""
        return {
            "file": self.path,
            "format": self.format,
            "read": self.read,
            "recognised": self.recognised,
            "skipped": self.skipped,
            "bad": self.bad,
            "empty": self.empty,
            "repeated": self.repeated,
            "elsewhere": self.elsewhere,
            "other_gpus": list(self.others),
            "refused": [
                {"line": entry.first_line, "count": entry.count, "reason": entry.reason} for entry in self.reasons()
            ],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }

    def lines(self) -> list[str]:
        """Describe the file for people."""
        text = [
            f"{self.path}: {self.format}, {self.recognised:,} of {self.read:,} lines recognised, "
            f"{self.skipped:,} skipped, {self.bad:,} of them bad"
        ]
        text += [
            f"{self.path}:{entry.first_line}: {entry.reason}" + (f" ({entry.count} lines)" if entry.count > 1 else "")
            for entry in self.reasons()
        ]
        if self.empty:
            text.append(f"{self.path}: {self.empty:,} calls with a size of zero left out")
        if self.repeated:
            text.append(f"{self.path}: {self.repeated:,} rows repeat earlier ones; they count once")
        if self.elsewhere:
            text.append(f"{self.path}: {self.elsewhere:,} rows of other GPUs left out ({', '.join(self.others)})")
        return text + [f"{self.path}: {note}" for note in self.notes]

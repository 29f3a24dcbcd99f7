"""The cells of a model file, left as text until they are asked for.

They are nine tenths of the file, and a program needs few of them. One regular expression over all rows costs a tenth of
building them, and is as strict: it matches only rows that are right, in the layout and the range that `encode_model`
writes. Any other text is read as JSON, number by number, which names what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from wavetune.runtime.model_file import Cell

_OCTAVE = "(?:[12]?[0-9]|3[01])"
_PERMILLE = "-?+(?:[1-9][0-9]{0,2}+|0)"

_decode = json.JSONDecoder().raw_decode


class CellRows(Mapping[tuple[int, ...], Cell]):
    """A mapping as `ModelFile.cells` has it, over checked rows of text.

    Parameters
    ----------
    rows : dict of str to str
        Quoted key to both lists, as in the file.
    n_dims : int
        Octaves of every key.
    n_forms : int
        Corrections of every cell, and one more than the largest candidate may be.
    """

    def __init__(self, rows: dict[str, str], n_dims: int, n_forms: int) -> None:
        self._rows = rows
        self.n_dims, self.n_forms = n_dims, n_forms

    @classmethod
    def from_text(cls, text: str) -> CellRows | None:
        """Check the rows between the braces; None unless all of them are written as by `encode_model`.

        Parameters
        ----------
        text : str
            Without the first and the last line break. Its first row says how many numbers every row must have.
        """
        name, _, first = text.partition("\n")[0].partition(": ")
        n_dims, n_forms = name.count(",") + 1, first.partition("], [")[2].count(", ") + 1
        if not text.endswith("]]"):
            return None  # A comma after the last row is no JSON.
        octaves = ",".join([_OCTAVE] * n_dims)
        # Large ones first: inside a possessive repetition, 1 would be taken for the whole of 12.
        candidate = f"(?:{'|'.join(map(str, reversed(range(n_forms))))})"
        cell = rf"\[\[{candidate}(?:, {candidate})*+\], \[{_PERMILLE}(?:, {_PERMILLE}){{{n_forms - 1}}}+\]\]"
        if re.fullmatch(rf'(?:    "{octaves}": {cell}(?:,\n|\Z))++', text) is None:
            return None
        names_and_rows = [row.split(": ", 1) for row in text.split(",\n")]
        rows = dict(names_and_rows)
        return cls(rows, n_dims, n_forms) if len(rows) == len(names_and_rows) else None

    def __getitem__(self, key: tuple[int, ...]) -> Cell:
        (candidates, correction), _ = _decode(self._rows[_name(key)])
        return Cell(tuple(candidates), tuple(correction))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and _name(key) in self._rows

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for name in self._rows:
            yield tuple(map(int, name.strip(' "').split(",")))

    def __len__(self) -> int:
        return len(self._rows)

    def parsed(self) -> dict[str, Any]:
        """Return the object of the file."""
        return {name.strip(' "'): json.loads(row) for name, row in self._rows.items()}

    def __repr__(self) -> str:
        return f"<{len(self)} cells of {self.n_forms} forms>"


def _name(key: tuple[int, ...]) -> str:
    return f'    "{",".join(map(str, key))}"'

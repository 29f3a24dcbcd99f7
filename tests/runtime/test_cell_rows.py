"""Cells that stay text until they are asked for are those that JSON gives, or they are not taken."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import make_model
from hypothesis import event, given, settings
from hypothesis import strategies as st
from redigest import with_digest

from wavetune.errors import ModelFileError
from wavetune.runtime import json_document
from wavetune.runtime.cell_rows import CellRows
from wavetune.runtime.codec import decode_model, encode_model, read_model
from wavetune.runtime.document_reader import DocumentReader
from wavetune.runtime.model_file import Cell, ModelFile

OCTAVES = st.tuples(*[st.integers(0, 31)] * 3)
SNIPPETS = st.one_of(
    st.text('0123456789-,[]": \n.eE+tn', max_size=6),
    st.sampled_from([", 007", ", -0", ", 0", "[]", ", 1000", ", 1.0", ",\n", "],\n", "\u0661", ", true", " ", "\r\n"]),
)


def rows_of(model: ModelFile) -> str:
    """Return the text between the braces of the cells."""
    text = encode_model(model).decode()
    return text.partition('"cells": {\n')[2].removesuffix("\n  }\n}\n")


def read_plainly(text: str, n_dims: int, n_forms: int) -> object:
    """Read rows as JSON, with the checks number by number."""
    reader = DocumentReader("a file")
    return reader._cells({"cells": json.loads(text, object_pairs_hook=reader.unique_keys)}, n_dims, n_forms)


@settings(max_examples=250)
@given(st.data())
def test_what_is_taken_as_text_is_what_json_says(data: st.DataObject) -> None:
    """However rows are edited, they are taken only if the checks number by number pass, and then mean the same."""
    n_forms = data.draw(st.sampled_from([1, 3, 12]))
    cells = data.draw(
        st.dictionaries(
            OCTAVES,
            st.builds(
                Cell,
                st.lists(st.integers(0, n_forms - 1), min_size=1, max_size=3).map(tuple),
                st.lists(st.integers(-1005, 1005), min_size=n_forms, max_size=n_forms).map(tuple),
            ),
            min_size=1,
            max_size=4,
        )
    )
    text = rows_of(make_model(cells=cells))
    for _ in range(data.draw(st.integers(0, 2))):
        start = data.draw(st.integers(0, len(text)))
        text = text[:start] + data.draw(SNIPPETS) + text[start + data.draw(st.integers(0, 4)) :]
    rows = CellRows.from_text(text)
    event("taken" if rows is not None else "left to JSON")
    if rows is not None:
        plain = read_plainly(f"{{{text}}}", rows.n_dims, rows.n_forms)
        assert plain == dict(rows)
        assert rows == plain
        assert all(key in rows for key in rows)


def test_what_is_written_is_taken(shipped_path: Path) -> None:
    """The rows of the shipped file stay text, and hold what JSON says; a key that is not there is none."""
    cells = read_model(shipped_path).cells
    assert isinstance(cells, CellRows)
    document = json.loads(shipped_path.read_text())["cells"]
    assert dict(cells) == {
        tuple(map(int, name.split(","))): Cell(*map(tuple, numbers)) for name, numbers in document.items()
    }
    assert (31, 31, 31) not in cells
    assert cells.get((31, 31, 31)) is None
    assert "9,12,12" not in cells


@pytest.mark.parametrize(
    "row",
    [
        '"9,12,12": [[007], [0, 1, 2]]',
        '"9,12,12": [[0], [0, 1]]',
        '"9,12,12": [[3], [0, 1, 2]]',
        '"9,12,12": [[0], [0, 01, 2]]',
        '"9,12,12": [[0], [0, 1, 9999]]',
        '"09,12,12": [[0], [0, 1, 2]]',
        '"9,12": [[0], [0, 1, 2]]',
        '"9,12,32": [[0], [0, 1, 2]]',
        '"9,12,11": [[0], [0, 1, 2]],\n    "9,12,11": [[0], [0, 1, 2]]',
        '"9,12,11": [[0], [0, 1, 2]],',
    ],
)
@pytest.mark.parametrize("where", ["alone", "first", "last"])
def test_a_wrong_row_is_refused_in_the_layout_of_the_writer(row: str, where: str) -> None:
    """A wrong row among right ones, with a right digest, is refused with file and field."""
    text = encode_model(make_model(cells={(1, 1, 1): Cell((0, 2), (5, -5, 999)), (2, 1, 1): Cell((1,), (0, 0, 0))}))
    rows = text.decode().partition('"cells": {\n')[2].removesuffix("\n  }\n}\n")
    changed = {"alone": f"    {row}", "first": f"    {row},\n{rows}", "last": f"{rows},\n    {row}"}[where]
    assert CellRows.from_text(rows) is not None
    with pytest.raises(ModelFileError, match=r"^a/file.json: field (cells\[|file: not complete JSON|9,12,11: appears)"):
        decode_model(with_digest(text.decode().replace(rows, changed)), "a/file.json")


def test_rows_of_another_number_of_forms_are_refused_by_name(model: ModelFile) -> None:
    """Rows that agree among themselves, but not with the forms, are refused with the first of them."""
    cells = {key: Cell((0,), (0, 0)) for key in ((3, 3, 3), (4, 4, 4))}
    with pytest.raises(
        ModelFileError, match=r"field cells\[3,3,3\]: expected at least one candidate and 3 corrections"
    ):
        decode_model(encode_model(replace(model, cells=cells)), "a/file.json")


def test_large_corrections_are_read_as_json(model: ModelFile) -> None:
    """A factor beyond e is unusual, and right."""
    cells = {(3, 3, 3): Cell((0,), (0, 5000, -5000))}
    again = decode_model(encode_model(replace(model, cells=cells)), "a/file.json").cells
    assert again == cells
    assert not isinstance(again, CellRows)


def test_the_digest_is_the_same_whoever_hashes(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's own SHA-256 and that of hashlib agree, also where the former is missing."""
    by_hashlib = encode_model(model)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "hashlib")
        assert json_document._sha256().__module__ in json_document._BUILT_IN
        assert encode_model(model) == by_hashlib
        patch.setattr(json_document, "_BUILT_IN", ("no_such_module",))
        assert encode_model(model) == by_hashlib

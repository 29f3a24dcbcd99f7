"""Model files: what is written is read again, and anything else is refused by file and field."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import PLAIN, TMA, make_model
from redigest import with_digest

from wavetune.core.config import GEMM
from wavetune.errors import ModelFileError
from wavetune.runtime.codec import decode_model, encode_model, read_model, write_model
from wavetune.runtime.model_file import SCHEMA_VERSION, Cell, ExactEntry, LaunchForm, ModelFile

NAME = "folder/model.json"


def decoded(data: bytes) -> ModelFile:
    """Decode under a name that errors must mention."""
    return decode_model(data, NAME)


def test_a_model_round_trips(model: ModelFile) -> None:
    """Decoding an encoded model gives it back, with digest and path; encoding again gives the same bytes."""
    data = encode_model(model)
    again = decoded(data)
    assert again == replace(model, digest=again.digest, path=NAME)
    assert again.digest.startswith("sha256:")
    assert again.digest.encode() in data
    assert encode_model(again) == data


def test_the_shipped_model_round_trips(shipped_path: Path) -> None:
    """The shipped file is exactly what encoding its content gives."""
    data = shipped_path.read_bytes()
    assert encode_model(read_model(shipped_path)) == data


def test_the_order_of_rows_does_not_matter(model: ModelFile) -> None:
    """Cells and exact rows are sorted in the file, so equal models give equal bytes."""
    backwards = replace(
        model, cells=dict(reversed(list(model.cells.items()))), exact=dict(reversed(list(model.exact.items())))
    )
    assert encode_model(backwards) == encode_model(model)


def test_a_file_is_readable_text(model: ModelFile) -> None:
    """The file is plain JSON with units, one row a line."""
    text = encode_model(model).decode()
    document = json.loads(text)
    assert document["units"]["latency"] == "us"
    assert document["provenance"]["files"][0]["name"] == "größe.csv"
    assert "größe.csv" in text
    assert max(map(len, text.splitlines())) < 500
    assert text.endswith("}\n")


def test_every_truncation_of_the_shipped_file_is_refused(shipped_path: Path) -> None:
    """A file cut anywhere is refused: in its last bytes, its first, and a sample of the others."""
    data = shipped_path.read_bytes()
    rng = random.Random(0)
    cuts = [*range(len(data) - 30, len(data)), *rng.sample(range(len(data) - 30), 20), *range(10)]
    for cut in cuts:
        with pytest.raises(ModelFileError, match=f"^{NAME}: field "):
            decoded(data[:cut])


def test_every_truncation_of_a_small_file_is_refused(model: ModelFile) -> None:
    """A small file is refused wherever it is cut, also by its last byte."""
    data = encode_model(model)
    for cut in range(len(data)):
        with pytest.raises(ModelFileError, match=f"^{NAME}: field "):
            decoded(data[:cut])


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_every_flipped_byte_is_refused(model: ModelFile, flip: int) -> None:
    """No byte of a file can change without being noticed."""
    data = bytearray(encode_model(model))
    for position in range(len(data)):
        data[position] ^= flip
        with pytest.raises(ModelFileError, match=f"^{NAME}: field "):
            decoded(bytes(data))
        data[position] ^= flip
    assert decoded(bytes(data)).kernel == "gemm"


def test_flipped_bytes_of_the_shipped_file_are_refused(shipped_path: Path) -> None:
    """A sample of the bytes of a real file."""
    data = bytearray(shipped_path.read_bytes())
    rng = random.Random(1)
    for position in rng.sample(range(len(data)), 80):
        before = data[position]
        data[position] ^= 1 << rng.randrange(8)
        with pytest.raises(ModelFileError, match=f"^{NAME}: field "):
            decoded(bytes(data))
        data[position] = before


def test_a_newer_schema_is_refused(model: ModelFile) -> None:
    """A file from a later version says so, before its digest is looked at."""
    text = encode_model(model).decode().replace('"schema_version": 1', f'"schema_version": {SCHEMA_VERSION + 1}')
    with pytest.raises(ModelFileError, match="schema_version: 2 is newer"):
        decoded(text.encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not complete JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{}", "schema"),
        (b'{"schema": "something-else"}', "schema"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b'{"schema": NaN}', "NaN"),
        (b'{"schema": -Infinity}', "Infinity"),
        (b'{"schema": 1e999}', "1e999"),
        (b'{"schema": 1, "schema": 1}', "schema: appears twice"),
        (b'{"schema": "wavetune-model", "schema_version": true}', "schema_version"),
        (b'{"schema": "wavetune-model", "schema_version": 0}', "schema_version"),
        (b'{"schema": "wavetune-model", "schema_version": 1}', "digest: missing"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_what_is_no_model_is_refused(data: bytes, message: str) -> None:
    """Anything else than a model is refused with the reason."""
    with pytest.raises(ModelFileError, match=f"^{NAME}: field .*{message}"):
        decoded(data)


CHANGES = {
    "kernel": ("kernel", "conv"),
    "dtype": ("dtype", "bf17"),
    "arch": ("arch", "nvidia-h2000"),
    "layout": ("layout", "tn"),
    "num_sms": ("num_sms", 0),
    "num_sms bool": ("num_sms", True),
    "num_sms float": ("num_sms", 132.0),
    "num_sms huge": ("num_sms", 10**300),
    "terms": ("terms", 7),
    "terms order": ("terms", ["wave", "launch"]),
    "default": ("default", 4),
    "default negative": ("default", -1),
    "bound_log2": ("bound_log2", -0.5),
    "bound_log2 huge": ("bound_log2", 10**400),
    "forms": ("forms", []),
    "micro": ("micro", {}),
    "cells": ("cells", []),
    "exact": ("exact", {}),
    "provenance": ("provenance", []),
    "accuracy": ("accuracy", "good"),
    "fit_range.m": ("fit_range.m", [5, 4]),
    "fit_range.k": ("fit_range.k", [1, 2, 3]),
    "fit_range.n": ("fit_range.n", [0, 2]),
    "forms[0]": ("forms.0", 3),
    "forms[1].config": ("forms.1.config.block_m", 0),
    "forms[1].config.block_n": ("forms.1.config.block_n", 10**400),
    "forms[2].config": ("forms.2.config.load", "magic"),
    "forms[0].config": ("forms.0.config.schedule", "tile"),
    "forms[2].config unknown": ("forms.2.config.block_z", 3),
    "forms[1].ctas_per_sm": ("forms.1.ctas_per_sm", 0),
    "forms[1].num_regs": ("forms.1.num_regs", -1),
    "forms[1].smem_bytes": ("forms.1.smem_bytes", "many"),
    "forms[1].coefficients": ("forms.1.coefficients", [1.0]),
    "forms[1].coefficients zero": ("forms.1.coefficients", [0.0] * 10),
    "forms[1].coefficients[3]": ("forms.1.coefficients.3", -1e-9),
    "forms[1].coefficients[0]": ("forms.1.coefficients.0", True),
    "forms unmodelled first": ("forms.0.coefficients", None),
    "micro[0].loop_trips": ("micro.0.loop_trips", [0]),
    "micro[1]": ("micro.1.loop_trips", [64, 1]),
    "micro[1] length": ("micro.1.form", [1]),
    "micro[1].form": ("micro.1.form", [1, 3]),
    "micro[0].macro": ("micro.0.macro.block_m", 17),
    "cells[9,12,12]": ("cells.9,12,12", [[1, 2]]),
    "cells[9,12,12].candidates": ("cells.9,12,12.0", [3]),
    "cells[9,12,12] empty": ("cells.9,12,12.0", []),
    "cells[9,12,12].candidates[0]": ("cells.9,12,12.0", [True, 2]),
    "cells[9,12,12].correction": ("cells.9,12,12.1", [0, 5001, 0]),
    "cells[9,12,12].correction[2]": ("cells.9,12,12.1.2", 1.0),
    "cells[9,12,12] length": ("cells.9,12,12.1", [0, 0]),
    "cells[9,12]": ("cells.9,12", [[1], [0, 0, 0]]),
    "cells[09,12,12]": ("cells.09,12,12", [[1], [0, 0, 0]]),
    "cells[0,32,0]": ("cells.0,32,0", [[1], [0, 0, 0]]),
    "exact[0]": ("exact.0", [300, 4096, 4096, 9, 20.5]),
    "exact[0] size": ("exact.0", [0, 4096, 4096, 1, 20.5]),
    "exact[0] latency": ("exact.0", [300, 4096, 4096, 1, 0]),
    "exact[0] illegal": ("exact.0", [300, 4096, 64, 0, 20.5]),
    "exact[1]": ("exact.1", 5),
    "exact twice": ("exact.1", [300, 4096, 4096, 1, 20.5]),
}


@pytest.mark.parametrize("field", CHANGES)
def test_an_impossible_value_is_refused_by_name(model: ModelFile, field: str) -> None:
    """A value that no model can have is refused with its field, although the digest is right."""
    document = json.loads(encode_model(model))
    path, value = CHANGES[field]
    *parents, last = path.split(".")
    target = document
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target[part]
    target[int(last) if isinstance(target, list) else last] = value
    with pytest.raises(ModelFileError) as error:
        decoded(with_digest(json.dumps(document)))
    assert str(error.value).startswith(f"{NAME}: ")
    assert field.split(" ")[0] in str(error.value)
    assert len(str(error.value)) < 500


def test_every_field_is_needed(model: ModelFile) -> None:
    """A file without one of its fields is refused with the field, at every level."""
    document = json.loads(encode_model(model))
    document.pop("units")  # For the reader of the file only.
    nested = [("forms", 0), ("micro", 0), ("fit_range",)]
    places = [((), key) for key in document if key != "digest"]
    for place in nested:
        target = document
        for part in place:
            target = target[part]
        places += [(place, key) for key in target]
    assert len(places) > 25
    for place, key in places:
        damaged = json.loads(json.dumps(document))
        target = damaged
        for part in place:
            target = target[part]
        del target[key]
        with pytest.raises(ModelFileError) as error:
            decoded(with_digest(json.dumps(damaged)))
        assert str(key) in str(error.value)


def test_equal_configurations_are_refused(model: ModelFile) -> None:
    """One configuration cannot have two forms."""
    twice = replace(model, forms=(*model.forms, LaunchForm(TMA, 1, 180, 98304, None)))
    with pytest.raises(ModelFileError, match="forms: the same configuration appears twice"):
        decoded(encode_model(twice))


def test_a_form_that_is_never_legal_is_refused() -> None:
    """A GPU without TMA cannot have a form that loads with it."""
    with pytest.raises(ModelFileError, match=r"forms\[2\].config: never legal: nvidia-a100 has no TMA"):
        decoded(encode_model(make_model(arch="nvidia-a100")))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there, or is a folder, is refused by name."""
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(ModelFileError, match=str(path)):
            read_model(path)


def test_writing_makes_folders_and_replaces(model: ModelFile, tmp_path: Path) -> None:
    """A written file reads back, over an old one too, and nothing else is left behind."""
    path = tmp_path / "new" / "nvidia-h200" / "gemm-bf16.json"
    write_model(replace(model, num_sms=131), path)
    write_model(model, path)
    assert read_model(path).num_sms == 132
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """When the disk fails at any step, the old file is whole and no part of the new one remains."""
    path = tmp_path / "gemm-bf16.json"
    write_model(model, path)
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(ModelFileError, match="No space left"):
        write_model(replace(model, num_sms=131), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_killed_write_leaves_the_old_file(model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt passes through, and the old file is whole."""
    path = tmp_path / "gemm-bf16.json"
    write_model(model, path)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_model(replace(model, num_sms=131), path)
    assert read_model(path) == replace(model, digest=read_model(path).digest, path=str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_json_cannot_hold_is_not_written(model: ModelFile, tmp_path: Path) -> None:
    """NaN in the accuracy is an error of its own kind, and no file appears."""
    with pytest.raises(ModelFileError, match="cannot write"):
        write_model(replace(model, accuracy={"efficiency": float("nan")}), tmp_path / "model.json")
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_an_error(model: ModelFile, tmp_path: Path) -> None:
    """A file where a folder is needed is an error that names the place."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(ModelFileError, match="taken"):
        write_model(model, tmp_path / "taken" / "model.json")


def test_a_model_without_tables_is_a_model() -> None:
    """Cells, exact rows and micro choices may be empty."""
    bare = make_model(cells={}, exact={}, micro=())
    assert decoded(encode_model(bare)).cells == {}


def test_the_number_of_modelled_forms_counts_coefficients(model: ModelFile) -> None:
    """Forms that only the exact table uses are not modelled."""
    assert model.n_modelled == 3
    assert len(PLAIN) == 10
    assert GEMM.macro_of(model.forms[0].config) == model.micro[0].macro
    assert isinstance(model.cells[9, 12, 12], Cell)
    assert isinstance(model.exact[512, 4096, 4096], ExactEntry)

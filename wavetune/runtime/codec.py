"""Read and write model files: plain JSON, checked field by field, all or nothing.

A file that is cut, edited, from a newer schema or not JSON is refused with an error that names the file and the
field. Reading never runs code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from wavetune.core.config import find_kernel_spec
from wavetune.errors import ModelFileError, WavetuneError
from wavetune.runtime.cell_rows import CellRows
from wavetune.runtime.document_reader import DocumentReader
from wavetune.runtime.json_document import (
    block,
    dump,
    encode_document,
    lines,
    parse_document,
    read_bytes,
    write_bytes,
)
from wavetune.runtime.model_file import SCHEMA, SCHEMA_VERSION, LaunchForm, MicroChoice, ModelFile
from wavetune.waves.terms import TERM_UNITS, TERMS


def read_model(path: str | os.PathLike[str]) -> ModelFile:
    """Read and check a model file.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is not a model, is from a newer schema, does not match its digest, or has
        a field that is missing or impossible. The message names file and field.
    """
    return decode_model(read_bytes(path), os.fspath(path))


def decode_model(data: bytes, name: str) -> ModelFile:
    """Decode the bytes of a model file; ``name`` is used in errors. See `read_model`."""
    reader = DocumentReader(name)
    document, digest = parse_document(
        data, reader, schema=SCHEMA, version=SCHEMA_VERSION, last=("cells", CellRows.from_text)
    )
    try:
        return reader.model(document, digest)
    except WavetuneError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{name}: {error}") from None


def encode_model(model: ModelFile) -> bytes:
    """Encode a model as JSON text: one row a line, rows sorted, digest filled in."""
    spec = find_kernel_spec(model.kernel)
    assert all(name in spec.fields for form in model.forms for name in form.config)
    rows: list[tuple[str, str]] = [
        ("kernel", dump(model.kernel)),
        ("dtype", dump(model.dtype)),
        ("layout", dump(model.layout)),
        ("arch", dump(model.arch)),
        ("num_sms", dump(model.num_sms)),
        ("accuracy", block(model.accuracy)),
        ("provenance", block(model.provenance)),
        ("units", block({"latency": "us", "correction": "1000 ln(factor on latency)", **TERM_UNITS})),
        ("fit_range", block({key: list(value) for key, value in model.fit_range.items()})),
        ("terms", dump(list(TERMS))),
        ("default", dump(model.default_index)),
        ("forms", lines([dump(_form_document(form)) for form in model.forms], "[]")),
        ("micro", lines([dump(_micro_document(choice)) for choice in model.micro], "[]")),
        ("bound_log2", dump(model.bound_log2)),
        (
            "exact",
            lines([dump([*key, e.config_index, e.latency_us]) for key, e in sorted(model.exact.items())], "[]"),
        ),
        (
            "cells",
            lines(
                [
                    dump(",".join(map(str, key))) + ": " + dump([cell.candidates, cell.correction_permille])
                    for key, cell in sorted(model.cells.items())
                ],
                "{}",
            ),
        ),
    ]
    return encode_document(SCHEMA, SCHEMA_VERSION, rows)


def write_model(model: ModelFile, path: str | os.PathLike[str]) -> None:
    """Write a model file atomically: a reader sees the old file or the new one, never a part.

    Raises
    ------
    ModelFileError
        If the folder cannot be written, or the model holds what JSON cannot: NaN or infinity.
    """
    try:
        data = encode_model(model)
    except ValueError as error:
        raise ModelFileError(f"{Path(path)}: cannot write: {error}") from None
    write_bytes(data, path)


def _form_document(form: LaunchForm) -> dict[str, Any]:
    return {
        "config": dict(form.config),
        "ctas_per_sm": form.ctas_per_sm,
        "num_regs": form.num_regs,
        "smem_bytes": form.smem_bytes,
        "coefficients": None if form.coefficients is None else list(form.coefficients),
    }


def _micro_document(choice: MicroChoice) -> dict[str, Any]:
    return {
        "macro": dict(choice.macro),
        "loop_trips": list(choice.loop_trips),
        "form": list(choice.config_index),
    }

"""Read and write model files: plain JSON, checked field by field, all or nothing.

A file that is cut, edited, from a newer schema or not JSON is refused with an error that names the file and the
field. Reading never runs code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavetune.core.config import find_kernel_spec
from wavetune.errors import ModelFileError, WavetuneError
from wavetune.runtime.document_reader import DocumentReader
from wavetune.runtime.model_file import SCHEMA, SCHEMA_VERSION, LaunchForm, MicroChoice, ModelFile
from wavetune.waves.terms import TERM_UNITS, TERMS

_DIGEST_MARK = b'"digest": "sha256:'
_DIGEST_HEX = 64


def read_model(path: str | os.PathLike[str]) -> ModelFile:
    """Read and check a model file.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is not a model, is from a newer schema, does not match its digest, or has
        a field that is missing or impossible. The message names file and field.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"{name}: cannot read: {error.strerror or error}") from None
    return decode_model(data, name)


def decode_model(data: bytes, name: str) -> ModelFile:
    """Decode the bytes of a model file; ``name`` is used in errors. See `read_model`."""
    reader = DocumentReader(name)
    try:
        text = data.decode("utf-8")
        document = json.loads(
            text,
            parse_constant=reader.refuse_constant,
            parse_float=reader.finite,
            object_pairs_hook=reader.unique_keys,
        )
    except UnicodeDecodeError:
        reader.fail("file", "not UTF-8 text")
    except RecursionError:
        reader.fail("file", "nested too deeply to be a model")
    except json.JSONDecodeError as error:
        reader.fail("file", f"not complete JSON ({error.msg} at line {error.lineno}); it may have been cut")
    except ModelFileError:
        raise
    except ValueError:  # Python's limit on the digits of an integer.
        reader.fail("file", "holds an integer of thousands of digits")
    if not isinstance(document, dict):
        reader.fail("file", "not a JSON object")
    if document.get("schema") != SCHEMA:
        reader.fail("schema", f"expected {SCHEMA!r}, got {document.get('schema')!r}; this is not a model file")
    version = reader.integer(document, "schema_version", 1)
    if version > SCHEMA_VERSION:
        reader.fail(
            "schema_version",
            f"{version} is newer than {SCHEMA_VERSION}, the newest this version reads; upgrade wavetune",
        )
    digest = reader.string(document, "digest")
    if digest != f"sha256:{_digest_of(data)}":
        reader.fail("digest", "does not match the content: the file was edited or damaged; restore or calibrate again")
    try:
        return reader.model(document, digest)
    except WavetuneError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{name}: {error}") from None


def encode_model(model: ModelFile) -> bytes:
    """Encode a model as JSON text: one row a line, rows sorted, digest filled in."""
    spec = find_kernel_spec(model.kernel)
    rows: list[tuple[str, str]] = [
        ("schema", _dump(SCHEMA)),
        ("schema_version", _dump(SCHEMA_VERSION)),
        ("digest", _dump("sha256:" + "0" * _DIGEST_HEX)),
        ("kernel", _dump(model.kernel)),
        ("dtype", _dump(model.dtype)),
        ("layout", _dump(model.layout)),
        ("arch", _dump(model.arch)),
        ("num_sms", _dump(model.num_sms)),
        ("accuracy", _block(model.accuracy)),
        ("provenance", _block(model.provenance)),
        ("units", _block({"latency": "us", "correction": "1000 ln(factor on latency)", **TERM_UNITS})),
        ("fit_range", _block({key: list(value) for key, value in model.fit_range.items()})),
        ("terms", _dump(list(TERMS))),
        ("default", _dump(model.default_index)),
        ("forms", _lines([_dump(_form_document(form)) for form in model.forms], "[]")),
        ("micro", _lines([_dump(_micro_document(choice)) for choice in model.micro], "[]")),
        ("bound_log2", _dump(model.bound_log2)),
        (
            "exact",
            _lines([_dump([*key, e.config_index, e.latency_us]) for key, e in sorted(model.exact.items())], "[]"),
        ),
        (
            "cells",
            _lines(
                [
                    _dump(",".join(map(str, key))) + ": " + _dump([cell.candidates, cell.correction_permille])
                    for key, cell in sorted(model.cells.items())
                ],
                "{}",
            ),
        ),
    ]
    assert all(name in spec.fields for form in model.forms for name in form.config)
    body = "{\n" + ",\n".join(f"  {_dump(key)}: {value}" for key, value in rows) + "\n}\n"
    data = body.encode()
    return data.replace(b"0" * _DIGEST_HEX, _digest_of(data).encode(), 1)


def write_model(model: ModelFile, path: str | os.PathLike[str]) -> None:
    """Write a model file atomically: a reader sees the old file or the new one, never a part.

    Raises
    ------
    ModelFileError
        If the folder cannot be written, or the model holds what JSON cannot: NaN or infinity.
    """
    import tempfile  # Readers do without: it takes milliseconds to import.

    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode_model(model))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ModelFileError(f"{target}: cannot write: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelFileError(f"{target}: cannot write: {error}") from None


def _digest_of(data: bytes) -> str:
    """Hash the file with its digest blanked out."""
    start = data.find(_DIGEST_MARK)
    if start >= 0:
        start += len(_DIGEST_MARK)
        data = data[:start] + b"0" * _DIGEST_HEX + data[start + _DIGEST_HEX :]
    return hashlib.sha256(data).hexdigest()


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _block(mapping: Mapping[str, Any]) -> str:
    return _lines([f"{_dump(key)}: {_dump(mapping[key])}" for key in sorted(mapping)], "{}")


def _lines(items: list[str], brackets: str) -> str:
    if not items:
        return brackets
    return brackets[0] + "\n    " + ",\n    ".join(items) + "\n  " + brackets[1]


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

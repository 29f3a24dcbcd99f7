"""The JSON text of model files: one row a line, a digest of the bytes, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from wavetune.errors import ModelFileError
from wavetune.runtime.document_reader import DocumentReader

_BUILT_IN = ("_sha2", "_sha256")
"""Modules of the interpreter with SHA-256 alone, since and before Python 3.12."""

MAX_BYTES = 1 << 27
"""Of a file that is read; the largest shipped model has 1 MB."""

_DIGEST_MARK = b'"digest": "sha256:'
_DIGEST_HEX = 64


def parse_document(
    data: bytes,
    reader: DocumentReader,
    *,
    schema: str,
    version: int,
    last: tuple[str, Callable[[str], object | None]] | None = None,
) -> tuple[dict[str, Any], str]:
    """Parse the bytes of a file and check what every kind of file has: schema, version and digest.

    Parameters
    ----------
    data : bytes
        The whole file.
    reader : DocumentReader
        Names the file in errors.
    schema : str
        What the file must be.
    version : int
        Newest schema version that can be read.
    last : tuple of str and callable, optional
        Name of the last field, an object with one entry a line, and what may check and keep those lines as they are;
        where it returns None, they are parsed like the rest.

    Returns
    -------
    document : dict
        The JSON object; its other fields are unchecked, but for what ``last`` kept.
    digest : str
        ``sha256:`` and 64 hexadecimal digits.

    Raises
    ------
    ModelFileError
        If the bytes are not such a document, or do not match their digest; names file and field.
    """
    try:
        text = data.decode("utf-8")
        kept = None
        if last is not None:
            text, kept = _keep_lines(text, *last)
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
    if last is not None and kept is not None:
        document[last[0]] = kept
    if document.get("schema") != schema:
        reader.fail("schema", f"expected {schema!r}, got {document.get('schema')!r}; this is another kind of file")
    found = reader.integer(document, "schema_version", 1)
    if found > version:
        reader.fail(
            "schema_version", f"{found} is newer than {version}, the newest this version reads; upgrade wavetune"
        )
    digest = reader.string(document, "digest")
    if digest != f"sha256:{_digest_of(data)}":
        reader.fail("digest", "does not match the content: the file was edited or damaged; restore or calibrate again")
    return document, digest


def encode_document(schema: str, version: int, rows: Sequence[tuple[str, str]]) -> bytes:
    """Encode a file: schema, version and digest, then ``rows`` of (field, JSON text)."""
    front = [
        ("schema", dump(schema)),
        ("schema_version", dump(version)),
        ("digest", dump("sha256:" + "0" * _DIGEST_HEX)),
    ]
    body = "{\n" + ",\n".join(f"  {dump(key)}: {value}" for key, value in [*front, *rows]) + "\n}\n"
    data = body.encode()
    return data.replace(b"0" * _DIGEST_HEX, _digest_of(data).encode(), 1)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file, a pipe or a device; opened once.

    Raises
    ------
    ModelFileError
        If it cannot be read, or is larger than `MAX_BYTES`.
    """
    try:
        with open(path, "rb") as file:
            # A device such as /dev/zero has no end.
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(-1 if is_file else MAX_BYTES + 1)
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)}: cannot read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ModelFileError(f"{os.fspath(path)}: cannot read: more than {MAX_BYTES >> 20} MB, which no model has")
    return data


def write_bytes(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file whole or not at all, see `wavetune.core.whole_file.replacing`; its folder is made.

    Raises
    ------
    ModelFileError
        If the folder cannot be written.
    """
    from wavetune.core.whole_file import replacing  # Readers do without.

    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as place, open(place, "wb") as file:
            file.write(data)
            file.flush()
            # Devices and pipes, which are written to in place, have nothing to synchronize.
            if place != target:
                os.fsync(file.fileno())
    except OSError as error:
        raise ModelFileError(f"{target}: cannot write: {error.strerror or error}") from None


def dump(value: Any) -> str:
    """Return JSON text on one line; raises ValueError for NaN and infinities."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def block(mapping: Mapping[str, Any]) -> str:
    """Return an object with one sorted entry a line."""
    return lines([f"{dump(key)}: {dump(mapping[key])}" for key in sorted(mapping)], "{}")


def lines(items: Sequence[str], brackets: str) -> str:
    """Return JSON texts in brackets, one a line."""
    if not items:
        return brackets
    return brackets[0] + "\n    " + ",\n    ".join(items) + "\n  " + brackets[1]


def _keep_lines(text: str, field: str, keep: Callable[[str], object | None]) -> tuple[str, object | None]:
    """Take the lines of the last field out of a file that is laid out as by `encode_document`."""
    opening, closing = f'\n  "{field}": {{\n', "\n  }\n}\n"
    start = text.find(opening)
    if start < 0 or not text.endswith(closing):
        return text, None
    kept = keep(text[start + len(opening) : -len(closing)])
    # JSON has no line breaks inside of strings, so a field begins here, or the rest is no JSON either.
    return (text, None) if kept is None else (f"{text[: start + len(opening) - 1]}}}\n}}\n", kept)


def _digest_of(data: bytes) -> str:
    """Hash the file with its digest blanked out."""
    start = data.find(_DIGEST_MARK)
    if start >= 0:
        start += len(_DIGEST_MARK)
        data = data[:start] + b"0" * _DIGEST_HEX + data[start + _DIGEST_HEX :]
    return str(_sha256()(data).hexdigest())


def _sha256() -> Callable[[bytes], Any]:
    """Return `hashlib.sha256`, or its twin in the interpreter: hashlib loads OpenSSL, a tenth of a first choice."""
    for name in () if "hashlib" in sys.modules else _BUILT_IN:
        with suppress(ImportError, AttributeError):
            found: Callable[[bytes], Any] = import_module(name).sha256
            return found
    import hashlib

    return hashlib.sha256

"""Read and write model files: plain JSON, checked field by field, all or nothing.

A file that is cut, edited, from a newer schema or not JSON is refused with an error that names the file and the
field. Reading never runs code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GEMM_LAYOUTS, MAX_DIMENSION, GemmProblem
from wavetune.errors import ConfigError, ModelFileError, WavetuneError
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.runtime.model_file import SCHEMA, SCHEMA_VERSION, Cell, ExactEntry, LaunchForm, MicroChoice, ModelFile
from wavetune.waves.terms import TERM_UNITS, TERMS

_T = TypeVar("_T")
_DIGEST_MARK = b'"digest": "sha256:'
_DIGEST_HEX = 64
_MAX_NUMBER = 1e300
_MAX_OCTAVE = 31
# The first so many terms are positive for every problem, so one positive coefficient makes every latency positive.
_N_ALWAYS = TERMS.index("compulsory") + 1


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
    reader = _Reader(name)
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
    except ValueError:
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


class _Reader:
    """Typed access to a JSON document; every failure names file and field."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self._name}: field {field}: {problem}")

    def refuse_constant(self, word: str) -> NoReturn:
        self.fail("file", f"{word} is not a number a model may hold")

    def finite(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            self.fail("file", f"{text} is not a number a model may hold")
        return number

    def unique_keys(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) != len(pairs):
            keys = [key for key, _ in pairs]
            self.fail(next(key for key in keys if keys.count(key) > 1), "appears twice")
        return document

    def get(self, document: Mapping[str, Any], field: str, where: str = "") -> Any:
        if field not in document:
            self.fail(where + field, "missing")
        return document[field]

    def string(self, document: Mapping[str, Any], field: str) -> str:
        value = self.get(document, field)
        if not isinstance(value, str):
            self.fail(field, f"expected a string, got {value!r}")
        return value

    def integer(self, document: Mapping[str, Any], field: str, minimum: int, where: str = "") -> int:
        return self.as_integer(self.get(document, field, where), where + field, minimum)

    def as_integer(self, value: Any, field: str, minimum: int, maximum: int | None = None) -> int:
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            limit = f"at least {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
            self.fail(field, f"expected an integer {limit}, got {value!r}")
        return value

    def as_number(self, value: Any, field: str) -> float:
        if type(value) not in (int, float) or not 0 <= value <= _MAX_NUMBER:
            self.fail(field, f"expected a finite number that is not negative, got {value!r}")
        return float(value)

    def as_list(self, value: Any, field: str, read: Callable[[Any, str], _T]) -> tuple[_T, ...]:
        if not isinstance(value, list):
            self.fail(field, f"expected a list, got {value!r}")
        return tuple(read(item, f"{field}[{index}]") for index, item in enumerate(value))

    def as_object(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(field, f"expected an object, got {value!r}")
        return value

    def model(self, document: dict[str, Any], digest: str) -> ModelFile:
        spec = find_kernel_spec(self.string(document, "kernel"))
        arch = find_arch(self.string(document, "arch"))
        dtype = find_dtype(self.string(document, "dtype"))
        layout = self.string(document, "layout")
        if layout not in GEMM_LAYOUTS:
            self.fail("layout", f"unknown layout {layout!r}; known: {', '.join(GEMM_LAYOUTS)}")
        if self.get(document, "terms") != list(TERMS):
            self.fail("terms", f"this version of wavetune needs {list(TERMS)}")
        forms = self.as_list(self.get(document, "forms"), "forms", lambda v, f: self.form(v, f, spec))
        n_modelled = sum(form.coefficients is not None for form in forms)
        if not n_modelled:
            self.fail("forms", "a model needs at least one launch configuration with coefficients")
        if any(form.coefficients is None for form in forms[:n_modelled]):
            self.fail("forms", "forms without coefficients must come last")
        if len({form.config for form in forms}) != len(forms):
            self.fail("forms", "the same configuration appears twice")
        for index, form in enumerate(forms):
            reason = gemm_illegal_reason(GemmProblem(1, 1, 1), form.config, arch)
            if reason is not None:
                self.fail(f"forms[{index}].config", f"never legal: {reason}")
        last = len(forms) - 1
        return ModelFile(
            kernel=spec.name,
            dtype=dtype.name,
            layout=layout,
            arch=arch.name,
            num_sms=self.integer(document, "num_sms", 1),
            forms=forms,
            default_index=self.as_integer(self.get(document, "default"), "default", 0, last),
            micro=self.as_list(
                self.get(document, "micro"), "micro", lambda v, f: self.micro(v, f, spec, forms[:n_modelled])
            ),
            bound_log2=self.as_number(self.get(document, "bound_log2"), "bound_log2"),
            cells=self.cells(document, len(spec.dims), n_modelled),
            exact=self.exact(document, len(spec.dims), last),
            fit_range=self.fit_range(document, spec),
            provenance=self.as_object(self.get(document, "provenance"), "provenance"),
            accuracy=self.as_object(self.get(document, "accuracy"), "accuracy"),
            digest=digest,
            path=self._name,
        )

    def config(self, value: Any, field: str, spec: KernelSpec) -> KernelConfig:
        try:
            return spec.config(self.as_object(value, field))
        except ConfigError as error:
            self.fail(field, str(error))

    def form(self, value: Any, field: str, spec: KernelSpec) -> LaunchForm:
        row = self.as_object(value, field)
        coefficients = self.get(row, "coefficients", f"{field}.")
        if coefficients is not None:
            coefficients = self.as_list(coefficients, f"{field}.coefficients", self.as_number)
            if len(coefficients) != len(TERMS):
                self.fail(f"{field}.coefficients", f"expected {len(TERMS)} numbers, got {len(coefficients)}")
            if not any(coefficients[:_N_ALWAYS]):
                self.fail(f"{field}.coefficients", f"one of {', '.join(TERMS[:_N_ALWAYS])} must be positive")
        return LaunchForm(
            config=self.config(self.get(row, "config", f"{field}."), f"{field}.config", spec),
            ctas_per_sm=self.integer(row, "ctas_per_sm", 1, f"{field}."),
            num_regs=self.integer(row, "num_regs", 0, f"{field}."),
            smem_bytes=self.integer(row, "smem_bytes", 0, f"{field}."),
            coefficients=coefficients,
        )

    def micro(self, value: Any, field: str, spec: KernelSpec, forms: tuple[LaunchForm, ...]) -> MicroChoice:
        row = self.as_object(value, field)
        trips = self.as_list(
            self.get(row, "loop_trips", f"{field}."), f"{field}.loop_trips", lambda v, f: self.as_integer(v, f, 1)
        )
        index = self.as_list(
            self.get(row, "form", f"{field}."), f"{field}.form", lambda v, f: self.as_integer(v, f, 0, len(forms) - 1)
        )
        if not trips or len(trips) != len(index) or list(trips) != sorted(set(trips)):
            self.fail(field, "loop_trips must be increasing and as many as form")
        macro = self.as_object(self.get(row, "macro", f"{field}."), f"{field}.macro")
        if any(macro != dict(spec.macro_of(forms[i].config)) for i in index):
            self.fail(f"{field}.macro", "not the fields of its forms")
        return MicroChoice(spec.macro_of(forms[index[0]].config), trips, index)

    def cells(self, document: dict[str, Any], n_dims: int, n_modelled: int) -> dict[tuple[int, ...], Cell]:
        cells: dict[tuple[int, ...], Cell] = {}
        octaves = set(map(str, range(_MAX_OCTAVE + 1)))
        for name, value in self.as_object(self.get(document, "cells"), "cells").items():
            field = f"cells[{name}]"
            parts = name.split(",")
            if len(parts) != n_dims or not octaves.issuperset(parts):
                self.fail(field, f"the key must be {n_dims} octaves from 0 to {_MAX_OCTAVE}")
            if not isinstance(value, list) or len(value) != 2:
                self.fail(field, "expected [candidates, correction]")
            candidates, correction = value
            # Thousands of numbers: checked in bulk, and one by one only to name the culprit.
            if not (
                isinstance(candidates, list)
                and isinstance(correction, list)
                and candidates
                and len(correction) == n_modelled
                and set(map(type, candidates)) == {int}
                and set(map(type, correction)) == {int}
                and min(candidates) >= 0
                and max(candidates) < n_modelled
                and max(correction) <= 5000
                and min(correction) >= -5000
            ):
                self.as_list(candidates, f"{field}.candidates", lambda v, f: self.as_integer(v, f, 0, n_modelled - 1))
                self.as_list(correction, f"{field}.correction", lambda v, f: self.as_integer(v, f, -5000, 5000))
                self.fail(field, f"expected at least one candidate and {n_modelled} corrections")
            cells[tuple(map(int, parts))] = Cell(tuple(candidates), tuple(correction))
        return cells

    def exact(self, document: dict[str, Any], n_dims: int, last: int) -> dict[tuple[int, ...], ExactEntry]:
        def read(value: Any, field: str) -> tuple[tuple[int, ...], ExactEntry]:
            if not isinstance(value, list) or len(value) != n_dims + 2:
                self.fail(field, f"expected {n_dims} sizes, a form and a latency")
            key = tuple(self.as_integer(size, field, 1, MAX_DIMENSION) for size in value[:n_dims])
            latency_us = self.as_number(value[-1], field)
            if latency_us == 0.0:
                self.fail(field, "a measured latency is positive")
            return key, ExactEntry(self.as_integer(value[n_dims], field, 0, last), latency_us)

        rows = self.as_list(self.get(document, "exact"), "exact", read)
        entries = dict(rows)
        if len(entries) != len(rows):
            self.fail("exact", "the same problem appears twice")
        return entries

    def fit_range(self, document: dict[str, Any], spec: KernelSpec) -> dict[str, tuple[int, int]]:
        ranges: dict[str, tuple[int, int]] = {}
        value = self.as_object(self.get(document, "fit_range"), "fit_range")
        for name in spec.dims:
            field = f"fit_range.{name}"
            bounds = self.as_list(
                self.get(value, name, "fit_range."), field, lambda v, f: self.as_integer(v, f, 1, MAX_DIMENSION)
            )
            if len(bounds) != 2 or bounds[0] > bounds[1]:
                self.fail(field, "expected [smallest, largest]")
            ranges[name] = (bounds[0], bounds[1])
        return ranges

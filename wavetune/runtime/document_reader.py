"""Typed access to the JSON document of a model file: every value is checked before anything is built from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GEMM_LAYOUTS, MAX_DIMENSION, GemmProblem
from wavetune.errors import ConfigError, ModelFileError
from wavetune.mapping.legality import TMA_ALIGNMENT, gemm_illegal_reason
from wavetune.runtime.cell_rows import CellRows
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm, MicroChoice, ModelFile
from wavetune.waves.terms import TERMS

_T = TypeVar("_T")

MAX_NUMBER = 1e15
"""Beyond any latency, coefficient or size."""

_MAX_OCTAVE = 31
_MAX_PERMILLE = 5000
# The first so many terms are positive for every problem, so one positive coefficient makes every latency positive.
_N_ALWAYS = TERMS.index("compulsory") + 1


def _shown(value: Any) -> str:
    """Show a value in an error, however large it is."""
    if type(value) is int and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return _cut(repr(value), 80)


def _cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


class DocumentReader:
    """Typed access to a JSON document; every failure names file and field.

    Parameters
    ----------
    name : str
        The file, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise `ModelFileError` for a field."""
        raise ModelFileError(f"{self._name}: field {_cut(field)}: {_cut(problem)}")

    def refuse_constant(self, word: str) -> NoReturn:
        """Refuse NaN and infinities."""
        self.fail("file", f"{word} is not a number a model may hold")

    def finite(self, text: str) -> float:
        """Read a decimal number; one beyond the range of floats is refused."""
        number = float(text)
        if not math.isfinite(number):
            self.fail("file", f"{text} is not a number a model may hold")
        return number

    def unique_keys(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Build an object; a repeated key is refused, since readers disagree on which one counts."""
        document = dict(pairs)
        if len(document) != len(pairs):
            keys = [key for key, _ in pairs]
            self.fail(next(key for key in keys if keys.count(key) > 1), "appears twice")
        return document

    def _get(self, document: Mapping[str, Any], field: str, where: str = "") -> Any:
        if field not in document:
            self.fail(where + field, "missing")
        return document[field]

    def string(self, document: Mapping[str, Any], field: str) -> str:
        """Return a field that must be a string."""
        value = self._get(document, field)
        if not isinstance(value, str):
            self.fail(field, f"expected a string, got {_shown(value)}")
        return value

    def integer(self, document: Mapping[str, Any], field: str, minimum: int, where: str = "") -> int:
        """Return a field that must be an integer of at least ``minimum``."""
        return self._as_integer(self._get(document, field, where), where + field, minimum)

    def _as_integer(self, value: Any, field: str, minimum: int, maximum: int = MAX_DIMENSION) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            self.fail(field, f"expected an integer in [{minimum}, {maximum}], got {_shown(value)}")
        return value

    def _as_number(self, value: Any, field: str, minimum: float = 0.0) -> float:
        if type(value) not in (int, float) or not minimum <= value <= MAX_NUMBER:
            self.fail(field, f"expected a number in [{minimum:g}, {MAX_NUMBER:g}], got {_shown(value)}")
        return float(value)

    def _as_list(self, value: Any, field: str, read: Callable[[Any, str], _T]) -> tuple[_T, ...]:
        if not isinstance(value, list):
            self.fail(field, f"expected a list, got {_shown(value)}")
        return tuple(read(item, f"{field}[{index}]") for index, item in enumerate(value))

    def _as_object(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(field, f"expected an object, got {_shown(value)}")
        return value

    def model(self, document: dict[str, Any], digest: str) -> ModelFile:
        """Build the model, or raise for the first field that is wrong."""
        spec = find_kernel_spec(self.string(document, "kernel"))
        arch = find_arch(self.string(document, "arch"))
        dtype = find_dtype(self.string(document, "dtype"))
        layout = self.string(document, "layout")
        if layout not in GEMM_LAYOUTS:
            self.fail("layout", f"unknown layout {layout!r}; known: {', '.join(GEMM_LAYOUTS)}")
        if self._get(document, "terms") != list(TERMS):
            self.fail("terms", f"this version of wavetune needs {list(TERMS)}")
        forms = self._as_list(self._get(document, "forms"), "forms", lambda v, f: self._form(v, f, spec))
        n_modelled = sum(form.coefficients is not None for form in forms)
        if not n_modelled:
            self.fail("forms", "a model needs at least one launch configuration with coefficients")
        if any(form.coefficients is None for form in forms[:n_modelled]):
            self.fail("forms", "forms without coefficients must come last")
        if len({form.config for form in forms}) != len(forms):
            self.fail("forms", "the same configuration appears twice")
        deep = GemmProblem(1, 1, MAX_DIMENSION, dtype.name, layout, TMA_ALIGNMENT)
        for index, form in enumerate(forms):
            reason = gemm_illegal_reason(deep, form.config, arch)
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
            default_index=self._as_integer(self._get(document, "default"), "default", 0, last),
            micro=self._as_list(
                self._get(document, "micro"), "micro", lambda v, f: self._micro(v, f, spec, forms[:n_modelled])
            ),
            bound_log2=self._as_number(self._get(document, "bound_log2"), "bound_log2"),
            cells=self._cells(document, len(spec.dims), n_modelled),
            exact=self._exact(document, dtype.name, layout, forms, arch),
            fit_range=self._fit_range(document, spec),
            provenance=self._as_object(self._get(document, "provenance"), "provenance"),
            accuracy=self._as_object(self._get(document, "accuracy"), "accuracy"),
            digest=digest,
            path=self._name,
        )

    def _config(self, value: Any, field: str, spec: KernelSpec) -> KernelConfig:
        for name, number in self._as_object(value, field).items():
            if type(number) is int:
                self._as_integer(number, f"{field}.{name}", 1)
        try:
            return spec.config(value)
        except ConfigError as error:
            self.fail(field, str(error))

    def _form(self, value: Any, field: str, spec: KernelSpec) -> LaunchForm:
        row = self._as_object(value, field)
        coefficients = self._get(row, "coefficients", f"{field}.")
        if coefficients is not None:
            coefficients = self._as_list(coefficients, f"{field}.coefficients", self._as_number)
            if len(coefficients) != len(TERMS):
                self.fail(f"{field}.coefficients", f"expected {len(TERMS)} numbers, got {len(coefficients)}")
            if not any(coefficients[:_N_ALWAYS]):
                self.fail(f"{field}.coefficients", f"one of {', '.join(TERMS[:_N_ALWAYS])} must be positive")
        return LaunchForm(
            config=self._config(self._get(row, "config", f"{field}."), f"{field}.config", spec),
            ctas_per_sm=self.integer(row, "ctas_per_sm", 1, f"{field}."),
            num_regs=self.integer(row, "num_regs", 0, f"{field}."),
            smem_bytes=self.integer(row, "smem_bytes", 0, f"{field}."),
            coefficients=coefficients,
        )

    def _micro(self, value: Any, field: str, spec: KernelSpec, forms: tuple[LaunchForm, ...]) -> MicroChoice:
        row = self._as_object(value, field)
        trips = self._as_list(
            self._get(row, "loop_trips", f"{field}."), f"{field}.loop_trips", lambda v, f: self._as_integer(v, f, 1)
        )
        index = self._as_list(
            self._get(row, "form", f"{field}."), f"{field}.form", lambda v, f: self._as_integer(v, f, 0, len(forms) - 1)
        )
        if not trips or len(trips) != len(index) or list(trips) != sorted(set(trips)):
            self.fail(field, "loop_trips must be increasing and as many as form")
        macro = self._as_object(self._get(row, "macro", f"{field}."), f"{field}.macro")
        if any(macro != dict(spec.macro_of(forms[i].config)) for i in index):
            self.fail(f"{field}.macro", "not the fields of its forms")
        return MicroChoice(spec.macro_of(forms[index[0]].config), trips, index)

    def _cells(self, document: dict[str, Any], n_dims: int, n_modelled: int) -> Mapping[tuple[int, ...], Cell]:
        document_cells = self._get(document, "cells")
        if isinstance(document_cells, CellRows):
            if (document_cells.n_dims, document_cells.n_forms) == (n_dims, n_modelled):
                return document_cells
            document_cells = document_cells.parsed()
        cells: dict[tuple[int, ...], Cell] = {}
        octaves = {str(octave): octave for octave in range(_MAX_OCTAVE + 1)}
        legal_candidates, legal_corrections = set(range(n_modelled)), set(range(-_MAX_PERMILLE, _MAX_PERMILLE + 1))
        for name, value in self._as_object(document_cells, "cells").items():
            parts = name.split(",")
            if len(parts) != n_dims or not octaves.keys() >= set(parts):
                self.fail(f"cells[{name}]", f"the key must be {n_dims} octaves from 0 to {_MAX_OCTAVE}")
            try:
                candidates, correction = value
                # Tens of thousands of numbers: checked in bulk, and one by one only to name the culprit.
                is_right = (
                    {*map(type, candidates)} == {int} == {*map(type, correction)}
                    and len(correction) == n_modelled
                    and legal_candidates.issuperset(candidates)
                    and legal_corrections.issuperset(correction)
                )
            except (TypeError, ValueError):
                is_right = False
            if not is_right:
                self._fail_cell(value, f"cells[{name}]", n_modelled)
            cells[tuple([octaves[part] for part in parts])] = Cell(tuple(candidates), tuple(correction))
        return cells

    def _fail_cell(self, value: Any, field: str, n_modelled: int) -> NoReturn:
        if not isinstance(value, list) or len(value) != 2:
            self.fail(field, "expected [candidates, correction]")
        self._as_list(value[0], f"{field}.candidates", lambda v, f: self._as_integer(v, f, 0, n_modelled - 1))
        self._as_list(
            value[1], f"{field}.correction", lambda v, f: self._as_integer(v, f, -_MAX_PERMILLE, _MAX_PERMILLE)
        )
        self.fail(field, f"expected at least one candidate and {n_modelled} corrections")

    def _exact(
        self, document: dict[str, Any], dtype: str, layout: str, forms: tuple[LaunchForm, ...], arch: ArchSpec
    ) -> dict[tuple[int, ...], ExactEntry]:
        def read(value: Any, field: str) -> tuple[tuple[int, ...], ExactEntry]:
            if not isinstance(value, list) or len(value) != 5:
                self.fail(field, "expected 3 sizes, a form and a latency")
            m, n, k = (self._as_integer(size, field, 1, MAX_DIMENSION) for size in value[:3])
            latency_us = self._as_number(value[-1], field)
            if latency_us == 0.0:
                self.fail(field, "a measured latency is positive")
            index = self._as_integer(value[3], field, 0, len(forms) - 1)
            problem = GemmProblem(m, n, k, dtype, layout, TMA_ALIGNMENT)
            reason = gemm_illegal_reason(problem, forms[index].config, arch)
            if reason is not None:
                self.fail(field, f"its form is not legal: {reason}")
            return problem.dims, ExactEntry(index, latency_us)

        rows = self._as_list(self._get(document, "exact"), "exact", read)
        entries = dict(rows)
        if len(entries) != len(rows):
            self.fail("exact", "the same problem appears twice")
        return entries

    def _fit_range(self, document: dict[str, Any], spec: KernelSpec) -> dict[str, tuple[int, int]]:
        ranges: dict[str, tuple[int, int]] = {}
        value = self._as_object(self._get(document, "fit_range"), "fit_range")
        for name in spec.dims:
            field = f"fit_range.{name}"
            bounds = self._as_list(
                self._get(value, name, "fit_range."), field, lambda v, f: self._as_integer(v, f, 1, MAX_DIMENSION)
            )
            if len(bounds) != 2 or bounds[0] > bounds[1]:
                self.fail(field, "expected [smallest, largest]")
            ranges[name] = (bounds[0], bounds[1])
        return ranges

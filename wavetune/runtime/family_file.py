"""The model file of a kernel that brings its own mapping: what it says, and how it is read and written.

Plain JSON as the model files of this package's own kernels, and beside them: one form a configuration, no cells. The
mapping functions are not in the file, only their digest; whoever answers from it must have the same ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.errors import ConfigError, ModelFileError, WavetuneError
from wavetune.runtime.boosted_trees import MAX_LEAVES, Node, count_leaves
from wavetune.runtime.document_reader import MAX_NUMBER, DocumentReader
from wavetune.runtime.family_correction import FamilyCorrection, feature_names
from wavetune.runtime.json_document import (
    block,
    dump,
    encode_document,
    lines,
    parse_document,
    read_bytes,
    write_bytes,
)
from wavetune.waves.family_terms import FAMILY_TERM_UNITS, FAMILY_TERMS, N_BASIC_TERMS

FAMILY_SCHEMA = "wavetune-kernel-model"
FAMILY_SCHEMA_VERSION = 2

_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class FamilyForm:
    """One launch configuration of a model.

    Parameters
    ----------
    config : KernelConfig
        Meta-parameters, warps and stages.
    ctas_per_sm : int
        Resident CTAs of one SM; times the SM count it is the wave width.
    num_regs, smem_bytes : int
        What the compiled kernel needs: registers a thread, shared memory a CTA.
    coefficients : tuple of float
        One non-negative number for each term of `wavetune.waves.family_terms.FAMILY_TERMS`; those beyond the basic ones
        may be left out, and are 0.
    """

    config: KernelConfig
    ctas_per_sm: int
    num_regs: int
    smem_bytes: int
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.coefficients) == N_BASIC_TERMS:
            zeros = (0.0,) * (len(FAMILY_TERMS) - N_BASIC_TERMS)
            object.__setattr__(self, "coefficients", (*self.coefficients, *zeros))


@dataclass(frozen=True, slots=True)
class FamilyFile:
    """A model of one kernel, for one combination of element types.

    Parameters
    ----------
    kernel, dtype, layout : str
        What the model answers for, as in `wavetune.mapping.kernel_mapping.KernelProblem`.
    dims : tuple of str
        Names of the integers of a key, in the order of the problem's sizes.
    arch : str
        GPU that was measured.
    num_sms : int
        Its SM count.
    mapping_digest : str
        Of the functions that the forms were fitted with, see `wavetune.mapping.source_digest`.
    forms : tuple of FamilyForm
        The configurations that can be answered.
    default_index : int
        The single best form over the measured keys.
    exact : mapping of tuple of int to (int, float)
        Measured keys: their sizes to the best form and its latency in microseconds.
    fit_range : mapping of str to (int, int)
        Smallest and largest measured value of each size.
    provenance, accuracy : mapping
        Versions, date, environment; how well the forms say what was measured.
    correction : FamilyCorrection or None
        Factors on the forms, see `wavetune.runtime.family_correction`; a file need not have them.
    digest, path : str
        ``sha256:`` of the file, and where it was read from.
    """

    kernel: str
    dtype: str
    layout: str
    dims: tuple[str, ...]
    arch: str
    num_sms: int
    mapping_digest: str
    forms: tuple[FamilyForm, ...]
    default_index: int
    exact: Mapping[tuple[int, ...], tuple[int, float]]
    fit_range: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    correction: FamilyCorrection | None = None
    digest: str = ""
    path: str = ""


def family_file_name(kernel: str, dtype: str, layout: str = "") -> str:
    """Return the file name of a model: whatever a file system may dislike becomes a dash."""
    parts = [re.sub(r"[^\w.+]+", "-", part).strip("-") for part in (kernel, dtype, layout)]
    return "-".join(part for part in parts if part) + ".json"


def is_family_data(data: bytes) -> bool:
    """Whether the beginning of a file says that it is the model of a kernel with its own mapping."""
    return f'"{FAMILY_SCHEMA}"'.encode() in data[:_HEAD_BYTES]


def is_family_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is the model of a kernel with its own mapping; looks at its first line only."""
    try:
        with open(path, "rb") as file:
            return is_family_data(file.read(_HEAD_BYTES))
    except OSError:
        return False


def read_family(path: str | os.PathLike[str]) -> FamilyFile:
    """Read and check a model file.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is no such model, or has a field that is missing or impossible; names file and
        field.
    """
    return decode_family(read_bytes(path), os.fspath(path))


def decode_family(data: bytes, name: str) -> FamilyFile:
    """Decode the bytes of a model file; ``name`` is used in errors. See `read_family`."""
    reader = _FamilyReader(name)
    document, digest = parse_document(data, reader, schema=FAMILY_SCHEMA, version=FAMILY_SCHEMA_VERSION)
    try:
        return reader.family(document, digest)
    except WavetuneError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{name}: {error}") from None


def encode_family(model: FamilyFile) -> bytes:
    """Encode a model as JSON text: one row a line, digest filled in."""
    rows = [
        ("kernel", dump(model.kernel)),
        ("dtype", dump(model.dtype)),
        ("layout", dump(model.layout)),
        ("dims", dump(list(model.dims))),
        ("arch", dump(model.arch)),
        ("num_sms", dump(model.num_sms)),
        ("mapping_digest", dump(model.mapping_digest)),
        ("accuracy", block(model.accuracy)),
        ("provenance", block(model.provenance)),
        ("units", block({"latency": "us", **FAMILY_TERM_UNITS})),
        ("fit_range", block({key: list(value) for key, value in model.fit_range.items()})),
        ("terms", dump(list(FAMILY_TERMS))),
        ("default", dump(model.default_index)),
        (
            "forms",
            lines(
                [
                    dump(
                        {
                            "config": dict(form.config),
                            "ctas_per_sm": form.ctas_per_sm,
                            "num_regs": form.num_regs,
                            "smem_bytes": form.smem_bytes,
                            "coefficients": list(form.coefficients),
                        }
                    )
                    for form in model.forms
                ],
                "[]",
            ),
        ),
        ("exact", lines([dump([*sizes, *entry]) for sizes, entry in sorted(model.exact.items())], "[]")),
    ]
    if model.correction is not None:
        rows.append(("correction_features", dump(list(model.correction.features))))
        rows.append(("correction_trees", lines([dump(tree) for tree in model.correction.trees], "[]")))
    return encode_document(FAMILY_SCHEMA, FAMILY_SCHEMA_VERSION, rows)


def write_family(model: FamilyFile, path: str | os.PathLike[str]) -> None:
    """Write a model file atomically.

    Raises
    ------
    ModelFileError
        If the folder cannot be written, or the model holds NaN or infinity.
    """
    try:
        data = encode_family(model)
    except ValueError as error:
        raise ModelFileError(f"{Path(path)}: cannot write: {error}") from None
    write_bytes(data, path)


class _FamilyReader(DocumentReader):
    def family(self, document: dict[str, Any], digest: str) -> FamilyFile:
        dims = self._as_list(self._get(document, "dims"), "dims", self._word)
        if len(set(dims)) != len(dims):
            self.fail("dims", "the same name appears twice")
        # Terms that a file does not know are those that were added since.
        if self._get(document, "terms") not in (list(FAMILY_TERMS), list(FAMILY_TERMS[:N_BASIC_TERMS])):
            self.fail("terms", f"this version of wavetune needs {list(FAMILY_TERMS)}")
        forms = self._as_list(self._get(document, "forms"), "forms", self._family_form)
        if not forms:
            self.fail("forms", "a model needs at least one configuration")
        if len({form.config for form in forms}) != len(forms):
            self.fail("forms", "the same configuration appears twice")
        return FamilyFile(
            kernel=self.string(document, "kernel"),
            dtype=self.string(document, "dtype"),
            layout=self.string(document, "layout"),
            dims=dims,
            arch=find_arch(self.string(document, "arch")).name,
            num_sms=self.integer(document, "num_sms", 1),
            mapping_digest=self.string(document, "mapping_digest"),
            forms=forms,
            default_index=self._as_integer(self._get(document, "default"), "default", 0, len(forms) - 1),
            exact=self._measured(document, dims, forms),
            fit_range={name: self._bounds(document, name) for name in dims},
            provenance=self._as_object(self._get(document, "provenance"), "provenance"),
            accuracy=self._as_object(self._get(document, "accuracy"), "accuracy"),
            correction=self._correction(document, dims, forms),
            digest=digest,
            path=self._name,
        )

    def _word(self, value: Any, field: str) -> str:
        if not isinstance(value, str) or not value:
            self.fail(field, "expected a name")
        return value

    def _family_form(self, value: Any, field: str) -> FamilyForm:
        row = self._as_object(value, field)
        coefficients = self._as_list(
            self._get(row, "coefficients", f"{field}."), f"{field}.coefficients", self._as_number
        )
        in_time = [value for name, value in zip(FAMILY_TERMS, coefficients, strict=False) if name != "bytes"]
        if len(coefficients) not in (N_BASIC_TERMS, len(FAMILY_TERMS)) or not any(in_time):
            self.fail(f"{field}.coefficients", f"expected {len(FAMILY_TERMS)} numbers, one but that of bytes positive")
        try:
            config = KernelConfig(**self._as_object(self._get(row, "config", f"{field}."), f"{field}.config"))
        except ConfigError as error:
            self.fail(f"{field}.config", str(error))
        return FamilyForm(
            config=config,
            ctas_per_sm=self.integer(row, "ctas_per_sm", 1, f"{field}."),
            num_regs=self.integer(row, "num_regs", 0, f"{field}."),
            smem_bytes=self.integer(row, "smem_bytes", 0, f"{field}."),
            coefficients=coefficients,
        )

    def _measured(
        self, document: dict[str, Any], dims: tuple[str, ...], forms: tuple[FamilyForm, ...]
    ) -> dict[tuple[int, ...], tuple[int, float]]:
        def read(value: Any, field: str) -> tuple[tuple[int, ...], tuple[int, float]]:
            if not isinstance(value, list) or len(value) != len(dims) + 2:
                self.fail(field, f"expected {len(dims)} sizes, a form and a latency")
            latency_us = self._as_number(value[-1], field)
            if latency_us == 0.0:
                self.fail(field, "a measured latency is positive")
            index = self._as_integer(value[-2], field, 0, len(forms) - 1)
            return tuple(self._as_integer(size, field, 0) for size in value[:-2]), (index, latency_us)

        rows = self._as_list(self._get(document, "exact"), "exact", read)
        if len(dict(rows)) != len(rows):
            self.fail("exact", "the same key appears twice")
        return dict(rows)

    def _correction(
        self, document: dict[str, Any], dims: tuple[str, ...], forms: tuple[FamilyForm, ...]
    ) -> FamilyCorrection | None:
        if "correction_trees" not in document:
            return None
        features = feature_names(forms[0].config, dims)
        if self._get(document, "correction_features") != list(features):
            self.fail("correction_features", f"this version of wavetune needs {list(features)}")
        for index, form in enumerate(forms):
            if list(form.config) != list(forms[0].config):
                self.fail(f"forms[{index}].config", "a corrected model needs the same fields in every configuration")

        def read(value: Any, field: str, depth: int = 0) -> Node:
            if not isinstance(value, list):
                return self._as_signed(value, field)
            if len(value) != 4 or depth == MAX_LEAVES:
                self.fail(field, "expected a leaf, or feature, threshold and two branches")
            feature = self._as_integer(value[0], field, 0, len(features) - 1)
            low, high = (read(value[side], field, depth + 1) for side in (2, 3))
            return feature, self._as_signed(value[1], field), low, high

        trees = self._as_list(self._get(document, "correction_trees"), "correction_trees", read)
        for index, tree in enumerate(trees):
            if count_leaves(tree) > MAX_LEAVES:
                self.fail(f"correction_trees[{index}]", f"more than {MAX_LEAVES} leaves")
        return FamilyCorrection(features, trees)

    def _as_signed(self, value: Any, field: str) -> float:
        return self._as_number(value, field, -MAX_NUMBER)

    def _bounds(self, document: dict[str, Any], name: str) -> tuple[int, int]:
        ranges = self._as_object(self._get(document, "fit_range"), "fit_range")
        field = f"fit_range.{name}"
        bounds = self._as_list(self._get(ranges, name, "fit_range."), field, lambda v, f: self._as_integer(v, f, 0))
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            self.fail(field, "expected [smallest, largest]")
        return bounds[0], bounds[1]

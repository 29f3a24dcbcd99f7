"""Pinned tables: one answer a problem, frozen, for deployments that want no surprises.

Plain JSON as the model files, refused as strictly. A pinned problem is answered from the table, whatever models say.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import MAX_DIMENSION, GemmProblem
from wavetune.errors import ModelFileError, WavetuneError
from wavetune.mapping.legality import refusal
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
from wavetune.runtime.numerics import check_numerics

PINNED_SCHEMA = "wavetune-pinned"
PINNED_SCHEMA_VERSION = 2
"""Since version 2 a row says whether its latency was measured."""

_MEASURED, _PREDICTED = "measured", "predicted"
_COLUMNS = ("dtype", "layout", "m", "n", "k", "alignment", "config", "latency_us", "latency_source")

ModelKey = tuple[str, str, str]
"""Kernel, dtype, layout."""


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """An exact table of any number of layers.

    Parameters
    ----------
    arch : str
        GPU that it is for.
    num_sms : int
        SMs that launches may use there.
    numerics : str
        Numerics class that it was frozen for.
    entries : mapping of GemmProblem to (KernelConfig, float)
        Configuration and latency in microseconds; NaN where nobody knows it.
    defaults : mapping of (kernel, dtype, layout) to KernelConfig
        What answers other problems if no model does and the policy allows it.
    provenance : mapping
        Version, date, fingerprint of the tables that it was frozen from.
    digest, path : str
        ``sha256:`` of the file, and where it was read from; empty for a table in memory.
    predicted : frozenset of GemmProblem
        Those whose latency nobody measured.
    """

    arch: str
    num_sms: int
    numerics: str
    entries: Mapping[GemmProblem, tuple[KernelConfig, float]]
    defaults: Mapping[ModelKey, KernelConfig]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    path: str = ""
    predicted: frozenset[GemmProblem] = frozenset()

    @property
    def configs(self) -> tuple[KernelConfig, ...]:
        """Every configuration, defaults included, once, in the order of first use."""
        pinned = [config for config, _ in self.entries.values()]
        return tuple(dict.fromkeys([*pinned, *self.defaults.values()]))


def read_pinned(path: str | os.PathLike[str]) -> PinnedTable:
    """Read and check a pinned table.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is no pinned table, does not match its digest, or pins what cannot be launched;
        names file and field.
    """
    name = os.fspath(path)
    reader = _PinnedReader(name)
    document, digest = parse_document(read_bytes(path), reader, schema=PINNED_SCHEMA, version=PINNED_SCHEMA_VERSION)
    try:
        return reader.table(document, digest)
    except WavetuneError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{name}: {error}") from None


def write_pinned(table: PinnedTable, path: str | os.PathLike[str]) -> None:
    """Write a pinned table, one problem a line, sorted; atomically.

    Raises
    ------
    ModelFileError
        If the folder cannot be written.
    """
    configs = sorted(table.configs, key=lambda config: tuple(map(str, config.items())))
    position = {config: index for index, config in enumerate(configs)}
    entries = sorted(
        (
            problem.dtype, problem.layout, *problem.dims, problem.alignment, position[config],
            None if math.isnan(latency_us) else latency_us, _PREDICTED if problem in table.predicted else _MEASURED,
        )
        for problem, (config, latency_us) in table.entries.items()
    )  # fmt: skip
    rows = [
        ("arch", dump(table.arch)),
        ("num_sms", dump(table.num_sms)),
        ("numerics", dump(table.numerics)),
        ("provenance", block(table.provenance)),
        ("configs", lines([dump(dict(config)) for config in configs], "[]")),
        ("defaults", lines([dump([*key, position[config]]) for key, config in sorted(table.defaults.items())], "[]")),
        ("columns", dump(list(_COLUMNS))),
        ("entries", lines([dump(entry) for entry in entries], "[]")),
    ]
    write_bytes(encode_document(PINNED_SCHEMA, PINNED_SCHEMA_VERSION, rows), Path(path))


class _PinnedReader(DocumentReader):
    def table(self, document: dict[str, Any], digest: str) -> PinnedTable:
        arch = find_arch(self.string(document, "arch"))
        configs = self._as_list(
            self._get(document, "configs"), "configs", lambda value, where: self._config(value, where, GEMM)
        )
        rows = self._as_list(
            self._get(document, "entries"), "entries", lambda value, where: self._entry(value, where, configs, arch)
        )
        entries = {problem: pinned for problem, pinned, _ in rows}
        if len(entries) != len(rows):
            self.fail("entries", "the same problem appears twice")
        return PinnedTable(
            arch=arch.name,
            num_sms=self._as_integer(self._get(document, "num_sms"), "num_sms", 1, arch.num_sms),
            numerics=check_numerics(self.string(document, "numerics")),
            entries=entries,
            defaults=dict(
                self._as_list(
                    self._get(document, "defaults"),
                    "defaults",
                    lambda value, where: self._default(value, where, configs),
                )
            ),
            provenance=self._as_object(self._get(document, "provenance"), "provenance"),
            digest=digest,
            path=self._name,
            predicted=frozenset(problem for problem, _, is_measured in rows if not is_measured),
        )

    def _entry(
        self, value: Any, where: str, configs: tuple[KernelConfig, ...], arch: ArchSpec
    ) -> tuple[GemmProblem, tuple[KernelConfig, float], bool]:
        """Return a problem, what is pinned for it, and whether its latency was measured."""
        if isinstance(value, list) and len(value) == len(_COLUMNS) - 1:
            # Version 1 does not say; what is not known to be measured counts as predicted.
            value = [*value, _PREDICTED]
        if not isinstance(value, list) or len(value) != len(_COLUMNS) or value[-1] not in (_MEASURED, _PREDICTED):
            self.fail(where, f"expected {', '.join(_COLUMNS)}, the last one {_MEASURED} or {_PREDICTED}")
        dtype, layout, *numbers, latency, latency_source = value
        m, n, k = (self._as_integer(size, where, 1, MAX_DIMENSION) for size in numbers[:3])
        alignment = self._as_integer(numbers[3], where, 1, 16)
        config = configs[self._as_integer(numbers[4], where, 0, len(configs) - 1)]
        problem = GemmProblem(m, n, k, dtype, layout, alignment)
        reason = refusal(problem, config, arch)
        if reason is not None:
            self.fail(where, f"its configuration is not legal: {reason}")
        latency_us = math.nan if latency is None else self._as_number(latency, where)
        if latency_us == 0.0:
            self.fail(where, "a latency is positive")
        return problem, (config, latency_us), latency_source == _MEASURED

    def _default(self, value: Any, where: str, configs: tuple[KernelConfig, ...]) -> tuple[ModelKey, KernelConfig]:
        if not isinstance(value, list) or len(value) != 4 or not all(isinstance(word, str) for word in value[:3]):
            self.fail(where, "expected kernel, dtype, layout and a configuration")
        kernel, dtype, layout, index = value
        return (kernel, dtype, layout), configs[self._as_integer(index, where, 0, len(configs) - 1)]

"""What is known about one kernel before anything is measured: the user's store and a fitted model.

One object a process and kernel. Everything that can go wrong with a file is a warning, and the next source answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.launch.autotune.candidate import Candidate
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem, LaunchShape
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_source import find_family_model
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.settings import Settings
from wavetune.runtime.tables import open_store
from wavetune.runtime.user_store import StoredChoice


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kernel is launched.

    Parameters
    ----------
    arch : str
        Name of the GPU: a known architecture, or what the driver reports.
    num_sms : int
        SMs that launches may use.
    """

    arch: str
    num_sms: int


class KernelTables:
    """The store and the models of one kernel.

    Parameters
    ----------
    settings : Settings
        Where the store is.
    kernel_source : str
        Digest of the kernel's source: choices that were measured with another one are not used.
    """

    def __init__(self, settings: Settings, kernel_source: str) -> None:
        self._store = open_store(settings)
        self.kernel_source = kernel_source
        self._stored: dict[tuple[object, ...], dict[tuple[int, ...], StoredChoice]] = {}
        self._choosers: dict[tuple[object, ...], FamilyChooser | None] = {}

    def stored(self, problem: KernelProblem, place: Place) -> StoredChoice | None:
        """Return the measured choice of a key, from this process or an earlier one."""
        return self._scope(problem, place).get(problem.dims)

    def save(self, problem: KernelProblem, place: Place, choice: MeasuredChoice) -> None:
        """Keep a measured choice."""
        self._scope(problem, place)[problem.dims] = StoredChoice(choice.config, choice.latency_us, choice.default_us)
        self._store.save(problem, choice, arch=place.arch, num_sms=place.num_sms)

    def chooser(
        self,
        mapping: KernelMapping,
        candidates: Mapping[KernelConfig, Candidate],
        problem: KernelProblem,
        place: Place,
        rest: Mapping[str, Any],
    ) -> FamilyChooser | None:
        """Return the fitted model of a kernel for the element types of a problem, or None.

        Parameters
        ----------
        mapping : KernelMapping
            The kernel's mapping; ``dims`` are those of ``problem``.
        candidates : mapping of KernelConfig to Candidate
            All configurations of the kernel.
        problem : KernelProblem
            Any key of the scope.
        place : Place
            Where it is launched.
        rest : mapping of str to object
            The entries of the key that are no sizes: the same for every key of the scope.
        """
        scope = (*_scope_of(problem, place), mapping.dims)
        if scope not in self._choosers:
            model = find_family_model(mapping, problem.dtype, problem.layout, place.arch)
            if model is None:
                self._choosers[scope] = None
            else:
                shape = KeyShaper(mapping, candidates, rest)
                self._choosers[scope] = FamilyChooser(model, shape, place.num_sms, usable=candidates)
        return self._choosers[scope]

    def _scope(self, problem: KernelProblem, place: Place) -> dict[tuple[int, ...], StoredChoice]:
        scope = _scope_of(problem, place)
        if scope not in self._stored:
            # A key without sizes, or an empty one, has no row in the store.
            rows = self._store.load(
                arch=place.arch, num_sms=place.num_sms, kernel=problem.kernel, dtype=problem.dtype,
                layout=problem.layout, kernel_source=self.kernel_source,
            )  # fmt: skip
            self._stored[scope] = {dims: choice for (dims, _), choice in rows.items()}
        return self._stored[scope]


class KeyShaper:
    """Maps sizes and the identity of a configuration to a launch: `wavetune.runtime.family_chooser.Shaper`.

    Parameters
    ----------
    mapping : KernelMapping
        Its ``dims`` name the sizes.
    candidates : mapping of KernelConfig to Candidate
        What the identities stand for.
    rest : mapping of str to object
        The entries of the key that are no sizes.
    """

    def __init__(
        self,
        mapping: KernelMapping,
        candidates: Mapping[KernelConfig, Candidate],
        rest: Mapping[str, Any] | None = None,
    ) -> None:
        self._mapping = mapping
        self._options = {identity: candidate.options for identity, candidate in candidates.items()}
        self._rest = dict(rest or {})

    def __call__(self, dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        """Map one launch; see `wavetune.mapping.kernel_mapping.KernelMapping.shape`."""
        key = {**self._rest, **dict(zip(self._mapping.dims, dims, strict=True))}
        return self._mapping.shape(key, self._options[config])


def _scope_of(problem: KernelProblem, place: Place) -> tuple[object, ...]:
    return (place, problem.kernel, problem.dtype, problem.layout)

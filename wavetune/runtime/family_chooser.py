"""Answer keys of any kernel from its model: exact, then forms over the kernel's own mapping. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.choice import RankedConfig, Source
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.family_forms import form_latency_us, forms_of

RANGE_OCTAVES = 2.0
"""Forms answer with source ``nearest`` up to this many octaves beyond the measured sizes, as the cells of a GEMM do."""

Shaper = Callable[[tuple[int, ...], KernelConfig], LaunchShape]
"""Maps the sizes of a problem and a configuration to the launch."""


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """An answer and where it comes from.

    Parameters
    ----------
    config : KernelConfig
        What to launch.
    source : Source
        ``exact``: this key was measured. ``nearest``: the forms decide, within `RANGE_OCTAVES` of what was measured.
        ``model``: beyond it. ``empty``: nothing to launch, so the default configuration. ``default``: the settings or
        the miss policy want that one. ``forced``: the setting ``force_config`` wants it.
    latency_us : float
        Measured for ``exact``, predicted otherwise; 0 if empty.
    """

    config: KernelConfig
    source: Source
    latency_us: float


class FamilyChooser:
    """Chooses among the configurations of one model.

    Parameters
    ----------
    model : FamilyFile
        A checked model.
    shape : callable
        The kernel's mapping, the one that the forms were fitted with.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    usable : container of KernelConfig, optional
        Configurations that the kernel still has; all if not given.
    use_exact : bool, default=True
        Whether measured keys are looked up; evaluation turns it off.
    is_stand_in : bool, default=False
        Whether it answers for a layout that has no model of its own. Then nothing was measured, and nothing is near.
    """

    def __init__(
        self,
        model: FamilyFile,
        shape: Shaper,
        num_sms: int | None = None,
        *,
        usable: Container[KernelConfig] | None = None,
        use_exact: bool = True,
        is_stand_in: bool = False,
    ) -> None:
        self.model = model
        self.num_sms = num_sms or model.num_sms
        self.is_stand_in = is_stand_in
        self._shape = shape
        self._places = [i for i, form in enumerate(model.forms) if usable is None or form.config in usable]
        self._forms = [model.forms[place] for place in self._places]
        self._ready = forms_of(model, self.num_sms)
        # What was measured on the whole GPU says little about a part of it, or about other kernels.
        has_exact = use_exact and not is_stand_in and self.num_sms == model.num_sms
        self._exact = model.exact if has_exact else {}

    def choose(self, dims: tuple[int, ...]) -> FamilyChoice | None:
        """Return the configuration for a key; equal predictions go to the form that is first in the file.

        Returns
        -------
        FamilyChoice or None
            None if no form is usable.

        Raises
        ------
        MappingError
            If the mapping fails on the key.
        """
        known = self._exact.get(dims)
        if known is not None and self.model.forms[known[0]] in self._forms:
            return FamilyChoice(self.model.forms[known[0]].config, Source.EXACT, known[1])
        latencies = self._latencies(dims)
        if not latencies:
            return None
        best = min(latencies)
        if best == 0.0:
            return self.default(dims)
        source = Source.NEAREST if self.is_near(dims) else Source.MODEL
        return FamilyChoice(self._forms[latencies.index(best)].config, source, best)

    def default(self, dims: tuple[int, ...]) -> FamilyChoice | None:
        """Return the model's default configuration, or the best predicted one where that is not usable.

        The source is ``default``, or ``empty`` if there is nothing to launch. Raises as `choose`.
        """
        ranked = self.rank(dims)
        if not ranked:
            return None
        wanted = self.model.forms[self.model.default_index].config
        found = next((entry for entry in ranked if entry.config == wanted), ranked[0])
        return FamilyChoice(found.config, Source.DEFAULT if found.latency_us else Source.EMPTY, found.latency_us)

    def forced(self, dims: tuple[int, ...], wanted: KernelConfig | None) -> FamilyChoice | None:
        """Return the best of the usable configurations that have all fields of ``wanted``.

        None without one: the setting ``force_config`` may mean another kernel. Raises as `choose`.
        """
        if wanted is None:
            return None
        found = next((entry for entry in self.rank(dims) if wanted.items() <= entry.config.items()), None)
        return None if found is None else FamilyChoice(found.config, Source.FORCED, found.latency_us)

    def rank(self, dims: tuple[int, ...]) -> list[RankedConfig]:
        """Order every usable configuration by predicted latency, best first; raises as `choose`."""
        latencies = self._latencies(dims)
        order = sorted(range(len(latencies)), key=lambda index: (latencies[index], index))
        return [RankedConfig(self._forms[index].config, latencies[index]) for index in order]

    def _latencies(self, dims: tuple[int, ...]) -> list[float]:
        shapes = [self._shape(dims, form.config) for form in self._forms]
        return self._ready.latencies(dims, self._places, shapes)

    def launch(self, dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        """Return the launch of a configuration."""
        return self._shape(dims, config)

    def factor(self, dims: tuple[int, ...], place: int) -> float:
        """Return what the latency of the form at a place in the model is multiplied by; 1 if nothing corrects it."""
        form = self.model.forms[place]
        latency_us = form_latency_us(form, self._shape(dims, form.config), self.num_sms)
        if latency_us == 0.0 or place not in self._places:
            return 1.0
        return self._latencies(dims)[self._places.index(place)] / latency_us

    def is_near(self, dims: tuple[int, ...]) -> bool:
        """Whether every size is within `RANGE_OCTAVES` of those that were measured, on the GPU that was measured.

        Nothing is near a model that stands in.
        """
        reach = 2.0**RANGE_OCTAVES
        bounds = (self.model.fit_range[name] for name in self.model.dims)
        is_inside = all(low / reach <= size <= high * reach for size, (low, high) in zip(dims, bounds, strict=True))
        return is_inside and self.num_sms == self.model.num_sms and not self.is_stand_in

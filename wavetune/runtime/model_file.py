"""The model file in memory: what a JSON file under ``models/`` says, checked.

Plain records with no behaviour beyond names; `wavetune.runtime.codec` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wavetune.core.config import KernelConfig

SCHEMA = "wavetune-model"
SCHEMA_VERSION = 1


class LaunchForm(NamedTuple):
    """One launch configuration of a model.

    Parameters
    ----------
    config : KernelConfig
        Macro and micro fields.
    ctas_per_sm : int
        Resident CTAs of one SM; times the SM count it is the wave width.
    num_regs, smem_bytes : int
        What the compiled kernel needs: registers a thread, shared memory a CTA.
    coefficients : tuple of float or None
        One non-negative number for each term of `wavetune.waves.terms.TERMS`; None for a
        configuration that only the exact table uses.
    """

    config: KernelConfig
    ctas_per_sm: int
    num_regs: int
    smem_bytes: int
    coefficients: tuple[float, ...] | None


class Cell(NamedTuple):
    """One cell of the nearest table: an octave of each problem size.

    Parameters
    ----------
    candidates : tuple of int
        Launch forms that can win anywhere inside the cell.
    correction_permille : tuple of int
        For every form, 1000 times the natural logarithm of the factor on its latency.
    """

    candidates: tuple[int, ...]
    correction_permille: tuple[int, ...]


class ExactEntry(NamedTuple):
    """A measured problem and its best configuration.

    Parameters
    ----------
    config_index : int
        Index into `ModelFile.forms`.
    latency_us : float
        Measured latency of that configuration, microseconds.
    """

    config_index: int
    latency_us: float


class MicroChoice(NamedTuple):
    """The best micro fields of one macro configuration at loop anchors.

    Parameters
    ----------
    macro : KernelConfig
        The fields that change the mapping.
    loop_trips : tuple of int
        Loop anchors, increasing.
    config_index : tuple of int
        The best launch form with this macro at each anchor.
    """

    macro: KernelConfig
    loop_trips: tuple[int, ...]
    config_index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model: two tables, the forms behind them, and where they come from.

    Parameters
    ----------
    kernel, dtype, layout, arch : str
        What the model answers for.
    num_sms : int
        SM count of the measured GPU.
    forms : tuple of LaunchForm
        Every launch configuration that can be answered; those with coefficients first.
    default_index : int
        The single best configuration over the measured problems.
    micro : tuple of MicroChoice
        Micro table.
    bound_log2 : float
        Cells exist up to this distance from a measured problem: the largest difference of a size, in octaves.
    cells : mapping of tuple of int to Cell
        Nearest table, by octave of each size: ``(size - 1).bit_length()``.
    exact : mapping of tuple of int to ExactEntry
        Exact table, by problem sizes.
    fit_range : mapping of str to tuple of int
        Smallest and largest measured size, by name.
    provenance : mapping
        Data digests, versions, date.
    accuracy : mapping
        Accuracy headline from held-out problems.
    digest : str
        ``sha256:`` of the file.
    path : str
        Where it was read from; empty for a model in memory.
    """

    kernel: str
    dtype: str
    layout: str
    arch: str
    num_sms: int
    forms: tuple[LaunchForm, ...]
    default_index: int
    micro: tuple[MicroChoice, ...]
    bound_log2: float
    cells: Mapping[tuple[int, ...], Cell]
    exact: Mapping[tuple[int, ...], ExactEntry]
    fit_range: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    path: str = ""

    @property
    def n_modelled(self) -> int:
        """Number of forms with coefficients; they come first."""
        return sum(form.coefficients is not None for form in self.forms)

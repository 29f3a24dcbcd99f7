"""Assemble a model file from a fitted model and the measurements behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavetune.core.arch import find_arch
from wavetune.fit.model import WaveLatencyModel
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm, ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable
from wavetune.tables.exact import best_measured
from wavetune.tables.micro import build_micro
from wavetune.waves.occupancy import ctas_per_sm

DIGITS = 10
"""Significant digits of a coefficient in the file: estimator and runtime agree to better than 1e-6."""


def build_model_file(
    model: WaveLatencyModel,
    table: MeasurementTable,
    *,
    provenance: Mapping[str, Any],
    accuracy: Mapping[str, Any] | None = None,
) -> ModelFile:
    """Build the two tables.

    Parameters
    ----------
    model : WaveLatencyModel
        Fitted.
    table : MeasurementTable
        Its measurements; exhaustively measured problems fill the exact table.
    provenance, accuracy : mapping
        Stored as they are; values must be JSON.

    Returns
    -------
    ModelFile
        Its runtime predictions equal ``model.predict`` to 1e-6.
    """
    arch = find_arch(model.arch)
    survivors = {model.configs_[fitted].config: position for position, fitted in enumerate(model.survivors_)}
    forms = [
        _form(model.configs_[fitted], arch, tuple(float(f"{c:.{DIGITS}g}") for c in model.coefficients_[fitted]))
        for fitted in model.survivors_
    ]
    exact: dict[tuple[int, ...], ExactEntry] = {}
    position = dict(survivors)
    for sizes, (index, latency_us) in best_measured(table, survivors).items():
        entry = table.configs[index]
        if entry.config not in position:
            position[entry.config] = len(forms)
            forms.append(_form(entry, arch, None))
        exact[sizes] = ExactEntry(position[entry.config], round(latency_us, 3))
    lattice = model.lattice_
    low, high = model.measured_dims_.min(axis=0).tolist(), model.measured_dims_.max(axis=0).tolist()
    return ModelFile(
        kernel=model.kernel,
        dtype=model.dtype,
        layout=table.layout,
        arch=arch.name,
        num_sms=arch.num_sms,
        forms=tuple(forms),
        default_index=survivors[model.configs_[model.default_].config],
        micro=build_micro(model),
        bound_log2=float(model.bound_log2),
        cells={
            tuple(cell): Cell(candidates, tuple(correction))
            for cell, candidates, correction in zip(
                lattice.cells.tolist(), lattice.candidates, lattice.correction_permille.tolist(), strict=True
            )
        },
        exact=exact,
        fit_range={name: (a, b) for name, a, b in zip(model.spec.dims, low, high, strict=True)},
        provenance=dict(provenance),
        accuracy=dict(accuracy or {}),
    )


def _form(entry: CompiledConfig, arch: Any, coefficients: tuple[float, ...] | None) -> LaunchForm:
    resident = ctas_per_sm(
        arch, num_warps=int(entry.config["num_warps"]), num_regs=entry.num_regs, smem_bytes=entry.smem_bytes
    )
    return LaunchForm(entry.config, resident, entry.num_regs, entry.smem_bytes, coefficients)

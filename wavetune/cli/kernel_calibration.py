"""``wavetune calibrate --kernel package.module:name``: a kernel of the user's."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wavetune.cli.family_run import family_rows, run_family
from wavetune.cli.live import output_folder
from wavetune.cli.output import emit_json, show, two_columns
from wavetune.core.arch import ArchSpec
from wavetune.errors import ConfigError, RunnerError, WavetuneError
from wavetune.runtime.family_file import family_file_name

if TYPE_CHECKING:
    from wavetune.launch.autotune.decorator import AutotunedKernel
    from wavetune.launch.autotune.keys import KeyGroup
    from wavetune.pipeline.user_kernel import KernelJob

NO_GPU = "calibrating your own kernel needs the GPU itself; --dry-run shows the plan without one"


def calibrate_user_kernel(
    reference: str,
    arch: ArchSpec,
    *,
    keys: Path | None,
    out: Path | None,
    store: Path | None,
    gpu: int,
    budget_s: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import a kernel, measure it and write its models, one for each kind of key."""
    kernel = load_kernel(reference)
    from wavetune.launch.autotune.keys import group_keys, read_keys

    groups = group_keys(kernel, read_keys(keys, kernel.keys) if keys is not None else ())
    if out is not None and len(groups) > 1:
        raise typer.BadParameter(f"--out names one file, but the keys need {len(groups)} models")
    if dry_run:
        _print_plan(kernel, groups, as_json)
        return
    from wavetune.launch.autotune.runner import require_whole_gpu

    try:
        require_whole_gpu(arch, gpu)
    except RunnerError as error:
        raise RunnerError(f"{error}\n{NO_GPU}") from None
    summaries = [
        _calibrate_group(group, arch, out=out, store=store, gpu=gpu, budget_s=budget_s / len(groups))
        for group in groups
    ]
    if as_json:
        emit_json(summaries)
        return
    for summary in summaries:
        show(two_columns(family_rows(summary)))


def load_kernel(reference: str) -> AutotunedKernel:
    """Import ``package.module:name``, from the working directory too, and return the kernel.

    Raises
    ------
    ConfigError
        If the module cannot be imported, or the name is no kernel under `wavetune.autotune`.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"a kernel of your own is package.module:name, got {reference!r}")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except WavetuneError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    from wavetune.launch.autotune.decorator import AutotunedKernel

    if not isinstance(found, AutotunedKernel):
        what = "nothing" if found is None else type(found).__name__
        raise ConfigError(f"{reference} is {what}; it must be a kernel decorated with wavetune.autotune")
    return found


def _calibrate_group(
    group: KeyGroup, arch: ArchSpec, *, out: Path | None, store: Path | None, gpu: int, budget_s: float
) -> dict[str, Any]:
    from wavetune.launch.autotune.runner import KernelRunner

    probe = group.probe()
    job = _job(group, probe.dtype, probe.layout)
    path = out or output_folder() / arch.name / family_file_name(job.kernel, job.dtype, job.layout)
    runner = KernelRunner(group.kernel, arch, group.key_of, probe, gpu)
    return run_family(runner, job, path, store=store, budget_s=budget_s)


def _job(group: KeyGroup, dtype: str, layout: str) -> KernelJob:
    from wavetune.mapping.source_digest import mapping_digest
    from wavetune.pipeline.user_kernel import KernelJob

    assert group.kernel.mapping is not None
    return KernelJob(
        kernel=group.kernel.name,
        dtype=dtype,
        layout=layout,
        dims=group.names,
        configs=tuple(group.kernel.candidates),
        shape=group.shaper(),
        mapping_digest=mapping_digest(group.kernel.mapping),
        pool=group.pool,
        sweep=group.sweep,
    )


def _print_plan(kernel: AutotunedKernel, groups: list[KeyGroup], as_json: bool) -> None:
    from wavetune.plan.kernel_points import POINTS_PER_CONFIG, SWEEP_KEYS

    n_configs = len(kernel.candidates)
    plans = []
    for group in groups:
        # An early look at the mapping functions: a mistake in them shows here, without a GPU.
        shape = group.shaper()
        grids = [shape(dims, config).grid_size for dims in group.pool for config in kernel.candidates]
        n_sweep = len(group.sweep) or min(SWEEP_KEYS, len(group.pool))
        plans.append(
            {
                "kernel": kernel.name,
                "sizes": ", ".join(group.names),
                "other_key_entries": ", ".join(f"{name}={value}" for name, value in group.rest.items()),
                "configs": n_configs,
                "keys": len(group.pool),
                "swept_keys": n_sweep,
                "points": n_configs * (n_sweep + min(POINTS_PER_CONFIG, len(group.pool))),
                "smallest_grid": min(grids),
                "largest_grid": max(grids),
            }
        )
    if as_json:
        emit_json(plans)
        return
    for plan in plans:
        show(two_columns((name.replace("_", " "), f"{value}") for name, value in plan.items()))

"""``wavetune fit``: measurement files in, model file out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.family_run import family_rows, summarise_family
from wavetune.cli.model_view import note_use
from wavetune.cli.options import (
    ArchOption,
    ConfigCountOption,
    DtypeOption,
    FamilyLayoutOption,
    JsonOption,
    KernelOption,
    NoHoldoutOption,
    SeedOption,
    SkipBadRowsOption,
    layout_of,
    refuse_overwriting,
)
from wavetune.cli.output import emit_json, show, two_columns
from wavetune.cli.progress import watch
from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, find_kernel_spec
from wavetune.core.dtype import find_dtype
from wavetune.runtime.device import resolve_arch
from wavetune.runtime.family_file import family_file_name, write_family
from wavetune.runtime.locate import model_file_name

if TYPE_CHECKING:
    from wavetune.pipeline.family_fit import FittedFamily
    from wavetune.pipeline.recording import Recording


def fit_command(
    out: Annotated[Path, typer.Option("--out", metavar="MODEL.json", help="Where to write the model.")],
    measurements: Annotated[
        list[Path] | None,
        typer.Option(
            "--measurements", metavar="FILE...", help="Wave-structured points: csv or csv.gz.", show_default=False
        ),
    ] = None,
    oracle: Annotated[
        list[Path] | None,
        typer.Option(
            "--oracle",
            metavar="FILE...",
            help="Exhaustive sweeps over realistic shapes: trained on as well, and the source of the exact table.",
            show_default=False,
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option(
            "--facts",
            metavar="FILE",
            help="The *-calibration.json beside the measurements: GPU, driver and compiler go into the model.",
        ),
    ] = None,
    arch: ArchOption = None,
    kernel: KernelOption = "gemm",
    dtype: DtypeOption = "bf16",
    layout: FamilyLayoutOption = None,
    n_configs: ConfigCountOption = None,
    seed: SeedOption = 0,
    no_holdout: NoHoldoutOption = False,
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a model to recorded measurements and write its tables."""
    if not measurements and not oracle:
        raise typer.BadParameter("give at least one file with --measurements or --oracle")
    refuse_overwriting(out, [*(measurements or []), *(oracle or []), facts])
    gpu, spec, layout = resolve_arch(arch), find_kernel_spec(kernel), layout_of(kernel, layout)
    dtype = find_dtype(dtype).name
    from wavetune.cli.summary import print_summary, summarise_fit
    from wavetune.pipeline.evidence import read_environment
    from wavetune.pipeline.recording import read_recording
    from wavetune.pipeline.refit import FitOptions, fit_model_file
    from wavetune.runtime.codec import write_model

    start = time.perf_counter()
    environment = read_environment(facts, gpu, kernel=kernel, dtype=dtype, layout=layout) if facts is not None else {}
    options = FitOptions(n_configs=n_configs or FitOptions().n_configs, random_state=seed, holdout=not no_holdout)
    with watch() as observer:
        observer.begin("reading", 0)
        recording = read_recording(
            measurements or [], oracle or [], spec, gpu, dtype=dtype, layout=layout, skip_bad_rows=skip_bad_rows
        )
        observer.begin("fit", 0)
        if kernel == GEMM.name:
            fitted = fit_model_file(
                recording.table, gpu, sources=recording.files, environment=environment, options=options
            )
        else:
            family = _fit_family(recording, kernel, gpu, environment, n_configs, holdout=not no_holdout)
    if kernel == GEMM.name:
        write_model(fitted.file, out)
        summary = summarise_fit(fitted, recording, out, time.perf_counter() - start)
    else:
        write_family(family.file, out)
        summary = summarise_family(family, recording, out, time.perf_counter() - start)
    if as_json:
        emit_json(summary)
        return
    if kernel == GEMM.name:
        print_summary(summary)
    else:
        show(two_columns(family_rows(summary)))
    name_of = model_file_name if kernel == GEMM.name else family_file_name
    note_use(out, kernel, Path(gpu.name, name_of(kernel, dtype, layout)))


def _fit_family(
    recording: Recording,
    kernel: str,
    arch: ArchSpec,
    environment: dict[str, str],
    n_configs: int | None,
    *,
    holdout: bool,
) -> FittedFamily:
    from wavetune.pipeline.family_fit import fit_family_file
    from wavetune.pipeline.family_job import N_SURVIVORS
    from wavetune.pipeline.family_jobs import find_job

    table = recording.table
    job = find_job(kernel, arch, dtype=table.dtype, layout=table.layout, n_survivors=n_configs or N_SURVIVORS)
    return fit_family_file(table, job, arch, sources=recording.files, environment=environment, holdout=holdout)

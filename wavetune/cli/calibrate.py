"""``wavetune calibrate``: the whole pipeline, on a GPU or from recorded measurements."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.live import (
    LOCAL_MODELS,
    CalibrationKey,
    conditions_of,
    live_arch,
    make_folder,
    note_conditions,
    output_folder,
    stop_interrupted,
)
from wavetune.cli.options import (
    ArchOption,
    ConfigCountOption,
    DtypeOption,
    FamilyLayoutOption,
    GpuOption,
    JsonOption,
    NoHoldoutOption,
    SeedOption,
    SkipBadRowsOption,
    StoreOption,
    layout_of,
    refuse_overwriting,
)
from wavetune.cli.output import note
from wavetune.cli.progress import watch
from wavetune.core.config import GEMM
from wavetune.core.dtype import find_dtype
from wavetune.runtime.device import resolve_arch, resolve_device
from wavetune.runtime.locate import model_file_name

NO_GPU = (
    "without a GPU, --dry-run --arch NAME shows the plan, and --replay FILE... takes recorded measurements; "
    "`wavetune doctor` says what is missing here"
)

FAMILY_BUDGET_S = 75.0
"""Seconds of measuring any kernel but a GEMM, whose plan has a budget of its own, where none is given."""


def calibrate_command(
    arch: ArchOption = None,
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="Kernel family, or package.module:name of a kernel under wavetune.autotune; its module is imported.",
        ),
    ] = "gemm",
    dtype: DtypeOption = "bf16",
    layout: FamilyLayoutOption = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option(
            "--replay",
            metavar="FILE...",
            help="gemm: take measurements from these files instead of a GPU. Sweeps are told from wave-structured "
            "points by their content, see --oracle. Of other kernels `wavetune fit` takes them.",
            show_default=False,
        ),
    ] = None,
    oracle: Annotated[
        list[Path] | None,
        typer.Option(
            "--oracle",
            metavar="FILE...",
            help="Replay these too, as exhaustive sweeps over realistic shapes, however few configurations they have.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="MODEL.json",
            help=f"Where to write the model. Default: $WAVETUNE_MODELS or {LOCAL_MODELS}/, ARCH/KERNEL-DTYPE.json.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    gpu: GpuOption = 0,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            min=1.0,
            help="Time to spend on measuring. Default: 64. Of other kernels than gemm: 60.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            "--workload",
            metavar="FILE",
            help="Workload (JSON, or CSV with the columns m,n,k or the sizes of another family): shapes to measure "
            "before the built-in ones.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="For a kernel of your own: CSV or JSON with the key's names, keys to measure every configuration on.",
            show_default=False,
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence",
            metavar="FOLDER",
            help="Also write what the model can be fitted from again: measurements and the facts around them.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print configurations, points and estimated time; measure nothing.")
    ] = False,
    n_configs: ConfigCountOption = None,
    seed: SeedOption = 0,
    no_holdout: NoHoldoutOption = False,
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a GPU, or replay recorded measurements, and write its model.

    Everything measured is kept in the store: the same command goes on where it was stopped.
    """
    replayed = [*(replay or []), *(oracle or [])]
    refuse_overwriting(out, [*replayed, workload, keys])
    if replayed:
        target = resolve_arch(arch)
    else:
        target = resolve_device(arch).arch if dry_run else live_arch(arch, gpu, instead=NO_GPU)
    if ":" in kernel:
        if replayed or workload is not None or evidence is not None:
            raise typer.BadParameter(
                "--replay, --oracle, --workload and --evidence are for kernel families; give --keys"
            )
        from wavetune.cli.kernel_calibration import calibrate_user_kernel

        calibrate_user_kernel(
            kernel, target, keys=keys, out=out, store=store, gpu=gpu, budget_s=budget or FAMILY_BUDGET_S,
            dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
        return
    if keys is not None:
        raise typer.BadParameter("--keys is for kernels of your own, --kernel package.module:name; give --workload")
    dtype, layout = find_dtype(dtype).name, layout_of(kernel, layout)
    key = CalibrationKey(kernel, target, dtype, layout)
    if kernel != GEMM.name:
        if replayed:
            raise typer.BadParameter(
                f"--replay and --oracle are of gemm; `wavetune fit --kernel {kernel}` fits what was recorded"
            )
        from wavetune.cli.family_calibration import calibrate_one_family

        calibrate_one_family(
            key, out=out, store=store, gpu=gpu, budget_s=budget or FAMILY_BUDGET_S, workload=workload,
            evidence=evidence, dry_run=dry_run, n_configs=n_configs, holdout=not no_holdout, as_json=as_json,
        )  # fmt: skip
        return
    path = out or output_folder() / target.name / model_file_name(kernel, dtype, layout)
    if replayed and (workload is not None or budget is not None):
        raise typer.BadParameter("--workload and --budget direct measurements; a replay takes what was recorded")
    from wavetune.cli.calibration_job import live_job, replay_job
    from wavetune.cli.calibration_view import print_live_plan, print_replay_plan, print_result
    from wavetune.pipeline.calibrate import calibrate
    from wavetune.pipeline.evidence import write_evidence
    from wavetune.pipeline.refit import FitOptions
    from wavetune.runtime.codec import write_model
    from wavetune.store.database import MeasurementStore

    start = time.perf_counter()
    job = replay_job(key, replay or (), oracle or (), skip_bad_rows) if replayed else live_job(key, budget, workload)
    if dry_run:
        (print_replay_plan if replayed else print_live_plan)(job, as_json)
        return
    runner = job.connect(gpu)
    options = FitOptions(n_configs=n_configs or FitOptions().n_configs, random_state=seed, holdout=not no_holdout)
    with ExitStack() as stack:
        # A recording is its own store: without --store, a replay keeps nothing.
        scratch = stack.enter_context(tempfile.TemporaryDirectory()) if replayed and store is None else None
        database = store or (Path(scratch) / "replay.sqlite" if scratch else path.with_suffix(".sqlite"))
        make_folder(database.parent)
        try:
            with MeasurementStore(database, runner.environment()) as opened, watch() as observer:
                result = calibrate(
                    runner, job.strategy, opened, kernel=kernel, dtype=dtype, layout=layout, options=options,
                    sources=job.recording.files if job.recording is not None else (), observer=observer,
                )  # fmt: skip
        except KeyboardInterrupt:
            stop_interrupted("nothing was kept" if scratch else f"everything measured so far is in {database}")
    write_model(result.fitted.file, path)
    note_conditions(runner)
    if evidence is not None:
        for written in write_evidence(evidence, result, runner.environment(), conditions_of(runner)):
            note(f"wrote {written}")
    print_result(result, job, path, None if scratch else database, time.perf_counter() - start, as_json)

"""``wavetune measure``: time configurations on shapes of the user's, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.live import (
    CalibrationKey,
    candidate_configs,
    live_arch,
    live_runner,
    make_folder,
    note_conditions,
    stop_interrupted,
)
from wavetune.cli.options import (
    ArchOption,
    DtypeOption,
    FamilyLayoutOption,
    GpuOption,
    JsonOption,
    KernelOption,
    StoreOption,
    layout_of,
    refuse_overwriting,
)
from wavetune.cli.output import emit_json, show, two_columns
from wavetune.cli.progress import watch
from wavetune.cli.workload_problems import read_family_problems, read_problems
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.dtype import find_dtype

if TYPE_CHECKING:
    from wavetune.core.problem import Problem

STRATUM = "measure"
NO_GPU = "measuring needs the GPU itself; `wavetune doctor` says what is missing, `calibrate --replay` needs none"


def measure_command(
    shapes: Annotated[
        Path, typer.Option("--shapes", metavar="FILE", help="Workload: JSON, or CSV with m,n,k or the family's sizes.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.csv.gz", help="Where to write the measurements.")],
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Time every configuration: an oracle for evaluate. The default.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, help="Time only the N best of the model's ranking.", show_default=False
        ),
    ] = None,
    arch: ArchOption = None,
    kernel: KernelOption = "gemm",
    dtype: DtypeOption = "bf16",
    layout: FamilyLayoutOption = None,
    gpu: GpuOption = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time configurations on your shapes; the file serves evaluate and fit."""
    if all_configs and top is not None:
        raise typer.BadParameter("--all-configs and --top exclude each other")
    refuse_overwriting(out, [shapes])
    key = CalibrationKey(
        kernel, live_arch(arch, gpu, instead=NO_GPU), find_dtype(dtype).name, layout_of(kernel, layout)
    )
    from wavetune.core.config import find_kernel_spec
    from wavetune.store.database import MeasurementStore
    from wavetune.store.record import Point, Status

    problems = _read(shapes, key)
    wanted = [(problem, config) for problem in problems for config in _configs(key, problem, top)]
    runner = live_runner(key, gpu, instead=NO_GPU)
    database = store or out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.sqlite")
    make_folder(database.parent)
    make_folder(out.parent)
    try:
        with MeasurementStore(database, runner.environment()) as opened, watch() as observer:
            from wavetune.pipeline.calibrate import prepare_all, record_all

            prepared = prepare_all(runner, dict.fromkeys(config for _, config in wanted), opened, observer)
            usable = {entry.config for entry in prepared.compiled}
            points = [Point(problem, config, STRATUM) for problem, config in wanted if config in usable]
            done = opened.done_points()
            todo = [point for point in points if point not in done]
            observer.begin("measuring", len(todo))
            record_all(opened, runner.measure(todo, lambda done, _: observer.update(done)))
            rows = opened.export_csv(
                out, find_kernel_spec(kernel), dtype=key.dtype, layout=key.layout, strata=(STRATUM,)
            )
            failed = [entry for entry in opened.measurements(failed=True) if entry.status is not Status.OK]
    except KeyboardInterrupt:
        stop_interrupted(f"everything measured so far is in {database}")
    note_conditions(runner)
    document = {
        "out": str(out),
        "rows": rows,
        "shapes": len(problems),
        "configs": len(usable),
        "resumed_points": len(points) - len(todo),
        "failed": len(failed),
        "store": str(database),
    }
    if as_json:
        emit_json(document)
    else:
        show(two_columns((name.replace("_", " "), f"{value}") for name, value in document.items()))


def _read(path: Path, key: CalibrationKey) -> Sequence[Problem]:
    """Return the problems to measure; of a summarized family, those that their keys stand for, as files hold keys."""
    if key.kernel == GEMM.name:
        return read_problems(path, dtype=key.dtype, layout=key.layout)
    problems = read_family_problems(path, key.kernel, dtype=key.dtype, layout=key.layout)
    from wavetune.store.record import make_problem

    return list(dict.fromkeys(make_problem(key.kernel, problem.dims, key.dtype, key.layout) for problem in problems))


def _configs(key: CalibrationKey, problem: Problem, top: int | None) -> list[KernelConfig]:
    if top is None:
        return candidate_configs(key)
    from wavetune.runtime.choose import rank_configs

    return [entry.config for entry in rank_configs(problem, arch=key.arch.name)[:top]]

"""``wavetune tune``: measure the candidates for a workload, and pin what proves to be better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.options import (
    CANDIDATES,
    ArchOption,
    DtypeOption,
    GpuOption,
    JsonOption,
    LayoutOption,
    TopOption,
    require_candidates,
)
from wavetune.cli.output import note
from wavetune.core.workload import Workload
from wavetune.runtime.device import resolve_device

if TYPE_CHECKING:
    from wavetune.pipeline.tune import TuneOptions

MIN_IMPROVEMENT = 0.01
"""As `wavetune.pipeline.tune.MIN_IMPROVEMENT`; said again so that help needs no numpy."""

BACKENDS = ("triton", "cublaslt")

SkipSlowOption = Annotated[
    bool,
    typer.Option("--skip-slow", help="Leave out candidates that take 1.5 times the best one's time at a first look."),
]
MinImprovementOption = Annotated[
    float,
    typer.Option(
        "--min-improvement", metavar="SHARE", min=0.0, max=1.0,
        help="Keep the model's pick unless another saves this share of its time on fresh buffers.",
    ),
]  # fmt: skip
PatternCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--pattern-cache", metavar="FILE", show_default=False,
        help="Winners of earlier tunings, which are measured first; created, and brought up to date.",
    ),
]  # fmt: skip
RememberOption = Annotated[
    bool, typer.Option("--remember", help="Also keep the results in the user's store, which every process reads.")
]


def tune_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="Workload: JSON, or CSV.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for results and journal.")],
    top: TopOption = CANDIDATES,
    backend: Annotated[
        str,
        typer.Option("--backend", metavar="NAME", help="triton: this project's kernels. cublaslt: the library's own."),
    ] = "triton",
    arch: ArchOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    gpu: GpuOption = 0,
    skip_slow: SkipSlowOption = False,
    min_improvement: MinImprovementOption = MIN_IMPROVEMENT,
    pattern_cache: PatternCacheOption = None,
    remember: RememberOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tune the GEMMs of a workload on this GPU, beside the default configuration and torch.mm.

    The best of the candidates are timed again on fresh buffers, and only those readings count. Every measurement is
    kept in the folder: the same command goes on where it was stopped, even by kill -9. WAVETUNE_PINNED=DIR/pinned.json
    uses the results.
    """
    require_candidates(top)
    if backend not in BACKENDS:
        raise typer.BadParameter(f"no backend {backend!r}; known: {', '.join(BACKENDS)}")
    read = Workload.read(workload, dtype=dtype, layout=layout)
    device = resolve_device(arch)
    if backend == "cublaslt":
        if skip_slow or remember or pattern_cache is not None:
            raise typer.BadParameter("--skip-slow, --remember and --pattern-cache are for the backend triton")
        from wavetune.cli.tune_vendor import tune_cublaslt

        tune_cublaslt(read, device, gpu=gpu, top=top, out=out, as_json=as_json)
        return
    from wavetune.cli.tune_run import run_tuning
    from wavetune.cli.tune_view import note_not_tuned, print_tuning

    run = run_tuning(
        read, device, out, top=top, options=tune_options(min_improvement, skip_slow), gpu=gpu,
        pattern_cache=pattern_cache, remember=remember,
    )  # fmt: skip
    note_not_tuned(run, len(read.entries))
    print_tuning(run, as_json)
    if "pinned" in run.files:
        note(f"use it: WAVETUNE_PINNED={run.files['pinned']}")


def tune_options(min_improvement: float, skip_slow: bool) -> TuneOptions:
    """Return the options of a tuning."""
    from wavetune.pipeline.tune import TuneOptions

    return TuneOptions(min_improvement, skip_slow)

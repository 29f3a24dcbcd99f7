"""Options that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

DEFAULT_LAYOUTS = MappingProxyType({"attention": "d128", "attention_decode": "d128"})
"""What is meant where no layout is named; ``nk`` for every other kernel."""


def layout_of(kernel: str, layout: str | None) -> str:
    """Return the layout that is meant."""
    return layout if layout is not None else DEFAULT_LAYOUTS.get(kernel, "nk")


ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="GPU",
        help="GPU: a name such as nvidia-h200 or h200, or the driver's device name. Default: $WAVETUNE_ARCH, else the "
        "GPU of this machine; recorded measurements need a name.",
        show_default=False,
    ),
]
KernelOption = Annotated[
    str,
    typer.Option(
        "--kernel", metavar="NAME", help="Kernel family: gemm, grouped_gemm, attention (prefill) or attention_decode."
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="Element type: bf16, fp16, fp32, fp8 (e4m3; scales for the tensor or each row), fp8_fast (summed by the "
        "matrix unit alone), fp8_block128 (scales in 128 x 128 blocks), int8.",
    ),
]
LayoutOption = Annotated[
    str,
    typer.Option("--layout", metavar="NAME", help="Storage of B: nk (a linear layer's weight) or kn (row-major)."),
]
FamilyLayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NAME",
        help="gemm: storage of B, nk or kn; grouped_gemm: nk or gated; attention, attention_decode: head dimension, "
        "d64, d96, d128 or d256. Default: nk, d128; with --model the file's.",
        show_default=False,
    ),
]
NumSmsOption = Annotated[
    int | None,
    typer.Option(
        "--num-sms", metavar="N", help="SMs that a launch may use, on a slice or under a limit. Default: all.",
        show_default=False,
    ),
]  # fmt: skip
NumericsOption = Annotated[
    str,
    typer.Option(
        "--numerics", metavar="CLASS",
        help="What results must not depend on: any, deterministic (the run), batch_invariant (the run and m).",
    ),
]  # fmt: skip


def _refuse_measuring(on_miss: str | None) -> str | None:
    """Refuse the one policy of the library that a command line has no GPU code for."""
    if on_miss == "measure":
        raise typer.BadParameter(
            "nothing is measured here; give model, default or error, or measure with `wavetune quicktune`"
        )
    return on_miss


OnMissOption = Annotated[
    str | None,
    typer.Option(
        "--on-miss", metavar="POLICY", callback=_refuse_measuring,
        help="Beyond the measured range: model, default or error. Default: $WAVETUNE_ON_MISS, else model.",
        show_default=False,
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SkipBadRowsOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave impossible rows out, counted and reported, instead of stopping.")
]
ConfigCountOption = Annotated[
    int | None,
    typer.Option(
        "--n-configs", min=1, help="Most launch configurations that the tables keep, beside up to four of gemm for "
        "unaligned operands; 16 to 64 is sensible. Default: 64. Of other kernels: 48.", show_default=False,
    ),
]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
NoHoldoutOption = Annotated[
    bool, typer.Option("--no-holdout", help="Do not estimate accuracy on held-out layers; saves the second fit.")
]
GpuOption = Annotated[int, typer.Option("--gpu", min=0, metavar="N", help="Which GPU to measure, as CUDA counts.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="Measurement store (SQLite). The same command resumes from it. Default: beside the output.",
        show_default=False,
    ),
]

CANDIDATES = 128
"""As many as hipblaslt-bench is asked for by QuickTune (``--requested_solution``)."""

TopOption = Annotated[
    int,
    typer.Option("--top", metavar="N", min=-1, help="Candidates for each problem: 1 the model's pick, -1 all."),
]


def require_candidates(top: int) -> None:
    """Refuse a number of candidates that leaves nothing to time."""
    if top == 0:
        raise typer.BadParameter("--top 0 leaves nothing to time; 1 is the model's pick, -1 the whole space")


def refuse_overwriting(out: Path | None, inputs: Iterable[str | Path | None]) -> None:
    """Refuse an output that is one of the inputs, by whatever name: it would be lost. ``-`` is standard input."""
    if out is None or not out.is_file():
        return
    for path in inputs:
        place = "/dev/stdin" if path == "-" else path
        with suppress(OSError):
            if place is not None and os.path.samefile(place, out):
                raise typer.BadParameter(f"--out {out} is the input {path}, which would be lost; name another file")

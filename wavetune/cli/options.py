"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="GPU",
        help="GPU: a name such as nvidia-h200 or h200, or the driver's device name. Default: $WAVETUNE_ARCH.",
        show_default=False,
    ),
]
KernelOption = Annotated[str, typer.Option("--kernel", metavar="NAME", help="Kernel family.")]
DtypeOption = Annotated[str, typer.Option("--dtype", metavar="NAME", help="Element type: bf16, fp16, fp32, fp8, int8.")]
LayoutOption = Annotated[
    str,
    typer.Option("--layout", metavar="NAME", help="Storage of B: nk (a linear layer's weight) or kn (row-major)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SkipBadRowsOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave impossible rows out, counted and reported, instead of stopping.")
]
ConfigCountOption = Annotated[
    int | None,
    typer.Option(
        "--n-configs", min=1, help="Most launch configurations that the tables keep, 16 to 32 being sensible. "
        "Default: 32.", show_default=False,
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

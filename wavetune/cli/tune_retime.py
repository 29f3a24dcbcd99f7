"""``wavetune retime``: time named configurations of one problem against each other and torch.mm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.live import CalibrationKey
from wavetune.cli.options import ArchOption, DtypeOption, GpuOption, JsonOption, LayoutOption
from wavetune.cli.output import data_table, describe_config, emit_json, format_sizes, format_us, show
from wavetune.cli.parsing import integer
from wavetune.core.config import GEMM, FieldValue, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, ProblemError
from wavetune.runtime.device import resolve_device

if TYPE_CHECKING:
    from wavetune.store.record import Measurement

STRATUM = "retime"


def retime_command(
    m: Annotated[int, typer.Argument(help="Rows: tokens.", parser=integer, show_default=False)],
    n: Annotated[int, typer.Argument(help="Columns: output features.", parser=integer, show_default=False)],
    k: Annotated[int, typer.Argument(help="Depth: input features.", parser=integer, show_default=False)],
    config: Annotated[
        list[str],
        typer.Option(
            "--config", metavar="'NAME=VALUE ...'", show_default=False,
            help="A configuration, written out as in tuned.csv; may be given several times.",
        ),
    ],
    arch: ArchOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    gpu: GpuOption = 0,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Time configurations of one problem again, with torch.mm beside them: the last stage of a tuning, alone."""
    from wavetune.cli.tune_run import open_runner
    from wavetune.measure.contest import TORCH_MM
    from wavetune.pipeline.tune_stages import PRECISE
    from wavetune.store.record import Point

    configs = list(dict.fromkeys(read_config(text) for text in config))
    problem = GemmProblem(m, n, k, dtype, layout)
    if problem.is_empty:
        raise ProblemError(f"a size of {format_sizes(problem.dims)} is zero: there is nothing to time")
    device = resolve_device(arch)
    runner = open_runner(CalibrationKey("gemm", device.arch, problem.dtype, layout), gpu)
    prepared = runner.prepare(configs)
    usable = [entry.config for entry in prepared.compiled]
    points = [Point(problem, entry, STRATUM) for entry in (*usable, TORCH_MM)]
    measured = list(runner.measure(points, method=PRECISE.method, rule=PRECISE.rule))
    entries = [*prepared.failures, *measured]
    if as_json:
        rows = [_document(entry) for entry in entries]
        emit_json({"m": m, "n": n, "k": k, "dtype": problem.dtype, "layout": layout, "rows": rows})
        return
    table = data_table("config", "us", "+-", "status", right=("us", "+-"))
    for entry in entries:
        status = f"{entry.status}: {entry.detail}" if entry.detail else entry.status.value
        table.add_row(_label(entry.config), _us(entry.latency_us), _us(entry.spread_us), status)
    show(table)


def read_config(text: str) -> KernelConfig:
    """Read a configuration that is written out, ``name=value`` separated by blanks.

    Raises
    ------
    ConfigError
        If a word is no ``name=value``, or the fields are no GEMM configuration.
    """
    fields: dict[str, FieldValue] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name in fields:
            raise ConfigError(f"a configuration is written name=value, each name once, got {word!r} in {text!r}")
        fields[name] = int(value) if value.isdecimal() else value
    return GEMM.config(fields)


def _document(entry: Measurement) -> dict[str, object]:
    return {
        "config": dict(entry.config), "status": entry.status.value, "latency_us": entry.latency_us,
        "spread_us": entry.spread_us, "rounds": entry.rounds, "detail": entry.detail,
    }  # fmt: skip


def _label(config: KernelConfig) -> str:
    library = config.get("library")
    return str(library) if library else describe_config(config)


def _us(value: float | None) -> str:
    return "" if value is None else format_us(value)

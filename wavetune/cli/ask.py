"""One problem of any kernel, asked of the runtime or of one model file. Imports neither numpy nor rich."""

from __future__ import annotations

import math
from pathlib import Path

from wavetune.cli.output import format_sizes, format_us
from wavetune.core.arch import find_arch
from wavetune.core.config import find_kernel_spec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem, Problem
from wavetune.core.shorthand import name_sizes
from wavetune.errors import NoModelError
from wavetune.runtime.any_model import AnyModel, read_any_model
from wavetune.runtime.choice import Choice
from wavetune.runtime.choose import explain_choice, policy
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.device import resolve_device
from wavetune.runtime.families import explain_from, explain_of_family
from wavetune.runtime.family_file import FamilyFile


def open_model(path: Path, arch: str | None, kernel: str, dtype: str | None, layout: str | None) -> AnyModel:
    """Read a model file, and check that it is for what a command line names.

    Raises
    ------
    ModelFileError
        If it cannot be read.
    NoModelError
        If it is for something else.
    """
    model = read_any_model(path)
    wanted = {
        "arch": find_arch(arch).name if arch is not None else model.arch,
        "kernel": kernel,
        "dtype": find_dtype(dtype).name if dtype is not None else model.dtype,
        "layout": layout if layout is not None else model.layout,
    }
    for name, value in wanted.items():
        if getattr(model, name) != value:
            raise NoModelError(f"{path} is a model for {name} {getattr(model, name)}, not {value}")
    return model


def explain_from_file(model: AnyModel, problem: Problem, num_sms: int | None = None, numerics: str = "any") -> Choice:
    """Return the answer of one model file, with its reasons.

    Raises
    ------
    NoModelError
        If it has no answer to the problem.
    """
    device = resolve_device(model.arch, num_sms)
    if isinstance(model, FamilyFile):
        if numerics == "batch_invariant":
            raise NoModelError(f"kernel {model.kernel!r} has no configurations that sum alike for every batch")
        return explain_from(model, problem, device.num_sms)
    assert isinstance(problem, GemmProblem)
    return GemmChooser(model, device.arch, num_sms, numerics=numerics).explain(problem)


def explain_problem(
    problem: Problem, *, arch: str | None = None, num_sms: int | None = None, numerics: str = "any",
    on_miss: str | None = None,
) -> Choice:  # fmt: skip
    """Return what `wavetune.choose` returns, with its reasons; raises alike."""
    if not isinstance(problem, GemmProblem):
        return explain_of_family(problem, arch, num_sms, numerics, policy(on_miss))
    return explain_choice(
        *problem.dims, dtype=problem.dtype, layout=problem.layout, alignment=problem.alignment, arch=arch,
        num_sms=num_sms, numerics=numerics, on_miss=on_miss,
    )  # fmt: skip


def describe_latency(choice: Choice) -> str:
    """Return the latency of an answer as text, and whether it was measured."""
    if math.isnan(choice.latency_us):
        return "unknown"
    return f"{format_us(choice.latency_us)} us {'measured' if choice.is_measured else 'predicted'}"


def describe_problem(problem: Problem) -> str:
    """Return the sizes of a problem as text: bare for a GEMM, with their names for others."""
    if isinstance(problem, GemmProblem):
        return format_sizes(problem.dims)
    return name_sizes(find_kernel_spec(problem.kernel).dims, problem.dims)

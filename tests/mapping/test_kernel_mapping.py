"""Mapping functions of the user's: what they may return, and how their source is told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetune.core.problem import Problem
from wavetune.errors import MappingError
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem, LaunchShape, short_dtype
from wavetune.mapping.source_digest import check_functions, function_digest, mapping_digest

TILE = 64


def ceil_div(a: int, b: int) -> int:
    """Return ``ceil(a / b)``."""
    return -(-a // b)


def mapping(grid_size: Any, loop_trips: Any = lambda key, config: 1, **others: Any) -> KernelMapping:
    """Return a mapping of a kernel with one size."""
    return KernelMapping("made-up", ("M",), grid_size, loop_trips, **others)


def test_a_shape_is_what_the_functions_say() -> None:
    """Grid, trips and bytes; trips of all units are their product unless they differ in length."""
    plain = mapping(lambda key, config: key["M"] // config["B"], lambda key, config: config["B"])
    assert plain.shape({"M": 100}, {"B": 20}) == LaunchShape(5, 20, 100, 0)
    causal = mapping(
        lambda key, config: key["M"], lambda key, config: key["M"],
        bytes_moved=lambda key, config: 8 * key["M"],
        total_trips=lambda key, config: key["M"] * (key["M"] + 1) // 2,
    )  # fmt: skip
    assert causal.shape({"M": 4}, {}) == LaunchShape(4, 4, 10, 32)


@pytest.mark.parametrize("value", [1.5, None, "3", -1, 2**60, float("nan")])
def test_what_is_no_count_is_refused(value: object) -> None:
    """The message names function, kernel, key and configuration."""
    with pytest.raises(MappingError, match=r"grid_size of kernel made-up .*'M': 7.*'B': 2"):
        mapping(lambda key, config: value).shape({"M": 7}, {"B": 2})


def test_integers_of_numpy_are_counts() -> None:
    """And an error inside of a function keeps its message."""
    assert mapping(lambda key, config: np.int64(3)).shape({"M": 1}, {}).grid_size == 3
    with pytest.raises(MappingError, match=r"loop_trips .* KeyError: 'K'"):
        mapping(lambda key, config: 1, lambda key, config: key["K"]).shape({"M": 1}, {})


def test_a_key_is_a_problem() -> None:
    """It goes where problems go, and knows short names of element types."""
    problem = KernelProblem("made-up", (3, 4), "fp16+bf16")
    assert isinstance(problem, Problem)
    assert not problem.is_empty
    assert [short_dtype(name) for name in ("torch.bfloat16", "torch.float8_e5m2", "torch.uint16")] == [
        "bf16", "fp8_e5m2", "uint16"
    ]  # fmt: skip


def test_spelling_does_not_count() -> None:
    """Layout, comments, annotations, docstrings and the function's own name leave the digest alone."""

    def grid(key: dict[str, int], config: dict[str, int]) -> int:
        """Say how many."""
        return ceil_div(key["M"], config["B"])  # tiles

    written = mapping(
        lambda key, config: ceil_div(
            key["M"],
            config["B"],
        )
    )
    assert mapping_digest(written) == mapping_digest(mapping(grid))


def edited(change: str) -> KernelMapping:
    """Return a mapping with one edit."""
    variants: dict[str, Callable[..., int]] = {
        "number": lambda key, config: ceil_div(key["M"], config["B"]) + 1,
        "name": lambda key, config: ceil_div(key["N"], config["B"]),
        "operator": lambda key, config: key["M"] // config["B"],
    }
    return mapping(variants[change])


@pytest.mark.parametrize("change", ["number", "name", "operator"])
def test_meaning_counts(change: str) -> None:
    """Another number, name or operator is another mapping."""
    assert mapping_digest(edited(change)) != mapping_digest(
        mapping(lambda key, config: ceil_div(key["M"], config["B"]))
    )


def test_what_functions_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants and functions around them, and values that they close over."""
    uses_tile = mapping(lambda key, config: key["M"] // TILE)
    before = mapping_digest(uses_tile)
    monkeypatch.setattr(sys.modules[__name__], "TILE", 128)
    assert mapping_digest(uses_tile) != before

    def closed_over(size: int) -> KernelMapping:
        return mapping(lambda key, config: key["M"] // size)

    assert mapping_digest(closed_over(8)) != mapping_digest(closed_over(16))
    assert mapping_digest(closed_over(8)) == mapping_digest(closed_over(8))
    uses_function = mapping(lambda key, config: ceil_div(key["M"], 2))
    before = mapping_digest(uses_function)
    monkeypatch.setattr(sys.modules[__name__], "ceil_div", lambda a, b: a // b)
    assert mapping_digest(uses_function) != before


def test_lambdas_of_one_line_are_told_apart() -> None:
    """Roles and bodies count, not lines."""
    one = mapping(lambda key, config: key["M"], lambda key, config: config["B"])
    other = mapping(lambda key, config: config["B"], lambda key, config: key["M"])
    assert mapping_digest(one) != mapping_digest(other)


def test_the_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    """It does not depend on hashing seeds, addresses or where the file lies."""
    program = (
        "from wavetune.mapping.kernel_mapping import KernelMapping\n"
        "from wavetune.mapping.source_digest import mapping_digest\n"
        "SIZE, OTHER = 4, 5\n"
        "f = lambda key, config: key['M'] // SIZE + OTHER\n"
        "print(mapping_digest(KernelMapping('k', ('M',), f, f)))\n"
    )
    digests = set()
    for seed, folder in (("1", "a"), ("2", "b")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "module.py"
        path.write_text("# a comment\n" * int(seed) + program)
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_functions_without_source_still_have_a_digest() -> None:
    """Typed into a prompt, they are told apart by their code; what is not written in Python is refused."""
    space: dict[str, Any] = {}
    exec("f = lambda key, config: key['M']\ng = lambda key, config: key['N']", space)
    assert mapping_digest(mapping(space["f"])) != mapping_digest(mapping(space["g"]))
    with pytest.raises(MappingError, match="grid_size must be a function written in Python"):
        check_functions(mapping(len))


def test_kernels_under_decorators_have_the_digest_of_their_function() -> None:
    """Triton's wrappers keep the function as ``fn``; callable objects are their ``__call__``."""

    class Wrapped:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

    class Counts:
        def __call__(self, key: Any, config: Any) -> int:
            return 1

    assert function_digest(Wrapped(Wrapped(ceil_div))) == function_digest(ceil_div)
    assert mapping_digest(mapping(Counts())) != mapping_digest(mapping(lambda key, config: 1))

"""Model files edited at random with a right digest: refused by file and field, or a model that answers."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hand_made import make_model
from hypothesis import event, given, settings
from hypothesis import strategies as st
from redigest import with_digest

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ModelFileError, NoModelError
from wavetune.mapping.legality import gemm_illegal_reason, grid_limit_reason
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import decode_model, encode_model

TEXT = encode_model(make_model()).decode()

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2, 31, 32, 2**31, 2**63, 10**400, -(10**400)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-320, 1e308, -1e-9]),
    st.text(max_size=8),
    st.sampled_from(["gemm", "fp16", "kn", "nvidia-a100", "nvidia-h100", "tma", "split_k", "\ud800"]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(st.text(max_size=6), SCALARS, max_size=3),
    st.builds(lambda: list(range(3000))),
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=5),
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """List every container and key of a document."""
    found = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        found.append((document, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """Edit a document in one to three places."""
    document = json.loads(TEXT)
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(places(document)))
        how = draw(st.sampled_from(["replace", "replace", "delete", "duplicate", "nudge", "rename"]))
        if how == "replace":
            container[key] = draw(VALUES)
        elif how == "delete":
            del container[key]
        elif how == "duplicate" and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        elif how == "nudge" and type(container[key]) in (int, float):
            # An integer that no float can hold cannot be added to one.
            steps = [-1, 1, -1000] if abs(container[key]) > 2**1000 else [-1, 1, 0.5, -1000]
            container[key] += draw(st.sampled_from(steps))
        elif how == "rename" and isinstance(container, dict):
            container[draw(st.text(max_size=6))] = container.pop(key)
    return with_digest(json.dumps(document))


def is_illegal(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> bool:
    """Whether a configuration cannot be launched on a problem."""
    return bool(gemm_illegal_reason(problem, config, arch) or grid_limit_reason(problem, config))


def check(data: bytes) -> None:
    """Refuse by file and field, or answer a few problems with legal configurations."""
    try:
        model = decode_model(data, "some/file.json")
    except ModelFileError as error:
        event("refused")
        message = str(error)
    else:
        message = None
    if message is not None:
        assert message.startswith("some/file.json: ")
        assert len(message) < 1000
        return
    event("a model")
    arch = find_arch(model.arch)
    chooser = GemmChooser(model, arch)
    for dims in ((512, 4096, 4096), (300, 4096, 4000), (16, 4096, 4096), (1, 1, 1), (2**31 - 1,) * 3, (0, 1, 1)):
        for alignment in (16, 2):
            problem = GemmProblem(*dims, dtype=model.dtype, layout=model.layout, alignment=alignment)
            try:
                choice = chooser.explain(problem)
            except NoModelError:
                configs = [form.config for form in model.forms]
                assert all(is_illegal(problem, config, arch) for config in configs)
                continue
            assert problem.is_empty or not is_illegal(problem, choice.config, arch)
            assert choice.source in ("empty", "default") or 0 < choice.latency_us < math.inf
            assert chooser.choose(problem) == choice.config


@settings(max_examples=500)
@given(edited())
def test_an_edited_document_is_refused_or_a_model(data: bytes) -> None:
    """A document with values changed, removed, repeated or renamed never half-loads and raises nothing else."""
    check(data)


@settings(max_examples=300)
@given(st.integers(0, len(TEXT)), st.integers(0, 30), st.text(max_size=10))
def test_edited_text_is_refused_or_a_model(start: int, length: int, insertion: str) -> None:
    """Text cut out and put in anywhere never half-loads and raises nothing else."""
    check(with_digest(TEXT[:start] + insertion + TEXT[start + length :]))


@given(st.sampled_from([key for key in json.loads(TEXT) if key != "digest"]))
def test_a_repeated_key_is_refused(key: str) -> None:
    """A key that appears twice is refused: readers disagree on which one counts."""
    text = TEXT.replace("{\n", "{\n" + f'  "{key}": 1,\n', 1)
    with pytest.raises(ModelFileError, match=f"{key}: appears twice"):
        decode_model(with_digest(text), "file.json")


@given(
    st.integers(1, 200_000), st.sampled_from(["[", '{"a":', "[[1,"]), st.sampled_from(["provenance", "forms", "cells"])
)
@settings(max_examples=30)
def test_nested_bombs_are_harmless(depth: int, opening: str, field: str) -> None:
    """Nesting of any depth in any field is an error of the file, closed or not."""
    closing = "]" if opening.startswith("[") else "}"
    for bomb in (opening * depth, opening * depth + "1" + closing * depth):
        check(with_digest(TEXT.replace(f'"{field}": ', f'"{field}": {bomb}, "x": ', 1)))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Bytes that are no model are refused."""
    check(data)

"""The hot loop of the runtime and the arrays of the fit equal the definitions of mapping and waves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KERNEL_SPECS, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.fit.points import GemmGeometry
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.runtime.gemm_forms import GemmForms
from wavetune.runtime.model_file import Cell, LaunchForm, ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.occupancy import ctas_per_sm
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, TERM_UNITS, TERMS, latency_terms, sustained_onset_gflop

H200 = find_arch("nvidia-h200")
SIZES = st.one_of(st.integers(1, 500), st.integers(1, 2**17), st.integers(1, 2**20))
BLOCKS = st.sampled_from([16, 32, 64, 96, 128, 192, 256])


@st.composite
def configs(draw: st.DrawFn) -> KernelConfig:
    """Draw a configuration of any schedule."""
    schedule = draw(st.sampled_from(["tile", "persistent", "split_k"]))
    return GEMM.config(
        {
            "block_m": draw(BLOCKS),
            "block_n": draw(BLOCKS),
            "block_k": draw(st.sampled_from([16, 32, 64, 128, 256])),
            "split_k": draw(st.integers(2, 16)) if schedule == "split_k" else 1,
            "schedule": schedule,
            "group_m": draw(st.sampled_from([1, 2, 4, 8, 16])),
            "num_warps": draw(st.sampled_from([4, 8])),
            "num_stages": draw(st.integers(1, 6)),
            "load": draw(st.sampled_from(["pointer", "tma"])),
            "epilogue_split": draw(st.sampled_from([1, 2])),
        }
    )


COEFFICIENTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 10.0)), min_size=len(TERMS), max_size=len(TERMS))


def form_by_definition(
    problem: GemmProblem, config: KernelConfig, resident: int, coefficients: list[float], num_sms: int
) -> float:
    """Compute a form from the definitions, one term at a time."""
    mapping = map_gemm(problem, config, H200)
    waves = wave_geometry(mapping.grid_size, resident, num_sms)
    terms = latency_terms(
        grid_size=mapping.grid_size,
        loop_trips=mapping.loop_trips,
        waves=waves.waves,
        depth=waves.depth,
        num_sms=num_sms,
        compulsory_mb=mapping.compulsory_bytes / BYTES_PER_MB,
        reread_mb=mapping.reread_bytes / BYTES_PER_MB,
        workspace_mb=mapping.workspace_bytes / BYTES_PER_MB,
        sustained_gflop=max(mapping.flops / FLOPS_PER_GFLOP - sustained_onset_gflop(H200), 0.0),
    )
    return math.fsum(c * t for c, t in zip(coefficients, terms, strict=True))


def model_of(forms: tuple[LaunchForm, ...], dtype: str) -> ModelFile:
    """Return a model with these forms and nothing else."""
    return ModelFile("gemm", dtype, "nk", H200.name, 132, forms, 0, (), 0.0, {}, {}, {})


@settings(max_examples=250)
@given(
    st.tuples(SIZES, SIZES, SIZES),
    st.lists(st.tuples(configs(), st.integers(1, 8), COEFFICIENTS), min_size=1, max_size=4),
    st.sampled_from(["bf16", "fp32", "fp8", "int8"]),
    st.sampled_from([132, 100, 1]),
    st.lists(st.integers(-700, 700), min_size=4, max_size=4),
)
def test_the_hot_loop_equals_the_definitions(
    dims: tuple[int, int, int],
    drawn: list[tuple[KernelConfig, int, list[float]]],
    dtype: str,
    num_sms: int,
    permille: list[int],
) -> None:
    """Every latency of the runtime is the sum of coefficient times term, times the factor; the fastest legal wins."""
    forms = tuple(LaunchForm(config, resident, 32, 0, tuple(c)) for config, resident, c in drawn)
    evaluator = GemmForms(model_of(forms, dtype), H200, num_sms)
    problem = GemmProblem(*dims, dtype=dtype, alignment=16)
    expected = [form_by_definition(problem, config, resident, c, num_sms) for config, resident, c in drawn]
    assert evaluator.latencies(*dims, evaluator.all_entries) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    cell = Cell(tuple(range(len(forms))), tuple(permille[: len(forms)]))
    corrected = [e * math.exp(p / 1000) for e, p in zip(expected, permille, strict=False)]
    backwards = list(reversed(range(len(forms))))
    entries = evaluator.corrected(cell, backwards)
    assert evaluator.latencies(*dims, entries) == pytest.approx([corrected[i] for i in backwards], rel=1e-9, abs=1e-12)
    index, latency_us = evaluator.fastest(*dims, entries)
    legal = [i for i in backwards if gemm_illegal_reason(problem, forms[i].config, H200) is None]
    if legal:
        assert index in legal
        assert latency_us == pytest.approx(min(corrected[i] for i in legal), rel=1e-9, abs=1e-12)
    else:
        assert (index, latency_us) == (-1, math.inf)


@settings(max_examples=100)
@given(st.tuples(SIZES, SIZES, SIZES), configs(), st.integers(24, 255), st.integers(0, 232_448))
def test_the_arrays_of_the_fit_equal_the_definitions(
    dims: tuple[int, int, int], config: KernelConfig, num_regs: int, smem_bytes: int
) -> None:
    """The design matrix of one row holds the terms of the definitions."""
    resident = ctas_per_sm(H200, num_warps=int(config["num_warps"]), num_regs=num_regs, smem_bytes=smem_bytes)
    geometry = GemmGeometry([CompiledConfig(config, num_regs, 0, smem_bytes)], H200, find_dtype("bf16"))
    points = geometry.points(np.array([dims]), np.array([0]))
    mapping = map_gemm(GemmProblem(*dims), config, H200)
    assert (points.grid_size[0], points.loop_trips[0]) == (mapping.grid_size, mapping.loop_trips)
    for index in range(len(TERMS)):
        unit = [float(i == index) for i in range(len(TERMS))]
        expected = form_by_definition(GemmProblem(*dims), config, resident, unit, 132)
        assert points.terms()[0, index] == pytest.approx(expected, rel=1e-12)


@given(st.tuples(SIZES, SIZES, SIZES), configs(), st.data())
def test_micro_fields_never_change_the_grid(
    dims: tuple[int, int, int], config: KernelConfig, data: st.DataObject
) -> None:
    """Changing any micro field leaves grid and trips as they are; that is what micro means."""
    spec = KERNEL_SPECS["gemm"]
    before = map_gemm(GemmProblem(*dims), config, H200)
    for name in spec.micro:
        values = [v for v in spec.words.get(name, (1, 2, 3, 4, 8, 16)) if v != config[name]]
        changed = config.replace(**{name: data.draw(st.sampled_from(values))})
        after = map_gemm(GemmProblem(*dims), changed, H200)
        assert (after.grid_size, after.loop_trips) == (before.grid_size, before.loop_trips)
        assert (after.tiles_m, after.tiles_n) == (before.tiles_m, before.tiles_n)


@pytest.mark.parametrize("name", [n for n in GEMM.macro if n != "schedule"])
def test_macro_fields_change_the_mapping(name: str) -> None:
    """Every numeric macro field changes grid or trips of some problem; otherwise it would be micro."""
    config = GEMM.config(
        {
            "block_m": 64, "block_n": 64, "block_k": 64, "split_k": 2, "schedule": "split_k", "group_m": 8,
            "num_warps": 4, "num_stages": 3,
        }
    )  # fmt: skip
    problem = GemmProblem(1000, 1000, 1000)
    before = map_gemm(problem, config, H200)
    after = map_gemm(problem, config.replace(**{name: 2 * int(config[name])}), H200)
    assert (after.grid_size, after.loop_trips) != (before.grid_size, before.loop_trips)


def test_every_field_is_macro_or_micro() -> None:
    """Fields of a kernel family are macro or micro, never both, and every term has a unit."""
    for spec in KERNEL_SPECS.values():
        assert not set(spec.macro) & set(spec.micro)
        assert set(spec.words) | set(spec.defaults) <= set(spec.fields)
    assert tuple(TERM_UNITS) == TERMS

"""fp8 grouped GEMM on a simulated GPU: planned, measured, fitted, written, chosen for eager and captured launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated_grouped import ARCH, SimulatedGrouped, simulated_us

import wavetune
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import NoModelError
from wavetune.kernels.grouped_gemm_space import grouped_space
from wavetune.pipeline.dry_run import dry_run_family
from wavetune.pipeline.evidence import fit_family_evidence, write_evidence
from wavetune.pipeline.family_calibration import calibrate_family
from wavetune.pipeline.family_jobs import grouped_job
from wavetune.plan.grouped_plan import holdout_problems, plan_grouped
from wavetune.runtime.choice import Source
from wavetune.runtime.family_file import family_file_name, write_family
from wavetune.runtime.grouped_choice import (
    choose_grouped_gemm,
    choose_grouped_gemm_config,
    choose_grouped_gemm_for_graph,
)
from wavetune.store.database import MeasurementStore

pytest.importorskip("triton")


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_a_plan_of_the_real_space(layout: str) -> None:
    """Every configuration is planned for; bytes and rates of fp8 make it shorter than that of bf16 for each point."""
    plans = {}
    for dtype in ("bf16", "fp8"):
        configs = grouped_space(ARCH, dtype)
        plan = dry_run_family(grouped_job(configs, ARCH, dtype=dtype, layout=layout), ARCH)
        assert plan.n_configs == len(configs)
        assert set(plan.points) == {"sweep", "likely"}
        plans[dtype] = plan.seconds / sum(plan.points.values())
    assert plans["fp8"] < plans["bf16"]


def test_gated_weights_calibrate(tmp_path: Path) -> None:
    """Their n is even wherever a problem is made up on the way from measurements to a model."""
    runner = SimulatedGrouped()
    job = grouped_job([entry.config for entry in runner.compiled], ARCH, dtype="bf16", layout="gated", n_problems=40)
    with MeasurementStore(tmp_path / "store.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store)
    assert (result.file.dtype, result.file.layout) == ("bf16", "gated")
    assert {point.problem.layout for point in runner.measured} == {"gated"}


def test_a_gpu_without_e4m3_has_an_empty_plan() -> None:
    """There is nothing to measure."""
    assert len(plan_grouped([], ARCH, dtype="fp8")) == 0


def test_from_measurements_to_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is found under fp8's name and chooses well; its evidence gives it again; it is not for fast sums."""
    runner = SimulatedGrouped()
    job = grouped_job([entry.config for entry in runner.compiled], ARCH, dtype="fp8", n_problems=160)
    with MeasurementStore(tmp_path / "store.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store)
    assert {point.problem.dtype for point in runner.measured} == {"fp8"}
    path = tmp_path / "models" / ARCH.name / family_file_name("grouped_gemm", "fp8", "nk")
    path.parent.mkdir(parents=True)
    write_family(result.file, path)
    write_evidence(tmp_path / "evidence", result, runner.environment(), {})
    again = fit_family_evidence(tmp_path / "evidence", "grouped_gemm", ARCH, dtype="fp8", layout="nk", holdout=False)
    assert again.file.forms == result.file.forms

    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("WAVETUNE_ARCH", ARCH.name)
    wavetune.clear_caches()
    try:
        regrets = []
        for problem in holdout_problems(40, dtype="fp8"):
            choice = choose_grouped_gemm(problem)
            assert choice.source in (Source.MODEL, Source.NEAREST)
            times = {entry.config: simulated_us(problem, entry.config) for entry in runner.compiled}
            regrets.append(times[choice.config] / min(times.values()) - 1.0)
        assert np.mean(regrets) < 0.03
        sizes = (12, 0, 7, 300)
        known = choose_grouped_gemm_config(sizes, 1536, 2048, dtype="fp8")
        assert known == choose_grouped_gemm(GroupedGemmProblem(sizes, 1536, 2048, "torch.float8_e4m3fn")).config
        # k is too odd for TMA, whose rows are 16 elements.
        assert choose_grouped_gemm_config(sizes, 1536, 2040, dtype="fp8")["load"] == "pointer"
        assert choose_grouped_gemm_for_graph(256, 64, 1536, 2048, dtype="fp8", layout="gated")["block_m"] <= 64
        with pytest.raises(NoModelError, match="grouped_gemm for fp8_fast"):
            choose_grouped_gemm_config(sizes, 1536, 2048, dtype="fp8_fast")
    finally:
        wavetune.clear_caches()

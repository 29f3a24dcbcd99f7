"""The held-out benchmark of families, with a simulated GPU in place of the timers."""

from __future__ import annotations

import family_holdout
import numpy as np
import pytest
from grouped_rivals import GroupedRivals, experts_per_token
from simulated_attention import ARCH, SimulatedAttention
from simulated_grouped import SimulatedGrouped, simulated_us

from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.core.problem import Problem
from wavetune.pipeline.family_calibration import FamilyCalibration, calibrate_family
from wavetune.pipeline.family_jobs import find_job
from wavetune.store.database import MeasurementStore
from wavetune.store.table import MeasurementTable

LAYOUTS = {"grouped_gemm": "nk", "attention": "d128", "attention_decode": "d128"}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return a model, held-out problems, what was measured on them and their true latencies."""
    kernel = request.param
    runner = SimulatedGrouped() if kernel == "grouped_gemm" else SimulatedAttention(kernel)
    configs = [entry.config for entry in runner.compiled] if kernel == "grouped_gemm" else runner.configs
    job = find_job(kernel, ARCH, dtype="bf16", layout=LAYOUTS[kernel], configs=configs, n_problems=60)
    folder = tmp_path_factory.mktemp("holdout")
    with MeasurementStore(folder / "a.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store, holdout=False)
    problems = family_holdout.held_out(result.file, 16, ARCH)
    rivals = GroupedRivals(problems, ARCH) if kernel == "grouped_gemm" else None
    compiled = runner.prepare(configs).compiled
    points = family_holdout.plan(result.file, problems, compiled, ARCH, rivals)
    with MeasurementStore(folder / "b.sqlite", runner.environment()) as store:
        store.record_compiled(compiled)
        store.record(runner.measure(points))
        table = store.to_table(
            find_kernel_spec(kernel), dtype="bf16", layout=LAYOUTS[kernel], exhaustive_strata=(family_holdout.STRATUM,)
        )
    truth = simulated_us if kernel == "grouped_gemm" else runner.truth_us
    return result, problems, table, truth, rivals


def test_problems_were_never_measured(swept) -> None:
    """None of them is a key of the calibration, and each is swept with every configuration that is legal on it."""
    result, problems, table, *_ = swept
    assert not {problem.dims for problem in problems} & set(map(tuple, result.table.dims.tolist()))
    assert len(set(problems)) == 16
    assert {tuple(key) for key in table.dims[table.exhaustive].tolist()} == {problem.dims for problem in problems}


def test_rows_and_summary_say_how_good_choices_are(swept) -> None:
    """Best over chosen of what was timed; the best of three is no worse, and the default is worse on average."""
    result, problems, table, truth, rivals = swept
    sweep = table.select(table.exhaustive)
    policies = rivals.policies(table, sweep) if rivals is not None else {}
    rows = [row_of(result, problem, sweep, truth, policies, index) for index, problem in enumerate(problems)]
    for row, problem in zip(rows, problems, strict=True):
        times = [
            truth(problem, config) for config in (KernelConfig(**row["config"]), KernelConfig(**row["best_config"]))
        ]
        assert (row["chosen"], row["best_us"]) == pytest.approx(times)
        assert row["efficiency"] == pytest.approx(times[1] / times[0], abs=1e-4)
    summary = family_holdout.summarise(rows, ("chosen", "top3", "default", *policies))
    chosen, top3, default = (summary[name]["efficiency"]["geomean"] for name in ("chosen", "top3", "default"))
    assert 0.95 < chosen <= top3 <= 1.0
    assert default < chosen
    assert summary["chosen"]["regret"]["mean"] == pytest.approx(
        np.mean([row["chosen"] / row["best_us"] - 1.0 for row in rows]), abs=1e-5
    )
    if rivals is not None:
        assert set(policies) == {"one fixed", "token total", "vllm rule", "four terms"}
        # On the simulated GPU skews matter little, and the token total says nearly all.
        rival = {name: summary[name]["efficiency"]["geomean"] for name in policies if name != "token total"}
        assert all(value < chosen for value in rival.values())
        assert {experts_per_token(problem) for problem in problems} <= {1, 2, 8}
        assert rivals.summary([{**row, "surplus_ctas": 0, "torch grouped": 2 * row["chosen"]} for row in rows])[
            "torch grouped"
        ] == {"problems": 16, "geomean": 2.0, "min": 2.0}


def row_of(
    result: FamilyCalibration, problem: Problem, sweep: MeasurementTable, truth, policies, index: int
) -> dict[str, object]:
    """Return the row of a problem, timed without noise."""

    def timer(problem: Problem, candidates):
        return {label: truth(problem, config) for label, config in candidates.items()}

    usable = {entry.config for entry in sweep.configs}

    def known_only(problem: Problem, candidates):
        # The launcher's fixed rule may name a configuration that the simulated GPU does not know.
        return timer(problem, {label: config for label, config in candidates.items() if config in usable})

    extra = {name: choices[index] for name, choices in policies.items()}
    return family_holdout.retime(result.file, problem, sweep, known_only, extra)


@pytest.mark.parametrize("n_items", [1, 2, 7, 64])
def test_any_part_of_the_order_is_spread(n_items: int) -> None:
    """Every place once, and neighbours are far apart."""
    order = family_holdout.spread_order(n_items)
    assert sorted(order) == list(range(n_items))
    if n_items == 64:
        assert max(np.diff(sorted(order[:16]))) <= 8

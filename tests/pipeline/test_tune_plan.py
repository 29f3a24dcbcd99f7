"""Who competes in a tuning, with the shipped model of an H200."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from wavetune import clear_caches, rank_configs
from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry, WorkloadKey
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.pipeline.tune_plan import plan_tuning
from wavetune.pipeline.tuning_estimate import ALL, estimate_tuning
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device, named_device
from wavetune.runtime.sources import find_model

SHAPES = [GemmProblem(1, 4096, 4096), GemmProblem(100, 4091, 4093), GemmProblem(4099, 8192, 8192)]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """Return an H200 with the shipped models, and nothing of the user's."""
    for name in ("WAVETUNE_MODELS", "WAVETUNE_PINNED", "WAVETUNE_ARCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path))
    clear_caches()
    return named_device(find_arch("h200").name)


def nothing(dtype: str) -> Sequence[KernelConfig]:
    """Return no further candidates."""
    return ()


@pytest.mark.parametrize("top", [1, 5, ALL])
def test_candidates_are_those_of_the_estimate(device: Device, top: int):
    """The same candidates that an estimate counts, every one legal, pick and default among them."""
    workload = Workload.from_problems((problem, 2) for problem in SHAPES)
    plan = plan_tuning(workload, device, top=top, space=nothing)
    estimate = estimate_tuning(workload, device, top=top, space=nothing, cores=1)
    for entry, key in zip(plan.plans, estimate.keys, strict=True):
        ranked = [ranked.config for ranked in rank_configs(entry.problem, arch="h200")]
        assert entry.pick == ranked[0]
        assert {entry.pick, entry.default} <= set(entry.candidates)
        assert len(entry.candidates) == key.candidates
        assert (entry.count, entry.predicted_us, entry.iterations.name) == (2, key.latency_us, key.iterations)
        if top != ALL:
            assert list(entry.candidates[:top]) == ranked[:top]
        for config in entry.candidates:
            assert gemm_illegal_reason(entry.problem, config, device.arch) is None


def test_the_whole_space(device: Device):
    """With the whole space, legal configurations that the model does not rank compete as well."""
    problem = SHAPES[0]
    (ranked_only,) = plan_tuning(Workload.from_problems([(problem, 1)]), device, top=ALL, space=nothing).plans
    other = ranked_only.pick.replace(group_m=3)
    illegal = ranked_only.pick.replace(split_k=5)
    plan = plan_tuning(Workload.from_problems([(problem, 1)]), device, top=ALL, space=lambda dtype: [other, illegal])
    assert set(plan.plans[0].candidates) == {*ranked_only.candidates, other}


def test_what_is_known_exactly_competes(device: Device):
    """The measured answer of the tables is a candidate, even where the ranking does not name it."""
    model, refused = find_model("gemm", "bf16", "nk", device.arch.name)
    assert model is not None, refused
    found = 0
    for dims in model.exact:
        problem = GemmProblem(*dims)
        answer = find_resolver(problem, "h200", None, "any").lookup(problem).config
        (entry,) = plan_tuning(Workload.from_problems([(problem, 1)]), device, top=1, space=nothing).plans
        assert answer in entry.candidates
        found += answer not in (entry.pick, entry.default)
    assert found > 3


def test_what_is_not_tuned(device: Device):
    """Batches, types without a model, and layouts without one are listed with a reason; equal GEMMs become one plan."""
    entries = (
        WorkloadEntry(WorkloadKey(8, 64, 64), 3),
        WorkloadEntry(WorkloadKey(8, 64, 64, bias=True), 4),
        WorkloadEntry(WorkloadKey(8, 64, 64, batch=2), 5),
        WorkloadEntry(WorkloadKey(8, 64, 64, dtype="int8"), 6),
    )
    plan = plan_tuning(Workload(entries), device, top=1, space=nothing)
    assert [(entry.problem, entry.count) for entry in plan.plans] == [(GemmProblem(8, 64, 64), 7)]
    assert [left.entry.count for left in plan.not_tuned] == [5, 6]
    assert "no plain GEMM" in plan.not_tuned[0].reason
    assert "no model of nvidia-h200 for int8" in plan.not_tuned[1].reason
    assert list(plan.groups) == [("bf16", "nk")]

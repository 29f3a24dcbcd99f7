"""Calibrating families on a GPU, in small: measured, resumed, fitted from evidence again, and asked."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch  # noqa: E402
from wavetune.kernels.registry import find_family  # noqa: E402
from wavetune.pipeline.evidence import fit_family_evidence, write_evidence  # noqa: E402
from wavetune.pipeline.family_calibration import calibrate_family  # noqa: E402
from wavetune.pipeline.family_jobs import find_job  # noqa: E402
from wavetune.runtime.families import chooser_for  # noqa: E402
from wavetune.store.database import MeasurementStore  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

N_CONFIGS = 8
FAMILIES = {"grouped_gemm": "nk", "attention": "d128", "attention_decode": "d128"}


@pytest.mark.parametrize("kernel", list(FAMILIES))
def test_a_small_calibration(kernel: str, tmp_path: Path) -> None:
    """Eight configurations on a few keys: choices are near the best of them, and the files give the model again."""
    from wavetune.measure import environment
    from wavetune.measure.triton_runner import TritonRunner

    arch = find_arch(environment.device_name(0))
    layout = FAMILIES[kernel]
    space = find_family(kernel).configs(arch, "bf16")
    configs = space[:: max(len(space) // N_CONFIGS, 1)]
    job = find_job(kernel, arch, dtype="bf16", layout=layout, configs=configs, n_problems=36, budget_s=20.0)
    runner = TritonRunner(arch, kernel, "bf16", layout)
    with MeasurementStore(tmp_path / "store.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store, budget_s=20.0)
        again = calibrate_family(runner, job, store, budget_s=20.0)
    assert again.resumed >= len(result.table)
    assert not [failure for failure in result.failures if failure.stratum != "prepare"]
    assert result.fitted.fit.relative_error < 0.25
    held_out = result.fitted.held_out
    assert held_out is not None
    assert held_out.efficiency.geomean > 0.7
    write_evidence(tmp_path / "kept", result, runner.environment(), runner.conditions())
    refitted = fit_family_evidence(tmp_path / "kept", kernel, arch, dtype="bf16", layout=layout)
    assert refitted.file.forms == result.file.forms
    assert refitted.file.exact == result.file.exact
    for dims in list(result.file.exact)[:8]:
        problem = job.problem(dims)
        choice = chooser_for(result.file, problem).choose(dims)
        assert choice is not None
        assert find_family(kernel).legal(problem, choice.config, arch) is None

"""``wavetune doctor`` and ``wavetune demo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetune import clear_caches
from wavetune.core.arch import ARCHS
from wavetune.errors import RunnerError
from wavetune.measure import environment
from wavetune.pipeline import demo
from wavetune.pipeline.shipped import calibration_folders, find_recording


def test_doctor_without_a_gpu(cli, monkeypatch: pytest.MonkeyPatch):
    """What is missing is said, with what to do; nothing fails."""

    def no_gpu(gpu: int) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr(environment, "device_name", no_gpu)
    report = cli("doctor", "--json").json
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["GPU"]["status"] == "missing"
    assert "--replay" in checks["GPU"]["fix"]
    assert report["ready"] == {"choose": True, "fit": True, "calibrate": False, "measure": False}
    text = cli("doctor")
    assert text.code == 0
    assert "not ready" in text.stdout


def test_doctor_with_a_gpu(cli, monkeypatch: pytest.MonkeyPatch):
    """A GPU is described; one that throttles is a note."""
    state = environment.GpuState(1200, 3201, 85, 690.0, ("sw-power-cap",))
    monkeypatch.setattr(environment, "device_name", lambda gpu: "NVIDIA H200")
    monkeypatch.setattr(environment, "gpu_state", lambda gpu: state)
    facts = {"driver": "590.1", "cuda": "13.1"}
    monkeypatch.setattr(environment, "fingerprint", lambda arch, gpu, **hashes: facts)
    monkeypatch.setattr("wavetune.cli.doctor._CUDA_PROBE", "raise SystemExit('no torch here')")
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert "nvidia-h200" in checks["GPU"]["detail"]
    assert checks["clocks"]["status"] == "note"
    assert "sw-power-cap" in checks["clocks"]["detail"]
    assert checks["driver"]["detail"] == "590.1, CUDA up to 13.1"
    assert (checks["torch CUDA"]["status"], checks["torch CUDA"]["detail"]) == ("missing", "no torch here")


def test_doctor_names_a_wrong_variable(cli, monkeypatch: pytest.MonkeyPatch):
    """A mistake in the environment is found before it bites."""
    monkeypatch.setenv("WAVETUNE_ARCH", "h2000")
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert checks["WAVETUNE_ARCH"]["status"] == "missing"
    assert all(name in checks["WAVETUNE_ARCH"]["detail"] for name in ARCHS)


def test_doctor_shows_settings(cli, monkeypatch: pytest.MonkeyPatch):
    """What was set is shown, and a wrong value is found."""
    monkeypatch.setenv("WAVETUNE_ON_MISS", "default")
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert (checks["WAVETUNE_ON_MISS"]["status"], checks["WAVETUNE_ON_MISS"]["detail"]) == ("ok", "default")
    assert "WAVETUNE_MEASURE_TOP_K" not in checks
    monkeypatch.setenv("WAVETUNE_ON_MISS", "sometimes")
    clear_caches()
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert checks["settings"]["status"] == "missing"
    assert "WAVETUNE_ON_MISS" in checks["settings"]["detail"]


def test_demo(cli, points: Path, oracle: Path, monkeypatch: pytest.MonkeyPatch):
    """The demonstration on a small recording: methods side by side, then choices."""
    monkeypatch.setattr(demo, "find_recording", lambda arch, name: points if name == demo.POINTS else oracle)
    report = cli("demo", "--json").json
    assert report["efficiency"].keys() == {"wavetune", "gradient boosting alone", "best fixed configuration"}
    assert all(0 < method["min"] <= method["geomean"] <= 1 for method in report["efficiency"].values())
    assert report["efficiency"]["wavetune"]["geomean"] > report["efficiency"]["best fixed configuration"]["geomean"]
    assert len(report["choices"]) == len(demo.LAYERS) * len(demo.TOKENS)
    text = cli("demo")
    assert f"{report['judged_shapes']} other shapes" in text.stdout
    assert "Llama-3-8B" in text.stdout
    assert "reading" in text.stderr


def test_the_shipped_evidence_is_found():
    """The installation carries what the demonstration reads."""
    assert calibration_folders()
    for name in (demo.POINTS, demo.SWEEP, demo.HOLDOUT):
        assert find_recording(demo.ARCH, name).stat().st_size > 50_000

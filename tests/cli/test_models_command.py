"""``wavetune models``."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetune.runtime import locate


@pytest.fixture
def only(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the one models folder that is searched: a copy of the small model and a damaged file."""
    folder = tmp_path / "only"
    (folder / "nvidia-h200").mkdir(parents=True)
    (folder / "nvidia-h200" / "gemm-bf16.json").write_bytes(model.read_bytes())
    monkeypatch.setattr(locate, "_PACKAGE", tmp_path / "nowhere" / "wavetune")
    monkeypatch.setenv("WAVETUNE_MODELS", str(folder))
    return folder


def test_list(cli, only: Path):
    """Every file that is found, with its headline."""
    entries = cli("models", "list", "--json").json
    assert [(entry["arch"], entry["dtype"], entry["error"]) for entry in entries] == [("nvidia-h200", "bf16", None)]
    assert entries[0]["exact"] == 32
    assert "nvidia-h200" in cli("models", "list").stdout


def test_list_survives_a_damaged_file(cli, only: Path):
    """One damaged file hides no other."""
    (only / "nvidia-h200" / "gemm-fp16.json").write_text("{")
    entries = cli("models", "list", "--json").json
    assert [entry["error"] is None for entry in entries] == [True, False]
    assert "damaged" in cli("models", "list").stdout


def test_show_by_path_and_by_name(cli, only: Path):
    """A model is named by its file, or by GPU and name."""
    by_path = cli("models", "show", only / "nvidia-h200" / "gemm-bf16.json", "--json").json
    by_name = cli("models", "show", "h200/gemm-bf16", "--json").json
    assert by_path == by_name
    assert by_name["arch"] == "nvidia-h200"
    assert by_name["forms"][0]["coefficients"]["launch"] >= 0
    text = cli("models", "show", "h200/gemm-bf16").stdout
    for word in ("held out", "(default)", "oracle.csv", "CTAs/SM"):
        assert word in text


def test_show_unknown(cli, only: Path):
    """What there is instead is named."""
    result = cli("models", "show", "h200/gemm-int8")
    assert (result.code, result.stdout) == (4, "")
    assert "nvidia-h200/gemm-bf16" in result.stderr


def test_verify(cli, only: Path):
    """Whole files exit 0; one damaged file makes it 3, and is named."""
    assert cli("models", "verify").code == 0
    damaged = only / "nvidia-h200" / "gemm-fp16.json"
    damaged.write_bytes((only / "nvidia-h200" / "gemm-bf16.json").read_bytes().replace(b"132", b"131", 1))
    result = cli("models", "verify", "--json")
    assert result.code == 3
    assert [(entry["ok"], entry["error"] is None) for entry in result.json] == [(True, True), (False, False)]
    assert cli("models", "verify", damaged).code == 3


def test_nothing_found(cli, only: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a model, the exit code is that of no model; a list of nothing is an empty list."""
    monkeypatch.delenv("WAVETUNE_MODELS")
    assert cli("models", "verify").code == 4
    assert cli("models", "list").code == 4
    assert cli("models", "list", "--json").json == []

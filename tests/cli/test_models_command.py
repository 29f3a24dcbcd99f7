"""``wavetune models``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wavetune.runtime import locate
from wavetune.runtime.family_file import read_family, write_family

SHIPPED = next((path for path in locate.all_model_files() if path.name == "grouped_gemm-bf16-nk.json"), None)
"""Found before a fixture hides it."""


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


def test_list_fits_a_narrow_terminal(cli, only: Path, monkeypatch: pytest.MonkeyPatch):
    """Each folder, however long, is a line; so is each model, by the name that ``show`` takes."""
    monkeypatch.setenv("COLUMNS", "80")
    folder, _, entry = cli("models", "list").stdout.splitlines()
    assert folder == str(only)
    assert entry.split()[0] == "nvidia-h200/gemm-bf16"
    assert cli("models", "show", entry.split()[0]).code == 0


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


@pytest.mark.parametrize("place", ["nvidia-h200/gemm-fp16.json", "nvidia-h100/gemm-bf16.json", "h200/gemm-bf16.json"])
def test_a_model_where_nobody_looks_for_it_is_refused(cli, only: Path, place: str):
    """What the runtime passes over is not ok, and the line says where it belongs; as a file it is whole."""
    model = only / "nvidia-h200" / "gemm-bf16.json"
    (only / place).parent.mkdir(exist_ok=True)
    model.rename(only / place)
    result = cli("models", "verify")
    assert result.code == 3
    assert f"{only / place}: a model that is looked for as nvidia-h200/gemm-bf16.json; move it" in result.stdout
    assert cli("models", "list", "--json").json[0]["error"] is not None
    checks = cli("doctor", "--json").json["checks"]
    assert any(check["status"] == "missing" and str(model) in check["detail"] for check in checks)
    assert cli("models", "verify", only / place).code == 0


def test_a_model_of_another_mapping_or_compiler_is_refused(cli, only: Path):
    """What the runtime would refuse to answer from is refused here, too."""
    assert SHIPPED is not None
    family = read_family(SHIPPED)
    write_family(family, only / "nvidia-h200" / "grouped_gemm-bf16-nk.json")
    assert cli("models", "verify").code == 0
    write_family(replace(family, mapping_digest="sha256:0"), only / "nvidia-h200" / "grouped_gemm-bf16-nk.json")
    assert "field mapping_digest" in cli("models", "verify").stdout
    write_family(
        replace(family, provenance={"versions": {"triton": "1.0"}}), only / "nvidia-h200" / "grouped_gemm-bf16-nk.json"
    )
    result = cli("models", "verify")
    assert (result.code, "measured with Triton 1.0" in result.stdout) == (3, True)


def test_folders_without_models_are_named(cli, only: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder that is missing does not go unseen."""
    monkeypatch.setenv("WAVETUNE_MODELS", f"{only}:nowhere")
    for command in ("list", "verify"):
        result = cli("models", command)
        assert result.code == 0
        assert f"models folder {only.parent / 'nowhere'} cannot be listed" in result.stderr
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert checks["models folder"]["status"] == "missing"
    assert "nowhere" in checks["models folder"]["detail"]


def test_nothing_found(cli, only: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a model, the exit code is that of no model; a list of nothing is an empty list."""
    monkeypatch.delenv("WAVETUNE_MODELS")
    assert cli("models", "verify").code == 4
    assert cli("models", "list").code == 4
    assert cli("models", "list", "--json").json == []

"""Pinned tables: what was frozen is answered, for good; what is wrong with a file is named."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import POINTER, SPLIT, TMA, gemm_config, make_model
from redigest import with_digest

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import MissError, ModelFileError, NoModelError
from wavetune.mapping.numerics import reduction_order
from wavetune.runtime.codec import write_model
from wavetune.runtime.freeze import freeze
from wavetune.runtime.pinned import PinnedTable, read_pinned, write_pinned

ARCH = "nvidia-h200"
H200 = find_arch(ARCH)
PROBLEMS = [
    GemmProblem(512, 4096, 4096), GemmProblem(500, 4000, 4096), GemmProblem(100_000, 512, 512),
    GemmProblem(500, 4000, 4096, alignment=2), GemmProblem(64, 4096, 4096, "fp16"),
]  # fmt: skip


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Answer bf16 and fp16 from hand-made models."""
    folder = tmp_path / "models"
    write_model(make_model(), folder / ARCH / "gemm-bf16.json")
    write_model(make_model(dtype="fp16"), folder / ARCH / "gemm-fp16.json")
    wavetune.configure(models=folder)
    return folder


@pytest.fixture
def pinned(models: Path, tmp_path: Path) -> Path:
    """Freeze the problems and take the models away."""
    path = tmp_path / "pinned.json"
    write_pinned(freeze(PROBLEMS, arch=ARCH), path)
    return path


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Find no model at all."""
    monkeypatch.setattr("wavetune.runtime.locate._PACKAGE", tmp_path / "nowhere" / "wavetune")


def ask(problem: GemmProblem, **options: object) -> wavetune.Choice:
    """Explain a choice, which the other ways of asking must agree with."""
    shape = {"dtype": problem.dtype, "layout": problem.layout, "alignment": problem.alignment, "arch": ARCH}
    choice = wavetune.explain_choice(*problem.dims, **shape, **options)  # type: ignore[arg-type]
    for _ in range(2):
        assert wavetune.choose_config(*problem.dims, **shape, **options) == choice.config  # type: ignore[arg-type]
    return choice


def test_what_is_frozen_is_read_back(models: Path, tmp_path: Path) -> None:
    """A table survives its file, and an equal table is an equal file."""
    frozen = freeze(PROBLEMS, arch=ARCH)
    assert set(frozen.entries) == set(PROBLEMS)
    assert (frozen.arch, frozen.num_sms, frozen.numerics) == (ARCH, 132, "any")
    assert wavetune.misses() == []
    assert frozen.defaults == {("gemm", "bf16", "nk"): POINTER, ("gemm", "fp16", "nk"): POINTER}
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_pinned(frozen, first)
    table = read_pinned(first)
    assert (table.entries, table.defaults, table.path) == (frozen.entries, frozen.defaults, str(first))
    write_pinned(freeze(PROBLEMS[::-1] + PROBLEMS, arch=ARCH), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_pinned_problem_is_exact_whatever_the_models_say(models: Path, pinned: Path) -> None:
    """After the models have changed, pinned problems are answered as before, others by the models."""
    before = {problem: ask(problem).config for problem in PROBLEMS}
    turned = make_model(default_index=2, cells={}, exact={})
    for dtype in ("bf16", "fp16"):
        write_model(replace(turned, dtype=dtype), models / ARCH / f"gemm-{dtype}.json")
    wavetune.clear_caches()
    wavetune.configure(pinned=pinned)
    for problem in PROBLEMS:
        choice = ask(problem)
        assert (choice.source, choice.config, choice.table) == ("exact", before[problem], str(pinned))
        assert choice.model == str(models / ARCH / f"gemm-{problem.dtype}.json")
    assert wavetune.misses() == []
    assert ask(GemmProblem(501, 4000, 4096)).source == "model"


def test_a_deployment_without_models(pinned: Path, without_models: None, models: Path) -> None:
    """The table alone answers what is pinned; the rest is its default, an error that says so, or a miss."""
    expected = read_pinned(pinned).entries
    for file in models.rglob("*.json"):
        file.unlink()
    wavetune.configure(pinned=pinned, models=None)
    for problem in PROBLEMS:
        choice = ask(problem)
        assert (choice.source, choice.config, choice.table) == ("exact", expected[problem][0], str(pinned))
        assert choice.grid_size > 0
        assert (choice.waves, choice.model, choice.runner_up) == (0, "", None)
    other = GemmProblem(9, 4096, 4096)
    for on_miss in ("model", "default"):
        assert (ask(other, on_miss=on_miss).source, ask(other, on_miss=on_miss).config) == ("default", POINTER)
    with pytest.raises(MissError):
        ask(other, on_miss="error")
    assert ask(GemmProblem(0, 4, 4)).source == "empty"
    with pytest.raises(NoModelError):
        ask(GemmProblem(9, 4096, 4096, layout="kn"))
    with pytest.raises(NoModelError):
        wavetune.rank_configs(other, arch=ARCH)
    wavetune.configure(disable=True)
    assert ask(PROBLEMS[0]).config == POINTER


def test_a_table_for_another_device_is_foreign(pinned: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another GPU, or another number of SMs, gets nothing from it, and one warning that names the field."""
    wavetune.configure(pinned=pinned)
    for _ in range(2):
        choice = wavetune.explain_choice(512, 4096, 4096, arch=ARCH, num_sms=66)
        assert (choice.source, choice.num_sms) == ("model", 66)
    assert len(caplog.records) == 1
    assert f"{pinned}: field num_sms: 132, but this device has 66" in caplog.text
    table = replace(read_pinned(pinned), arch="nvidia-h100")
    write_pinned(table, pinned)
    wavetune.clear_caches()
    assert ask(PROBLEMS[0]).table != str(pinned)
    assert "field arch" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "absent", "old compiler", "model"])
def test_a_bad_table_is_warned_of_once(
    pinned: Path, models: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged or missing table pins nothing; the models answer, and one warning names the file."""
    if damage == "cut":
        pinned.write_bytes(pinned.read_bytes()[:-9])
    elif damage == "absent":
        pinned.unlink()
    elif damage == "model":
        pinned.write_bytes((models / ARCH / "gemm-bf16.json").read_bytes())
    else:
        write_pinned(replace(read_pinned(pinned), provenance={"versions": {"triton": "1.0"}}), pinned)
    wavetune.configure(pinned=pinned)
    for problem in PROBLEMS:
        assert ask(problem).table != str(pinned)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith(str(pinned))


def test_every_field_is_checked(pinned: Path) -> None:
    """A wrong value is refused with its field."""
    text = pinned.read_text()
    for old, new, field in (
        ('"numerics": "any"', '"numerics": "some"', "numerics"),
        ('"num_sms": 132', '"num_sms": 133', "num_sms"),
        ('"arch": "nvidia-h200"', '"arch": "nvidia-h2000"', "h2000"),
        ('["bf16", "nk", 500, 4000, 4096, 2,', '["bf16", "nk", 0, 4000, 4096, 2,', r"entries\["),
        ('["bf16", "nk", 500, 4000, 4096, 2,', '["bf16", "nk", 500, 4000, 4096, 3,', "alignment"),
        ('["bf16", "nk", 500, 4000, 4096, 2,', '["bf17", "nk", 500, 4000, 4096, 2,', "bf17"),
        ('["bf16", "nk", 500, 4000, 4096, 2,', '["bf16", "nk", 500, 4000, 4096, 16,', "appears twice"),
        ('["bf16", "nk", 500, 4000, 4096, 2,', '["bf16", "nk", 500, 4000, 4096, 2, 0, ', "expected dtype"),
        ('["gemm", "bf16", "nk", ', '["gemm", "bf16", "nk", 7', r"defaults\["),
        ('"block_m": 64', '"block_m": -64', r"configs\["),
    ):
        assert old in text, old
        pinned.write_bytes(with_digest(text.replace(old, new)))
        with pytest.raises(ModelFileError, match=field) as caught:
            read_pinned(pinned)
        assert str(caught.value).startswith(f"{pinned}: ")
    pinned.write_text(text.replace("4000", "4001"))
    with pytest.raises(ModelFileError, match="digest"):
        read_pinned(pinned)


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (TMA, GemmProblem(512, 4096, 4096, alignment=2), "TMA needs"),
        (SPLIT, GemmProblem(512, 4096, 64), "exceeds the 1 loop trips"),
        (gemm_config(256, 256).replace(num_stages=9), GemmProblem(512, 4096, 4096), "shared memory"),
        (gemm_config(16, 16), GemmProblem(2**31 - 1, 2**20, 16), "the grid exceeds"),
        (gemm_config(100, 64), GemmProblem(512, 4096, 4096), "block_m must be a power of two"),
    ],
)
def test_an_illegal_entry_is_refused(
    tmp_path: Path, config: wavetune.KernelConfig, problem: GemmProblem, reason: str
) -> None:
    """Nobody can pin what cannot be launched."""
    path = tmp_path / "pinned.json"
    write_pinned(PinnedTable(ARCH, 132, "any", {problem: (config, math.nan)}, {}), path)
    with pytest.raises(ModelFileError, match=f"entries.*{reason}"):
        read_pinned(path)


def test_a_latency_is_measured_only_if_it_was(models: Path, tmp_path: Path) -> None:
    """What was predicted when it was frozen stays a prediction, in memory, in the file, and in the answers."""
    measured, predicted = PROBLEMS[0], PROBLEMS[1]
    frozen = freeze([measured, predicted], arch=ARCH)
    assert frozen.predicted == {predicted}
    path = tmp_path / "pinned.json"
    write_pinned(frozen, path)
    assert read_pinned(path).predicted == {predicted}
    before = ask(predicted).latency_us
    wavetune.configure(pinned=path)
    assert (ask(measured).source, ask(measured).is_measured) == ("exact", True)
    assert (ask(predicted).source, ask(predicted).is_measured) == ("exact", False)
    assert ask(predicted).latency_us == before
    assert freeze([predicted], arch=ARCH).predicted == {predicted}


def test_a_table_of_version_1_claims_no_measurement(pinned: Path) -> None:
    """Its rows did not say; what is not known to be measured counts as predicted."""
    text = pinned.read_text().replace('"schema_version": 2', '"schema_version": 1')
    for word in ("measured", "predicted"):
        text = text.replace(f', "{word}"]', "]")
    pinned.write_bytes(with_digest(text))
    table = read_pinned(pinned)
    assert table.predicted == set(table.entries) == set(PROBLEMS)


@pytest.mark.parametrize("word", ['0.0, "measured"', '9.0, "guessed"', "9.0, 5", '9.0, "measured", 1'])
def test_a_latency_that_cannot_be_is_refused(pinned: Path, word: str) -> None:
    """Neither zero microseconds, nor of an unknown origin."""
    text = re.sub(r'33\.25, "measured"', word, pinned.read_text())
    assert word in text
    pinned.write_bytes(with_digest(text))
    with pytest.raises(ModelFileError, match=r"entries\["):
        read_pinned(pinned)


def test_a_file_without_an_end_is_refused() -> None:
    """A device that never ends is read no further than any table may be long."""
    with pytest.raises(ModelFileError, match="/dev/zero: cannot read: more than"):
        read_pinned("/dev/zero")


def test_a_frozen_order_of_summing_holds_for_what_is_not_pinned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under ``batch_invariant`` a pinned layer keeps its order for every m, even when a new model prefers another."""
    layer = [GemmProblem(m, 4096, 4096) for m in (1, 64, 1024)]
    frozen = freeze(layer, arch=ARCH, numerics="batch_invariant")
    (order,) = {reduction_order(config, H200) for config, _ in frozen.entries.values()}
    ranked = wavetune.rank_configs(GemmProblem(64, 4096, 4096), arch=ARCH)
    others = [e.config for e in ranked if reduction_order(e.config, H200) not in (None, order)]
    changed = replace(frozen, entries={layer[0]: (others[0], 9.0)})
    write_pinned(changed, tmp_path / "pinned.json")
    wavetune.configure(pinned=tmp_path / "pinned.json")
    answers = [wavetune.choose_config(m, 4096, 4096, arch=ARCH, numerics="batch_invariant") for m in (1, 2, 64, 4096)]
    assert answers[0] == others[0]
    assert {reduction_order(config, H200) for config in answers} == {reduction_order(others[0], H200)}
    elsewhere = wavetune.choose_config(64, 6144, 4096, arch=ARCH, numerics="batch_invariant")
    assert reduction_order(elsewhere, H200) is not None


def test_an_entry_of_another_order_does_not_answer_invariant_questions(tmp_path: Path) -> None:
    """A table frozen without the class keeps no order; what does not fit the layer's is passed over."""
    ranked = wavetune.rank_configs(GemmProblem(4, 4096, 4096), arch=ARCH)
    split = next(entry.config for entry in ranked if entry.config["split_k"] != 1)
    table = PinnedTable(ARCH, 132, "any", {GemmProblem(4, 4096, 4096): (split, 5.0)}, {})
    write_pinned(table, tmp_path / "pinned.json")
    wavetune.configure(pinned=tmp_path / "pinned.json")
    assert ask(GemmProblem(4, 4096, 4096)).config == split
    choice = ask(GemmProblem(4, 4096, 4096), numerics="batch_invariant")
    assert choice.source != "exact"
    assert choice.config["split_k"] == 1

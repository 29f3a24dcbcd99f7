"""``wavetune explain``."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetune.core.problem import GemmProblem
from wavetune.runtime.choose import choose_config, explain_choice, rank_configs

SHAPE = (300, 4096, 4096)


def test_words_and_a_chart(cli):
    """People get the choice, its reasons in words, and its rivals with bars."""
    text = cli("explain", *SHAPE, "--arch", "h200").stdout
    for word in ("tiles", "waves", "loop", "bytes", "time", "rival", "candidate", "█", "predicted"):
        assert word in text
    assert "300 x 4096 x 4096, bf16 nk on nvidia-h200" in text


def test_json_agrees_with_the_runtime(cli):
    """Choice, prediction and ranking are those of the public functions, and terms add up to the latency."""
    document = cli("explain", *SHAPE, "--arch", "h200", "--json", "--top", "4").json
    choice = explain_choice(*SHAPE, arch="h200")
    assert document["launch"]["config"] == dict(choice.config)
    assert document["source"] == choice.source.value == "nearest"
    assert document["launch"]["predicted_us"] == pytest.approx(choice.latency_us)
    assert document["launch"]["waves"] == choice.waves
    assert document["launch"]["tail_ctas"] == choice.tail_ctas
    assert sum(document["launch"]["terms_us"].values()) == pytest.approx(choice.latency_us)
    ranked = rank_configs(GemmProblem(*SHAPE), arch="h200")[:4]
    shown = [entry for entry in document["candidates"] if entry["config"] != dict(choice.config)]
    assert [entry["config"] for entry in shown] == [dict(r.config) for r in ranked if r.config != choice.config]
    assert set(document["reasons"]) >= {"tiles", "waves", "loop", "bytes", "time", "rival"}


def test_a_measured_shape_says_so(cli, models: Path):
    """The latency of an exact answer is measured, not predicted."""
    result = cli("explain", 64, 4096, 4096, "--arch", "h200")
    assert "us measured" in result.stdout
    assert "exact" in result.stdout


def test_a_model_file_answers_for_itself(cli, model: Path):
    """With --model no GPU need be named, and naming one beside it is a usage error."""
    document = cli("explain", *SHAPE, "--model", model, "--json").json
    assert document["launch"]["config"] == dict(choose_config(*SHAPE, arch="h200"))
    assert document["table"] == str(model)
    for option, value in (("--arch", "h200"), ("--dtype", "bf16"), ("--layout", "nk")):
        result = cli("explain", *SHAPE, "--model", model, option, value)
        assert result.code == 2
        assert "--model" in result.stderr


def test_nothing_to_launch(cli):
    """An empty problem is no error, and has nothing to explain."""
    assert "nothing to launch" in cli("explain", 0, 4096, 4096, "--arch", "h200").stdout
    document = cli("explain", 0, 4096, 4096, "--arch", "h200", "--json").json
    assert (document["source"], document["launch"], document["candidates"]) == ("empty", None, [])


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("-5", "64", "64", "--arch", "h200"), 3, "-5"),
        (("5", "64", "64", "--arch", "h2000"), 3, "h2000"),
        (("5", "64", "64", "--arch", "b200"), 4, "b200"),
        (("5", "64"), 2, "gemm takes M N K"),
        (("5", "64", "64", "--top", "0"), 2, "--top"),
    ],
)
def test_mistakes(cli, arguments: tuple[str, ...], code: int, word: str):
    """Mistakes end with the usual exit codes and name what is wrong."""
    result = cli("explain", *arguments)
    assert (result.code, result.stdout) == (code, "")
    assert word in result.stderr


def test_a_narrow_terminal_is_enough(cli, monkeypatch: pytest.MonkeyPatch):
    """In eighty columns every number is still there."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("explain", *SHAPE, "--arch", "h200").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("█" in line for line in lines)

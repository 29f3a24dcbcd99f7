"""``wavetune choose``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wavetune import clear_caches
from wavetune.errors import RunnerError
from wavetune.runtime.nvml import VisibleGpu

KEYS = [
    "config",
    "source",
    "latency_us",
    "grid_size",
    "loop_trips",
    "waves",
    "tail_ctas",
    "runner_up",
    "margin",
    "table",
    "num_sms",
    "is_scaled",
    "model",
    "is_measured",
    "is_stand_in",
]


def test_prints_one_line_of_fields(cli):
    """A shell can read the answer with no options at all."""
    result = cli("choose", 512, 4096, 4096, "--arch", "h200")
    fields = dict(word.split("=") for word in result.stdout.split())
    assert (result.code, result.stderr) == (0, "")
    assert fields["num_warps"] == "4"
    assert int(fields["block_m"]) in (16, 32, 64, 128)


def test_json_has_exactly_the_documented_keys(cli, model: Path):
    """The JSON of an answer is a contract."""
    answer = cli("choose", 500, 4096, 4096, "--arch", "NVIDIA H200", "--json").json
    assert list(answer) == KEYS
    assert answer["source"] == "nearest"
    assert answer["table"] == str(model)
    assert answer["grid_size"] == -(-500 // answer["config"]["block_m"]) * (4096 // answer["config"]["block_n"])


def test_measured_shape_is_exact(cli):
    """A shape of the oracle is answered from the exact table."""
    assert cli("choose", 512, 4096, 4096, "--arch", "h200", "--json").json["source"] == "exact"


def test_far_shape_is_answered_by_the_forms(cli):
    """Beyond the cells, the source says so."""
    assert cli("choose", 2**22, 64, 2**20, "--arch", "h200", "--json").json["source"] == "model"


def test_zero_is_a_defined_answer(cli):
    """A zero-sized problem is no error, and says that there is nothing to launch."""
    assert cli("choose", 0, 4096, 4096, "--arch", "h200", "--json").json["source"] == "empty"
    text = cli("choose", 0, 4096, 4096, "--arch", "h200")
    assert "nothing to launch" in text.stderr
    assert "block_m=" in text.stdout


def test_explain_names_the_reasons(cli):
    """A person reads waves, runner-up and source."""
    text = cli("choose", 500, 4096, 4096, "--arch", "h200", "--explain").stdout
    for word in ("waves", "runner-up", "margin", "loop trips", "nearest", "500 x 4096 x 4096"):
        assert word in text


def test_model_file_answers_for_itself(cli, model: Path):
    """With --model, neither arch nor dtype is needed, and a contradiction is refused."""
    assert cli("choose", 7, 4096, 4096, "--model", model).code == 0
    assert cli("choose", 7, 4096, 4096, "--model", model, "--dtype", "fp16").code == 4
    assert cli("choose", 7, 4096, 4096, "--model", model, "--arch", "a100").code == 4


def test_environment_names_the_architecture(cli, monkeypatch: pytest.MonkeyPatch):
    """WAVETUNE_ARCH stands in for --arch; without it the GPU of the machine does, and without one it is an error."""
    monkeypatch.setattr("wavetune.runtime.nvml.describe_visible", lambda gpu: VisibleGpu("NVIDIA H200", None))
    assert cli("choose", 7, 4096, 4096).code == 0

    def no_gpu(gpu: int):
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.runtime.nvml.describe_visible", no_gpu)
    clear_caches()
    result = cli("choose", 7, 4096, 4096)
    assert result.code == 3
    assert "WAVETUNE_ARCH" in result.stderr
    monkeypatch.setenv("WAVETUNE_ARCH", "h200")
    clear_caches()
    assert cli("choose", 7, 4096, 4096).code == 0


def test_a_limit_on_sms_is_explained(cli, model: Path):
    """On part of a GPU the answer is scaled, and says so, with and without --model."""
    for more in ((), ("--model", model)):
        answer = cli("choose", 512, 4096, 4096, "--arch", "h200", "--num-sms", 40, "--json", *more).json
        assert (answer["source"], answer["num_sms"], answer["is_scaled"]) == ("model", 40, True)
        text = cli("choose", 512, 4096, 4096, "--arch", "h200", "--num-sms", 40, "--explain", *more).stdout
        assert "scaled from the whole GPU" in text
        assert "part of the measured GPU" in text
    assert cli("choose", 5, 64, 64, "--arch", "h200", "--num-sms", 400).code == 3


def test_the_miss_policy_is_an_option(cli):
    """Beyond the tables the policy decides; an unknown one is refused, and so is the one that would measure."""
    far = (2**22, 64, 2**20, "--arch", "h200")
    assert cli("choose", *far, "--on-miss", "default", "--json").json["source"] == "default"
    assert cli("choose", *far, "--on-miss", "error").code == 3
    refused = cli("choose", *far, "--on-miss", "measure")
    assert (refused.code, refused.stdout) == (2, "")
    assert "give model, default or error" in " ".join(refused.stderr.replace("│", " ").split())
    assert cli("choose", *far, "--on-miss", "sometimes").code == 3


def test_a_numerics_class_is_an_option(cli, model: Path):
    """Batch-invariant answers split no k; an unknown class is refused."""
    for more in (("--arch", "h200"), ("--model", model)):
        answer = cli("choose", 7, 4096, 4096, "--numerics", "batch_invariant", "--json", *more).json
        assert answer["config"]["split_k"] == 1
        assert cli("choose", 7, 4096, 4096, "--numerics", "exact", *more).code == 3
    assert cli("choose", 7, 4096, 4096, "--model", model, "--on-miss", "error").code == 2


def test_a_forced_configuration_is_explained(cli, monkeypatch: pytest.MonkeyPatch):
    """The source names the variable."""
    forced = "block_m=64,block_n=64,block_k=64,group_m=8,num_warps=4,num_stages=3"
    monkeypatch.setenv("WAVETUNE_FORCE_CONFIG", forced)
    clear_caches()
    text = cli("choose", 512, 4096, 4096, "--arch", "h200", "--explain").stdout
    assert "forced: WAVETUNE_FORCE_CONFIG" in text
    assert "block_m=64 block_n=64" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((-5, 4096, 4096, "--arch", "h200"), 3, "m must not be negative"),
        ((2**31, 4096, 4096, "--arch", "h200"), 3, "at most"),
        ((1, 2, 3, "--arch", "h201"), 3, "h201"),
        ((1, 2, 3, "--arch", "h200", "--dtype", "bf17"), 3, "bf17"),
        ((1, 2, 3, "--arch", "h200", "--layout", "nn"), 3, "nn"),
        ((1, 2, 3, "--arch", "h200", "--alignment", 3), 3, "alignment"),
        ((1, 2, 3, "--arch", "a100"), 4, "nvidia-a100/gemm-bf16.json"),
        ((1, 2, 3, "--arch", "h200", "--kernel", "conv"), 4, "conv"),
        ((1, 2, 3, "--model", "none.json"), 3, "none.json"),
        ((1.5, 2, 3, "--arch", "h200"), 2, "'1.5' is not an integer"),
        (("1_0", 2, 3, "--arch", "h200"), 2, "'1_0' is not an integer"),
        ((1, 2, "--arch", "h200"), 2, "gemm takes M N K"),
        ((1, 2, 3, "--nonsense"), 2, "nonsense"),
        ((-1, 2, 3, "--nonsense", "--arch", "h200"), 2, "No such option: --nonsense"),
    ],
)
def test_mistakes_end_with_a_message_and_a_code(cli, arguments, code, message):
    """Nothing but the message on stderr, and nothing on stdout."""
    result = cli("choose", *arguments)
    assert (result.code, result.stdout) == (code, "")
    assert message in result.stderr


def test_no_heavy_module_is_imported(models: Path):
    """An answer costs no more start-up than it must."""
    script = (
        "import sys; from wavetune.cli.app import app;"
        "app(['choose', '7', '4096', '4096', '--arch', 'h200', '--json'], standalone_mode=False);"
        "print([name for name in ('numpy', 'scipy', 'sklearn', 'torch', 'triton') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"WAVETUNE_MODELS": str(models)}
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_model_comes_through_a_pipe(cli, model: Path, tmp_path: Path):
    """As in ``--model <(zcat model.json.gz)``: what can be read once only is read once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(model.read_bytes()), daemon=True)
    writer.start()
    answer = cli("choose", 512, 4096, 4096, "--model", pipe, "--json").json
    writer.join(10)
    assert answer["config"] == cli("choose", 512, 4096, 4096, "--model", model, "--json").json["config"]


def test_a_file_that_is_passed_over_is_named(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A damaged model in the user's folder costs a warning on stderr, once; the shipped one answers."""
    folder = tmp_path / "mine" / "nvidia-h200"
    folder.mkdir(parents=True)
    (folder / "gemm-bf16.json").write_text("{}")
    monkeypatch.setenv("WAVETUNE_MODELS", str(folder.parent))
    for _ in range(2):
        clear_caches()
        result = cli("choose", 512, 4096, 4096, "--arch", "h200")
        assert result.code == 0
        assert result.stdout.startswith("block_m=")
        assert result.stderr.count(str(folder / "gemm-bf16.json")) == 1
        assert "warning" in result.stderr

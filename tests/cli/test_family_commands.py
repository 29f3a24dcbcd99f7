"""``wavetune choose``, ``explain``, ``evaluate`` and ``measure`` for families, with models of simulated GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result, Runner

sys.path.append(str(Path(__file__).resolve().parents[1] / "pipeline"))

from simulated_attention import ARCH, SimulatedAttention
from simulated_grouped import SimulatedGrouped

import wavetune
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import find_kernel_spec
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.pipeline.family_calibration import calibrate_family
from wavetune.pipeline.family_jobs import find_job
from wavetune.plan.attention_plan import holdout_keys
from wavetune.plan.grouped_plan import holdout_problems
from wavetune.runtime.family_file import family_file_name, write_family
from wavetune.store.csv_io import write_measurements
from wavetune.store.database import MeasurementStore
from wavetune.store.record import Point

Cli = Callable[..., Result]
LAYOUTS = {"grouped_gemm": "nk", "attention": "d128", "attention_decode": "d128"}
SIZES = {
    "grouped_gemm": ("--group-sizes", "12,0,7,300,64", 1536, 2048),
    "attention": ("--q-len", 2000, "--heads", 32, "--kv-heads", 8, "--batch", 4, "--causal"),
    "attention_decode": ("--kv-len", "5000,70,1234", "--heads", 32, "--kv-heads", 8),
}
PROBLEMS = {
    "grouped_gemm": GroupedGemmProblem((12, 0, 7, 300, 64), 1536, 2048),
    "attention": AttentionProblem((2000,) * 4, (), 32, 8, is_causal=True),
    "attention_decode": AttentionDecodeProblem((5000, 70, 1234), 32, 8),
}


def simulated(kernel: str) -> tuple[object, list[object]]:
    """Return a simulated GPU and its configurations."""
    if kernel == "grouped_gemm":
        runner = SimulatedGrouped()
        return runner, [entry.config for entry in runner.compiled]
    attention = SimulatedAttention(kernel)
    return attention, list(attention.configs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a models folder with a model of each family, and a held-out sweep of each beside it."""
    root = tmp_path_factory.mktemp("families")
    for kernel, layout in LAYOUTS.items():
        runner, configs = simulated(kernel)
        job = find_job(kernel, ARCH, dtype="bf16", layout=layout, configs=configs, n_problems=60)
        keys = (
            holdout_problems(12)
            if kernel == "grouped_gemm"
            else [key.problem for key in holdout_keys(kernel, 12, ARCH)]
        )
        with MeasurementStore(root / f"{kernel}.sqlite", runner.environment()) as store:
            result = calibrate_family(runner, job, store, holdout=False)
            points = [
                Point(problem, config, "held-out")
                for problem in keys
                for config in configs
                if job.is_legal(problem.dims, config)
            ]
            store.record(runner.measure(points))
            table = store.to_table(
                find_kernel_spec(kernel), dtype="bf16", layout=layout, exhaustive_strata=("held-out",)
            )
        write_family(result.file, root / ARCH.name / family_file_name(kernel, "bf16", layout))
        write_measurements(root / f"{kernel}.csv.gz", table.select(table.exhaustive))
    return root


@pytest.fixture
def cli(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs ``wavetune`` in an empty folder, with these models found first."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(folder))
    monkeypatch.setenv("WAVETUNE_ARCH", ARCH.name)
    monkeypatch.chdir(tmp_path)
    wavetune.clear_caches()
    return Runner().run


def model_of(folder: Path, kernel: str) -> Path:
    """Return the path of a model."""
    return folder / ARCH.name / family_file_name(kernel, "bf16", LAYOUTS[kernel])


@pytest.mark.parametrize("kernel", list(LAYOUTS))
def test_choose_answers_as_the_library_does(cli: Cli, folder: Path, kernel: str) -> None:
    """From sizes as options; of the installed model and of a file that is named."""
    expected = dict(wavetune.choose(PROBLEMS[kernel]))
    answer = cli("choose", "--kernel", kernel, *SIZES[kernel], "--json")
    assert answer.code == 0, answer.stderr
    assert answer.json["config"] == expected
    assert answer.json["source"] == "nearest"
    assert answer.json["waves"] > 0
    assert answer.json["margin"] >= 0
    named = cli("choose", "--kernel", kernel, *SIZES[kernel], "--model", model_of(folder, kernel), "--json")
    assert named.json == answer.json
    text = cli("choose", "--kernel", kernel, *SIZES[kernel], "--explain").stdout
    assert all(word in text for word in ("problem", "source", "runner-up", "CTAs"))
    ranked = wavetune.rank_configs(PROBLEMS[kernel])
    assert dict(ranked[0].config) == expected
    assert ranked[0].latency_us == pytest.approx(answer.json["latency_us"])


@pytest.mark.parametrize("kernel", list(LAYOUTS))
def test_explain_shows_what_the_prediction_is_made_of(cli: Cli, kernel: str) -> None:
    """Waves, trips, bytes, terms that add up to the prediction, and the nearest rivals, best first."""
    answer = cli("explain", "--kernel", kernel, *SIZES[kernel], "--json").json
    launch = answer["launch"]
    assert answer["latency_us"] == pytest.approx(sum(launch["terms_us"].values()))
    assert launch["total_trips"] <= launch["grid_size"] * launch["loop_trips"]
    assert launch["waves"] * launch["wave_width"] >= launch["grid_size"]
    assert {"waves", "loop", "bytes", "time"} <= set(answer["reasons"])
    predicted = [entry["predicted_us"] for entry in answer["candidates"]]
    assert predicted == sorted(predicted)
    assert len(predicted) == 5
    text = cli("explain", "--kernel", kernel, *SIZES[kernel]).stdout
    assert "rival" in text
    assert "candidate" in text


@pytest.mark.parametrize("kernel", list(LAYOUTS))
def test_evaluate_judges_on_a_sweep(cli: Cli, folder: Path, kernel: str) -> None:
    """The same document as for a GEMM: efficiency, regret, best of three, default."""
    report = cli("evaluate", "--model", model_of(folder, kernel), "--oracle", folder / f"{kernel}.csv.gz", "--json")
    assert report.code == 0, report.stderr
    document = report.json
    assert (document["shapes"], document["unmeasured"]) == (12, 0)
    assert 0.93 < document["efficiency"]["geomean"] <= document["top3_efficiency"] <= document["top8_efficiency"] <= 1
    assert document["efficiency"]["geomean"] >= document["default_efficiency"]["geomean"]
    assert document["regret"]["mean"] < 0.1
    assert "efficiency" in cli(
        "evaluate", "--model", model_of(folder, kernel), "--oracle", folder / f"{kernel}.csv.gz"
    ).stdout  # fmt: skip


@pytest.mark.parametrize("kernel", list(LAYOUTS))
def test_measure_makes_an_oracle(cli: Cli, folder: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file of sizes; what it writes can be evaluated on, and the best of the ranking alone be timed."""
    dims = find_kernel_spec(kernel).dims
    rows = [PROBLEMS[kernel].dims, holdout_problems(1)[0].dims if kernel == "grouped_gemm" else PROBLEMS[kernel].dims]
    lines = [",".join(dims), *(",".join(map(str, row)) for row in dict.fromkeys(rows))]
    Path("sizes.csv").write_text("\n".join(lines) + "\n")
    runner, configs = simulated(kernel)
    monkeypatch.setattr("wavetune.cli.measure.candidate_configs", lambda key: configs)
    monkeypatch.setattr("wavetune.cli.measure.live_runner", lambda key, gpu, *, instead: runner)
    done = cli("measure", "--kernel", kernel, "--shapes", "sizes.csv", "--out", "o.csv.gz", "--json")
    assert done.code == 0, done.stderr
    assert done.json["rows"] == len(configs) * (len(lines) - 1)
    report = cli("evaluate", "--model", model_of(folder, kernel), "--oracle", "o.csv.gz", "--json").json
    assert report["shapes"] == len(lines) - 1
    few = cli("measure", "--kernel", kernel, "--shapes", "sizes.csv", "--out", "few.csv", "--top", 2, "--json").json
    assert few["rows"] == 2 * (len(lines) - 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kernel", "attention", "--q-len", 5), "attention needs --heads"),
        (("--kernel", "attention", "--heads", 8), "attention needs --q-len"),
        (("--kernel", "attention", "--q-len", "5,x", "--heads", 8), "integers separated by commas"),
        (("--kernel", "attention", "--q-len", 5, "--heads", 8, "--page-size", 16), "--page-size is not a size of"),
        (("--kernel", "attention", 5, "--q-len", 5, "--heads", 8), "takes options, no sizes"),
        (("--kernel", "grouped_gemm", 5, 6), "grouped_gemm needs --group-sizes"),
        (("--kernel", "grouped_gemm", 5, "--group-sizes", "1,2"), "takes N K"),
        ((5, 6, 7, "--heads", 8), "--heads is not a size of gemm"),
        ((5, 6), "gemm takes M N K"),
        (("--kernel", "attention", "--q-len", 5, "--heads", 8, "--layout", "d64", "--head-dim", 96), "contradicts"),
        (("--kernel", "attention", "--q-len", 5, "--heads", 8, "--alignment", 2), "--alignment is for gemm and"),
        (("--kernel", "attention", "--q-len", "1_0", "--heads", 8), "integers separated by commas, got '1_0'"),
        (("--kernel", "grouped_gemm", 5, 6, "--group-sizes", "1," * 999 + "x" * 99), f"got '{'x' * 40}' as number"),
    ],
)  # fmt: skip
def test_sizes_of_another_family_are_refused(cli: Cli, words: tuple[object, ...], message: str) -> None:
    """A usage error names the option; the same for choose and explain."""
    for verb in ("choose", "explain"):
        result = cli(verb, *words)
        assert result.code == 2
        # Usage errors are wrapped into a box.
        assert message in " ".join(result.stderr.replace("│", " ").split())


def test_impossible_sizes_and_models_are_named(cli: Cli, folder: Path) -> None:
    """Heads that do not divide, lengths that contradict the batch, a file of another kernel, an absent model."""
    wrong = cli("choose", "--kernel", "attention", "--q-len", 5, "--heads", 8, "--kv-heads", 3)
    assert (wrong.code, "kv_heads must divide heads" in wrong.stderr) == (3, True)
    wrong = cli("choose", "--kernel", "attention", "--q-len", "5,6,7", "--heads", 8, "--batch", 2)
    assert (wrong.code, "3 lengths, but there are 2 sequences" in wrong.stderr) == (3, True)
    other = cli("choose", "--kernel", "attention_decode", "--kv-len", 5, "--heads", 8, "--model",
                model_of(folder, "attention"))  # fmt: skip
    assert (other.code, "is a model for kernel attention" in other.stderr) == (4, True)
    unknown = cli("choose", "--kernel", "softmax", 5)
    assert (unknown.code, "no model answers for kernel 'softmax'" in unknown.stderr) == (4, True)
    absent = cli("explain", "--kernel", "attention", "--q-len", 5, "--heads", 8, "--head-dim", 64, "--dtype", "fp32")
    assert (absent.code, "no model of attention for fp32 and d64" in absent.stderr) == (4, True)


def test_typed_helpers_describe_the_same_problems(cli: Cli) -> None:
    """Lengths for every sequence or for each; as many keys and heads as there are queries and query heads."""
    choose, decode = wavetune.choose_attention_config, wavetune.choose_attention_decode_config
    assert choose(2000, heads=32, kv_heads=8, batch=4, causal=True) == wavetune.choose(PROBLEMS["attention"])
    assert decode((5000, 70, 1234), heads=32, kv_heads=8) == wavetune.choose(PROBLEMS["attention_decode"])
    packed = AttentionProblem((300, 20), (600, 700), 8, 8, is_causal=False)
    assert choose((300, 20), (600, 700), heads=8) == wavetune.choose(packed)
    with pytest.raises(wavetune.WavetuneError, match="batch must be positive"):
        choose(300, heads=8, batch=0)
    with pytest.raises(wavetune.WavetuneError, match="kv_len"):
        decode(-3, heads=8)


@pytest.mark.parametrize("kernel", list(LAYOUTS))
def test_families_have_forms_and_no_cells(cli: Cli, kernel: str) -> None:
    """What decides is told by what the family has; blanks between numbers do not matter."""
    text = cli("choose", "--kernel", kernel, *SIZES[kernel], "--explain").stdout
    assert "nearest: inside the measured range: all forms decide" in text
    assert "cell" not in text
    assert "candidates of its cell decide" in cli("choose", 511, 4096, 4096, "--explain").stdout


def test_a_head_dimension_that_a_file_is_not_for(cli: Cli, folder: Path) -> None:
    """The option is named, and not one that nobody gave."""
    model = model_of(folder, "attention")
    wrong = cli("choose", "--kernel", "attention", "--q-len", 5, "--heads", 8, "--head-dim", 64, "--model", model)
    assert wrong.code == 2
    assert "--head-dim 64 contradicts the layout d128" in wrong.stderr
    assert "--layout" not in wrong.stderr


def test_a_family_follows_settings_and_policy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """``WAVETUNE_DISABLE`` and ``--on-miss``: the default, or an error that names the sizes."""
    far = ("choose", "--kernel", "attention", "--q-len", 10**7, "--heads", 8, "--explain")
    assert "source     model" in cli(*far).stdout
    assert "source     default" in cli(*far, "--on-miss", "default").stdout
    error = cli(*far, "--on-miss", "error")
    assert (error.code, "q_len=10000000" in error.stderr) == (3, True)
    monkeypatch.setenv("WAVETUNE_DISABLE", "1")
    wavetune.clear_caches()
    assert "source     default" in cli("choose", "--kernel", "attention", *SIZES["attention"], "--explain").stdout


def test_a_report_is_of_gemm(cli: Cli, folder: Path) -> None:
    """A model of another family is not called damaged: the error names what judges it."""
    result = cli("report", "--out", "r", "--model", model_of(folder, "attention"))
    assert (result.code, "wavetune evaluate" in result.stderr) == (4, True), result.stderr
    assert cli("report", "--out", "r", "--kernel", "attention").code == 2
    assert not Path("r").exists()


def test_impossible_problems_in_files_are_named(cli: Cli) -> None:
    """By column and line; sizes that would fill the memory among them."""
    lines = {
        "q_len,heads,kv_heads\n-5,8,2\n": "f.csv:2: q_len must not be negative",
        "batch,q_len,heads\n2000000000,5,8\n": "f.csv:2: batch must be at most 1,048,576",
        "length,heads\n5,8\n": "or, for attention, the columns q_len,heads",
    }
    for text, message in lines.items():
        Path("f.csv").write_text(text)
        result = cli("calibrate", "--kernel", "attention", "--workload", "f.csv", "--dry-run")
        assert (result.code, message in result.stderr) == (3, True), result.stderr
    shape = {"operation": "attention", "m": 64, "n": 64, "k": 128, "heads": 8, "batch": 2 * 10**9}
    Path("w.json").write_text(json.dumps({"problems": [shape]}))
    result = cli("calibrate", "--kernel", "attention", "--workload", "w.json", "--dry-run")
    assert (result.code, "batch must be at most" in result.stderr) == (3, True), result.stderr
    del shape["batch"]
    Path("w.json").write_text(json.dumps({"problems": [shape]}))
    result = cli("estimate", "w.json")
    assert (result.code, "no plain GEMM" in result.stderr) == (3, True), result.stderr

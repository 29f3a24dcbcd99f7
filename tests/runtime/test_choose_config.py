"""`choose_config` on the shipped model: every argument is checked, every answer is legal and stays the same."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hand_made import POINTER, make_model
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.errors import (
    ArchError,
    NoModelError,
    ProblemError,
    ProblemTypeError,
    RunnerError,
    SettingsError,
    WavetuneError,
)
from wavetune.mapping.legality import gemm_illegal_reason, grid_limit_reason
from wavetune.runtime import choose as choose_module
from wavetune.runtime.codec import write_model

ARCH = "nvidia-h200"
H200 = find_arch(ARCH)
LARGEST = 2**31 - 1
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 20_000), st.integers(1, LARGEST))
INTEGER_TYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.intp]

WRONG_TYPES = {
    "bool": True, "float": 2.0, "string": "2", "none": None, "list": [2], "numpy bool": np.bool_(True),
    "numpy float": np.float64(2.0), "array": np.array([2, 2]), "complex": 2j,
}  # fmt: skip


@pytest.fixture(params=["choose_config", "explain_choice"])
def ask(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Return one of the two functions that take sizes."""
    return getattr(wavetune, request.param)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("wrong", WRONG_TYPES)
def test_a_size_of_the_wrong_type_is_refused(ask: Callable[..., object], wrong: str, position: int) -> None:
    """What is no integer is refused by name, before and after the equal integers were answered."""
    sizes: list[object] = [2, 2, 2]
    sizes[position] = WRONG_TYPES[wrong]
    for _ in range(2):
        with pytest.raises(ProblemTypeError, match=f"^{'mnk'[position]} must be an integer"):
            ask(*sizes, arch=ARCH)
        assert wavetune.choose_config(2, 2, 2, arch=ARCH) is wavetune.choose_config(2, 2, 2, arch=ARCH)


def test_equal_keys_of_other_types_are_refused_after_an_answer(ask: Callable[..., object]) -> None:
    """``(1, 2, 3)`` and ``(True, 2.0, 3)`` hash alike, and only the first is a problem."""
    wavetune.choose_config(1, 2, 3, arch=ARCH)
    wavetune.choose_config(0, 1, 3, arch=ARCH)
    for sizes in ((True, 2.0, 3), (True, 2, 3), (1, 2.0, 3), (1, 2, 3.0), (False, 1, 3), (0, True, 3), (0.0, 1, 3)):
        with pytest.raises(ProblemTypeError):
            ask(*sizes, arch=ARCH)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("wrong", [-1, -4096, 2**31, 2**63, -(2**200)])
def test_a_size_out_of_range_is_refused(ask: Callable[..., object], wrong: int, position: int) -> None:
    """Negative and too large sizes are refused by name, also when the argument combination is known."""
    wavetune.choose_config(2, 2, 2, arch=ARCH)
    sizes = [2, 2, 2]
    sizes[position] = wrong
    for _ in range(2):
        with pytest.raises(ProblemError, match=f"^{'mnk'[position]} must"):
            ask(*sizes, arch=ARCH)


@pytest.mark.parametrize("first", ["int", "numpy"])
@pytest.mark.parametrize("kind", INTEGER_TYPES)
def test_numpy_integers_are_integers(kind: type, first: str) -> None:
    """NumPy integers of every width get the answer of the equal ints, whichever was asked first."""
    plain, numpy = (100, 64, 120), tuple(kind(size) for size in (100, 64, 120))
    calls = [plain, numpy] if first == "int" else [numpy, plain]
    configs = [wavetune.choose_config(*sizes, arch=ARCH) for sizes in calls]
    assert configs[0] == configs[1]
    assert wavetune.explain_choice(*numpy, arch=ARCH) == wavetune.explain_choice(*plain, arch=ARCH)
    assert wavetune.explain_choice(*numpy, arch=ARCH).config == configs[0]


@pytest.mark.parametrize("sizes", [(0, 4096, 4096), (16, 0, 4096), (16, 4096, 0), (0, 0, 0), (np.int32(0), 5, 5)])
@pytest.mark.parametrize("alignment", [16, 2])
def test_zero_is_an_empty_problem(sizes: tuple[int, int, int], alignment: int) -> None:
    """With a size of zero there is nothing to launch, and the answer says so."""
    choice = wavetune.explain_choice(*sizes, arch=ARCH, alignment=alignment)
    assert choice.source == "empty"
    assert (choice.latency_us, choice.grid_size, choice.loop_trips, choice.waves, choice.tail_ctas) == (0, 0, 0, 0, 0)
    assert wavetune.choose_config(*sizes, arch=ARCH, alignment=alignment) == choice.config


@settings(max_examples=250)
@given(SIZES, SIZES, SIZES, st.sampled_from([16, 16, 8, 4, 2, 1]))
@example(1, 1, 1, 16)
@example(LARGEST, 1, 1, 1)
@example(LARGEST, 64, 64, 16)
@example(2**18 + 1, 2**18 + 1, LARGEST, 16)
def test_every_positive_shape_gets_a_legal_answer(m: int, n: int, k: int, alignment: int) -> None:
    """Whatever the shape, the configuration is complete and legal, and asking again gives the same one."""
    # Beyond this, no tile is large enough for 2**31 CTAs.
    assume(m * n < 2**42)
    config = wavetune.choose_config(m, n, k, arch=ARCH, alignment=alignment)
    assert tuple(config) == GEMM.fields
    assert gemm_illegal_reason(GemmProblem(m, n, k, alignment=alignment), config, H200) is None
    assert grid_limit_reason(GemmProblem(m, n, k, alignment=alignment), config) is None
    assert wavetune.choose_config(m, n, k, arch=ARCH, alignment=alignment) == config
    choice = wavetune.explain_choice(m, n, k, arch=ARCH, alignment=alignment)
    assert choice == wavetune.explain_choice(m, n, k, arch=ARCH, alignment=alignment)
    assert choice.config == config
    assert choice.source in ("exact", "nearest", "model")
    assert choice.latency_us > 0
    assert 0 < choice.tail_ctas <= choice.grid_size
    assert choice.loop_trips * config["block_k"] * config["split_k"] >= k
    assert choice.runner_up != config
    assert choice.margin >= 0 or choice.source != "model"
    assert (choice.num_sms, choice.is_scaled) == (132, False)


def test_a_grid_that_cannot_be_launched_is_an_error(ask: Callable[..., object]) -> None:
    """Where every tile is too small for 2**31 CTAs, there is no answer, and the error says why."""
    wavetune.choose_config(16, 4096, 4096, arch=ARCH)
    for _ in range(2):
        with pytest.raises(NoModelError, match="the grid exceeds"):
            ask(LARGEST, LARGEST - 15, 4096, arch=ARCH)


@given(SIZES, SIZES, SIZES)
def test_ranking_and_choice_agree_where_all_forms_decide(m: int, n: int, k: int) -> None:
    """The ranking is sorted, legal and complete; beyond the measured range its first is the answer."""
    assume(m * n < 2**42)
    problem = GemmProblem(m, n, k)
    ranked = wavetune.rank_configs(problem, arch=ARCH)
    latencies = [entry.latency_us for entry in ranked]
    assert latencies == sorted(latencies)
    assert len({entry.config for entry in ranked}) == len(ranked)
    assert all(gemm_illegal_reason(problem, entry.config, H200) is None for entry in ranked)
    choice = wavetune.explain_choice(m, n, k, arch=ARCH)
    assert wavetune.choose(problem, arch=ARCH) == choice.config
    if choice.source == "model":
        assert choice.latency_us == pytest.approx(latencies[0], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arch": "h2000"}, ArchError, "h2000"),
        ({"arch": "NVIDIA H200 NVL"}, ArchError, "NVL"),
        ({"arch": 5}, ArchError, "5"),
        ({"arch": ["h200"]}, ArchError, "h200"),
        ({"dtype": "bf17"}, ProblemError, "bf17"),
        ({"dtype": ["bf16"]}, ProblemError, "bf16"),
        ({"dtype": None}, ProblemError, "None"),
        ({"layout": "tn"}, ProblemError, "tn"),
        ({"layout": ["nk"]}, ProblemError, "nk"),
        ({"alignment": 3}, ProblemError, "3"),
        ({"alignment": 32}, ProblemError, "32"),
        ({"alignment": [16]}, ProblemError, "16"),
        ({"kernel": "conv"}, NoModelError, "conv"),
        ({"kernel": ["gemm"]}, NoModelError, "gemm"),
        ({"num_sms": 0}, ArchError, "num_sms"),
        ({"num_sms": 133}, ArchError, "133"),
        ({"num_sms": True}, ArchError, "True"),
        ({"num_sms": 66.0}, ArchError, "66.0"),
        ({"num_sms": [66]}, ArchError, "66"),
        ({"numerics": "exact"}, ProblemError, "exact"),
        ({"numerics": ["any"]}, ProblemError, "any"),
        ({"on_miss": "wait"}, SettingsError, "wait"),
        ({"on_miss": ["model"]}, SettingsError, "model"),
        ({"dtype": "int8"}, NoModelError, "gemm-int8.json"),
        ({"arch": "nvidia-l40s"}, NoModelError, "nvidia-l40s/gemm-bf16.json"),
    ],
)
def test_unknown_options_are_refused(
    ask: Callable[..., object], options: dict[str, object], error: type[WavetuneError], message: str
) -> None:
    """An unknown option is an error of its kind that shows the value, also after a good call."""
    wavetune.choose_config(1, 2, 3, arch=ARCH)
    with pytest.raises(error, match=message):
        ask(1, 2, 3, **{"arch": ARCH, **options})


def test_spellings_of_one_thing_get_one_answer() -> None:
    """Aliases of GPU and dtype give the same answer."""
    answers = {
        wavetune.choose_config(300, 4096, 4096, arch=arch, dtype=dtype)
        for arch in ("nvidia-h200", "h200", "NVIDIA H200", "H200")
        for dtype in ("bf16", "bfloat16", "torch.bfloat16", TorchDtype("torch.bfloat16"))
    }
    assert len(answers) == 1


class TorchDtype:
    """Prints as a dtype of torch does, and is no text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def test_dtypes_of_torch_are_dtypes() -> None:
    """A dtype itself names the problem, first asked and asked again; one without kernels is named in the error."""
    torch = pytest.importorskip("torch")
    expected = wavetune.choose_config(300, 4096, 4096, arch=ARCH)
    for _ in range(2):
        assert wavetune.choose_config(300, 4096, 4096, arch=ARCH, dtype=torch.bfloat16) == expected
        assert wavetune.choose_config(301, 4096, 4096, arch=ARCH, dtype=torch.bfloat16) is not None
    assert GemmProblem(1, 2, 3, torch.float8_e4m3fn).dtype == "fp8"
    with pytest.raises(ProblemError, match=r"unknown dtype torch\.float64"):
        wavetune.choose_config(300, 4096, 4096, arch=ARCH, dtype=torch.float64)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_sms_are_counted_as_sizes_are(kind: type) -> None:
    """A NumPy integer is a number of SMs; a boolean is not, of whatever library."""
    expected = wavetune.choose_config(300, 4096, 4096, arch=ARCH, num_sms=40)
    assert wavetune.choose_config(300, 4096, 4096, arch=ARCH, num_sms=kind(40)) == expected
    for wrong in (np.bool_(True), True, kind(0), np.float64(40.0)):
        with pytest.raises(ArchError, match="num_sms"):
            wavetune.choose_config(300, 4096, 4096, arch=ARCH, num_sms=wrong)


def test_no_arch_is_an_error_that_says_how(ask: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an architecture or a GPU the error names the argument, the variable and the known GPUs."""

    def no_gpu(gpu: int) -> None:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.runtime.nvml.describe_visible", no_gpu)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ArchError, match=r"no NVIDIA driver.*arch=.*WAVETUNE_ARCH.*nvidia-h200"):
        ask(1, 2, 3)


def test_the_environment_names_the_arch(ask: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """``WAVETUNE_ARCH`` answers for calls without one; it is read once, until the caches are cleared."""
    explicit = ask(300, 4096, 4096, arch=ARCH)
    monkeypatch.setenv("WAVETUNE_ARCH", "h200")
    wavetune.clear_caches()
    for _ in range(2):
        assert ask(300, 4096, 4096) == explicit
    monkeypatch.setenv("WAVETUNE_ARCH", "h2000")
    assert ask(300, 4096, 4096) == explicit
    wavetune.clear_caches()
    with pytest.raises(ArchError, match="h2000"):
        ask(300, 4096, 4096)
    wavetune.configure(arch="nvidia-h200")
    assert ask(300, 4096, 4096) == explicit
    with pytest.raises(ProblemTypeError):
        ask(300, 4096.0, 4096)


def test_a_users_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models under ``WAVETUNE_MODELS`` win over shipped ones; folders are searched in order; caches can be cleared."""
    shipped = wavetune.explain_choice(512, 4096, 4096, arch=ARCH)
    path = tmp_path / "second" / ARCH / "gemm-bf16.json"
    write_model(make_model(), path)
    monkeypatch.setenv("WAVETUNE_MODELS", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    assert wavetune.explain_choice(512, 4096, 4096, arch=ARCH) == shipped
    wavetune.clear_caches()
    own = wavetune.explain_choice(512, 4096, 4096, arch=ARCH)
    assert (own.source, own.latency_us, own.table) == ("exact", 33.25, str(path))


def test_no_model_lists_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing model names what was sought, every model found and every folder searched."""
    write_model(make_model(arch="nvidia-h100"), tmp_path / "nvidia-h100" / "gemm-bf16.json")
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path))
    with pytest.raises(NoModelError) as error:
        wavetune.choose_config(1, 2, 3, arch="nvidia-b200")
    message = str(error.value)
    for part in (
        "nvidia-b200/gemm-bf16.json",
        "nvidia-h100/gemm-bf16.json",
        "nvidia-h200/gemm-bf16.json",
        str(tmp_path),
    ):
        assert part in message
    assert isinstance(error.value, LookupError)


def test_layouts_have_their_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout kn is answered from its own file only."""
    write_model(make_model(), tmp_path / ARCH / "gemm-bf16.json")
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path))
    with pytest.raises(NoModelError, match=r"gemm-bf16-kn\.json"):
        wavetune.choose_config(1, 2, 3, arch=ARCH, layout="kn")
    write_model(make_model(layout="kn"), tmp_path / ARCH / "gemm-bf16-kn.json")
    assert wavetune.explain_choice(1, 2, 3, arch=ARCH, layout="kn").table.endswith("gemm-bf16-kn.json")


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shapes than the memo holds do not make it grow, and answers stay the same."""
    monkeypatch.setattr(choose_module, "MEMO_LIMIT", 100)
    first = [wavetune.choose_config(m, 4096, 4096, arch=ARCH) for m in range(1, 500)]
    assert len(choose_module._memo) <= 100
    assert [wavetune.choose_config(m, 4096, 4096, arch=ARCH) for m in range(1, 500)] == first
    assert len(choose_module._memo) <= 100


def test_problems_of_other_kinds_have_no_model() -> None:
    """A problem that is no GEMM has no model."""

    class Convolution:
        kernel, dtype, dims, is_empty = "gemm", "bf16", (1, 2, 3), False

    with pytest.raises(NoModelError, match="Convolution"):
        wavetune.choose(Convolution(), arch=ARCH)
    with pytest.raises(NoModelError, match="Convolution"):
        wavetune.rank_configs(Convolution(), arch=ARCH)


def test_threads_get_the_answers_of_one_thread() -> None:
    """Sixteen threads that ask the same shapes at once, from empty caches, get what one thread gets."""
    shapes = [(m, n, 4096) for m in range(1, 400, 7) for n in (1024, 4096, 11008)]
    expected = [wavetune.choose_config(*shape, arch=ARCH) for shape in shapes]
    wavetune.clear_caches()
    barrier = threading.Barrier(16)
    answers: dict[int, list[object]] = {}

    def work(index: int) -> None:
        barrier.wait()
        offset = index * 7 % len(shapes)
        turned = [wavetune.choose_config(*shape, arch=ARCH) for shape in shapes[offset:] + shapes[:offset]]
        answers[index] = turned[len(shapes) - offset :] + turned[: len(shapes) - offset]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    assert all(answer == expected for answer in answers.values())


def test_answers_can_be_used_as_keyword_arguments() -> None:
    """A configuration unpacks into a launch."""
    config = wavetune.choose_config(512, 4096, 4096, arch=ARCH)
    assert dict(**config)["block_m"] == config.block_m
    assert config.replace(block_m=1) != POINTER

"""Families without a GPU: what stands in for a choice that cannot be compiled or loaded, and for how long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from idle_gpu import FakeGpu  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

import wavetune  # noqa: E402
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem  # noqa: E402
from wavetune.core.config import KernelConfig  # noqa: E402
from wavetune.core.grouped_problem import GroupedGemmProblem  # noqa: E402
from wavetune.core.problem import Problem  # noqa: E402
from wavetune.errors import CaptureError, InfeasibleConfigError  # noqa: E402
from wavetune.kernels.attention_space import decode_fallback_configs, fallback_configs  # noqa: E402
from wavetune.kernels.call import BoundLaunch  # noqa: E402
from wavetune.kernels.grouped_gemm_space import grouped_fallback_configs  # noqa: E402
from wavetune.kernels.launch_cache import LaunchCache  # noqa: E402
from wavetune.launch import attention_launcher, grouped_launcher, next_best  # noqa: E402
from wavetune.launch.choices import Choices  # noqa: E402
from wavetune.launch.grouped_launcher import GroupedOptions  # noqa: E402
from wavetune.mapping.attention import decode_workspace_size  # noqa: E402
from wavetune.runtime.device import resolve_device  # noqa: E402

H200 = resolve_device("h200")
TOO_MUCH = OutOfResources(300_000, 232_448, "shared memory")


@dataclass
class FakeDriver:
    """Which kernels are loaded, which cannot be, and what was launched."""

    gpu: FakeGpu = field(default_factory=lambda: FakeGpu(0, H200.arch, H200))
    loaded: set[KernelConfig] = field(default_factory=set)
    refuse: Callable[[KernelConfig, object], Exception | None] = lambda config, operands: None
    tried: list[KernelConfig] = field(default_factory=list)
    launched: list[KernelConfig] = field(default_factory=list)

    def bind(self, operands: object, config: KernelConfig, arch: object, stream: int) -> Callable[[], None]:
        """Load a kernel, or fail as it does."""
        self.tried.append(config)
        failure = self.refuse(config, operands)
        if failure is not None:
            raise failure
        if isinstance(operands.problem, AttentionDecodeProblem):
            needed = decode_workspace_size(operands.problem, int(config["splits"]))
            assert not needed or operands.partials.numel() >= needed
        self.loaded.add(config)
        return BoundLaunch(lambda: self.launched.append(config), (), ())

    def break_only(self, *configs: KernelConfig) -> None:
        """Let some configurations exceed the GPU."""
        self.refuse = lambda config, operands: TOO_MUCH if config in configs else None

    def capture(self, capturing: bool = True) -> None:
        """Begin or end the capture of a graph."""
        self.gpu = replace(self.gpu, capturing=capturing)


@dataclass(frozen=True)
class Family:
    """One family: how it is launched, and the problem that this is.

    Parameters
    ----------
    launch : callable
        Takes a length.
    problem : callable
        Takes a length.
    fixed_rule : callable
        What answers without a model.
    """

    launch: Callable[[int], object]
    problem: Callable[[int], Problem]
    fixed_rule: Callable[..., Iterator[KernelConfig]]

    def ranked(self, length: int) -> list[KernelConfig]:
        """Return the model's configurations, best first; an exact answer may come before the best prediction."""
        problem = self.problem(length)
        chosen = wavetune.choose(problem, arch="h200")
        ranking = [entry.config for entry in wavetune.rank_configs(problem, arch="h200")]
        return [chosen, *(config for config in ranking if config != chosen)]


def bf16(*shape: int) -> torch.Tensor:
    """Return any tensor."""
    return torch.empty(shape, dtype=torch.bfloat16)


def prefill(length: int, return_lse: bool = False) -> object:
    """Launch two sequences."""
    q, k = bf16(2, 8, length, 128), bf16(2, 2, length, 128)
    return attention_launcher.run_attention(
        q, k, k, None, None, causal=True, scale=0.0, window=0, max_seqlen=0, max_seqlen_k=0, return_lse=return_lse
    )


def decode(length: int, return_lse: bool = False) -> object:
    """Launch one step of three sequences."""
    cache = bf16(4, 16, 2, 128)
    table, lengths = torch.zeros(3, -(-length // 16), dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    return attention_launcher.run_decode(
        bf16(3, 8, 128), cache, cache, table, lengths, scale=0.0, window=0, max_length=length, return_lse=return_lse
    )


def grouped(length: int) -> object:
    """Launch four experts."""
    sizes = (length,) * 4
    options = GroupedOptions("none", 2, None, None, False, torch.bfloat16)
    groups = torch.tensor(sizes, dtype=torch.int32)
    return grouped_launcher.run_grouped(
        bf16(4 * length, 1024), bf16(4, 2048, 1024), groups, sizes, None, options
    )  # fmt: skip


FAMILIES = {
    "attention": Family(
        prefill, lambda length: AttentionProblem((length,) * 2, (), 8, 2, is_causal=True), fallback_configs
    ),
    "attention_decode": Family(
        decode, lambda length: AttentionDecodeProblem((length,) * 3, 8, 2), decode_fallback_configs
    ),
    "grouped_gemm": Family(
        grouped, lambda length: GroupedGemmProblem((length,) * 4, 2048, 1024), grouped_fallback_configs
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    """Return one family after the other."""
    return FAMILIES[request.param]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Replace what compiles and loads, and forget what was chosen before."""
    fake = FakeDriver()
    monkeypatch.setattr(next_best, "_unusable", set())
    for launcher in (attention_launcher, grouped_launcher):
        monkeypatch.setattr(launcher, "find_gpu", lambda device: fake.gpu)
        monkeypatch.setattr(launcher, "is_loaded", lambda operands, config, gpu: config in fake.loaded)
        monkeypatch.setattr(launcher, "_choices", Choices())
    monkeypatch.setattr(attention_launcher, "current_stream", lambda index: 0)
    monkeypatch.setattr(attention_launcher, "_launches", LaunchCache())
    for kernel, known in dict(attention_launcher._FAMILIES).items():
        monkeypatch.setitem(attention_launcher._FAMILIES, kernel, replace(known, bind=fake.bind))
    monkeypatch.setattr(grouped_launcher, "check_device", lambda name, tensor: None)
    monkeypatch.setattr(
        grouped_launcher, "launch_operands", lambda operands, config, arch: fake.bind(operands, config, arch, 0)()
    )
    return fake


def test_the_choice_is_launched(driver: FakeDriver, family: Family) -> None:
    """Nothing else is tried where it runs."""
    family.launch(512)
    assert driver.tried == driver.launched == family.ranked(512)[:1]


@pytest.mark.parametrize("failure", [TOO_MUCH, InfeasibleConfigError("none fits")])
def test_what_cannot_be_loaded_gives_way(
    driver: FakeDriver, family: Family, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The next best of the model runs, the broken ones are tried once in the life of the process, and said once."""
    first, second, third, *_ = family.ranked(512)
    driver.refuse = lambda config, operands: failure if config in (first, second) else None
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        for _ in range(3):
            family.launch(512)
    assert driver.launched == [third] * 3
    assert driver.tried[:3] == [first, second, third]
    assert set(driver.tried[3:]) <= {third}
    assert [record.getMessage().count("cannot run on nvidia-h200") for record in caplog.records] == [1, 1]


def test_what_stands_in_is_the_choice_from_then_on(
    driver: FakeDriver, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ranking is asked for again; other sizes whose choice is broken as well do not try it."""
    first, second, *_ = family.ranked(512)
    driver.break_only(first)
    family.launch(512)
    asked = []
    for launcher, name in ((attention_launcher, "rank_attention"), (grouped_launcher, "rank_grouped_gemm")):
        rank = getattr(launcher, name)
        monkeypatch.setattr(
            launcher, name, lambda *args, rank=rank, **options: asked.append(1) or rank(*args, **options)
        )
    family.launch(512)
    assert not asked
    assert driver.launched == [second] * 2
    other = next(length for length in range(480, 700) if length != 512 and family.ranked(length)[0] == first)
    family.launch(other)
    assert len(asked) == 1
    assert driver.launched[-1] == family.ranked(other)[1]
    assert driver.tried.count(first) == 1


def test_without_a_model_the_fixed_rule_goes_on(driver: FakeDriver, family: Family) -> None:
    """On a GPU that nobody calibrated, its second configuration takes the place of the first."""
    driver.gpu = FakeGpu(0, H200.arch, None)
    first, second, *_ = family.fixed_rule(family.problem(512), H200.arch)
    driver.break_only(first)
    family.launch(512)
    assert driver.tried == [first, second]
    assert driver.launched == [second]


def test_the_fixed_rule_is_the_last_resort(driver: FakeDriver, family: Family) -> None:
    """Where nothing of the model runs; if that fails as well, the failure of the choice itself is raised."""
    ranked = family.ranked(512)
    driver.break_only(*ranked)
    family.launch(512)
    assert driver.tried[: len(ranked)] == ranked
    assert driver.launched[0] not in ranked
    driver.refuse = lambda config, operands: InfeasibleConfigError(f"failure {len(driver.tried)}")
    next_best._unusable.clear()
    attention_launcher._launches.clear()
    driver.tried.clear()
    with pytest.raises(InfeasibleConfigError, match=r"failure 1$"):
        family.launch(512)
    with pytest.raises(InfeasibleConfigError, match="no configuration can run"):
        family.launch(512)


def test_other_errors_are_not_swallowed(driver: FakeDriver, family: Family) -> None:
    """A bug is no reason to try another configuration."""
    driver.refuse = lambda config, operands: ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        family.launch(512)
    assert len(driver.tried) == 1


def test_a_graph_is_captured_with_what_stands_in(driver: FakeDriver, family: Family) -> None:
    """Where it is loaded, also if the choice was forgotten; nothing is compiled in a capture."""
    first, second, *_ = family.ranked(512)
    driver.break_only(first)
    family.launch(512)
    attention_launcher._launches.clear()
    for launcher in (attention_launcher, grouped_launcher):
        launcher._choices._known.clear()
    driver.capture()
    family.launch(512)
    assert driver.launched == [second] * 2
    driver.loaded.clear()
    attention_launcher._launches.clear()
    n_tried = len(driver.tried)
    with pytest.raises(CaptureError, match="is not loaded"):
        family.launch(512)
    assert len(driver.tried) == n_tried


@pytest.mark.parametrize(("launch", "kernel"), [(prefill, "attention"), (decode, "attention_decode")])
def test_kernels_with_other_options_are_judged_by_themselves(
    driver: FakeDriver, launch: Callable[..., object], kernel: str
) -> None:
    """A kernel that also stores the logsumexp may need too much where the plain one does not."""
    first, second, *_ = FAMILIES[kernel].ranked(512)
    driver.refuse = lambda config, operands: TOO_MUCH if config == first and operands.lse is not None else None
    for return_lse in (True, False, True):
        launch(512, return_lse=return_lse)
    assert driver.launched == [second, first, second]


def test_a_decode_step_that_splits_more_gets_its_workspace(driver: FakeDriver) -> None:
    """It is bound to partial results of its own, so under the choice's addresses nothing is kept; then it is."""
    ranked = FAMILIES["attention_decode"].ranked(4096)
    splits = [int(config["splits"]) for config in ranked]
    most = max(splits)
    wanted = ranked[splits.index(most)]
    driver.break_only(*(config for config in ranked if config != wanted))
    assert splits[0] < most
    decode(4096)
    assert len(attention_launcher._launches) == 0
    decode(4096)
    assert len(attention_launcher._launches) == 1
    assert driver.launched == [wanted] * 2

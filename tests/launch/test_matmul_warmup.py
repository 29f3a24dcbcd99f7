# ruff: noqa: E402 (what is imported below needs torch and triton)
"""`warmup` without a GPU: which jobs, in what order, when processes start, what fails."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import wavetune
from wavetune.errors import InfeasibleConfigError, OperandError, OperandTypeError, ProblemError, ProblemTypeError
from wavetune.launch import next_best
from wavetune.launch import warmup as warmup_module
from wavetune.launch.compile_worker import CompileJob
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.warmup import warmup, warmup_model
from wavetune.runtime.device import resolve_device

H200 = resolve_device("h200")


class FakeGpu(LaunchGpu):
    """A GPU that is there."""

    def activate(self) -> contextlib.AbstractContextManager[object]:
        """Do nothing."""
        return contextlib.nullcontext()


@dataclass
class FakeTriton:
    """What is on disk, what is loaded, and what happened."""

    on_disk: set[object] = field(default_factory=set)
    loaded: set[object] = field(default_factory=set)
    broken: set[object] = field(default_factory=set)
    ahead: list[int] = field(default_factory=list)

    def load(self, variant: object) -> None:
        """Load a kernel, slowly if it must be compiled."""
        if variant not in self.on_disk:
            time.sleep(0.02)
        if variant in self.broken:
            raise InfeasibleConfigError("does not fit")
        self.loaded.add(variant)

    def compile(self, jobs: Sequence[CompileJob], arch: object, n_workers: int) -> Iterator[int]:
        """Compile ahead."""
        self.ahead.append(len(jobs))
        for done, job in enumerate(jobs, start=1):
            self.on_disk.update(call.variant for call in job.calls(arch))
            yield done


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> FakeTriton:
    """Replace Triton and the GPU."""
    fake = FakeTriton()
    monkeypatch.setattr(warmup_module, "SLOW_LOAD_S", 0.01)
    monkeypatch.setattr(warmup_module, "_find_gpu", lambda device: FakeGpu(0, H200.arch, H200))
    monkeypatch.setattr(warmup_module, "load_call", lambda call: fake.load(call.variant))
    monkeypatch.setattr(warmup_module, "find_loaded", lambda call: {call.variant} & fake.loaded or None)
    monkeypatch.setattr(warmup_module, "compile_in_parallel", fake.compile)
    monkeypatch.setattr(next_best, "_unusable", set())
    return fake


def test_everything_reachable_is_loaded(triton: FakeTriton) -> None:
    """The first slow load starts processes for the rest; progress never goes back and ends at its total."""
    steps: list[tuple[int, int]] = []
    report = warmup(4096, 4096, (1, 600), bias=True, activation="gelu", progress=lambda *step: steps.append(step))
    assert report.configs == wavetune.reachable_configs(4096, 4096, (1, 600), arch="h200")
    assert (report.failed, report.n_new) == ((), len(report.configs))
    assert triton.ahead == [len(report.configs) - 1]
    assert steps == sorted(steps)
    assert steps[-1] == (2 * len(report.configs), 2 * len(report.configs))
    mains = [variant for variant in triton.loaded if "BLOCK_M" in variant.constants]
    assert {variant.constants["BLOCK_M"] for variant in mains} == {config["block_m"] for config in report.configs}
    assert {variant.constants.get("ACTIVATION", "gelu") for variant in triton.loaded} == {"gelu"}
    again = warmup(4096, 4096, (1, 600), bias=True, activation="gelu")
    assert (again.configs, again.n_new) == (report.configs, 0)
    assert len(triton.ahead) == 1


def test_what_is_on_disk_starts_no_process(triton: FakeTriton) -> None:
    """A restarted server loads in this process."""
    jobs = warmup(4096, 4096, (1, 100)).configs
    triton.on_disk, triton.loaded = set(triton.loaded), set()
    triton.ahead.clear()
    assert warmup(4096, 4096, (1, 100)).n_new == len(jobs)
    assert triton.ahead == []


def test_what_cannot_be_loaded_is_told_and_never_tried_again(triton: FakeTriton) -> None:
    """It is in ``failed``, and the first launch will not try it."""
    (*_, victim) = warmup(4096, 4096, (1, 300)).configs
    problem = wavetune.GemmProblem(300, 4096, 4096)
    calls = CompileJob(problem, victim, False, "none").calls(H200.arch)
    triton.loaded.clear()
    triton.broken = {call.variant for call in calls}
    report = warmup(4096, 4096, (1, 300))
    assert report.failed == (victim,)
    assert victim not in report.configs
    assert len(next_best._unusable) == 1


def test_layers_of_a_model(triton: FakeTriton) -> None:
    """One report for each kind of layer; other dtypes are passed over."""
    layers = [torch.nn.Linear(512, 1024), torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512, bias=False)]
    model = torch.nn.Sequential(*layers).bfloat16().append(torch.nn.Linear(8, 8))
    reports = warmup_model(model, (1, 40))
    assert list(reports) == ["0", "2"]
    assert reports["0"].configs == wavetune.reachable_configs(1024, 512, (1, 40), arch="h200")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, "fp8_fast", "fp8_block128"])
def test_fp8_layers(triton: FakeTriton, dtype: object) -> None:
    """Kernels with scales are loaded: of the shipped model, or of the safe rule where there is none."""
    report = warmup(4096, 4096, (1, 600), dtype=dtype)
    assert report.failed == ()
    tiled = [variant.kernel.fn.__name__ for variant in triton.loaded if "BLOCK_M" in variant.constants]
    assert tiled
    assert all("scaled" in name for name in tiled)


def test_wrong_arguments(triton: FakeTriton) -> None:
    """Each is named."""
    for m_range in ((0, 5), (5, 4)):
        with pytest.raises(ProblemError, match="m_range"):
            warmup(64, 64, m_range)
    for no_pair in (5, None, (1, 2, 3), (1.0, 4)):
        with pytest.raises(ProblemTypeError, match="m_range"):
            warmup(64, 64, m_range=no_pair)
    with pytest.raises(OperandError, match="dtype must be one of bf16, fp16"):
        warmup(64, 64, dtype=torch.float32)
    with pytest.raises(ProblemError, match="layout"):
        warmup(64, 64, layout="mn")
    with pytest.raises(ProblemError, match="fp8 only with b as weight"):
        warmup(64, 64, layout="kn", dtype="fp8")
    with pytest.raises(OperandTypeError, match="activation"):
        warmup(64, 64, activation="tanh")
    assert warmup(0, 64).configs == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu() -> None:
    """The error says what torch sees."""
    with pytest.raises(OperandError, match="torch sees 0 GPUs"):
        warmup(64, 64)

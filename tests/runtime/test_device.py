"""Which GPU an answer is for: named, torch's current one, or the driver's first visible one; never a context."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fake_nvml import Gpu, Slice, make_nvml
from hand_made import POINTER, make_model

import wavetune
from wavetune.core.arch import find_arch
from wavetune.errors import ArchError, MissError
from wavetune.runtime.codec import read_model, write_model
from wavetune.runtime.device import Device, cuda_device, resolve_device

H200, H100, A100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
MIXED = [Gpu(A100, "GPU-aaaa1111"), Gpu(H200, "GPU-bbbb2222"), Gpu(H100, "GPU-bbbb3333", has_mig=False)]
CUT_UP = [Gpu(H200, "GPU-cccc1111", [Slice("MIG-1111", 60), Slice("MIG-2222", 32)]), Gpu(H200, "GPU-dddd1111")]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Return a function that puts GPUs into the machine, and takes torch away."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def install(gpus: list[Gpu], **variables: str) -> SimpleNamespace:
        module = make_nvml(gpus)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        wavetune.clear_caches()
        return module

    return install


class FakeCuda:
    """What of ``torch.cuda`` is looked at, for GPUs that a test names."""

    def __init__(self, *gpus: tuple[str, int]) -> None:
        self.gpus, self.index, self.is_started = gpus, 0, True

    def is_initialized(self) -> bool:
        """Whether CUDA was started."""
        return self.is_started

    def current_device(self) -> int:
        """Return the current ordinal; starts CUDA, as torch's does."""
        self.is_started = True
        return self.index

    def get_device_properties(self, index: int) -> SimpleNamespace:
        """Return name and SMs; starts CUDA."""
        self.is_started = True
        name, num_sms = self.gpus[index]
        return SimpleNamespace(name=name, multi_processor_count=num_sms)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Put a torch into the process that sees two different GPUs and a slice of a third."""
    fake = FakeCuda((H200, 132), (H100, 132), (f"{A100} MIG 3g.40gb", 42))
    module = ModuleType("torch")
    module.cuda = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    wavetune.clear_caches()
    return fake


def test_a_name_wins_over_everything(driver: Callable[..., SimpleNamespace], cuda: FakeCuda) -> None:
    """An explicit name is the whole GPU; the setting comes next; neither asks torch or the driver."""
    module = driver(CUT_UP)
    assert resolve_device("h100") == Device(find_arch("h100"), 132, "nvidia-h100")
    assert resolve_device("h100") is resolve_device("NVIDIA H100 80GB HBM3")
    wavetune.configure(arch="a100")
    assert resolve_device().arch.name == "nvidia-a100"
    assert resolve_device("h200").arch.name == "nvidia-h200"
    assert module.n_calls == 0


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        (None, A100), ("0", A100), ("1", H200), ("2,0", H100), (" 1 , 0", H200), ("GPU-bbbb2222", H200),
        ("GPU-bbbb3", H100), ("GPU-a", A100), ("1,-1,0", H200), ("GPU-aaaa1111,1", A100),
    ],
)  # fmt: skip
def test_the_driver_counts_as_cuda_does(driver: Callable[..., SimpleNamespace], visible: str | None, name: str) -> None:
    """The first visible GPU answers: by ordinal, by UUID, by the beginning of a UUID."""
    module = driver(
        MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID", **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    )
    device = resolve_device()
    assert (device.name, device.arch.name, device.index) == (name, find_arch(name).name, 0)
    assert not device.is_scaled
    assert resolve_device() is device
    assert (module.n_calls, module.n_open) == (1, 0), "asked once, and closed"


@pytest.mark.parametrize("visible", ["", "-1", "3", "GPU-b", "GPU-ffff", "none", "MIG-9"])
def test_an_entry_that_names_nothing_ends_the_list(driver: Callable[..., SimpleNamespace], visible: str) -> None:
    """Where CUDA would see no GPU, there is none, and the error names the variable."""
    driver(MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=f"{visible},1" if visible else visible)
    for _ in range(2):
        with pytest.raises(ArchError, match=r"CUDA_VISIBLE_DEVICES.*arch="):
            resolve_device()


def test_ordinals_of_different_gpus_are_not_guessed(driver: Callable[..., SimpleNamespace]) -> None:
    """CUDA counts from the fastest GPU on; which that is, only CUDA knows. Equal GPUs and UUIDs leave no question."""
    driver(MIXED)
    with pytest.raises(ArchError, match=r"different GPUs.*CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        resolve_device()
    driver(MIXED, CUDA_VISIBLE_DEVICES="GPU-bbbb2222")
    assert resolve_device().name == H200
    driver([Gpu(H200, "GPU-1"), Gpu(H200, "GPU-2")], CUDA_VISIBLE_DEVICES="1,0")
    assert resolve_device().name == H200


@pytest.mark.parametrize(
    ("visible", "num_sms"), [(None, 60), ("0", 60), ("MIG-1111", 60), ("MIG-2222", 32), ("GPU-cccc", 60), ("1", 132)]
)
def test_a_slice_has_its_own_sms(driver: Callable[..., SimpleNamespace], visible: str | None, num_sms: int) -> None:
    """Of a GPU that is cut up the first slice answers, or the one that is named, with the SMs it has."""
    driver(CUT_UP, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    device = resolve_device()
    assert (device.arch.name, device.num_sms, device.name) == ("nvidia-h200", num_sms, H200)
    assert device.is_scaled == (num_sms != 132)
    choice = wavetune.explain_choice(4096, 4096, 4096)
    assert (choice.num_sms, choice.is_scaled) == (num_sms, num_sms != 132)
    assert choice.config == wavetune.choose_config(4096, 4096, 4096, arch="h200", num_sms=num_sms)


def test_the_multi_process_service_shares_sms(driver: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """A percentage counts where the service runs, rounded up to whole SMs; elsewhere CUDA ignores it, and so do we."""
    gpus = [Gpu(H200, "GPU-1")]
    driver(gpus, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    assert resolve_device().num_sms == 132
    (tmp_path / "control").touch()
    for percentage, num_sms in (("30", 40), ("100", 132), ("0", 132), ("1", 2), ("much", 132)):
        driver(gpus, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
        assert resolve_device().num_sms == num_sms


def test_without_driver_or_library_the_error_says_so(
    driver: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is named, and what to do."""
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml([], has_driver=False))
    with pytest.raises(ArchError, match=r"Driver Not Loaded.*WAVETUNE_ARCH"):
        resolve_device()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ArchError, match=r"nvidia-ml-py.*WAVETUNE_ARCH"):
        resolve_device()


def test_an_unknown_gpu_is_not_taken_for_a_known_one(driver: Callable[..., SimpleNamespace]) -> None:
    """An H200 NVL is no H200; the error shows its name."""
    driver([Gpu("NVIDIA H200 NVL", "GPU-1")])
    with pytest.raises(ArchError, match=r"H200 NVL.*arch="):
        wavetune.choose_config(8, 64, 64)


def test_the_current_device_of_torch_answers_if_cuda_is_up(
    driver: Callable[..., SimpleNamespace], cuda: FakeCuda
) -> None:
    """Each device of torch is described once; before CUDA is up the driver answers, and CUDA is not started."""
    module = driver([Gpu(H200, "GPU-1")])
    sys.modules["torch"].cuda = cuda  # type: ignore[attr-defined]
    cuda.is_started = False
    assert resolve_device().name == H200
    assert (cuda.is_started, module.n_calls) == (False, 1)
    cuda.is_started = True
    for index, (name, num_sms) in enumerate(cuda.gpus):
        cuda.index = index
        device = resolve_device()
        assert (device.index, device.num_sms, device.name) == (index, num_sms, name)
        assert resolve_device() is device is cuda_device(index)
    assert device.arch.name == "nvidia-a100"
    assert device.is_scaled
    assert module.n_calls == 1


def test_a_half_imported_torch_is_no_torch(
    driver: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another thread imports torch, its module has no attributes yet."""
    driver([Gpu(H200, "GPU-1")])
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert resolve_device().name == H200


def test_two_gpus_of_one_process_have_their_own_tables(cuda: FakeCuda, tmp_path: Path) -> None:
    """Answers follow the current device of each call, also from memory."""
    forms = make_model().forms[1:2]
    alone = make_model(arch="nvidia-h100", forms=forms, default_index=0, micro=(), cells={}, exact={})
    write_model(alone, tmp_path / "nvidia-h100" / "gemm-bf16.json")
    wavetune.configure(models=tmp_path)
    for _ in range(3):
        answers = []
        for cuda.index in (0, 1):
            answers.append(wavetune.choose_config(4096, 4096, 4096))
        assert answers[1] == POINTER
        assert answers[0] == wavetune.choose_config(4096, 4096, 4096, arch="h200") != POINTER


def test_a_limit_on_sms_is_an_input(cuda: FakeCuda) -> None:
    """``num_sms`` wins over what the device has, up to the whole GPU."""
    assert resolve_device("h200", 66).num_sms == 66
    assert resolve_device("h200", 66) is resolve_device("h200", 66)
    assert resolve_device("h200", 132) is resolve_device("h200")
    assert resolve_device(None, 66) == Device(find_arch("h200"), 66, H200, 0)
    cuda.index = 2
    assert resolve_device(None, 108).num_sms == 108
    for wrong in (0, -1, 109, True, 66.0, "66"):
        with pytest.raises(ArchError, match="num_sms"):
            resolve_device(None, wrong)  # type: ignore[arg-type]


def test_scaled_answers_are_honest(shipped_path: Path) -> None:
    """On part of a GPU no exact entry answers, all forms decide with the waves that are there, and it is a miss."""
    exact = next(iter(read_model(shipped_path).exact))
    for sizes in (exact, (500, 4096, 4096)):
        choice = wavetune.explain_choice(*sizes, arch="h200", num_sms=40)
        assert (choice.source, choice.num_sms, choice.is_scaled) == ("model", 40, True)
        whole = wavetune.explain_choice(*sizes, arch="h200")
        assert whole.source == ("exact" if sizes == exact else "nearest")
        assert (whole.num_sms, whole.is_scaled) == (132, False)
        assert choice.waves > whole.waves or choice.config != whole.config
        ranked = wavetune.rank_configs(wavetune.GemmProblem(*sizes), arch="h200", num_sms=40)
        assert (choice.config, choice.latency_us) == (ranked[0].config, ranked[0].latency_us)
        with pytest.raises(MissError):
            wavetune.choose_config(*sizes, arch="h200", num_sms=40, on_miss="error")


def test_finding_the_device_loads_neither_torch_nor_a_context(tmp_path: Path) -> None:
    """With torch installed but not loaded, a choice without ``arch`` leaves it so, and a fork answers too."""
    (tmp_path / "pynvml.py").write_text(
        "from fake_nvml import Gpu, make_nvml\nimport sys\n"
        f"sys.modules[__name__] = make_nvml([Gpu({H200!r}, 'GPU-1')])\n"
    )
    program = (
        "import os, sys, wavetune\n"
        "config = wavetune.choose_config(512, 4096, 4096)\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if wavetune.choose_config(512, 4096, 4096) == config else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={"PYTHONPATH": path, "WAVETUNE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

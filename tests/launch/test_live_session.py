"""What a live measurement prepares: memory, data as the problem describes it, the right GPU; and captures it spares."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import sys
import types
from typing import Any

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm_operands import operand_problem
from wavetune.kernels.registry import find_family
from wavetune.kernels.windows import DataWindows
from wavetune.launch import capture, live_session
from wavetune.launch.live import NotMeasuredError
from wavetune.launch.live_session import ROTATION_CACHES, SizingWindows, cuda_ordinal, launch_arch, memory_needs
from wavetune.measure import cuda_timing
from wavetune.measure.cuda_timing import Candidate
from wavetune.runtime.device import Device
from wavetune.runtime.measurer import MeasureRequest

H200 = find_arch("nvidia-h200")
MIB = 2**20


def config(**fields: int | str) -> KernelConfig:
    """Return a complete GEMM configuration."""
    base = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**base, **fields})


SPLIT = config(schedule="split_k", split_k=4)


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("alignment", [0, 2, 8, 16])
@pytest.mark.parametrize("dims", [(5, 48, 64), (5, 47, 63), (7, 40, 61), (1, 8, 16)])
def test_data_is_as_the_problem_describes_it(dims: tuple[int, int, int], alignment: int, layout: str) -> None:
    """Operands carved for a problem have its shape, layout and at least its alignment, padded where rows need it."""
    torch = pytest.importorskip("torch")
    m, n, k = dims
    problem = GemmProblem(m, n, k, "fp16", layout, alignment)
    windows = DataWindows("fp16", "cpu", MIB, output_bytes=MIB // 4, row_alignment=live_session.row_alignment(problem))
    for _ in range(3):
        operands = find_family("gemm").carve_operands(problem, SPLIT, windows)
        seen = operand_problem(operands.a, operands.b, operands.out, layout)
        assert seen.dims == problem.dims
        assert seen.alignment >= problem.alignment
        assert all(tensor.isfinite().all() for tensor in (operands.a, operands.b))
        assert operands.a.dtype == torch.float16
        assert operands.partials.numel() >= 4 * m * n


def test_contiguous_data_stays_contiguous() -> None:
    """Rows are padded only where the problem's alignment asks for it."""
    pytest.importorskip("torch")
    problem = GemmProblem(5, 47, 63, "fp16")
    windows = DataWindows("fp16", "cpu", MIB, row_alignment=live_session.row_alignment(problem))
    operands = find_family("gemm").carve_operands(problem, config(), windows)
    assert operands.a.is_contiguous()
    assert operands.b.is_contiguous()


@pytest.mark.parametrize("alignment", [2, 16])
def test_memory_is_counted_before_it_is_taken(alignment: int) -> None:
    """What is counted is what the carved operands occupy, with the workspace of split-k and caches to rotate over."""
    pytest.importorskip("torch")
    problem = GemmProblem(37, 1001, 2003, "fp16", alignment=alignment)
    family, l2_bytes = find_family("gemm"), 3 * MIB
    inputs, outputs, scratch = memory_needs(family, problem, [config(), SPLIT], l2_bytes)
    windows = DataWindows("fp16", "cpu", inputs, output_bytes=outputs, row_alignment=alignment)
    operands = family.carve_operands(problem, SPLIT, windows)
    rows = ((operands.a, 37), (operands.b, 1001))
    occupied = sum(tensor.stride(0) * height * tensor.element_size() for tensor, height in rows)
    assert inputs == occupied + ROTATION_CACHES * l2_bytes
    assert outputs == operands.out.stride(0) * 37 * 2 + l2_bytes
    assert scratch == operands.partials.numel() * 4
    assert memory_needs(family, problem, [config()], l2_bytes)[2] == 0


def test_counting_allocates_nothing() -> None:
    """The needs of a problem far beyond any memory are counted in no time."""
    huge = GemmProblem(2**20, 2**20, 2**20)
    sizes = SizingWindows("bf16", 16)
    find_family("gemm").carve_operands(huge, SPLIT, sizes)
    assert sizes.input_bytes == 2 * 2**41
    assert sizes.output_bytes == 2**41
    assert sizes.scratch_bytes == 4 * 4 * 2**40


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, name: str = "NVIDIA H200", num_sms: int = 132, **cuda: Any) -> Any:
    """Put a torch with one made-up GPU in place of the real one."""
    properties = types.SimpleNamespace(name=name, multi_processor_count=num_sms)
    parts = {
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "current_device": lambda: 0,
        "get_device_properties": lambda gpu: properties,
    }
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(**{**parts, **cuda})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_the_gpu_measured_is_the_gpu_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device by ordinal is that one; by name, the current one if it is of that model; others are refused."""
    fake_torch(monkeypatch)
    assert cuda_ordinal(Device(H200, 132, "NVIDIA H200", 3)) == 3
    assert cuda_ordinal(Device(H200, 132, "nvidia-h200", None)) == 0
    h100 = find_arch("h100")
    with pytest.raises(NotMeasuredError, match="nvidia-h100, CUDA device 0 is nvidia-h200"):
        cuda_ordinal(Device(h100, 132, "nvidia-h100", None))
    fake_torch(monkeypatch, name="Unheard Of")
    with pytest.raises(NotMeasuredError, match="Unheard Of"):
        cuda_ordinal(Device(H200, 132, "nvidia-h200", None))


def test_a_limit_on_sms_that_launches_do_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer for fewer SMs is not measured on all of them, unless the driver shares them out."""
    fake_torch(monkeypatch)
    part = Device(H200, 64, "NVIDIA H200", 0)
    with pytest.raises(NotMeasuredError, match="64 SMs"):
        cuda_ordinal(part)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    assert cuda_ordinal(part) == 0
    assert launch_arch(part).num_sms == 64
    assert launch_arch(Device(H200, 132, "NVIDIA H200", 0)) is H200


class MadeUpCuda:
    """As much of ``torch.cuda`` as a session touches, over CPU memory; notes what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
        torch = pytest.importorskip("torch")
        self.calls: list[str] = []
        self.driver = MadeUpDriver()
        self.launched: list[tuple[KernelConfig, int]] = []
        self.modes: list[int] = []
        properties = types.SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, uuid="u-u-i-d")
        cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            _is_in_bad_fork=lambda: False,
            current_device=lambda: 0,
            get_device_properties=lambda gpu: properties,
            mem_get_info=lambda gpu: (free_bytes, 2 * free_bytes),
            device=contextlib.nullcontext,
            current_stream=lambda gpu: self.stream("current"),
        )
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setattr(capture, "cuda_driver", lambda: self.driver)
        monkeypatch.setattr(live_session, "load_kernels", lambda gpu, dtype: self.calls.append(f"loaded for {dtype}"))
        monkeypatch.setattr(live_session, "private_stream", lambda gpu: self.stream("private"))
        monkeypatch.setattr(live_session, "StreamTimer", lambda stream, flush: ("timer", stream, flush))
        monkeypatch.setattr(live_session, "cache_flush", lambda data: data)
        monkeypatch.setattr(
            live_session, "DataWindows", lambda dtype, device, *sizes, **more: DataWindows(dtype, "cpu", *sizes, **more)
        )
        monkeypatch.setattr(type(find_family("gemm")), "bind", self.bind)

    def stream(self, name: str) -> Any:
        """Return a stream that notes what it waits for."""
        return types.SimpleNamespace(
            cuda_stream=7,
            synchronize=lambda: self.calls.append(f"{name} synchronized"),
            wait_stream=lambda other: self.calls.append(f"{name} waits"),
        )

    def bind(self, operands: Any, config: KernelConfig, arch: Any, stream: int) -> Any:
        """Bind a launch that notes the configuration, its data and the capture mode."""
        assert stream == 7
        self.modes.append(self.driver.mode)

        def launch() -> None:
            self.launched.append((config, operands.a.data_ptr()))
            self.modes.append(self.driver.mode)

        return launch


SMALL_CACHE = dataclasses.replace(H200, l2_bytes=MIB)


def live_request(problem: GemmProblem) -> MeasureRequest:
    """Return a request on the made-up GPU, whose cache is small so that the data is."""
    return MeasureRequest(problem, (SPLIT,), config(), Device(SMALL_CACHE, 132, "NVIDIA H200", 0), 50.0, 0.02)


def test_a_session_from_opening_to_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's work is waited for, binding launches nothing, launches rotate over data, all ends in order."""
    cuda = MadeUpCuda(monkeypatch, free_bytes=2**30)
    request = live_request(GemmProblem(16, 256, 512, "fp16"))
    with live_session.open_session(request, [config(), SPLIT]) as session:
        assert cuda.calls == ["current synchronized", "loaded for fp16", "private waits"]
        assert session.lock_identity == "u-u-i-d"
        assert 3.0 <= session.expected_us < 10.0
        assert session.timer[2].numel() == ROTATION_CACHES * MIB // 2
        candidates = [session.bind(config()), session.bind(SPLIT)]
        assert cuda.launched == []
        with pytest.raises(NotMeasuredError, match="trips"):
            session.bind(config(schedule="split_k", split_k=64))
        for candidate in candidates:
            assert len(candidate.launches) > 1
            for launch in candidate.launches:
                launch()
        addresses = [address for _, address in cuda.launched]
        assert len(set(addresses)) == len(addresses) == sum(len(candidate.launches) for candidate in candidates)
    assert set(cuda.modes) == {capture.THREAD_LOCAL}
    assert cuda.driver.mode == 0
    assert cuda.calls[-1] == "private synchronized"


def test_compiling_is_told_from_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first launch of each configuration takes to bind counts as compiling, also if it fails."""
    MadeUpCuda(monkeypatch, free_bytes=2**30)
    family = type(find_family("gemm"))
    ticks = itertools.count()
    with live_session.open_session(live_request(GemmProblem(16, 256, 512, "fp16")), [config(), SPLIT]) as session:
        session.compile_s = 0.0
        monkeypatch.setattr(live_session.time, "perf_counter", lambda: float(next(ticks)))
        n_launches = len(session.bind(config()).launches)
        assert n_launches > 1
        assert session.compile_s == 1.0
        monkeypatch.setattr(family, "bind", lambda *args: pytest.fail("ptxas died"))
        with pytest.raises(pytest.fail.Exception):
            session.bind(SPLIT)
        assert session.compile_s == 2.0


def test_the_flush_needs_no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the pool is reduced along memory: across it, torch would allocate megabytes for each reduction."""
    torch = pytest.importorskip("torch")
    pool = torch.arange(5 * 1024 * 7, dtype=torch.float32)
    reduce, seen = torch.amax, []
    monkeypatch.setattr(torch, "amax", lambda rows, dim, out: seen.append((rows, reduce(rows, dim=dim, out=out))))
    cuda_timing.cache_flush(pool)()
    rows, result = seen[0]
    assert rows.data_ptr() == pool.data_ptr()
    assert rows.stride() == (35, 1)
    assert result.tolist() == [35.0 * row + 34.0 for row in range(1024)]


def test_a_round_is_read_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer times the candidates of a round as they come, so many launches of each, on little data too."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(cuda_timing, "_spin_cycles_per_us", lambda torch, stream: 1.0)
    launched: list[str] = []
    ticks = itertools.count()

    def event(**options: bool) -> Any:
        made = types.SimpleNamespace(at=0.0, query=lambda: False)
        made.record = lambda stream: setattr(made, "at", float(next(ticks)))
        made.elapsed_time = lambda other: other.at - made.at
        return made

    fake = types.SimpleNamespace(
        Event=event, _sleep=lambda cycles: None, stream=lambda stream: contextlib.nullcontext()
    )
    monkeypatch.setattr(torch, "cuda", fake)
    stream = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(live_session, "private_stream", lambda gpu: stream)
    monkeypatch.setattr(live_session, "DataWindows", lambda dtype, device, n_bytes: DataWindows(dtype, "cpu", n_bytes))
    for dtype in ("bf16", "fp8"):
        live_session.load_kernels.__wrapped__(0, dtype)
    timer = live_session.StreamTimer(stream, cuda_timing.cache_flush(torch.zeros(4096)))
    slow, fast = (Candidate([lambda name=name: launched.append(name)] * 3) for name in ("slow", "fast"))
    assert timer.read([fast, slow], [2, 1]) == [500.0, 1000.0]
    assert launched == ["fast", "fast", "slow"]


def test_a_measurement_takes_a_share_of_the_free_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take more than a quarter of the free memory is refused before anything is allocated."""
    cuda = MadeUpCuda(monkeypatch, free_bytes=12 * MIB)
    monkeypatch.setattr(live_session, "DataWindows", lambda *sizes, **more: pytest.fail("allocated"))
    request = live_request(GemmProblem(16, 256, 512, "fp16"))
    with pytest.raises(NotMeasuredError, match="of the 12 MiB"), live_session.open_session(request, [config()]):
        pass
    assert cuda.driver.mode == 0


class MadeUpDriver:
    """Swaps a capture mode as CUDA does, and has some streams that are capturing."""

    def __init__(self, capturing: set[int] | None = None, status: int = 0) -> None:
        self.mode = 0
        self.capturing = capturing or set()
        self.status = status

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        """Swap the mode, or fail."""
        if self.status == 0:
            self.mode, mode._obj.value = mode._obj.value, self.mode
        return self.status

    def cuStreamIsCapturing(self, stream: int, status: Any) -> int:  # noqa: N802
        """Tell whether a stream is being captured."""
        status._obj.value = int(stream in self.capturing)
        return self.status


def test_captures_of_other_threads_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, the thread ignores captures of others; afterwards, also after an error, its mode is what it was."""
    driver = MadeUpDriver()
    monkeypatch.setattr(capture, "cuda_driver", lambda: driver)
    with capture.sparing_captures():
        assert driver.mode == capture.THREAD_LOCAL
        with capture.sparing_captures():
            assert driver.mode == capture.THREAD_LOCAL
        assert driver.mode == capture.THREAD_LOCAL
    assert driver.mode == 0
    driver.mode = 2
    with pytest.raises(ValueError, match="inside"), capture.sparing_captures():
        raise ValueError("inside")
    assert driver.mode == 2
    for unable in (MadeUpDriver(status=201), None):
        monkeypatch.setattr(capture, "cuda_driver", lambda unable=unable: unable)
        with capture.sparing_captures():
            pass


def test_captures_are_seen_on_the_streams_that_torch_hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture on the current stream or on one of torch's is seen; without CUDA there is none."""
    streams = (11, 12, 13)
    monkeypatch.setattr(capture, "pool_streams", lambda gpu: streams)
    fake_torch(monkeypatch)
    for driver, expected in ((MadeUpDriver(), False), (MadeUpDriver({12}), True), (MadeUpDriver({99}), False)):
        monkeypatch.setattr(capture, "cuda_driver", lambda driver=driver: driver)
        assert capture.is_capturing() is expected
    monkeypatch.setattr(capture, "cuda_driver", lambda: None)
    assert not capture.is_capturing()
    fake_torch(monkeypatch, is_current_stream_capturing=lambda: True)
    assert capture.is_capturing()
    fake_torch(monkeypatch, is_initialized=lambda: False, is_current_stream_capturing=lambda: pytest.fail("asked"))
    assert not capture.is_capturing()
    monkeypatch.delitem(sys.modules, "torch")
    assert not capture.is_capturing()


def test_every_pool_stream_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams come in turn; a whole round has each of them once."""
    handed = [0]

    def stream(gpu: int) -> Any:
        handed[0] += 1
        return types.SimpleNamespace(cuda_stream=1000 + handed[0] % capture.POOL_STREAMS)

    fake_torch(monkeypatch, Stream=stream)
    capture.pool_streams.cache_clear()
    try:
        assert len(set(capture.pool_streams(0))) == capture.POOL_STREAMS
        assert handed[0] == capture.POOL_STREAMS
    finally:
        capture.pool_streams.cache_clear()


def test_the_driver_calls_are_declared_as_cuda_h_has_them() -> None:
    """Handles are passed as pointers: an int would be cut to 32 bits."""
    driver = capture.cuda_driver()
    if driver is None:
        pytest.skip("no CUDA driver here")
    assert driver.cuStreamIsCapturing.argtypes == [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]

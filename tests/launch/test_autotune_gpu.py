"""`wavetune.autotune` and `wavetune.perf_model` on a GPU: right, near-best, and never timing in a capture."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

import wavetune  # noqa: E402
from wavetune.errors import ArchError  # noqa: E402
from wavetune.launch.autotune import AutotunedKernel, autotune  # noqa: E402
from wavetune.launch.autotune import bench as bench_module  # noqa: E402
from wavetune.launch.autotune.bench import CudaBench  # noqa: E402
from wavetune.launch.autotune.stopwatch import CudaStopwatch, Lap  # noqa: E402
from wavetune.launch.perf_model import perf_model  # noqa: E402
from wavetune.runtime.choice import Source  # noqa: E402
from wavetune.runtime.device import cuda_device  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class CountingBench(CudaBench):
    """Counts measurements, and fails the test if one begins in a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open(self, budget_ms: float) -> Any:
        """Count, then open."""
        assert not torch.cuda.is_current_stream_capturing()
        self.opened += 1
        return super().open(budget_ms)


@pytest.fixture(autouse=True)
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingBench]:
    """Use a store and models of this test's own, and count measurements."""
    counting = CountingBench()
    monkeypatch.setattr(bench_module, "_BENCH", counting)
    wavetune.configure(cache_dir=tmp_path / "cache", models=[tmp_path / "models"])
    yield counting
    wavetune.configure(cache_dir=None, models=None, on_miss=None)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports an example afresh."""

    def load(name: str) -> ModuleType:
        if not EXAMPLES.is_dir():
            pytest.skip("examples are in the checkout, not in the wheel")
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


def best_us(kernel: AutotunedKernel, grid: Any, *args: Any) -> dict[Any, float]:
    """Time every configuration closely, in microseconds, by block sizes."""
    device = torch.cuda.current_device()
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    stopwatch = CudaStopwatch(device, l2_bytes)
    readings: dict[Any, list[float]] = {}
    for round_index in range(12):
        for identity, candidate in kernel.candidates.items():
            run = lambda options=candidate.options: kernel.fn.run(*args, grid=grid, warmup=False, **options)  # noqa: E731
            reading = stopwatch.read([Lap(run)])[0]
            if round_index > 1 and reading is not None:
                readings.setdefault(identity, []).append(reading)
    return {identity: sorted(values)[len(values) // 2] for identity, values in readings.items()}


def test_a_reduction_is_right_and_near_best(example: Callable[[str], ModuleType], bench: CountingBench) -> None:
    """Softmax over rows: equal to torch; the choice is near the best of its list; measured once."""
    module = example("row_softmax")
    for m, n in ((4096, 1000), (4096, 8192), (8, 65536)):
        x = torch.randn(m, n, device="cuda", dtype=torch.float16)
        for _ in range(3):
            y = module.softmax(x)
        assert (y.float() - torch.softmax(x.float(), dim=1)).abs().max() < 1e-3
        choice = module.softmax_kernel.explain(x, y, m, n)
        assert choice.source is Source.MEASURED
        times = best_us(module.softmax_kernel, lambda meta, m=m: (triton.cdiv(m, meta["ROWS"]),), x, y, m, n)
        chosen = next(c for c in module.softmax_kernel.candidates.values() if c.config is choice.config)
        assert times[chosen.identity] <= 1.15 * min(times.values())
    assert bench.opened == 3


def test_a_fused_product_is_right_and_starts_exact_again(
    example: Callable[[str], ModuleType], bench: CountingBench
) -> None:
    """GEMM with a row norm: equal to torch; the next process finds the winner in the store."""
    module = example("gemm_row_norm")
    m, n, k = 2000, 1024, 2048
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    weight = torch.randn(n, device="cuda", dtype=torch.float16)
    product = a.float() @ b.float().T
    expected = product * torch.rsqrt(product.square().mean(dim=1, keepdim=True) + 1e-6) * weight.float()
    configs = []
    for again in (module, example("gemm_row_norm")):
        out = again.gemm_row_norm(a, b, weight)
        assert (out.float() - expected).norm() / expected.norm() < 5e-3
        choice = again.gemm_row_norm_kernel.explain(a, b, weight, out, m, n, k, 1e-6)
        configs.append((choice.source, str(choice.config)))
    assert bench.opened == 1
    assert [source for source, _ in configs] == [Source.MEASURED, Source.EXACT]
    assert configs[0][1] == configs[1][1]


@triton.jit
def add_sum(x_ptr, total_ptr, N, BLOCK: tl.constexpr):
    """Add the sum of x to a number in memory."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(x))


@triton.jit
def double(x_ptr, N, BLOCK: tl.constexpr):
    """Double x in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    tl.store(x_ptr + offsets, 2.0 * x, mask=offsets < N)


def blocks(*sizes: int, **options: Any) -> list[Any]:
    """Return one configuration a block."""
    return [triton.Config({"BLOCK": size}, **options) for size in sizes]


def one_dimension(meta: dict[str, Any]) -> tuple[int]:
    """Return the grid of the kernels above."""
    return (triton.cdiv(meta["N"], meta["BLOCK"]),)


def test_atomic_and_in_place_kernels_survive_tuning(bench: CountingBench) -> None:
    """After the first launch, which measures, the arguments hold one launch's worth."""
    n = 1 << 20
    x = torch.ones(n, device="cuda")
    total = torch.full((1,), 5.0, device="cuda")
    add = autotune(blocks(256, 1024, 4096), ["N"], reset_to_zero=["total_ptr"], name="add-sum")(add_sum)
    add[one_dimension](x, total, n)
    assert total.item() == n
    add[one_dimension](x, total, n)
    assert total.item() == 2 * n
    twice = autotune(blocks(256, 1024, 4096), ["N"], restore_value=["x_ptr"], name="double")(double)
    twice[one_dimension](x, n)
    assert torch.equal(x, torch.full_like(x, 2.0))
    assert bench.opened == 2


def test_a_capture_is_never_timed_and_replays_right(bench: CountingBench) -> None:
    """A key that first comes up in a capture gets the default; afterwards it is measured."""
    n = 1 << 18
    kernel = autotune(blocks(512, 1024), ["N"], name="double-captured")(double)
    warm = torch.ones(n, device="cuda")
    kernel[one_dimension](warm, n)
    # Compiled and loaded outside of the capture, as any Triton kernel must be.
    x = torch.ones(n - 16, device="cuda")
    default = next(iter(kernel.candidates.values()))
    kernel.fn.run(torch.ones_like(x), n - 16, grid=one_dimension, warmup=False, **default.options)
    opened = bench.opened
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kernel[one_dimension](x, n - 16)
    assert bench.opened == opened
    x.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 6.0))
    assert kernel.explain(x, n - 16).source is Source.DEFAULT
    kernel[one_dimension](x, n - 16)
    assert bench.opened == opened + 1


def test_configurations_that_do_not_compile_are_dropped() -> None:
    """A block larger than Triton allows is the default here; the rest is measured and launched."""
    n = 1 << 16
    kernel = autotune(blocks(1 << 21, 512, 1024), ["N"], restore_value=["x_ptr"], name="double-large")(double)
    x = torch.ones(n, device="cuda")
    kernel[one_dimension](x, n)
    assert kernel.best_config.kwargs["BLOCK"] in (512, 1024)
    assert torch.equal(x, torch.full_like(x, 2.0))


def test_threads_launch_one_kernel(bench: CountingBench) -> None:
    """Eight threads with their own streams and keys: every result is right, every key is measured once."""
    kernel = autotune(blocks(256, 1024), ["N"], restore_value=["x_ptr"], name="double-threads")(double)
    failures: list[str] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(40):
                n = 4096 * (1 + (seed + step) % 5)
                x = torch.ones(n, device="cuda")
                kernel[one_dimension](x, n)
                if not torch.equal(x, torch.full_like(x, 2.0)):
                    failures.append(f"thread {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert bench.opened == 5


def test_calibration_answers_keys_that_were_never_measured(
    example: Callable[[str], ModuleType], bench: CountingBench, tmp_path: Path
) -> None:
    """Calibrate the reduction for seconds; then unseen keys are answered by its model, near-best, without timing."""
    from wavetune.launch.autotune.keys import group_keys
    from wavetune.launch.autotune.runner import KernelRunner
    from wavetune.mapping.source_digest import mapping_digest
    from wavetune.pipeline.family_calibration import calibrate_family
    from wavetune.pipeline.user_kernel import KernelJob
    from wavetune.runtime.family_file import family_file_name, write_family
    from wavetune.store.database import MeasurementStore

    try:
        arch = cuda_device(torch.cuda.current_device()).arch
    except ArchError as error:
        pytest.skip(str(error))
    module = example("row_softmax")
    kernel = module.softmax_kernel
    kernel.calibration_keys = {"M": (64, 16384), "N": (256, 16384)}
    (group,) = group_keys(kernel)
    probe = group.probe()
    runner = KernelRunner(kernel, arch, group.key_of, probe, torch.cuda.current_device())
    job = KernelJob(
        kernel.name, probe.dtype, probe.layout, group.names, tuple(kernel.candidates), group.shaper(),
        mapping_digest(kernel.mapping), group.pool,
    )  # fmt: skip
    with MeasurementStore(tmp_path / "kernel.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store, budget_s=40.0)
    assert not result.failures
    assert result.fitted.fit.relative_error < 0.25
    assert result.fitted.held_out is not None
    assert result.fitted.held_out.efficiency.geomean > 0.9
    path = tmp_path / "models" / arch.name / family_file_name(kernel.name, probe.dtype, probe.layout)
    write_family(result.file, path)
    wavetune.clear_caches()
    opened = bench.opened
    for m, n in ((1000, 3000), (300, 12000), (9000, 700)):
        x = torch.randn(m, n, device="cuda", dtype=torch.float16)
        y = module.softmax(x)
        assert (y.float() - torch.softmax(x.float(), dim=1)).abs().max() < 1e-3
        choice = kernel.explain(x, y, m, n)
        assert choice.source is Source.NEAREST
        times = best_us(kernel, lambda meta, m=m: (triton.cdiv(m, meta["ROWS"]),), x, y, m, n)
        chosen = next(c for c in kernel.candidates.values() if c.config is choice.config)
        assert times[chosen.identity] <= 1.35 * min(times.values())
    assert bench.opened == opened


@triton.jit
def tutorial_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """Multiply a [M, K] by b [N, K] transposed, tiles in groups of rows; sizes must divide."""
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    first = pid // (GROUP_SIZE_M * tiles_n) * GROUP_SIZE_M
    height = min(tiles_m - first, GROUP_SIZE_M)
    inside = pid % (GROUP_SIZE_M * tiles_n)
    rows = (first + inside % height) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    columns = inside // height * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    inner = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + rows[:, None] * K + inner[None, :]
    b_ptrs = b_ptr + columns[None, :] * K + inner[:, None]
    product = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BLOCK_SIZE_K)):
        product = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), product)
        a_ptrs += BLOCK_SIZE_K
        b_ptrs += BLOCK_SIZE_K
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], product.to(tl.bfloat16))


def test_triton_s_autotuner_finds_with_three_what_it_finds_with_all() -> None:
    """Under `triton.autotune`, the pick of the three that the model keeps is near that of the full search."""
    configs = [
        triton.Config(
            {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8}, num_stages=s, num_warps=w
        )
        for m, n, k, s, w in (
            (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
            (128, 32, 32, 4, 4), (128, 128, 64, 4, 4), (64, 64, 64, 4, 4), (256, 128, 64, 3, 8), (64, 32, 64, 4, 4),
        )
    ]  # fmt: skip
    try:
        model = perf_model(arch=cuda_device(torch.cuda.current_device()).arch.name)
        model(M=64, N=64, K=64, **configs[0].all_kwargs())
    except wavetune.WavetuneError as error:
        pytest.skip(str(error))
    key = ["M", "N", "K"]
    full = triton.autotune(configs, key)(tutorial_matmul)
    pruned = triton.autotune(configs, key, prune_configs_by={"perf_model": model, "top_k": 3})(tutorial_matmul)
    for m, n, k in ((4096, 4096, 4096), (256, 4096, 4096), (1024, 2048, 8192)):
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

        def grid(meta: dict[str, int], m: int = m, n: int = n) -> tuple[int]:
            return (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)

        full[grid](a, b, c, m, n, k)
        timings = {str(config): timing for config, timing in full.configs_timings.items()}
        pruned[grid](a, b, c, m, n, k)
        assert len(pruned.configs_timings) == 3
        expected = a.float() @ b.float().T
        assert (c.float() - expected).norm() / expected.norm() < 1e-2
        median = [timing[0] if isinstance(timing, list | tuple) else timing for timing in timings.values()]
        picked = timings[str(pruned.best_config)]
        assert (picked[0] if isinstance(picked, list | tuple) else picked) <= 1.15 * min(median)

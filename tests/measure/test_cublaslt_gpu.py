# ruff: noqa: E402 (what is imported below needs torch and triton)
"""cuBLASLt's list on a GPU: right results, CUDA graphs, and a contest with cuBLAS's default."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.kernels.gemm_operands import make_gemm_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, gemm_reference, relative_error
from wavetune.measure.cublaslt import CublasLt

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LIMIT = 16


@pytest.fixture(scope="module")
def library() -> Iterator[CublasLt]:
    """Return the library of the GPU that is present."""
    pytest.importorskip("nvmath", exc_type=ImportError)
    # Also loads torch's own cuBLASLt.
    torch.mm(torch.ones(16, 16, device="cuda", dtype=torch.bfloat16), torch.ones(16, 16, device="cuda").bfloat16())
    with CublasLt("cuda:0") as opened:
        yield opened


def contiguous_operands(problem: GemmProblem) -> Any:
    """Return operands without padding, whose output is NaN."""
    operands = make_gemm_operands(problem, "cuda", 0)[0]
    assert all(tensor.is_contiguous() for tensor in (operands.a, operands.b, operands.out))
    return operands


@pytest.mark.parametrize("dims", [(1, 4096, 4096), (64, 6144, 4096), (300, 712, 1416), (2048, 4096, 1024)])
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_algorithm_is_right(library: CublasLt, dtype: str, layout: str, dims: tuple[int, int, int]) -> None:
    """Against float64; the list holds more than the default, in the order of the heuristic."""
    problem = GemmProblem(*dims, dtype=dtype, layout=layout)
    operands = contiguous_operands(problem)
    reference = gemm_reference(operands)
    stream = torch.cuda.current_stream().cuda_stream
    with library.plan(problem, LIMIT) as plan:
        assert 1 < len(plan.algorithms) <= LIMIT
        assert [entry.rank for entry in plan.algorithms] == list(range(len(plan.algorithms)))
        for entry in plan.algorithms:
            assert entry.split_k >= 0
            assert entry.workspace_bytes <= 32 * 2**20
            operands.out.fill_(math.nan)
            plan.bind(entry, operands.a, operands.b, operands.out, stream)()
            torch.cuda.synchronize()
            assert relative_error(operands.out, reference) < MAX_RELATIVE_ERROR[dtype], entry.describe()


@pytest.mark.parametrize("dims", [(16, 4096, 4096), (512, 10240, 8192)])
def test_algorithms_can_be_captured_into_a_graph(library: CublasLt, dims: tuple[int, int, int]) -> None:
    """A replay computes what a launch does, on inputs that changed since the capture."""
    problem = GemmProblem(*dims)
    operands = contiguous_operands(problem)
    stream = torch.cuda.Stream()
    with library.plan(problem, 4) as plan, torch.cuda.stream(stream):
        for entry in plan.algorithms:
            launch = plan.bind(entry, operands.a, operands.b, operands.out, stream.cuda_stream)
            launch()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            launch()
            graph.capture_end()
            operands.a.normal_()
            operands.out.fill_(math.nan)
            graph.replay()
            stream.synchronize()
            assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["bf16"]


def test_the_first_of_the_list_is_as_fast_as_the_default(library: CublasLt) -> None:
    """torch.mm runs what the heuristic ranks first, or nearly: else the list is of another library or another problem.

    Within a fifth: torch asks with other limits, and the clock moves.
    """
    from wavetune.measure.cublaslt_contest import VendorContest

    with VendorContest(find_arch(torch.cuda.get_device_name()), "bf16") as contest:
        result = contest.run(GemmProblem(2048, 6144, 4096), None, top=8)
    assert not result.failures
    assert result.first is not None
    assert result.best is not None
    assert result.default is not None
    assert 0.8 < result.first.latency_us / result.default.latency_us < 1.25
    # The winner was re-timed beside the first; it may lose by noise only.
    assert result.best.latency_us < 1.03 * result.first.latency_us


def test_tune_writes_what_it_found(library: CublasLt, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole verb on two shapes: every latency is known, and the files agree with stdout."""
    from wavetune.cli.tune_vendor import tune_cublaslt
    from wavetune.runtime.device import resolve_device

    workload = Workload.from_problems([(GemmProblem(16, 4096, 4096), 3), (GemmProblem(512, 6144, 4096), 1)])
    tune_cublaslt(workload, resolve_device(), gpu=0, top=8, out=tmp_path, as_json=True)
    document = json.loads((tmp_path / "cublaslt.json").read_text())
    assert json.loads(capsys.readouterr().out) == document
    assert [row["status"] for row in document["problems"]] == ["ok", "ok"]
    assert all(row["own_us"] > 0 for row in document["problems"])
    assert document["summary"]["best_speedup"] > 0.95
    assert len((tmp_path / "cublaslt.csv").read_text().splitlines()) == 3

"""cuBLASLt's heuristic list for a GEMM, and every algorithm of it as a launch.

cuBLAS runs the first entry of a list that its heuristic ranks without measuring. Which of the list is fastest, a
measurement tells: that is what hipblaslt-bench does for hipBLASLt. The bindings are those of nvmath-python (the extra
``cublaslt``); the library is the one that torch has loaded, so the default and the list come from the same build.

cuBLASLt thinks in columns: a row-major C[m, n] = A[m, k] B[k, n] is its column-major C'[n, m] = B'[n, k] A'[k, m], with
our weight as its first operand and our leading strides as its leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandError, ProblemError, RunnerError

WORKSPACE_BYTES = 32 * 2**20
"""What torch gives cuBLAS on Hopper, and NVIDIA's recommendation for it (cuBLAS documentation, cublasSetWorkspace)."""

POINTER_ALIGNMENT = 256
"""Bytes that cuBLASLt assumes base pointers are aligned to, unless told (cublasLtMatmulPreferenceAttributes_t)."""

_CUDA_TYPES = {"bf16": 14, "fp16": 2}
"""CUDA_R_16BF and CUDA_R_16F of library_types.h."""

_CUDA_R_32F = 0
_SUCCESS = 0

CUBLASLT_DTYPES = tuple(_CUDA_TYPES)
"""Dtypes that are enumerated: 16 bits, accumulated in fp32."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One entry of the heuristic's list.

    Parameters
    ----------
    rank : int
        Place in the list, from 0: what cuBLASLt expects to be fastest.
    algorithm_id : int
        The library's number of the kernel family.
    tile, stages, cluster : str
        As the library names them, such as ``128x256``, ``64xAUTO``, ``2x1x1``.
    split_k : int
        Parts that k is cut into.
    swizzle, custom : int
        Order of tiles; an option without a documented meaning.
    workspace_bytes : int
        What the algorithm needs.
    waves : float
        Waves that the library expects.
    """

    rank: int
    algorithm_id: int
    tile: str
    stages: str
    cluster: str
    split_k: int
    swizzle: int
    custom: int
    workspace_bytes: int
    waves: float

    def describe(self) -> str:
        """Return the entry in one word or two, such as ``#3 id66 128x256 64xAUTO 2x1x1``."""
        split = f" split{self.split_k}" if self.split_k > 1 else ""
        return f"#{self.rank} id{self.algorithm_id} {self.tile} {self.stages} {self.cluster}{split}"


class CublasLt:
    """cuBLASLt on one device. A context manager.

    Parameters
    ----------
    device : str
        Torch device, such as ``cuda:0``; its context must be current.

    Raises
    ------
    RunnerError
        If nvmath-python or the library is missing, or the library does not start.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._lt, self._cublas = _bindings()
        # torch must have loaded its cuBLASLt before nvmath looks for one.
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        try:
            self._handle = self._lt.create()
            self.version = int(self._lt.get_version())
        except Exception as error:
            raise RunnerError(f"cuBLASLt does not start: {error}") from None

    def __enter__(self) -> CublasLt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lt.destroy(self._handle)

    def plan(self, problem: GemmProblem, limit: int) -> CublasLtPlan:
        """Ask the heuristic for up to ``limit`` algorithms of a problem with contiguous operands.

        Raises
        ------
        ProblemError
            If the dtype is not one of `CUBLASLT_DTYPES`, or the problem is empty.
        """
        return CublasLtPlan(self._lt, self._cublas, self._handle, self._workspace, problem, limit)


class CublasLtPlan:
    """The algorithms of one problem; made by `CublasLt.plan`. A context manager.

    Attributes
    ----------
    algorithms : list of Algorithm
        Best first, as the heuristic thinks; empty where it knows none.
    reason : str
        What the library said where it knows none.
    """

    def __init__(
        self, lt: Any, cublas: Any, handle: int, workspace: Any, problem: GemmProblem, limit: int
    ) -> None:  # fmt: skip
        if problem.dtype not in _CUDA_TYPES:
            raise ProblemError(f"cuBLASLt is asked for {', '.join(CUBLASLT_DTYPES)}, not {problem.dtype}")
        if problem.is_empty:
            raise ProblemError(f"cuBLASLt computes no empty product, got {problem.dims}")
        self._lt, self._handle, self._workspace, self.problem = lt, handle, workspace, problem
        self.reason = ""
        self._release: list[Callable[[], None]] = []
        # Host memory that the library reads at every launch.
        self._alpha, self._beta = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
        try:
            self._describe(cublas)
            self._results = self._ask_heuristic(limit)
            self.algorithms = [self._algorithm(rank) for rank in range(len(self._results))]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CublasLtPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the descriptors; launches that were bound must not run any more."""
        while self._release:
            self._release.pop()()

    def bind(self, algorithm: Algorithm, a: Any, b: Any, out: Any, stream: int) -> Callable[[], None]:
        """Return a function of no arguments that launches an algorithm on ``stream``, allocating nothing.

        Launches of a stream share one workspace, and may be captured into a CUDA graph. The plan must stay open.

        Parameters
        ----------
        algorithm : Algorithm
            One of ``algorithms``.
        a : Tensor of shape (m, k)
        b : Tensor of shape (n, k) or (k, n)
            As the problem's layout says.
        out : Tensor of shape (m, n)
            Written.
        stream : int
            CUDA stream handle.

        Raises
        ------
        OperandError
            If a tensor has another shape, is not contiguous, or is not aligned to `POINTER_ALIGNMENT`.
        """
        m, n, k = self.problem.dims
        b_shape = (n, k) if self.problem.layout == "nk" else (k, n)
        for name, tensor, shape in (("a", a, (m, k)), ("b", b, b_shape), ("out", out, (m, n))):
            if tuple(tensor.shape) != shape or not tensor.is_contiguous():
                raise OperandError(f"{name} must be contiguous, of shape {shape}, got {tuple(tensor.shape)}")
            if tensor.data_ptr() % POINTER_ALIGNMENT:
                raise OperandError(f"{name} must be aligned to {POINTER_ALIGNMENT} bytes, got {tensor.data_ptr():#x}")
        weight, tokens, result = self._layouts
        args = (
            self._handle, self._operation, self._alpha.ctypes.data, b.data_ptr(), weight, a.data_ptr(), tokens,
            self._beta.ctypes.data, out.data_ptr(), result, out.data_ptr(), result, self._address(algorithm.rank),
            self._workspace.data_ptr(), WORKSPACE_BYTES, stream,
        )  # fmt: skip
        alive, matmul = (self, a, b, out), self._lt.matmul

        def launch(_alive: object = alive) -> None:
            matmul(*args)

        return launch

    def _describe(self, cublas: Any) -> None:
        lt, (m, n, k) = self._lt, self.problem.dims
        element = _CUDA_TYPES[self.problem.dtype]
        self._operation = lt.matmul_desc_create(int(cublas.ComputeType.COMPUTE_32F), _CUDA_R_32F)
        self._release.append(lambda: lt.matmul_desc_destroy(self._operation))
        is_transposed = self.problem.layout == "nk"
        transpose = np.array([int(cublas.Operation.T if is_transposed else cublas.Operation.N)], dtype=np.int32)
        lt.matmul_desc_set_attribute(
            self._operation, int(lt.MatmulDescAttribute.TRANSA), transpose.ctypes.data, transpose.nbytes
        )
        # Rows, columns and leading dimension, by columns: the row-major [n, k] weight is a column-major [k, n] matrix.
        shapes = ((k, n, k) if is_transposed else (n, k, n), (k, m, k), (n, m, n))
        layouts = []
        for rows, columns, leading in shapes:
            layout = lt.matrix_layout_create(element, rows, columns, leading)
            self._release.append(lambda layout=layout: lt.matrix_layout_destroy(layout))  # type: ignore[misc]
            layouts.append(layout)
        self._layouts = tuple(layouts)

    def _ask_heuristic(self, limit: int) -> Any:
        lt = self._lt
        preference = lt.matmul_preference_create()
        try:
            limit_bytes = np.array([WORKSPACE_BYTES], dtype=np.uint64)
            lt.matmul_preference_set_attribute(
                preference, int(lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES), limit_bytes.ctypes.data,
                limit_bytes.nbytes,
            )  # fmt: skip
            weight, tokens, result = self._layouts
            results = np.zeros(limit, dtype=lt.matmul_heuristic_result_dtype)
            found = np.zeros(1, dtype=np.int32)
            try:
                lt.matmul_algo_get_heuristic(
                    self._handle, self._operation, weight, tokens, result, result, preference, limit,
                    results.ctypes.data, found.ctypes.data,
                )  # fmt: skip
            # "Not supported": no algorithm computes this.
            except lt.cuBLASLtError as error:
                self.reason = str(error)
        finally:
            lt.matmul_preference_destroy(preference)
        results = results[: int(found[0])]
        # A copy is contiguous; addresses into it are taken below.
        return results[results["state"] == _SUCCESS].copy()

    def _address(self, rank: int) -> int:
        return int(self._results[rank : rank + 1]["algo"].ctypes.data)

    def _algorithm(self, rank: int) -> Algorithm:
        lt, attributes = self._lt, self._lt.MatmulAlgoConfigAttribute
        entry = self._results[rank]
        return Algorithm(
            rank,
            self._read(rank, attributes.ID),
            _name(lt.MatmulTile, self._read(rank, attributes.TILE_ID)),
            _name(lt.MatmulStages, self._read(rank, attributes.STAGES_ID)),
            _name(lt.ClusterShape, self._read(rank, attributes.CLUSTER_SHAPE_ID)),
            self._read(rank, attributes.SPLITK_NUM),
            self._read(rank, attributes.CTA_SWIZZLING),
            self._read(rank, attributes.CUSTOM_OPTION),
            int(entry["workspace_size"]),
            float(entry["waves_count"]),
        )

    def _read(self, rank: int, attribute: Any) -> int:
        value = np.zeros(1, dtype=self._lt.get_matmul_algo_config_attribute_dtype(int(attribute)))
        written = np.zeros(1, dtype=np.uint64)
        self._lt.matmul_algo_config_get_attribute(
            self._address(rank), int(attribute), value.ctypes.data, value.nbytes, written.ctypes.data
        )
        return int(value[0])


def _name(names: Any, value: int) -> str:
    """Return the library's word for a value without its prefix, or the number of one newer than the bindings."""
    try:
        return str(names(value).name).partition("_")[2]
    except ValueError:
        return str(value)


def _bindings() -> tuple[ModuleType, ModuleType]:
    try:
        from nvmath.bindings import cublas, cublasLt
    # Besides ImportError, whatever its search for CUDA libraries raises.
    except Exception as error:
        raise RunnerError(f"cuBLASLt's list needs nvmath-python ({error}): pip install 'wavetune[cublaslt]'") from None
    return cublasLt, cublas

"""A cuBLASLt of NumPy with nvmath's interface: column-major BLAS on host memory, fp16 only."""

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RESULT = np.dtype(
    [("algo", ALGORITHM), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"), ("reserved", "<i4", 4)]
)
CUDA_R_16F = 2


class CuBLASLtError(Exception):
    """As the bindings raise."""


class Attribute(enum.IntEnum):
    """Attributes of an algorithm, with the library's numbers."""

    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    CTA_SWIZZLING = 4
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    CLUSTER_SHAPE_ID = 8


class Tile(enum.IntEnum):
    """Some tiles."""

    TILE_128x128 = 20


class Stages(enum.IntEnum):
    """Some stages."""

    STAGES_64xAUTO = 36


class Cluster(enum.IntEnum):
    """Some clusters."""

    SHAPE_2x1x1 = 3


class FakeLibrary(ModuleType):
    """Stands in for ``nvmath.bindings.cublasLt``.

    Parameters
    ----------
    states : list of int
        Of each entry of the list; 0 is success.
    wrong, broken : set of int
        Entries that compute something else, and that the library refuses.
    """

    matmul_heuristic_result_dtype = RESULT
    cuBLASLtError = CuBLASLtError  # noqa: N815 (the bindings' name)
    MatmulAlgoConfigAttribute = Attribute
    MatmulTile, MatmulStages, ClusterShape = Tile, Stages, Cluster
    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute", {"TRANSA": 3, "TRANSB": 4})
    MatmulPreferenceAttribute = enum.IntEnum("MatmulPreferenceAttribute", {"MAX_WORKSPACE_BYTES": 1})

    def __init__(self, states: list[int], wrong: set[int] = frozenset(), broken: set[int] = frozenset()) -> None:
        super().__init__("nvmath.bindings.cublasLt")
        self.states, self.wrong, self.broken = states, wrong, broken
        self.alive: dict[int, Any] = {}
        self.last: int | str | None = None
        self._numbers = itertools.count(1)

    def _new(self, thing: Any) -> int:
        number = next(self._numbers)
        self.alive[number] = thing
        return number

    def _free(self, number: int) -> None:
        del self.alive[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroy = _free

    def create(self) -> int:
        """Make a handle."""
        return self._new("handle")

    def get_version(self) -> int:
        """Return a version."""
        return 130000

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        """Make an operation that transposes nothing."""
        assert (compute_type, scale_type) == (68, 0)
        return self._new({"transpose": 0})

    def matmul_desc_set_attribute(self, operation: int, attribute: int, address: int, size: int) -> None:
        """Set whether the first operand is transposed."""
        assert (attribute, size) == (3, 4)
        self.alive[operation]["transpose"] = ctypes.c_int32.from_address(address).value

    def matrix_layout_create(self, element: int, rows: int, columns: int, leading: int) -> int:
        """Make a column-major layout."""
        assert element == CUDA_R_16F
        assert leading >= rows
        return self._new((rows, columns, leading))

    def matmul_preference_create(self) -> int:
        """Make a preference."""
        return self._new({})

    def matmul_preference_set_attribute(self, preference: int, attribute: int, address: int, size: int) -> None:
        """Set the largest workspace."""
        assert (attribute, size) == (1, 8)
        self.alive[preference]["workspace"] = ctypes.c_uint64.from_address(address).value

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, limit: int, results: int,
        found: int,
    ) -> None:  # fmt: skip
        """Fill in the list."""
        if not self.states:
            raise CuBLASLtError("not supported")
        assert self.alive[preference]["workspace"] == 32 * 2**20
        n_found = min(limit, len(self.states))
        buffer = (ctypes.c_char * (limit * RESULT.itemsize)).from_address(results)
        table = np.frombuffer(buffer, dtype=RESULT)
        for index, state in enumerate(self.states[:n_found]):
            table[index]["algo"]["data_"][0] = index
            table[index]["state"] = state
            table[index]["workspace_size"] = 1024 * index
        ctypes.c_int32.from_address(found).value = n_found

    def get_matmul_algo_config_attribute_dtype(self, attribute: int) -> type:
        """Return an attribute's type, as the bindings do."""
        return np.uint16 if attribute == Attribute.CLUSTER_SHAPE_ID else np.uint32

    def matmul_algo_config_get_attribute(
        self, algorithm: int, attribute: int, address: int, size: int, written: int
    ) -> None:
        """Read an attribute; the bindings know the tile of the first entry only."""
        index = ctypes.c_uint64.from_address(algorithm).value
        values = {
            Attribute.ID: 60 + index, Attribute.TILE_ID: 20 + index, Attribute.SPLITK_NUM: 1 + index,
            Attribute.STAGES_ID: 36, Attribute.CLUSTER_SHAPE_ID: 3,
        }  # fmt: skip
        value = values.get(Attribute(attribute), 0)
        (ctypes.c_uint16 if size == 2 else ctypes.c_uint32).from_address(address).value = value
        ctypes.c_uint64.from_address(written).value = size

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        """Compute D = alpha op(A) B + beta C, all of it column-major."""
        index = ctypes.c_uint64.from_address(algorithm).value
        self.last = index
        if index in self.broken:
            raise CuBLASLtError("execution failed")
        scale = ctypes.c_float.from_address(alpha).value
        assert ctypes.c_float.from_address(beta).value == 0.0
        left = self._matrix(a, a_layout)
        if self.alive[operation]["transpose"]:
            left = left.T
        product = left.astype(np.float32) @ self._matrix(b, b_layout).astype(np.float32)
        self._matrix(d, d_layout)[...] = scale * product + (index in self.wrong)

    def _matrix(self, address: int, layout: int) -> np.ndarray:
        rows, columns, leading = self.alive[layout]
        buffer = (ctypes.c_char * (2 * (leading * (columns - 1) + rows))).from_address(address)
        flat = np.frombuffer(buffer, dtype=np.float16)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (2, 2 * leading))


def install(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary) -> FakeLibrary:
    """Let ``from nvmath.bindings import cublas, cublasLt`` find the fake."""
    cublas = ModuleType("nvmath.bindings.cublas")
    cublas.ComputeType = enum.IntEnum("ComputeType", {"COMPUTE_32F": 68})
    cublas.Operation = enum.IntEnum("Operation", {"N": 0, "T": 1})
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = cublas, library
    root = ModuleType("nvmath")
    root.bindings = bindings
    for module in (root, bindings, cublas, library):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return library

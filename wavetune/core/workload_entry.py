"""One line of a workload: which multiplication, how often, seen where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from wavetune.core.dtype import DTYPES
from wavetune.core.element import accumulator_element, find_element, result_element
from wavetune.core.problem import ALIGNMENTS, CONTIGUOUS, GEMM_LAYOUTS, GemmProblem, check_dimension
from wavetune.errors import ProblemError, ProblemTypeError

OPERATIONS = ("gemm", "batched_gemm", "grouped_gemm", "attention")
"""What a workload may hold; every other operation is left to the file it came from."""

A_LAYOUTS = ("mk", "km")
"""Storage of A: ``mk`` is row-major [m, k], ``km`` its transpose."""

DECODE_ROWS = 64
"""Most rows of the class ``decode``: a batch of sequences, one token each. Weight traffic alone decides there."""

SMALL_ROWS = 256
"""Most rows of the class ``small``. Reading the weights still outweighs the arithmetic: 989 TFLOP/s over 4.8 TB/s
of an H200 (NVIDIA's data sheet, bf16) is 206 flops a byte, and a weight of two bytes serves 2 m flops."""

MAX_COUNT = 2**48
"""Most calls of one entry: a million a second for nine years. Sums of many still fit into 64 bits."""

SIZE_CLASSES = ("decode", "small", "prefill")


def size_class(m: int) -> str:
    """Tell what part of serving a number of rows belongs to: ``decode``, ``small`` or ``prefill``."""
    return "decode" if m <= DECODE_ROWS else "small" if m <= SMALL_ROWS else "prefill"


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """Everything about a call that may decide which kernel is best for it. Row-major: m counts tokens.

    Parameters
    ----------
    m, n, k : int
        Sizes of one product, positive: ``C[m, n] = A[m, k] B[k, n]``. Grouped GEMM: m is the sum over groups; n and k
        are the largest of any group. Attention: m query rows, n key rows, k the head dimension.
    operation : str, default=""
        One of `OPERATIONS`; told from ``batch`` and ``groups`` if empty.
    dtype : str, default="bf16"
        Element type of A. The dtype of a kernel that says more, such as ``fp8_block128``, becomes the element type and
        what it says besides (``fp8``, scaled ``block128x128``): one call has one spelling.
    layout : {"nk", "kn"}, default="nk"
        Storage of B, see `wavetune.core.problem.GEMM_LAYOUTS`.
    layout_a : {"mk", "km"}, default="mk"
        Storage of A.
    dtype_b, dtype_c, dtype_d, compute : str, default=""
        Element types of B, of the addend, of the result, and of accumulation. Empty: those that A's type implies; the
        addend has the result's.
    batch : int, default=1
        Products in one call: matrices of a batch, groups of a grouped GEMM, sequences of an attention.
    groups : tuple, default=()
        Sizes ``(m, n, k)`` of every group, in order; rows may be 0. A plain integer is m, with the key's n and k.
        Empty where the sizes are not known.
    bias : bool, default=False
        Whether a vector is added.
    activation : str, default="none"
        What is applied to the result.
    scale : str, default="none"
        How operands are scaled: none, tensor, row, block128, ...; ``a/b`` where A and B differ.
    swizzle : str, default="none"
        Operands stored pre-shuffled: none, a, b or ab.
    heads, kv_heads : int, default=0
        Attention only.
    is_causal : bool, default=False
        Attention only.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Alignment class in bytes; 0 for that of contiguous operands.

    Raises
    ------
    ProblemError, ProblemTypeError
        If a size is not a positive integer, an option is unknown, or two fields contradict each other.
    """

    m: int
    n: int
    k: int
    operation: str = ""
    dtype: str = "bf16"
    layout: str = "nk"
    layout_a: str = "mk"
    dtype_b: str = ""
    dtype_c: str = ""
    dtype_d: str = ""
    compute: str = ""
    batch: int = 1
    groups: tuple[tuple[int, int, int], ...] = ()
    bias: bool = False
    activation: str = "none"
    scale: str = "none"
    swizzle: str = "none"
    heads: int = 0
    kv_heads: int = 0
    is_causal: bool = False
    alignment: int = CONTIGUOUS

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("m", "n", "k", "batch"):
            put(self, name, _positive(name, getattr(self, name)))
        for name in ("heads", "kv_heads"):
            put(self, name, check_dimension(name, getattr(self, name)))
        self._fill_types()
        self._check_groups()
        if not self.operation:
            put(self, "operation", "grouped_gemm" if self.groups else "gemm" if self.batch == 1 else "batched_gemm")
        _one_of("operation", self.operation, OPERATIONS)
        _one_of("layout", self.layout, GEMM_LAYOUTS)
        _one_of("layout_a", self.layout_a, A_LAYOUTS)
        _one_of("swizzle", self.swizzle, ("none", "a", "b", "ab"))
        for name in ("activation", "scale"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ProblemTypeError(f"{name} must be a word, got {getattr(self, name)!r}")
        for name in ("bias", "is_causal"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemTypeError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if type(self.alignment) is not int or self.alignment not in (CONTIGUOUS, *ALIGNMENTS):
            raise ProblemError(f"alignment must be one of {ALIGNMENTS} bytes, or 0, got {self.alignment!r}")
        if self.operation == "gemm" and self.batch != 1:
            raise ProblemError(f"a gemm has no batch, got batch = {self.batch}; call it batched_gemm")
        if self.groups and self.operation != "grouped_gemm":
            raise ProblemError(f"groups belong to a grouped_gemm, not to a {self.operation}")

    def _fill_types(self) -> None:
        put = object.__setattr__
        self._spell_out(find_element(self.dtype))
        put(self, "dtype_b", _element(self.dtype_b or self.dtype))
        put(self, "dtype_d", _element(self.dtype_d or result_element(self.dtype)))
        put(self, "dtype_c", _element(self.dtype_c or self.dtype_d))
        put(self, "compute", find_element(self.compute or accumulator_element(self.dtype)))

    def _spell_out(self, dtype: str) -> None:
        said = _FORMATS.get(dtype, {"dtype": dtype})
        for name, value in said.items():
            given = getattr(self, name)
            if name != "dtype" and given not in ("", "none", value):
                raise ProblemError(f"dtype {dtype} says {name} {value}, but {name} is {given!r}")
            object.__setattr__(self, name, value)

    def _check_groups(self) -> None:
        if not self.groups:
            return
        sizes = tuple(_group(entry, self.n, self.k) for entry in self.groups)
        object.__setattr__(self, "groups", sizes)
        object.__setattr__(self, "batch", len(sizes))
        rows = sum(m for m, _, _ in sizes)
        if rows != self.m:
            raise ProblemError(f"the groups have {rows} rows together, but m = {self.m}")
        largest = (max(n for _, n, _ in sizes), max(k for _, _, k in sizes))
        if largest != (self.n, self.k):
            raise ProblemError(f"the largest n and k of the groups are {largest}, but n, k = {self.n}, {self.k}")

    @property
    def size_class(self) -> str:
        """``decode``, ``small`` or ``prefill``; a grouped GEMM goes by its mean group."""
        return size_class(-(-self.m // self.batch) if self.operation == "grouped_gemm" else self.m)

    @property
    def has_plain_operands(self) -> bool:
        """Whether kernels take such operands: A by rows, of one type, not shuffled, scaled as a format of theirs."""
        is_scaled_otherwise = self.scale.startswith("block") and self.kernel_dtype == self.dtype
        return (self.layout_a, self.swizzle, self.dtype_b) == ("mk", "none", self.dtype) and not is_scaled_otherwise

    @property
    def kernel_dtype(self) -> str:
        """The dtype of the kernels that compute this, such as ``fp8_block128``; the element type where it says all."""
        # Scales along k, and sums in the matrix unit, make formats of their own, with their own kernels.
        found = self.dtype
        for name, said in _FORMATS.items():
            if all(getattr(self, field_name) == value for field_name, value in said.items()):
                found = name
        return found

    @property
    def flops(self) -> int:
        """Floating-point operations of one call; a causal mask is not subtracted."""
        if self.operation == "attention":
            return 4 * self.batch * max(self.heads, 1) * self.m * self.n * self.k
        if self.operation == "grouped_gemm":
            return 2 * (sum(m * n * k for m, n, k in self.groups) if self.groups else self.m * self.n * self.k)
        return 2 * self.batch * self.m * self.n * self.k

    def gemm_problem(self) -> GemmProblem | None:
        """Return the problem that a configuration can be chosen for, or None if this is no plain GEMM.

        Bias, activation, scale mode and result type are not part of a `GemmProblem`.
        """
        if self.operation != "gemm" or not self.has_plain_operands or self.kernel_dtype not in DTYPES:
            return None
        return GemmProblem(self.m, self.n, self.k, self.kernel_dtype, self.layout, self.alignment)


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A call that a program makes.

    Parameters
    ----------
    key : WorkloadKey
        Which call.
    count : int, default=1
        How often, from 1 to `MAX_COUNT`.
    sources : mapping of str to int
        How often in which file. Need not add up to ``count``: a workload may have been written by hand.
    extra : mapping of str to object
        What else the source said, such as the kernel that it chose. Not part of the key; JSON types only.
    """

    key: WorkloadKey
    count: int = 1
    sources: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= MAX_COUNT:
            raise ProblemError(f"count must be a positive integer up to {MAX_COUNT}, got {self.count!r}")

    @classmethod
    def from_problem(cls, problem: GemmProblem, count: int = 1) -> WorkloadEntry:
        """Return the entry of a GEMM.

        Raises
        ------
        ProblemError
            If this is a problem of another kernel family.
        """
        if problem.kernel != GemmProblem.kernel:
            raise ProblemError(f"an entry is made of a GEMM, not of a problem of {problem.kernel}")
        m, n, k = problem.dims
        contiguous = GemmProblem(m, n, k, problem.dtype, problem.layout).alignment
        alignment = CONTIGUOUS if problem.alignment == contiguous else problem.alignment
        said = _FORMATS.get(problem.dtype, {"dtype": problem.dtype})
        return cls(WorkloadKey(m, n, k, "gemm", layout=problem.layout, alignment=alignment, **said), count)

    def merged(self, other: WorkloadEntry) -> WorkloadEntry:
        """Return the sum of two entries of one key; of ``extra``, what both say alike."""
        sources = dict(self.sources)
        for name, count in other.sources.items():
            sources[name] = sources.get(name, 0) + count
        if self.extra == other.extra:
            extra = self.extra
        else:
            extra = {name: value for name, value in self.extra.items() if other.extra.get(name) == value}
        return WorkloadEntry(self.key, self.count + other.count, sources, extra)

    def document(self) -> dict[str, Any]:
        """Return the entry as JSON; fields with their defaults are left out, but for the main ones."""
        key = self.key
        written: dict[str, Any] = {name: getattr(key, name) for name in _ALWAYS_WRITTEN}
        plain = WorkloadKey(key.m, key.n, key.k, key.operation, key.dtype)
        for entry in fields(key):
            name, value = entry.name, getattr(key, entry.name)
            implied = key.dtype_d if name == "dtype_c" else getattr(plain, name)
            if name not in written and value != implied:
                written[name] = value
        if key.groups:
            uniform = all(sizes[1:] == (key.n, key.k) for sizes in key.groups)
            written["groups"] = [sizes[0] if uniform else list(sizes) for sizes in key.groups]
            written.pop("batch", None)
        written["count"] = self.count
        if self.sources:
            written["sources"] = dict(self.sources)
        if self.extra:
            written["extra"] = dict(self.extra)
        return written

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> WorkloadEntry:
        """Read what `document` wrote.

        Raises
        ------
        ProblemError, ProblemTypeError
            If a field is unknown, missing or impossible.
        """
        values = dict(document)
        missing = [name for name in ("m", "n", "k") if name not in values]
        if missing:
            raise ProblemError(f"no {missing[0]!r}; a problem has m, n and k")
        unknown = [name for name in values if name not in ENTRY_FIELDS]
        if unknown:
            raise ProblemError(f"unknown field {unknown[0]!r}; known: {', '.join(ENTRY_FIELDS)}; others go into extra")
        count, sources, extra = (values.pop(name, default) for name, default in _BESIDE_THE_KEY)
        if not isinstance(sources, Mapping) or not all(type(number) is int for number in sources.values()):
            raise ProblemTypeError(f"sources must map names to counts, got {sources!r}")
        if not isinstance(extra, Mapping):
            raise ProblemTypeError(f"extra must be an object, got {extra!r}")
        if "groups" in values:
            if not isinstance(values["groups"], list | tuple):
                raise ProblemTypeError(f"groups must be a list, got {values['groups']!r}")
            values["groups"] = tuple(values["groups"])
        for name in _TEXTS:
            if not isinstance(values.get(name, ""), str):
                raise ProblemTypeError(f"{name} must be text, got {values[name]!r}")
        return cls(WorkloadKey(**values), count, dict(sources), dict(extra))


_FORMATS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "fp8_fast": {"dtype": "fp8", "compute": "fp32_fast_fp8"},
        "fp8_block128": {"dtype": "fp8", "scale": "block128x128"},
    }
)
"""What a key says where a kernel's dtype says more than the type of an element."""

_ALWAYS_WRITTEN = ("operation", "m", "n", "k", "dtype", "layout")
_BESIDE_THE_KEY: tuple[tuple[str, Any], ...] = (("count", 1), ("sources", {}), ("extra", {}))
_TEXTS = ("operation", "dtype", "layout", "layout_a", "dtype_b", "dtype_c", "dtype_d", "compute")
ENTRY_FIELDS = (*(entry.name for entry in fields(WorkloadKey)), *(name for name, _ in _BESIDE_THE_KEY))
"""Names of an entry's fields in files."""


def _element(spelled: str) -> str:
    """Return the element type, without what the dtype of a kernel says besides."""
    element = find_element(spelled)
    return str(_FORMATS.get(element, {}).get("dtype", element))


def _positive(name: str, value: object) -> int:
    number = check_dimension(name, value)
    if number == 0:
        raise ProblemError(f"{name} is zero: there is nothing to compute")
    return number


def _group(entry: object, n: int, k: int) -> tuple[int, int, int]:
    sizes = tuple(entry) if isinstance(entry, Iterable) and not isinstance(entry, str) else (entry, n, k)
    if len(sizes) != 3:
        raise ProblemError(f"a group is its rows, or m, n and k; got {entry!r}")
    rows, group_n, group_k = sizes
    return check_dimension("m of a group", rows), _positive("n of a group", group_n), _positive("k of a group", group_k)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ProblemError(f"unknown {name} {value!r}; known: {', '.join(known)}")

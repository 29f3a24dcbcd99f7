"""The command line of hipblaslt-bench, as ``HIPBLASLT_LOG_MASK=32`` logs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from wavetune.core.problem import CONTIGUOUS
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.blas import BlasKind, blas_kind
from wavetune.workloads.intake import size_error
from wavetune.workloads.vendor_types import hipblaslt_compute, hipblaslt_scale, hipblaslt_type

MARKER = "hipblaslt-bench"

FLAGS = frozenset(
    {
        "scaleC", "scaleD", "scaleAlpha_vector", "gradient", "use_e", "bias_vector", "flush", "swizzleA", "swizzleB",
        "print_kernel_info", "use_gpu_timer", "grouped_gemm", "any_stride", "HMM", "c_equal_d",
    }
)  # fmt: skip
"""Options without a value."""

PER_GROUP = frozenset(
    {"m", "n", "k", "lda", "ldb", "ldc", "ldd", "lde", *(f"stride_{matrix}" for matrix in "abcde")}
)  # fmt: skip
"""Options that a grouped GEMM repeats for every group."""

_TYPES = ("a_type", "b_type", "c_type", "d_type")

REQUIRED = ("m", "n", "k", "transA", "transB", *_TYPES, "compute_type")
"""What every build logs. ``compute_type`` is near the end: a line without it was cut."""

_KNOWN = (
    FLAGS
    | PER_GROUP
    | frozenset(REQUIRED)
    | {
        "api_method", "alpha", "alphai", "beta", "betai", "batch_count", "scaleA", "scaleB", "bias_source",
        "scale_type", "bias_type", "algo_method", "solution_index", "activation_type", "rotating",
        "cold_iters", "iters", "i", "j",
    }
)  # fmt: skip

_OPTION = re.compile(r"--?([A-Za-z]\w*)")
_OPTION_OR_FLAG = re.compile(r"--.*|-[A-Za-z]")


@dataclass(slots=True)
class BenchOptions:
    """One command line.

    Parameters
    ----------
    values : dict of str to list of str
        Option to its values, in order; several only in a grouped GEMM.
    flags : set of str
        Options without a value.
    last : str
        The last option.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    last: str = ""

    @classmethod
    def parse(cls, line: str) -> BenchOptions:
        """Read the options after the program's name.

        Raises
        ------
        WorkloadError
            If an option lacks its value, stands twice, or a word belongs to no option.
        """
        options = cls()
        words = iter(line.split()[1:])
        word = next(words, None)
        while word is not None:
            name = _OPTION.fullmatch(word)
            if name is None:
                raise WorkloadError(f"{word!r} is no option: two lines written over each other?")
            options.last = name[1]
            word = next(words, None)
            if options.last in FLAGS or word is None or _OPTION_OR_FLAG.match(word):
                if options.last in _KNOWN and options.last not in FLAGS:
                    raise WorkloadError(f"option {options.last} has no value: the line is cut")
                options.flags.add(options.last)
            else:
                options.values.setdefault(options.last, []).append(word)
                word = next(words, None)
        return options

    @property
    def is_grouped(self) -> bool:
        """Whether this is a grouped GEMM."""
        return "grouped_gemm" in self.flags

    def check(self) -> None:
        """Refuse lines that cannot be whole.

        Raises
        ------
        WorkloadError
            If an option is missing or repeated.
        """
        for name in REQUIRED:
            if name not in self.values:
                raise WorkloadError(f"no option {name}: the line is cut, or was written by hand")
        groups = len(self.values["m"])
        for name, values in self.values.items():
            if self.is_grouped and name in ("m", "n", "k"):
                if len(values) != groups:
                    raise WorkloadError(f"{groups} groups have an option m, {len(values)} an option {name}")
            elif len(values) > 1 and not (self.is_grouped and name in PER_GROUP):
                raise WorkloadError(f"option {name} stands {len(values)} times: two lines written over each other?")

    def one(self, name: str, default: str = "") -> str:
        """Return the first value of an option."""
        return self.values[name][0] if name in self.values else default

    def kind(self) -> BlasKind:
        """Return everything but the sizes.

        Raises
        ------
        WorkloadError
            If a type or transposition is unknown.
        """
        a_type, b_type, c_type, d_type = (hipblaslt_type(name, self.one(name)) for name in _TYPES)
        activation = self.one("activation_type", "none").lower()
        activation += "".join(f"+{name}" for name in ("gradient", "use_e") if name in self.flags)
        scales = [hipblaslt_scale(self.one(name, "0")) for name in ("scaleA", "scaleB")]
        if "scaleAlpha_vector" in self.flags:
            scales = [f"{mode}+alpha" for mode in scales]
        return blas_kind(
            trans_a=self.one("transA"), trans_b=self.one("transB"), a_type=a_type, b_type=b_type,
            c_type=c_type, d_type=d_type,
            compute=hipblaslt_compute(self.one("compute_type")), is_batched=self.batch > 1, is_grouped=self.is_grouped,
            bias="bias_vector" in self.flags, activation=activation, scale_a=scales[0], scale_b=scales[1],
            swizzles_a="swizzleA" in self.flags, swizzles_b="swizzleB" in self.flags,
        )  # fmt: skip

    @property
    def batch(self) -> int:
        """Products of a batch."""
        return positive("batch_count", self.one("batch_count", "1"))

    @property
    def unknown(self) -> dict[str, str | bool]:
        """Options that no rule here reads."""
        named: dict[str, str | bool] = {name: found[0] for name, found in self.values.items() if name not in _KNOWN}
        return named | dict.fromkeys(sorted(self.flags - _KNOWN), True)

    def key(self) -> WorkloadKey | None:
        """Return the row-major product, or None if a size is zero and there is nothing to compute.

        Raises
        ------
        WorkloadError, ProblemError
            If a size or type is impossible, or leading dimensions contradict the sizes.
        """
        blas = self.kind()
        groups = [
            (integer("n", n), integer("m", m), integer("k", k))
            for m, n, k in zip(*(self.values[name] for name in ("m", "n", "k")), strict=True)
        ]
        if self.is_grouped:
            return _grouped_key(blas.kind, groups)
        tokens, features, depth = groups[0]
        if not (tokens and features and depth):
            return None
        reason = size_error(m=features, n=tokens, k=depth)
        alignment = CONTIGUOUS
        if not reason and all(name in self.values for name in ("lda", "ldb", "ldd")):
            strides = [integer(name, self.one(name)) for name in ("lda", "ldb", "ldd")]
            reason = blas.stride_error(features, tokens, depth, *strides)
            alignment = blas.alignment(features, tokens, depth, *strides)
        if reason:
            raise WorkloadError(reason)
        return replace(blas.kind, m=tokens, n=features, k=depth, batch=self.batch, alignment=alignment)


def integer(name: str, value: str) -> int:
    """Read a whole number that is not negative.

    Raises
    ------
    WorkloadError
        If it is none.
    """
    # isdecimal alone takes other scripts' digits, which int reads as well.
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise WorkloadError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def positive(name: str, value: str) -> int:
    """Read a positive number that a kernel can have as a size.

    Raises
    ------
    WorkloadError
        If it is none.
    """
    number = integer(name, value)
    reason = size_error(**{name: number})
    if reason:
        raise WorkloadError(reason)
    return number


def _grouped_key(kind: WorkloadKey, groups: list[tuple[int, int, int]]) -> WorkloadKey | None:
    rows = sum(m for m, _, _ in groups)
    if not rows:
        return None
    n, k = (max(sizes[axis] for sizes in groups) for axis in (1, 2))
    return replace(kind, m=rows, n=n, k=k, groups=tuple(groups))

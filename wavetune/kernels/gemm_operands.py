"""The tensors of a GEMM: what they are, how to make them, how to describe given ones as a problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError
from wavetune.kernels.gemm_scales import fill_random, random_scales
from wavetune.mapping.legality import TMA_ALIGNMENT

ACTIVATIONS = ("none", "relu", "gelu", "silu")
"""Activations of the epilogue, applied in fp32 after the bias."""

TORCH_DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32",
    "fp8": "float8_e4m3fn", "fp8_fast": "float8_e4m3fn", "fp8_block128": "float8_e4m3fn",
}  # fmt: skip
"""Torch's names of the dtypes that the kernels take."""


@dataclass(frozen=True, slots=True)
class GemmOperands:
    """The tensors of one GEMM; of a scaled dtype every element of A and B stands for itself times its scale.

    Parameters
    ----------
    problem : GemmProblem
        Sizes, dtype, layout and alignment class of the tensors.
    a : Tensor of shape (m, k)
        Unit stride along k.
    b : Tensor of shape (n, k) or (k, n)
        As the problem's layout says; unit stride along the last axis.
    out : Tensor of shape (m, n)
        Written by the launch; unit stride along n.
    bias : Tensor of shape (n,), optional
        Added to every row; 16-byte aligned if the problem is.
    activation : {"none", "relu", "gelu", "silu"}, default="none"
        Applied after the bias.
    partials : Tensor of fp32, optional
        Workspace of split-k, at least `workspace_size` elements.
    scale_a, scale_b : Tensor of fp32, optional
        Of a scaled dtype; shaped as `wavetune.kernels.gemm_scales` says.
    """

    problem: GemmProblem
    a: Any
    b: Any
    out: Any
    bias: Any = None
    activation: str = "none"
    partials: Any = None
    scale_a: Any = None
    scale_b: Any = None

    def with_workspace(self, config: KernelConfig) -> GemmOperands:
        """Return operands that have the workspace of ``config``, allocating what is missing."""
        import torch

        needed = workspace_size(self.problem, config)
        if not needed or (self.partials is not None and self.partials.numel() >= needed):
            return self
        return replace(self, partials=torch.empty(needed, dtype=torch.float32, device=self.a.device))


def result_dtype(dtype: str) -> str:
    """Return the dtype of the result and the bias: bf16 for fp8 operands, else their own."""
    return "bf16" if find_dtype(dtype).is_scaled else dtype


def workspace_size(problem: GemmProblem, config: KernelConfig) -> int:
    """Return the fp32 partial sums that a launch stores; 0 without split-k."""
    if config["schedule"] != "split_k":
        return 0
    return int(config["split_k"]) * problem.m * problem.n


def operand_problem(a: Any, b: Any, out: Any, layout: str) -> GemmProblem:
    """Describe tensors as a problem: sizes, dtype and the alignment class of bases and leading strides.

    Raises
    ------
    ProblemError
        If shapes do not match, or a last axis does not have unit stride.
    """
    (m, k), (n, b_k) = a.shape, b.shape if layout == "nk" else reversed(b.shape)
    if b_k != k or tuple(out.shape) != (m, n):
        raise ProblemError(f"shapes {tuple(a.shape)}, {tuple(b.shape)} ({layout}), {tuple(out.shape)} do not match")
    addresses = 0
    for tensor in (a, b, out):
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            raise ProblemError(f"the last axis must have unit stride, got strides {tensor.stride()}")
        addresses |= tensor.data_ptr() | tensor.stride(0) * tensor.element_size()
    # The lowest bit that is set in any address or stride.
    alignment = min(addresses & -addresses, TMA_ALIGNMENT) or TMA_ALIGNMENT
    return GemmProblem(m, n, k, dtype=str(a.dtype), layout=layout, alignment=alignment)


def make_gemm_operands(
    problem: GemmProblem, device: str, seed: int, n_copies: int = 1, *, has_bias: bool = False,
    activation: str = "none", scales: str = "row",
) -> list[GemmOperands]:  # fmt: skip
    """Allocate operands with random data; zeros would run faster than real data.

    Parameters
    ----------
    problem : GemmProblem
        Rows are padded up to its alignment class.
    device : str
        Torch device.
    seed : int
        Seeds the data.
    n_copies : int, default=1
        Independent sets of operands, to rotate over.
    has_bias : bool, default=False
        Whether to make a bias.
    activation : str, default="none"
        One of `ACTIVATIONS`.
    scales : {"row", "tensor"}, default="row"
        Of a scaled dtype, see `wavetune.kernels.gemm_scales`; ignored by every other.

    Returns
    -------
    list of GemmOperands of length n_copies
        ``out`` is filled with NaN, so that an element which is not written shows.
    """
    import torch

    element = find_dtype(problem.dtype)
    dtype, out_dtype = (getattr(torch, TORCH_DTYPES[name]) for name in (problem.dtype, result_dtype(problem.dtype)))
    generator = torch.Generator(device=device).manual_seed(seed)
    m, n, k = problem.dims

    def matrix(rows: int, columns: int, dtype: Any) -> Any:
        unit = max(problem.alignment // dtype.itemsize, 1)
        padded = -(-columns // unit) * unit
        return torch.empty((rows, padded), dtype=dtype, device=device)[:, :columns]

    copies = []
    for _ in range(n_copies):
        a, out = matrix(m, k, dtype), matrix(m, n, out_dtype)
        b = matrix(n, k, dtype) if problem.layout == "nk" else matrix(k, n, dtype)
        factors: tuple[Any, Any] = (None, None)
        if element.is_scaled:
            fill_random(a, generator)
            fill_random(b, generator)
            factors = random_scales(problem, scales, generator)
        else:
            a.normal_(generator=generator)
            # Keeps the result near 1 whatever k is, as layers with normalised weights do.
            b.normal_(std=max(k, 1) ** -0.5, generator=generator)
        out.fill_(float("nan"))
        bias = torch.empty(n, dtype=out_dtype, device=device).normal_(generator=generator) if has_bias else None
        copies.append(GemmOperands(problem, a, b, out, bias, activation, None, *factors))
    return copies

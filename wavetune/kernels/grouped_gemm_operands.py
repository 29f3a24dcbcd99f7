"""The tensors of a grouped GEMM: what they are, and how to make them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.gemm_operands import TORCH_DTYPES, result_dtype
from wavetune.kernels.gemm_scales import fill_random
from wavetune.kernels.grouped_gemm_scales import expert_operands, random_grouped_scales
from wavetune.mapping.grouped_gemm import widest_problem


@dataclass(frozen=True, slots=True)
class GroupedGemmOperands:
    """The tensors of one grouped GEMM; of a scaled dtype every element of x and w stands for itself times its scale.

    Parameters
    ----------
    problem : GroupedGemmProblem
        Sizes, dtype, layout and alignment class; its histogram decides how many CTAs are launched, so it must have at
        least the tile rows of the one in ``groups``: that one, or `wavetune.mapping.grouped_gemm.widest_groups`.
    x : Tensor of shape (tokens, k)
        Rows sorted by expert; unit stride along k.
    w : Tensor of shape (experts, n, k)
        Unit stride along k.
    out : Tensor of shape (tokens, n), or (tokens, n / 2) if gated
        Written by the launch, but for rows that no group has; unit stride along the last axis.
    groups : Tensor of int32 of shape (experts,) or (experts + 1,)
        Tokens of each expert; or where each expert's rows begin, and at last where they end. On the device.
    scale_x, scale_w : Tensor of fp32, optional
        Of a scaled dtype; shaped as `wavetune.kernels.grouped_gemm_scales` says.
    """

    problem: GroupedGemmProblem
    x: Any
    w: Any
    out: Any
    groups: Any
    scale_x: Any = None
    scale_w: Any = None

    @property
    def is_offsets(self) -> bool:
        """Whether ``groups`` says where rows begin."""
        return bool(self.groups.shape[0] == self.problem.experts + 1)

    def with_workspace(self, config: KernelConfig) -> GroupedGemmOperands:
        """Return the operands: no configuration needs a workspace."""
        return self

    def for_any_histogram(self) -> GroupedGemmOperands:
        """Return operands whose launch serves every histogram of these tokens, as a captured one must."""
        return replace(self, problem=widest_problem(self.problem))


@lru_cache(maxsize=1024)
def device_groups(group_sizes: tuple[int, ...], device: str) -> Any:
    """Return group sizes as a tensor of int32 on a device; copied there once."""
    import torch

    return torch.tensor(group_sizes, dtype=torch.int32, device=device)


def make_grouped_operands(
    problem: GroupedGemmProblem, device: str, seed: int, n_copies: int = 1, *, as_offsets: bool = False,
    scales: str = "row",
) -> list[GroupedGemmOperands]:  # fmt: skip
    """Allocate operands with random data.

    Parameters
    ----------
    problem : GroupedGemmProblem
        Rows are padded up to its alignment class.
    device : str
        Torch device.
    seed : int
        Seeds the data.
    n_copies : int, default=1
        Independent sets of operands, to rotate over.
    as_offsets : bool, default=False
        Whether groups are given by where they begin.
    scales : {"row", "expert", "tensor"}, default="row"
        Of a scaled dtype, see `wavetune.kernels.grouped_gemm_scales`; ignored by every other.

    Returns
    -------
    list of GroupedGemmOperands of length n_copies
        ``out`` is filled with NaN, so that an element which is not written shows.
    """
    import torch

    dtype, out_dtype = (getattr(torch, TORCH_DTYPES[name]) for name in (problem.dtype, result_dtype(problem.dtype)))
    generator = torch.Generator(device=device).manual_seed(seed)
    tokens, n, k = problem.tokens, problem.n, problem.k
    unit = max(problem.alignment // dtype.itemsize, 1)
    padded_k = -(-k // unit) * unit
    groups = torch.tensor(problem.group_sizes, dtype=torch.int32, device=device)
    if as_offsets:
        groups = torch.nn.functional.pad(groups.cumsum(0), (1, 0)).to(torch.int32)
    copies = []
    for _ in range(n_copies):
        x = torch.empty((tokens, padded_k), dtype=dtype, device=device)[:, :k]
        w = torch.empty((problem.experts, n, padded_k), dtype=dtype, device=device)[:, :, :k]
        factors: tuple[Any, Any] = (None, None)
        if find_dtype(problem.dtype).is_scaled:
            fill_random(x, generator)
            fill_random(w, generator)
            factors = random_grouped_scales(problem, scales, generator)
        else:
            x.normal_(generator=generator)
            # Keeps the result near 1 whatever k is, as layers with normalised weights do.
            w.normal_(std=max(k, 1) ** -0.5, generator=generator)
        out = torch.full((tokens, problem.out_columns), float("nan"), dtype=out_dtype, device=device)
        copies.append(GroupedGemmOperands(problem, x, w, out, groups, *factors))
    return copies


def grouped_reference(operands: GroupedGemmOperands) -> Any:
    """Compute a grouped GEMM in float64 from the inputs as stored, times their scales if any, expert by expert.

    Returns
    -------
    Tensor of shape (tokens, out_columns)
        Not rounded to the operands' dtype.
    """
    import torch

    problem = operands.problem
    result = torch.zeros(tuple(operands.out.shape), dtype=torch.float64, device=operands.x.device)
    start = 0
    for expert, size in enumerate(problem.group_sizes):
        rows = slice(start, start + size)
        start += size
        if not size:
            continue
        x, w = expert_operands(operands, expert, rows)
        product = x @ w.T
        if problem.is_gated:
            gate, up = product.chunk(2, dim=1)
            product = torch.nn.functional.silu(gate) * up
        result[rows] = product
    return result

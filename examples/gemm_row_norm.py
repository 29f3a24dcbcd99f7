"""A matrix product whose rows are normalized before they leave: out = rms_norm(a @ b.T) * weight, tuned by wavetune.

The norm needs whole rows, so one CTA makes all tiles of its rows, one after another: the grid has one dimension and the
loop runs over n and k. That is not the mapping of a GEMM; two small functions tell wavetune what it is.

    python examples/gemm_row_norm.py                       # on a GPU: measures each new key once, then never again
    TRITON_INTERPRET=1 python examples/gemm_row_norm.py    # on a CPU: shows that it is right

From the folder of this file, ``wavetune calibrate --kernel gemm_row_norm:gemm_row_norm_kernel --arch h200`` fits a
model; after that keys that were never measured are answered at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import wavetune

ELEMENT_BYTES = 2


def ceil_div(a: int, b: int) -> int:
    """Return ``ceil(a / b)``."""
    return -(-a // b)


def count_trips(key: Any, config: Any) -> int:
    """Return the trips of a CTA: through k for each of its tiles."""
    return ceil_div(key["N"], config["BLOCK_N"]) * ceil_div(key["K"], config["BLOCK_K"])


def count_bytes(key: Any, config: Any) -> int:
    """Return what must move: both operands once, the result out, in and out again."""
    m, n, k = key["M"], key["N"], key["K"]
    return ELEMENT_BYTES * (m * k + n * k + 3 * m * n)


def make_args(key: Any) -> dict[str, Any]:
    """Return the arguments of a launch for a key: what ``wavetune calibrate`` measures with."""
    m, n, k = key["M"], key["N"], key["K"]
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    weight = torch.randn(n, device="cuda", dtype=torch.float16)
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    return {"a_ptr": a, "b_ptr": b, "weight_ptr": weight, "out_ptr": out, "M": m, "N": n, "K": k, "eps": 1e-6}


@wavetune.autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in (
            (64, 128, 64, 4, 3),
            (16, 64, 128, 4, 4),
            (16, 128, 64, 4, 4),
            (16, 256, 64, 4, 3),
            (32, 128, 64, 4, 4),
            (32, 256, 64, 8, 3),
            (64, 64, 64, 4, 4),
            (64, 256, 64, 8, 3),
            (128, 128, 64, 8, 3),
            (128, 256, 64, 8, 3),
        )
    ],
    key=["M", "N", "K"],
    grid_size=lambda key, config: ceil_div(key["M"], config["BLOCK_M"]),
    loop_trips=count_trips,
    bytes_moved=count_bytes,
    make_args=make_args,
    calibration_keys={"M": (16, 16384), "N": (256, 4096), "K": (256, 8192)},
    name="gemm-row-norm",
)
@triton.jit
def gemm_row_norm_kernel(
    a_ptr, b_ptr, weight_ptr, out_ptr, M, N, K, eps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write BLOCK_M whole rows of the normalized product; all matrices row-major, b as [N, K]."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = rows[:, None] < M
    a_rows = a_ptr + rows.to(tl.int64)[:, None] * K
    out_rows = out_ptr + rows.to(tl.int64)[:, None] * N
    inner = tl.arange(0, BLOCK_K)
    squares = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        b_rows = b_ptr + columns.to(tl.int64)[None, :] * K
        product = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            inside = k + inner < K
            a = tl.load(a_rows + (k + inner)[None, :], mask=is_row & inside[None, :], other=0.0)
            b = tl.load(b_rows + (k + inner)[:, None], mask=inside[:, None] & (columns[None, :] < N), other=0.0)
            product = tl.dot(a, b, product)
        squares += tl.sum(product * product, axis=1)
        tl.store(
            out_rows + columns[None, :], product.to(out_ptr.dtype.element_ty), mask=is_row & (columns[None, :] < N)
        )
    scale = 1.0 / tl.sqrt(squares / N + eps)
    # The threads of the CTA read what others of it have written.
    tl.debug_barrier()
    for start in range(0, N, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        inside = is_row & (columns[None, :] < N)
        weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        product = tl.load(out_rows + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        normal = product * scale[:, None] * weight[None, :]
        tl.store(out_rows + columns[None, :], normal.to(out_ptr.dtype.element_ty), mask=inside)


def gemm_row_norm(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return ``rms_norm(a @ b.T) * weight`` for contiguous a [m, k] and b [n, k]."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty(m, n, device=a.device, dtype=a.dtype)
    gemm_row_norm_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]),)](a, b, weight, out, m, n, k, eps)
    return out


def main() -> None:
    """Compare with torch on a few shapes, and say which configuration was taken and why."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((4096, 1024, 4096), (100, 2048, 2048), (16, 4096, 8192)) if device == "cuda" else ((70, 200, 96),)
    for m, n, k in shapes:
        a, b = (torch.randn(rows, k, device=device, dtype=torch.float16) for rows in (m, n))
        weight = torch.randn(n, device=device, dtype=torch.float16)
        out = gemm_row_norm(a, b, weight)
        product = a.float() @ b.float().T
        expected = product * torch.rsqrt(product.square().mean(dim=1, keepdim=True) + 1e-6) * weight.float()
        error = ((out.float() - expected).norm() / expected.norm()).item()
        assert error < 5e-3, f"{m} x {n} x {k}: wrong by {error}"
        choice = gemm_row_norm_kernel.explain(a, b, weight, out, m, n, k, 1e-6)
        print(f"{m} x {n} x {k}: relative error {error:.1e}; {choice.source}: {choice.config}")


if __name__ == "__main__":
    main()

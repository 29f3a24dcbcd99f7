"""Softmax over rows, tuned by wavetune: a reduction, bound by memory, with nothing of a GEMM in it.

    python examples/row_softmax.py                       # on a GPU: measures each new key once, then never again
    TRITON_INTERPRET=1 python examples/row_softmax.py    # on a CPU: shows that it is right

From the folder of this file, ``wavetune calibrate --kernel row_softmax:softmax_kernel --arch h200`` fits a model; after
that keys that were never measured are answered at once.
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


def make_args(key: Any) -> dict[str, Any]:
    """Return the arguments of a launch for a key: what ``wavetune calibrate`` measures with."""
    x = torch.randn(key["M"], key["N"], device="cuda", dtype=torch.float16)
    return {"x_ptr": x, "y_ptr": torch.empty_like(x), "M": key["M"], "N": key["N"]}


@wavetune.autotune(
    configs=[
        triton.Config({"ROWS": rows, "BLOCK": block}, num_warps=warps, num_stages=stages)
        for rows, block, warps, stages in (
            (1, 1024, 4, 2),
            (1, 2048, 4, 2),
            (1, 4096, 8, 2),
            (1, 8192, 16, 1),
            (2, 1024, 4, 2),
            (4, 256, 4, 2),
            (4, 1024, 8, 2),
            (8, 128, 4, 2),
            (16, 64, 4, 2),
        )
    ],
    key=["M", "N"],
    # One CTA works on ROWS rows and passes over them twice: once for maximum and sum, once for the result.
    grid_size=lambda key, config: ceil_div(key["M"], config["ROWS"]),
    loop_trips=lambda key, config: 2 * ceil_div(key["N"], config["BLOCK"]),
    bytes_moved=lambda key, config: 2 * ELEMENT_BYTES * key["M"] * key["N"],
    make_args=make_args,
    calibration_keys={"M": (1, 32768), "N": (128, 65536)},
    name="row-softmax",
)
@triton.jit
def softmax_kernel(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the softmax of ROWS rows of x, both row-major."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offsets = rows.to(tl.int64)[:, None] * N
    columns = tl.arange(0, BLOCK)[None, :]
    is_row = rows[:, None] < M
    maximum = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        inside = is_row & (start + columns < N)
        x = tl.load(x_ptr + offsets + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(maximum, tl.max(x, axis=1))
        # Rows beyond the last one hold nothing but -inf, and -inf - -inf is no number.
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift[:, None]), axis=1)
        maximum = larger
    for start in range(0, N, BLOCK):
        inside = is_row & (start + columns < N)
        x = tl.load(x_ptr + offsets + start + columns, mask=inside, other=0.0).to(tl.float32)
        y = tl.exp(x - maximum[:, None]) / total[:, None]
        tl.store(y_ptr + offsets + start + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of the rows of a contiguous matrix."""
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[lambda meta: (triton.cdiv(m, meta["ROWS"]),)](x, y, m, n)
    return y


def main() -> None:
    """Compare with torch on a few shapes, and say which configuration was taken and why."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((4096, 1000), (4096, 4096), (64, 32768), (1, 50257)) if device == "cuda" else ((9, 300), (3, 1500))
    for m, n in shapes:
        x = torch.randn(m, n, device=device, dtype=torch.float16)
        y = softmax(x)
        error = (y.float() - torch.softmax(x.float(), dim=1)).abs().max().item()
        assert error < 1e-3, f"{m} x {n}: wrong by {error}"
        choice = softmax_kernel.explain(x, y, m, n)
        print(f"{m} x {n}: largest error {error:.1e}; {choice.source}: {choice.config}")


if __name__ == "__main__":
    main()

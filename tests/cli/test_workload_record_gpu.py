"""``wavetune workload record`` on a GPU: torch's count and cuBLASLt's log of one run agree."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PROGRAM = """
import torch
weights = [torch.zeros(n, 2048, dtype=torch.bfloat16, device="cuda") for n in (512, 4096)]
with torch.inference_mode():
    for tokens, calls in ((512, 1), (64, 5), (16, 7)):
        x = torch.zeros(tokens, 2048, dtype=torch.bfloat16, device="cuda")
        for _ in range(calls):
            for weight in weights:
                torch.nn.functional.linear(x, weight)
torch.cuda.synchronize()
"""


def test_torch_and_cublaslt_agree(cli):
    """Every layer of a small run is in both recordings, equally often, with the same sizes, type and batch."""
    result = cli("workload", "record", "--json", "--", sys.executable, "-c", PROGRAM)
    assert result.code == 0, result.stderr
    counts = {(p["m"], p["n"], p["k"]): p["count"] for p in result.json["problems"]}
    assert counts == {(m, n, 2048): c for m, c in ((512, 1), (64, 5), (16, 7)) for n in (512, 4096)}
    assert result.json["agreement"]["different"] == []
    assert result.json["agreement"]["same_calls"] == 26

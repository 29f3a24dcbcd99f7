"""A small table of measurements."""

from __future__ import annotations

import numpy as np
import pytest

from wavetune.core.config import GEMM
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable, sort_configs


@pytest.fixture
def table() -> MeasurementTable:
    """Three problems with two configurations each, but one, in no particular order."""
    fields = {"block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    configs = sort_configs(
        [
            CompiledConfig(GEMM.config({**fields, "block_m": 128, "load": "tma"}), 128, 0, 73728),
            CompiledConfig(GEMM.config({**fields, "block_m": 64, "split_k": 2, "schedule": "split_k"}), 69, 2, 49152),
        ]
    )
    return MeasurementTable(
        spec=GEMM,
        dtype="bf16",
        layout="nk",
        configs=configs,
        dims=np.array([[300, 4096, 4096], [16, 4096, 4096], [16, 4096, 4096], [1, 6144, 4096], [300, 4096, 4096]]),
        config_index=np.array([1, 0, 1, 1, 0]),
        latency_us=np.array([30.125, 1 / 3 + 20, 25.1, 22.0, 41.7]),
        exhaustive=np.array([True, True, True, True, True]),
    )

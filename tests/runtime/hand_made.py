"""Hand-made models, small enough to read."""

from __future__ import annotations

from wavetune.core.config import GEMM, KernelConfig
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm, MicroChoice, ModelFile


def gemm_config(block_m: int, block_n: int, *, split_k: int = 1, load: str = "pointer") -> KernelConfig:
    """Return a GEMM configuration with the usual other fields."""
    return GEMM.config(
        {
            "block_m": block_m, "block_n": block_n, "block_k": 64, "split_k": split_k,
            "schedule": "split_k" if split_k > 1 else "tile", "group_m": 8, "num_warps": 4, "num_stages": 3,
            "load": load,
        }
    )  # fmt: skip


POINTER = gemm_config(64, 64)
TMA = gemm_config(128, 128, load="tma")
SPLIT = gemm_config(16, 64, split_k=4)
EXACT_ONLY = gemm_config(32, 32)
PLAIN = (4.0, 1.0, 0.3, 0.1, 0.2, 0.02, 0.1, 0.05, 0.2, 0.4)
FAST = tuple(coefficient * 0.9 for coefficient in PLAIN)


def make_model(**changes: object) -> ModelFile:
    """Return a model of four configurations, one of them only in the exact table, with two cells."""
    fields: dict[str, object] = {
        "kernel": "gemm",
        "dtype": "bf16",
        "layout": "nk",
        "arch": "nvidia-h200",
        "num_sms": 132,
        "forms": (
            LaunchForm(SPLIT, 6, 40, 30000, PLAIN),
            LaunchForm(POINTER, 3, 80, 50000, PLAIN),
            LaunchForm(TMA, 1, 180, 98304, FAST),
            LaunchForm(EXACT_ONLY, 4, 60, 30000, None),
        ),
        "default_index": 1,
        "micro": (
            MicroChoice(GEMM.macro_of(SPLIT), (1,), (0,)),
            MicroChoice(GEMM.macro_of(POINTER), (1, 64), (1, 1)),
            MicroChoice(GEMM.macro_of(TMA), (4,), (2,)),
        ),
        "bound_log2": 1.0,
        "cells": {(9, 12, 12): Cell((1, 2), (0, 100, -50)), (4, 12, 12): Cell((0,), (-300, 0, 0))},
        "exact": {(512, 4096, 4096): ExactEntry(3, 33.25), (300, 4096, 4096): ExactEntry(1, 20.5)},
        "fit_range": {"m": (1, 4096), "n": (64, 8192), "k": (64, 8192)},
        "provenance": {"created": "2026-11-29", "files": [{"name": "größe.csv", "rows": 3}]},
        "accuracy": {"held_out": None},
    }
    return ModelFile(**{**fields, **changes})  # type: ignore[arg-type]

"""Which kind a measurement file is, told by its content."""

from __future__ import annotations

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.pipeline.recording import read_recording
from wavetune.pipeline.shipped import find_recording

H200 = "nvidia-h200"


@pytest.mark.parametrize(
    ("name", "is_sweep"),
    [
        ("gemm-bf16-anchors.csv.gz", False),
        ("gemm-bf16-layers.csv.gz", True),
        ("gemm-fp16-layers.csv.gz", True),
        ("recorded/h200-gemm-bf16-anchors.csv.gz", False),
        ("recorded/h200-gemm-bf16-disturbed.csv.gz", True),
    ],
)
def test_recordings_tell_their_kind(name: str, is_sweep: bool) -> None:
    """Layers with the configurations that could win are a sweep, wave-structured points are not."""
    path = find_recording(H200, name)
    dtype = name.split("gemm-")[1].split("-")[0]
    recording = read_recording(
        [path], [], GEMM, find_arch(H200), dtype=dtype, layout="nk", skip_bad_rows=True, detect=True
    )
    assert bool(recording.sweeps) is is_sweep
    assert recording.table.exhaustive.all() == is_sweep

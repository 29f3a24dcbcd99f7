"""What an answer says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from wavetune.core.config import KernelConfig


class Source(StrEnum):
    """Where an answer comes from."""

    EXACT = "exact"
    MEASURED = "measured"
    NEAREST = "nearest"
    MODEL = "model"
    DEFAULT = "default"
    EMPTY = "empty"
    FORCED = "forced"


class RankedConfig(NamedTuple):
    """A configuration and its predicted latency in microseconds."""

    config: KernelConfig
    latency_us: float


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer and the reasons for it.

    Parameters
    ----------
    config : KernelConfig
        What to launch. For ``source == "empty"`` it is the default, and there is nothing to launch.
    source : Source
        ``exact``: this problem was measured, or is pinned. ``measured``: it was measured in this call. ``nearest``:
        inside the measured range, the cell's candidates and their forms decide. ``model``: beyond it, on part of the
        measured GPU, or where a model stands in, all forms decide. ``default``: the policy wants the default
        configuration, or no modelled one is legal here. ``empty``: a size is zero. ``forced``: a setting names the
        configuration.
    latency_us : float
        Measured or predicted latency; 0 if empty, NaN where nothing is known.
    grid_size, loop_trips : int
        The launch as the GPU sees it; 0 if empty.
    waves, tail_ctas : int
        Passes over the GPU, and CTAs in the last one; 0 if empty, or if no model knows how many CTAs are resident.
    runner_up : KernelConfig or None
        The next best legal configuration by prediction.
    margin : float
        Predicted latency of the runner-up over that of the choice, minus 1. For ``exact`` it can be negative.
    table : str
        Path of the file that answered: a model, a pinned table, or the user's store.
    num_sms : int
        SMs that the answer is for.
    is_scaled : bool
        Whether they are not those that were measured: waves and predictions are scaled from the whole GPU.
    model : str
        Path of the model file behind the prediction; empty if there is none.
    is_measured : bool
        Whether the latency was measured. What is ``exact`` because it is pinned may be a prediction.
    is_stand_in : bool
        Whether the model is of another layout or dtype, of plain weights for gated ones, of bf16 for fp16: nothing of
        this layout and dtype was measured.
    """

    config: KernelConfig
    source: Source
    latency_us: float
    grid_size: int
    loop_trips: int
    waves: int
    tail_ctas: int
    runner_up: KernelConfig | None
    margin: float
    table: str
    num_sms: int = 0
    is_scaled: bool = False
    model: str = ""
    is_measured: bool = False
    is_stand_in: bool = False

"""The micro table: for each macro configuration, the best micro fields at loop anchors."""

from __future__ import annotations

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.points import GemmGeometry
from wavetune.fit.selection import broad_sample
from wavetune.runtime.model_file import MicroChoice
from wavetune.store.table import FloatArray, IntArray

N_PROBLEMS = 600
"""Problems that the choice at each anchor is averaged over."""


def build_micro(model: WaveLatencyModel) -> tuple[MicroChoice, ...]:
    """Choose, for each surviving macro configuration, its best launch form around each power-of-two loop length.

    Returns
    -------
    tuple of MicroChoice
        One a macro configuration, ``config_index`` counting survivors; anchors where the choice does not change are
        left out.
    """
    survivors = [model.configs_[index] for index in model.survivors_]
    groups: dict[object, list[int]] = {}
    for index, entry in enumerate(survivors):
        groups.setdefault(model.spec.macro_of(entry.config), []).append(index)
    low, high = model.measured_dims_.min(axis=0), model.measured_dims_.max(axis=0)
    problems = broad_sample(list(zip(low.tolist(), high.tolist(), strict=True)), N_PROBLEMS, model.random_state)
    latency = np.log(model.predict_problems(problems))
    geometry = GemmGeometry(survivors, find_arch(model.arch), find_dtype(model.dtype))
    choices = []
    for members in groups.values():
        trips = geometry.points(problems, np.full(len(problems), members[0])).loop_trips
        anchors, picks = _at_anchors(trips, latency[:, members])
        macro = model.spec.macro_of(survivors[members[0]].config)
        choices.append(MicroChoice(macro, anchors, tuple(members[pick] for pick in picks)))
    return tuple(choices)


def _at_anchors(trips: IntArray, log_latency: FloatArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    octave = np.round(np.log2(trips)).astype(np.int64)
    anchors: list[int] = []
    picks: list[int] = []
    for value in np.unique(octave).tolist():
        pick = int(np.argmin(log_latency[octave == value].mean(axis=0)))
        if not picks or pick != picks[-1]:
            anchors.append(2**value)
            picks.append(pick)
    return tuple(anchors), tuple(picks)

"""A launch in words: what its waves, tail, trips and bytes mean, from the model's own terms. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from wavetune.core.arch import ArchSpec
from wavetune.core.config import WALKING_SCHEDULES
from wavetune.mapping.gemm import reusable_l2_bytes
from wavetune.report.anatomy import LaunchAnatomy
from wavetune.report.family_anatomy import FamilyAnatomy
from wavetune.waves.terms import BYTES_PER_MB, SUSTAINED_ONSET_US

TERM_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "launch": ("launch",),
        "passing of waves": ("wave", "wave_trip"),
        "work of the SMs": ("depth_trip", "work", "work_trip"),
        "bytes moved once": ("compulsory",),
        "bytes fetched again": ("reread",),
        "split-k sums": ("workspace",),
        "lower clock": ("sustained",),
    }
)
"""What the terms of `wavetune.waves.terms.TERMS` mean to a reader, in the order of a sentence."""

FAMILY_TERM_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "launch": ("launch",),
        "passing of waves": ("wave", "wave_trip", "wave_longest"),
        "work of the SMs": (
            *("depth_trip", "depth_longest", "work", "work_trip", "makespan"),
            *("crowd_1", "crowd_2", "crowd_3"),
        ),
        "the longest CTA": ("longest",),
        "bytes moved": ("bytes",),
    }
)
"""The same for `wavetune.waves.family_terms.FAMILY_TERMS`."""

ALIKE = 0.02
"""Predictions within this are right: near-best latencies repeat within 1 to 2.5 % (H200, 2026-11)."""


def group_terms(anatomy: LaunchAnatomy | FamilyAnatomy) -> dict[str, float]:
    """Return microseconds by group of terms, those that add nothing left out; empty without a form."""
    if not anatomy.terms_us:
        return {}
    named = FAMILY_TERM_GROUPS if isinstance(anatomy, FamilyAnatomy) else TERM_GROUPS
    groups = {label: sum(anatomy.terms_us[name] for name in names) for label, names in named.items()}
    return {label: value for label, value in groups.items() if value > 0.0}


def describe_launch(anatomy: LaunchAnatomy, arch: ArchSpec) -> Iterator[tuple[str, str]]:
    """Yield topic and sentence: tiles, waves, loop, split-k if there is one, bytes, and where the time goes."""
    mapping, config = anatomy.mapping, anatomy.config
    block_m, block_n, block_k, split_k = (int(config[name]) for name in ("block_m", "block_n", "block_k", "split_k"))
    yield (
        "tiles",
        f"{_count(mapping.tiles_m * mapping.tiles_n, 'tile')} of {block_m} x {block_n} "
        f"({mapping.tiles_m:,} x {mapping.tiles_n:,}); {_padding(anatomy)}",
    )
    yield "waves", describe_waves(anatomy)
    each = "each CTA runs" if mapping.grid_size > 1 else "it runs"
    yield "loop", f"{each} {_count(mapping.loop_trips, 'trip')} of {block_k} along k"
    if split_k > 1:
        yield (
            "split-k",
            f"k is cut in {split_k}: {split_k} times the CTAs, 1/{split_k} of the trips; "
            f"partial sums move {_in_bytes(mapping.workspace_bytes)}",
        )
    yield "bytes", _bytes(anatomy, arch)
    yield from _time(anatomy)
    if anatomy.terms_us.get("sustained", 0.0) > 0.0:
        yield "clock", f"more than {SUSTAINED_ONSET_US:.0f} us at the peak rate: the power limit lowers the clock"


def describe_family_launch(anatomy: FamilyAnatomy) -> Iterator[tuple[str, str]]:
    """Yield topic and sentence for any kernel: waves, loop, bytes, and where the time goes."""
    shape = anatomy.mapping
    yield "waves", describe_waves(anatomy)
    mean = shape.total_trips / shape.grid_size
    if shape.grid_size * shape.loop_trips == shape.total_trips:
        each = "each CTA runs" if shape.grid_size > 1 else "it runs"
        yield "loop", f"{each} {_count(shape.loop_trips, 'trip')}"
    else:
        yield "loop", f"the longest CTA runs {_count(shape.loop_trips, 'trip')}, all of them {mean:.1f} on average"
    bound = "memory" if anatomy.memory_us > anatomy.compute_us else "arithmetic"
    yield (
        "bytes",
        f"{_in_bytes(shape.moved_bytes)} move: at least {anatomy.memory_us:.1f} us at peak bandwidth, "
        f"{anatomy.compute_us:.1f} us at the peak matrix rate, so {bound} bounds it",
    )
    yield from _time(anatomy)


def _time(anatomy: LaunchAnatomy | FamilyAnatomy) -> Iterator[tuple[str, str]]:
    groups = group_terms(anatomy)
    if groups:
        largest = sorted(groups.items(), key=lambda entry: -entry[1])
        parts = ", ".join(f"{label} {value:.1f}" for label, value in largest if value >= 0.01 * anatomy.latency_us)
        yield "time", f"of {anatomy.latency_us:.1f} us predicted: {parts}"


def describe_waves(anatomy: LaunchAnatomy | FamilyAnatomy) -> str:
    """Say in how many waves a launch runs, and how full the last one is."""
    waves, resident = anatomy.waves, anatomy.form.ctas_per_sm
    width = f"{waves.width:,} ({resident} on each of {anatomy.num_sms} SMs)"
    # A persistent kernel launches fewer CTAs, which take the tiles in the same waves.
    units = _count(anatomy.mapping.grid_size, "tile" if anatomy.config.get("schedule") in WALKING_SCHEDULES else "CTA")
    if waves.waves == 1:
        return f"{units} in 1 wave of up to {width}: {anatomy.tail_fill:.0%} full"
    return (
        f"{units} in {waves.waves:,} waves of up to {width}; "
        f"the last holds {waves.tail_ctas:,}: {anatomy.tail_fill:.0%} full"
    )


def compare_launches(chosen: LaunchAnatomy | FamilyAnatomy, other: LaunchAnatomy | FamilyAnatomy) -> str:
    """Say in which parts of the predicted time two launches differ most; empty if one of them has no form."""
    ours, theirs = group_terms(chosen), group_terms(other)
    if not ours or not theirs:
        return ""
    change = {label: theirs.get(label, 0.0) - ours.get(label, 0.0) for label in {**ours, **theirs}}
    threshold = 0.01 * chosen.latency_us
    notable = sorted((entry for entry in change.items() if abs(entry[1]) >= threshold), key=lambda e: -abs(e[1]))
    if not notable:
        return "no difference in any term"
    return ", ".join(f"{label} {value:+.1f} us" for label, value in notable[:3])


def explain_miss(
    choice: LaunchAnatomy, measured_us: float, best: LaunchAnatomy, best_us: float, best_held_us: float = float("nan")
) -> str:
    """Say why a slower configuration was chosen.

    Parameters
    ----------
    choice, best : LaunchAnatomy
        The choice, and the fastest configuration; the model may not hold the latter.
    measured_us, best_us : float
        Their measured latencies, microseconds.
    best_held_us : float, optional
        Measured latency of the fastest configuration that the model holds; NaN if unknown.

    Returns
    -------
    str
        A few sentences.
    """
    if not choice.terms_us:
        return "No modelled configuration is legal here: this is the default, which has no form."
    text = f"The choice was predicted {_error_words(choice.latency_us, measured_us)}"
    if best.terms_us:
        text += f", the fastest {_error_words(best.latency_us, best_us)}. "
    else:
        text += "; the fastest is not among the configurations that the model holds. "
        if best_held_us > 0.0:
            text += f"The best of those is {best_held_us / best_us - 1.0:.1%} slower than it. "
    text += f"Choice: {describe_waves(choice)}, {_count(choice.mapping.loop_trips, 'trip')}. "
    text += f"Fastest: {describe_waves(best)}, {_count(best.mapping.loop_trips, 'trip')}."
    difference = compare_launches(choice, best)
    return f"{text} Going from the choice to the fastest, the model expects {difference}." if difference else text


def _error_words(predicted_us: float, measured_us: float) -> str:
    error = predicted_us / measured_us - 1.0
    if abs(error) <= ALIKE:
        return f"right ({error:+.1%})"
    return f"{abs(error):.0%} too {'slow' if error > 0 else 'fast'}"


def _padding(anatomy: LaunchAnatomy) -> str:
    if anatomy.padding == 0.0:
        return "they fit the problem exactly"
    return f"{anatomy.padding:.1%} of their area lies outside the problem"


def _bytes(anatomy: LaunchAnatomy, arch: ArchSpec) -> str:
    mapping = anatomy.mapping
    bound = "memory" if anatomy.memory_us > anatomy.compute_us else "arithmetic"
    text = (
        f"A, B and C are {_in_bytes(mapping.compulsory_bytes)}: at least {anatomy.memory_us:.1f} us at peak "
        f"bandwidth, {anatomy.compute_us:.1f} us at the peak matrix rate, so {bound} bounds it"
    )
    if mapping.reread_bytes:
        text += (
            f"; B outgrows the {_in_bytes(reusable_l2_bytes(arch.l2_bytes))} of cache that it can keep, "
            f"and {_in_bytes(mapping.reread_bytes)} are fetched again"
        )
    return text


def _in_bytes(n_bytes: float) -> str:
    units = (("GB", 1000 * BYTES_PER_MB), ("MB", BYTES_PER_MB), ("KB", BYTES_PER_MB / 1000))
    unit, size = next((entry for entry in units if n_bytes >= entry[1]), units[-1])
    amount = n_bytes / size
    return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

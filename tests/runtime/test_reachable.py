"""The closed set of a layer: every answer is in it, and everything in it is an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made import EXACT_ONLY, POINTER, make_model

import wavetune
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError, ProblemTypeError, WavetuneError
from wavetune.runtime import measurer as measurer_module
from wavetune.runtime.codec import write_model
from wavetune.runtime.freeze import freeze
from wavetune.runtime.measurer import MeasuredChoice, MeasureRequest
from wavetune.runtime.model_file import ExactEntry
from wavetune.runtime.pinned import write_pinned

ARCH = "nvidia-h200"
LAYERS = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (4097, 4096)]


def answers(n: int, k: int, rows: range, **options: object) -> set[wavetune.KernelConfig]:
    """Return what `choose_config` answers, m by m."""
    return {wavetune.choose_config(m, n, k, arch=ARCH, **options) for m in rows}  # type: ignore[arg-type]


@pytest.mark.parametrize("numerics", ["any", "batch_invariant"])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_the_set_is_exactly_the_answers(n: int, k: int, numerics: str) -> None:
    """For thousands of m nothing is answered outside of the set, and nothing in it is never answered."""
    reachable = wavetune.reachable_configs(n, k, (1, 3000), arch=ARCH, numerics=numerics)
    assert wavetune.misses() == []
    assert len(set(reachable)) == len(reachable) < 40
    assert set(reachable) == answers(n, k, range(1, 3001), numerics=numerics)


@pytest.mark.parametrize("options", [{"alignment": 2}, {"num_sms": 40}, {"on_miss": "default"}, {"dtype": "fp16"}])
def test_every_option_has_its_own_set(options: dict[str, object]) -> None:
    """Alignment, SMs, policy and dtype decide the set as they decide the answers."""
    reachable = wavetune.reachable_configs(4096, 4096, (1, 600), arch=ARCH, **options)  # type: ignore[arg-type]
    assert set(reachable) == answers(4096, 4096, range(1, 601), **options)


def test_the_order_is_that_of_the_smallest_m() -> None:
    """What decode needs comes first."""
    reachable = wavetune.reachable_configs(4096, 4096, (1, 2000), arch=ARCH)
    seen = list(dict.fromkeys(wavetune.choose_config(m, 4096, 4096, arch=ARCH) for m in range(1, 2001)))
    assert list(reachable) == seen


def test_exact_entries_and_pins_belong_to_it(tmp_path: Path) -> None:
    """An odd configuration that a single m is pinned to, or was measured best for, is in the set."""
    write_model(make_model(exact={(77, 4096, 4096): ExactEntry(3, 9.0)}), tmp_path / "models" / ARCH / "gemm-bf16.json")
    wavetune.configure(models=tmp_path / "models")
    assert EXACT_ONLY in wavetune.reachable_configs(4096, 4096, (70, 80), arch=ARCH)
    assert EXACT_ONLY not in wavetune.reachable_configs(4096, 4096, (70, 76), arch=ARCH)
    table = freeze([GemmProblem(7, 4096, 4096)], arch=ARCH)
    odd = POINTER.replace(num_stages=2)
    write_pinned(replace(table, entries={GemmProblem(5, 4096, 4096): (odd, 1.0)}), tmp_path / "pinned.json")
    wavetune.configure(pinned=tmp_path / "pinned.json")
    reachable = wavetune.reachable_configs(4096, 4096, (1, 100), arch=ARCH)
    assert {odd, EXACT_ONLY} <= set(reachable) == answers(4096, 4096, range(1, 101))


class Contrary:
    """Measures that the worst candidate is the best."""

    def is_capturing(self) -> bool:
        """Never."""
        return False

    def measure(self, request: MeasureRequest) -> MeasuredChoice:
        """Choose the last candidate of an even m, the default of an odd one."""
        is_even = request.problem.dims[0] % 2 == 0
        return MeasuredChoice(request.configs[-1] if is_even else request.default, 1.0, 2.0)


@pytest.mark.parametrize("measure_in", ["inline", "background"])
def test_what_may_be_measured_belongs_to_it(monkeypatch: pytest.MonkeyPatch, measure_in: str) -> None:
    """Whatever a measurement finds, it was in the set before; asking for the set measures nothing."""
    monkeypatch.setitem(measurer_module._measurers, "gemm", Contrary())
    wavetune.configure(on_miss="measure", measure_in=measure_in, measure_top_k=3)
    n, k, rows = 48, 1_000_000, range(1, 30)
    reachable = wavetune.reachable_configs(n, k, (1, 29), arch=ARCH)
    assert wavetune.explain_choice(1, n, k, arch=ARCH, on_miss="model").source == "model"
    for _ in range(2):
        assert answers(n, k, rows) <= set(reachable)
        assert measurer_module.find_measurer("gemm") is not None
        from wavetune.runtime import background

        assert background.wait_until_idle(30)
    assert wavetune.explain_choice(2, n, k, arch=ARCH).source == "exact"
    assert set(wavetune.reachable_configs(n, k, (1, 29), arch=ARCH)) <= set(reachable)


def test_the_policy_error_reaches_what_is_covered() -> None:
    """Problems that are refused have no configuration; a range of them alone has none at all."""
    assert wavetune.reachable_configs(48, 1_000_000, (1, 8), arch=ARCH, on_miss="error") == ()
    assert wavetune.reachable_configs(4096, 4096, (1, 8), arch=ARCH, on_miss="error") != ()


def test_zero_rows_reach_the_default() -> None:
    """An empty batch is answered with the default, which then belongs to the set."""
    default = wavetune.choose_config(0, 4096, 4096, arch=ARCH)
    assert wavetune.reachable_configs(4096, 4096, (0, 0), arch=ARCH) == (default,)
    assert wavetune.reachable_configs(4096, 4096, (np.int64(3), np.int32(3)), arch=ARCH) == (
        wavetune.choose_config(3, 4096, 4096, arch=ARCH),
    )


@pytest.mark.parametrize("m_range", [5, None, (1, 2, 3), (5, 4), (1, 2**21), (-1, 4), (1, 2**31), (1.0, 4), (True, 4)])
def test_a_range_that_makes_no_sense_is_refused(m_range: tuple[int, int]) -> None:
    """Empty, endless and negative ranges are errors."""
    with pytest.raises((ProblemError, ProblemTypeError)):
        wavetune.reachable_configs(4096, 4096, m_range, arch=ARCH)
    for options in ({"arch": "h2000"}, {"numerics": "some"}, {"on_miss": "wait"}, {"dtype": "bf17"}):
        with pytest.raises(WavetuneError):
            wavetune.reachable_configs(4096, 4096, (1, 2), **{"arch": ARCH, **options})

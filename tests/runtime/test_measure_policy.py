"""``on_miss="measure"``: what is asked of a measurer, when, and what becomes of its answer."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wavetune
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoMeasurerError, WavetuneError
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.runtime import measurer as measurer_module
from wavetune.runtime.measurer import MeasuredChoice, Measurer, MeasureRequest, find_measurer, register_measurer
from wavetune.runtime.settings import configure

BEYOND = (17, 48, 1_000_000)
UNALIGNED = (40, 301, 200_001)
NEAR = (511, 4096, 4096)
H200 = wavetune.find_arch("h200")


def last_candidate(request: MeasureRequest) -> MeasuredChoice | None:
    """Choose the last candidate, so that the model's own answer is told from it."""
    return MeasuredChoice(request.configs[-1], 20.0, 25.0)


class MadeUpMeasurer:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, answer: Callable[[MeasureRequest], MeasuredChoice | None] = last_candidate) -> None:
        self.answer = answer
        self.requests: list[MeasureRequest] = []
        self.capturing = False

    def is_capturing(self) -> bool:
        """Whether the test says so."""
        return self.capturing

    def measure(self, request: MeasureRequest) -> MeasuredChoice | None:
        """Note the request and answer."""
        self.requests.append(request)
        return self.answer(request)


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MadeUpMeasurer]:
    """Register a made-up measurer under the policy ``measure``, with an empty store."""
    made_up = MadeUpMeasurer()
    monkeypatch.setitem(measurer_module._measurers, "gemm", made_up)
    configure(on_miss="measure", cache_dir=tmp_path / "cache")
    yield made_up
    configure(on_miss=None, cache_dir=None, measure_in=None, disable=None, force_config=None, measure_top_k=None)


def explain(dims: tuple[int, int, int], **options: object) -> wavetune.Choice:
    """Explain a choice on an H200."""
    return wavetune.explain_choice(*dims, arch="h200", **options)  # type: ignore[arg-type]


def choose(dims: tuple[int, int, int], **options: object) -> KernelConfig:
    """Choose on an H200."""
    return wavetune.choose_config(*dims, arch="h200", **options)  # type: ignore[arg-type]


def modelled(dims: tuple[int, int, int]) -> KernelConfig:
    """Return the answer of the model alone."""
    return choose(dims, on_miss="model")


def test_a_miss_is_measured_once_and_exact_from_then_on(measurer: MadeUpMeasurer) -> None:
    """The first answer is ``measured``, later ones ``exact``, in every form of the question; nothing is asked twice."""
    first = explain(BEYOND)
    assert first.source == "measured"
    assert first.config == measurer.requests[0].configs[-1]
    assert first.latency_us == 20.0
    assert first.config != modelled((18, 48, 1_000_000))
    again = explain(BEYOND)
    assert (again.source, again.config, again.latency_us) == ("exact", first.config, 20.0)
    assert choose(BEYOND) == first.config
    assert choose(BEYOND) == first.config
    assert wavetune.choose(GemmProblem(*BEYOND), arch="h200") == first.config
    assert choose(BEYOND, on_miss="model") == first.config
    assert len(measurer.requests) == 1


def test_the_request_is_the_top_of_the_ranking(measurer: MadeUpMeasurer) -> None:
    """A measurer gets the best predicted, legal configurations, the default, and the settings."""
    configure(measure_top_k=3, measure_budget_ms=12.5, measure_margin=0.07)
    try:
        for dims in (BEYOND, UNALIGNED):
            default = choose(dims, on_miss="default")
            choose(dims)
            request = measurer.requests[-1]
            assert request.problem.dims == dims
            ranked = wavetune.rank_configs(request.problem, arch="h200")
            assert request.configs == tuple(entry.config for entry in ranked[:3])
            assert request.default == default
            for config in (*request.configs, request.default):
                assert gemm_illegal_reason(GemmProblem(*dims), config, H200) is None
            assert (request.budget_ms, request.margin) == (12.5, 0.07)
            assert (request.device.arch, request.device.num_sms) == (H200, 132)
    finally:
        configure(measure_budget_ms=None, measure_margin=None)


def test_what_the_tables_know_is_not_measured(measurer: MadeUpMeasurer) -> None:
    """Exact and near answers, and empty problems, ask no measurer."""
    for dims in (NEAR, (512, 4096, 4096), (0, 4096, 4096), (1, 4096, 4096)):
        choose(dims)
        assert explain(dims).source in ("exact", "nearest", "empty")
    assert measurer.requests == []


def test_the_next_process_starts_exact(measurer: MadeUpMeasurer) -> None:
    """After everything in memory is forgotten, the store answers."""
    first = choose(BEYOND)
    wavetune.clear_caches()
    found = explain(BEYOND)
    assert (found.source, found.config, found.latency_us) == ("exact", first, 20.0)
    assert len(measurer.requests) == 1
    # For another limit on SMs it is another question.
    assert explain(BEYOND, num_sms=66).source == "measured"
    assert len(measurer.requests) == 2


def test_alignments_are_measured_apart(measurer: MadeUpMeasurer) -> None:
    """What was measured on aligned operands does not answer for others."""
    choose(BEYOND)
    assert explain(BEYOND, alignment=2).source == "measured"
    assert [request.problem.alignment for request in measurer.requests] == [16, 2]
    wavetune.clear_caches()
    assert explain(BEYOND, alignment=2).source == "exact"
    assert explain(BEYOND, alignment=4).source == "measured"


def test_during_a_capture_the_tables_answer(measurer: MadeUpMeasurer) -> None:
    """While a graph is captured the model answers, and nothing is measured; afterwards the same question is."""
    measurer.capturing = True
    assert choose(BEYOND) == modelled(BEYOND)
    assert explain(BEYOND).source == "model"
    assert choose(BEYOND) == modelled(BEYOND)
    assert measurer.requests == []
    measurer.capturing = False
    assert choose(BEYOND) == measurer.requests[0].configs[-1]
    assert explain(BEYOND).source == "exact"


def test_a_measurer_that_gives_up_leaves_the_model_s_answer(measurer: MadeUpMeasurer) -> None:
    """Out of memory, a busy GPU: the model answers, and the program is not slowed down by trying at every call."""
    measurer.answer = lambda request: None
    for _ in range(5):
        assert choose(BEYOND) == modelled(BEYOND)
        assert explain(BEYOND).source == "model"
    assert len(measurer.requests) == 1


def test_an_accident_of_a_measurer_does_not_reach_the_caller(
    measurer: MadeUpMeasurer, caplog: pytest.LogCaptureFixture
) -> None:
    """A measurer that raises is logged, and the model answers."""

    def fail(request: MeasureRequest) -> MeasuredChoice | None:
        raise RuntimeError("an accident")

    measurer.answer = fail
    assert choose(BEYOND) == modelled(BEYOND)
    assert "an accident" in caplog.text


def test_an_illegal_outcome_is_not_used(measurer: MadeUpMeasurer, caplog: pytest.LogCaptureFixture) -> None:
    """A configuration that may not run the problem is refused, whoever says that it is fast."""
    tma = choose((4096, 4096, 4096)).replace(load="tma")
    assert gemm_illegal_reason(GemmProblem(*UNALIGNED), tma, H200) is not None
    measurer.answer = lambda request: MeasuredChoice(tma, 1.0, 25.0)
    assert choose(UNALIGNED) == modelled(UNALIGNED)
    assert any(record.levelno == logging.WARNING for record in caplog.records)
    wavetune.clear_caches()
    assert choose(UNALIGNED, on_miss="model") != tma


def test_a_disabled_or_forced_process_measures_nothing(measurer: MadeUpMeasurer) -> None:
    """Never when disabled, and never where the configuration is forced."""
    default = choose(BEYOND, on_miss="default")
    configure(disable=True)
    assert choose(BEYOND) == default
    configure(disable=None, force_config=default)
    assert explain(BEYOND).source == "forced"
    assert measurer.requests == []


def test_a_call_may_have_its_own_policy(measurer: MadeUpMeasurer) -> None:
    """``on_miss`` of a call wins over the setting, both ways."""
    assert explain(BEYOND, on_miss="model").source == "model"
    assert explain(BEYOND, on_miss="default").source == "default"
    with pytest.raises(WavetuneError):
        choose(BEYOND, on_miss="error")
    assert measurer.requests == []
    configure(on_miss="model")
    assert explain(BEYOND).source == "model"
    assert explain(BEYOND, on_miss="measure").source == "measured"
    assert explain(BEYOND).source == "exact"


def test_without_a_measurer_the_error_says_what_registers_one(
    measurer: MadeUpMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy ``measure`` without a measurer is an error that names the import, also for the built-in class."""
    monkeypatch.delitem(measurer_module._measurers, "gemm")
    with pytest.raises(NoMeasurerError, match=r"wavetune\.launch"):
        choose(BEYOND)
    assert choose(NEAR) is not None


def test_threads_that_miss_together_measure_once(measurer: MadeUpMeasurer) -> None:
    """Sixteen threads with the same questions: one measurement each, and in the end one answer."""
    dims = [(m, 48, 1_000_000) for m in range(1, 9)]

    def slowly(request: MeasureRequest) -> MeasuredChoice | None:
        time.sleep(0.01)
        return last_candidate(request)

    measurer.answer = slowly
    answers: dict[tuple[int, int, int], set[KernelConfig]] = {entry: set() for entry in dims}
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for entry in dims:
                answers[entry].add(choose(entry))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(request.problem.dims for request in measurer.requests) == dims
    assert all(len(configs) == 1 for configs in answers.values())


def test_in_the_background_the_model_answers_first(measurer: MadeUpMeasurer) -> None:
    """With ``measure_in="background"`` a miss costs no time; once it is measured, the answer is exact."""
    may_go = threading.Event()

    def patiently(request: MeasureRequest) -> MeasuredChoice | None:
        assert may_go.wait(30)
        return last_candidate(request)

    measurer.answer = patiently
    configure(measure_in="background")
    for _ in range(3):
        assert choose(BEYOND) == modelled(BEYOND)
        assert explain(BEYOND).source == "model"
    may_go.set()
    deadline = time.monotonic() + 30
    while explain(BEYOND).source != "exact":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert choose(BEYOND) == measurer.requests[0].configs[-1]
    assert len(measurer.requests) == 1
    wavetune.clear_caches()
    assert explain(BEYOND).source == "exact"


def test_a_cache_folder_that_cannot_be_written_costs_one_warning(
    measurer: MadeUpMeasurer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured answers hold for the process, and the user hears once that they are not kept."""
    (tmp_path / "file").write_text("not a folder")
    configure(cache_dir=tmp_path / "file" / "cache")
    for m in (1, 2, 3):
        dims = (m, 48, 1_000_000)
        assert explain(dims).source == "measured"
        assert explain(dims).source == "exact"
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("stay in the memory" in message for message in messages) == 1
    assert len(messages) <= 2


def test_a_damaged_row_of_the_store_is_a_miss(measurer: MadeUpMeasurer, tmp_path: Path) -> None:
    """A row that cannot be right is measured again."""
    choose(BEYOND)
    with sqlite3.connect(next((tmp_path / "cache").glob("*.db"))) as sqlite:
        sqlite.execute("UPDATE choices SET config = 'nonsense'")
    sqlite.close()
    wavetune.clear_caches()
    assert explain(BEYOND).source == "measured"
    assert len(measurer.requests) == 2
    wavetune.clear_caches()
    assert explain(BEYOND).source == "exact"


def test_the_registry_keeps_the_last_measurer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later registration takes the place of an earlier one; families are apart."""
    monkeypatch.setattr(measurer_module, "_measurers", {})
    first, second = MadeUpMeasurer(), MadeUpMeasurer()
    assert isinstance(first, Measurer)
    assert find_measurer("gemm") is None
    register_measurer("gemm", first)
    register_measurer("other", second)
    assert find_measurer("gemm") is first
    register_measurer("gemm", second)
    assert find_measurer("gemm") is second
    assert find_measurer("other") is second

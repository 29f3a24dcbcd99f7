"""The list of what was not exact: each key once, a line in the log, counts while recording, a workload file."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from hand_made import make_model

import wavetune
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import MissError, WorkloadError
from wavetune.runtime import misses
from wavetune.runtime.codec import write_model

ARCH = "nvidia-h200"
EXACT, NEAR, BEYOND = (512, 4096, 4096), (500, 4000, 4096), (100_000, 512, 512)


@pytest.fixture(autouse=True)
def model_folder(tmp_path: Path) -> None:
    """Answer from the hand-made model."""
    write_model(make_model(), tmp_path / "models" / ARCH / "gemm-bf16.json")
    wavetune.configure(models=tmp_path / "models")


def choose(*calls: tuple[int, int, int], **options: object) -> None:
    """Choose for shapes."""
    for dims in calls:
        wavetune.choose_config(*dims, arch=ARCH, **options)  # type: ignore[arg-type]


def listed() -> list[tuple[tuple[int, int, int], int, str]]:
    """Return sizes, alignment and source of every miss."""
    return [(miss.problem.dims, miss.problem.alignment, miss.source.value) for miss in wavetune.misses()]


def test_every_key_is_listed_once_with_its_source() -> None:
    """What is not exact is listed at its first call, in order; exact and empty answers are not."""
    choose(EXACT, NEAR, BEYOND, NEAR, (0, 4, 4), NEAR, EXACT)
    choose(NEAR, alignment=2)
    wavetune.explain_choice(*NEAR, arch=ARCH)
    wavetune.rank_configs(GemmProblem(7, 7, 7), arch=ARCH)
    assert listed() == [(NEAR, 16, "nearest"), (BEYOND, 16, "model"), (NEAR, 2, "nearest")]
    miss = wavetune.misses()[0]
    assert (miss.arch, miss.num_sms, miss.numerics, miss.count) == (ARCH, 132, "any", 0)


def test_tables_have_their_own_lists() -> None:
    """The same sizes under another limit on SMs or another numerics class are another question."""
    choose(NEAR)
    choose(NEAR, num_sms=66)
    choose(NEAR, numerics="batch_invariant")
    assert [(m.num_sms, m.numerics, m.source.value) for m in wavetune.misses()] == [
        (132, "any", "nearest"), (66, "any", "model"), (132, "batch_invariant", "nearest"),
    ]  # fmt: skip


def test_a_refused_miss_is_not_listed_as_answered() -> None:
    """Under the policy ``error`` there is no answer; under ``default`` its source is listed."""
    with pytest.raises(MissError):
        choose(BEYOND, on_miss="error")
    assert listed() == []
    choose(BEYOND, on_miss="default")
    assert listed() == [(BEYOND, 16, "default")]


def test_one_line_a_key_goes_to_the_log(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """At level info each new key is one line that says where the answer came from; nothing is printed."""
    with caplog.at_level(logging.INFO, "wavetune"):
        choose(NEAR, BEYOND, EXACT, NEAR, BEYOND)
        choose(NEAR)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "500 x 4000 x 4096" in lines[0]
    assert lines[0].endswith("nearest")
    assert lines[1].endswith("model")
    assert capsys.readouterr() == ("", "")


def test_a_level_that_changes_counts_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Lines appear as soon as somebody asks for them."""
    choose(NEAR)
    with caplog.at_level(logging.INFO, "wavetune"):
        choose((501, 4000, 4096), NEAR)
    assert len(caplog.records) == 1


def test_calls_are_counted_while_recording() -> None:
    """With ``record`` every call counts, repeated and explained ones too; memory hides none."""
    choose(NEAR, NEAR)
    wavetune.configure(record=True)
    choose(NEAR, BEYOND, NEAR, EXACT, NEAR, EXACT)
    wavetune.explain_choice(*BEYOND, arch=ARCH)
    wavetune.choose(GemmProblem(*BEYOND), arch=ARCH)
    assert {miss.problem.dims: miss.count for miss in wavetune.misses()} == {NEAR: 3, BEYOND: 3}
    wavetune.configure(record=False)
    choose(NEAR, BEYOND)
    assert {miss.problem.dims: miss.count for miss in wavetune.misses()} == {NEAR: 3, BEYOND: 3}


def test_no_call_is_lost_between_threads() -> None:
    """Counts of many threads add up."""
    wavetune.configure(record=True)
    threads = [threading.Thread(target=choose, args=[NEAR] * 200) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [miss.count for miss in wavetune.misses()] == [1600]


def test_misses_become_a_workload(tmp_path: Path) -> None:
    """The file holds every key once with its calls, and reads as the problems that were asked."""
    wavetune.configure(record=True)
    choose(NEAR, NEAR, BEYOND, EXACT)
    choose(NEAR, alignment=2)
    path = tmp_path / "misses.json"
    assert wavetune.write_misses(path) == 3
    counts = {(p.dims, p.alignment): count for p, count in Workload.read(path).gemm_problems()}
    assert counts == {(NEAR, 16): 2, (BEYOND, 16): 1, (NEAR, 2): 1}
    with pytest.raises(WorkloadError):
        wavetune.write_misses(tmp_path / "no" / "such" / "folder.json")
    with pytest.raises(WorkloadError, match="got None"):
        wavetune.write_misses(None)  # type: ignore[arg-type]


def test_misses_survive_configuration_and_not_clearing() -> None:
    """`configure` keeps the list, `clear_caches` empties it."""
    choose(NEAR)
    wavetune.configure(measure_top_k=5)
    choose(BEYOND)
    assert len(listed()) == 2
    wavetune.clear_caches()
    assert listed() == []
    choose(NEAR)
    assert len(listed()) == 1


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the bound keys are answered but not listed, with one warning."""
    monkeypatch.setattr(misses, "MAX_MISSES", 5)
    choose(*[(m, 4000, 4096) for m in range(300, 320)])
    choose(*[(m, 4000, 4096) for m in range(300, 320)], alignment=2)
    assert len(listed()) == 10
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING

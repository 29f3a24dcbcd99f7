"""Tasks in disposable processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wavetune.errors import RunnerError
from wavetune.measure.isolation import CRASHED, RAISED, TIMED_OUT, Outcome, run_isolated


def no_setup() -> None:
    """Prepare nothing."""


def failing_setup() -> None:
    """Fail as a missing device would."""
    raise OSError("no device")


def act(item: tuple[str, str]) -> str:
    """Do as told."""
    verb, path = item
    if verb == "crash":
        os._exit(7)
    if verb == "hang":
        time.sleep(60)
    if verb == "raise":
        raise ValueError("bad item")
    if verb == "crash once" and not Path(path).exists():
        Path(path).touch()
        os._exit(7)
    return verb


def run(verbs: list[str], path: Path, **options: object) -> list[Outcome]:
    """Run verbs and return their outcomes in order."""
    settings = {"setup": no_setup, "n_workers": 2, "time_limit_s": 5.0, **options}
    outcomes = list(run_isolated(act, [(verb, str(path)) for verb in verbs], **settings))
    return sorted(outcomes, key=lambda outcome: outcome.index)


def test_a_failure_costs_one_item(tmp_path: Path) -> None:
    """Crashes and exceptions are reported; every other item is done."""
    outcomes = run(["a", "crash", "b", "raise", "c"], tmp_path / "mark")
    assert [outcome.failure for outcome in outcomes] == ["", CRASHED, "", RAISED, ""]
    assert [outcome.value for outcome in outcomes] == ["a", None, "b", None, "c"]
    assert "exit code 7" in outcomes[1].detail
    assert outcomes[3].detail == "ValueError: bad item"


def test_a_hanging_item_is_ended(tmp_path: Path) -> None:
    """The time limit holds for one item, not for the run."""
    outcomes = run(["hang", "a", "b"], tmp_path / "mark", time_limit_s=3.0)
    assert [outcome.failure for outcome in outcomes] == [TIMED_OUT, "", ""]


def test_the_innocent_is_tried_again(tmp_path: Path) -> None:
    """With two attempts, an item that fails once succeeds in a fresh process; the guilty one is given up."""
    outcomes = run(["crash once", "crash"], tmp_path / "mark", attempts=2)
    assert [outcome.failure for outcome in outcomes] == ["", CRASHED]


def test_a_worker_that_cannot_start_ends_the_run(tmp_path: Path) -> None:
    """A broken setup is not blamed on the items."""
    with pytest.raises(RunnerError, match="no device"):
        run(["a"], tmp_path / "mark", setup=failing_setup)


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    """Its workers import it, and would begin it again."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from wavetune.measure.isolation import run_isolated\n"
        "print(list(run_isolated(abs, [-1, -2], setup=print, n_workers=2, time_limit_s=30.0)))\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("wavetune.errors.RunnerError: worker processes end before")
    assert "if __name__ == '__main__':" in result.stderr.splitlines()[-1]


def test_workers_see_the_environment_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server may be older than a variable."""
    run(["a"], tmp_path / "mark")
    monkeypatch.setenv("WAVETUNE_TEST_MARK", "here")
    (outcome,) = run_isolated(os.getenv, ["WAVETUNE_TEST_MARK"], setup=no_setup, n_workers=1, time_limit_s=5.0)
    assert outcome.value == "here"

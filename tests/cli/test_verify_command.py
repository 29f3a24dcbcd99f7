"""``wavetune verify``: matched, fell back or stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result

from wavetune import clear_caches
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.runtime import user_store
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.user_store import STORE_NAME, UserStore

Cli = Callable[..., Result]

CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})


def verify(cli: Cli, *arguments: object, arch: str = "h200") -> Result:
    """Run the verb for a GPU, on what the files hold now."""
    clear_caches()
    return cli("verify", "w.csv", "--arch", arch, *arguments)


def statuses(result: Result) -> dict[int, str]:
    """Return the status of each problem by its m."""
    return {problem["m"]: problem["status"] for problem in result.json["problems"]}


def save(m: int, *, arch: str = "nvidia-h200", num_sms: int = 132) -> None:
    """Save a measured choice into the user's store."""
    store = UserStore(Path("cache", STORE_NAME))
    store.save(GemmProblem(m, 4096, 4096), MeasuredChoice(CONFIG, 10.0, 12.0), arch=arch, num_sms=num_sms)


@pytest.fixture(autouse=True)
def workload(cli: Cli) -> None:
    """Write a workload: m = 64 is in the model's exact table, the others are not."""
    Path("w.csv").write_text("m,n,k,count\n64,4096,4096,90\n65,4096,4096,9\n66,4096,4096,1\n")


def test_exact_problems_match(cli: Cli):
    """The summary adds up, in calls as well; without --strict a mismatch is no error."""
    result = verify(cli, "--json")
    assert result.code == 0
    assert statuses(result) == {64: "matched", 65: "fellback", 66: "fellback"}
    assert result.json["summary"] == {"shapes": 3, "matched": 1, "fellback": 2, "tuned": 0, "invalidated": 0}
    assert (result.json["calls"], result.json["matched_calls"]) == (100, 90)
    text = verify(cli).stdout
    assert text.splitlines()[-1] == "summary shapes=3 matched=1 fellback=2 tuned=0 invalidated=0"
    assert "65 x 4096 x 4096" in text
    assert "64 x 4096 x 4096" not in text


def test_strict(cli: Cli):
    """A mismatch exits with 1, a match of everything with 0."""
    assert verify(cli, "--strict").code == 1
    for m in (65, 66):
        save(m)
    result = verify(cli, "--strict", "--json")
    assert result.code == 0
    assert result.json["summary"] == {"shapes": 3, "matched": 3, "fellback": 0, "tuned": 2, "invalidated": 0}


def test_stored_choices_that_do_not_count(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """A measurement of another GPU, of a part of this one, or of another Triton is stale, with the reason."""
    save(65, arch="nvidia-h100")
    save(66, num_sms=66)
    result = verify(cli, "--json")
    assert statuses(result) == {64: "matched", 65: "stale", 66: "stale"}
    assert [p["reason"].partition(": ")[2] for p in result.json["problems"][1:]] == [
        "measured on nvidia-h100, this is nvidia-h200", "measured on 66 SMs, here are 132",
    ]  # fmt: skip
    assert result.json["summary"]["invalidated"] == 2
    Path("cache", STORE_NAME).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(user_store, "triton_release", lambda: "1.9")
        save(65)
    if user_store.triton_release():
        result = verify(cli, "--json")
        assert result.json["problems"][1]["status"] == "stale"
        assert "measured with Triton 1.9" in result.json["problems"][1]["reason"]


def test_files_of_another_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """Models and pinned tables of another GPU make stale what they hold, and no other problem."""
    result = verify(cli, "--json", arch="h100")
    assert statuses(result) == {64: "stale", 65: "fellback", 66: "fellback"}
    assert {problem["source"] for problem in result.json["problems"]} == {"none"}
    assert cli("freeze", "--workload", "w.csv", "--out", "pinned.json", "--arch", "h200").code == 0
    monkeypatch.setenv("WAVETUNE_PINNED", "pinned.json")
    assert set(statuses(verify(cli, "--json")).values()) == {"matched"}
    result = verify(cli, "--json", arch="h100")
    assert set(statuses(result).values()) == {"stale"}
    assert result.json["problems"][1]["reason"].startswith("pinned.json: ")


def test_disabled_tables_match_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """With wavetune switched off, every problem falls back."""
    monkeypatch.setenv("WAVETUNE_DISABLE", "1")
    assert set(statuses(verify(cli, "--json")).values()) == {"fellback"}


def test_what_tables_do_not_answer(cli: Cli):
    """Products that are no plain GEMM are counted aside; alone they are an error."""
    Path("w.csv").write_text("m,n,k,batch\n8,16,32,4\n")
    assert verify(cli).code == 3
    Path("w.csv").write_text("m,n,k,batch\n8,16,32,4\n64,4096,4096,1\n")
    result = verify(cli, "--strict")
    assert result.code == 0
    assert "1 of 2 entries are no plain GEMM" in result.stderr

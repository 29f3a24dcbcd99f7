"""One digest for everything that decides: equal where answers are equal, different where something differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hand_made import POINTER, make_model

import wavetune
from wavetune.core.problem import GemmProblem
from wavetune.errors import ArchError
from wavetune.runtime.codec import write_model
from wavetune.runtime.freeze import freeze
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.pinned import write_pinned
from wavetune.runtime.settings import settings
from wavetune.runtime.tables import open_store

ARCH = "nvidia-h200"


def test_it_does_not_depend_on_what_was_asked() -> None:
    """Loaded tables, answers and misses leave it alone; so does asking again."""
    first = wavetune.fingerprint(ARCH)
    assert len(first) == 16
    for m in range(1, 50):
        wavetune.choose_config(m, 4096, 4096, arch=ARCH)
    assert wavetune.fingerprint("h200") == first
    wavetune.clear_caches()
    assert wavetune.fingerprint(ARCH) == first


def test_the_place_of_a_folder_does_not_matter_but_its_content_does(tmp_path: Path) -> None:
    """Ranks with the same files in different folders agree; another file, or another order, shows."""
    for folder, bound in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        write_model(make_model(bound_log2=bound), tmp_path / folder / ARCH / "gemm-bf16.json")
    found = {}
    for folders in ("", "a", "b", "c", "ac", "ca"):
        wavetune.configure(models=[tmp_path / folder for folder in folders])
        found[folders] = wavetune.fingerprint(ARCH)
    assert found["a"] == found["b"]
    assert len(set(found.values())) == len(found) - 1


def test_settings_and_pins_that_decide_count(tmp_path: Path) -> None:
    """Disabling, forcing, the policy and a pinned table show; how a miss is measured does not."""
    found = {wavetune.fingerprint(ARCH)}
    write_pinned(freeze([GemmProblem(5, 64, 64)], arch=ARCH), tmp_path / "pinned.json")
    for values in (
        {"disable": True},
        {"force_config": dict(POINTER)},
        {"on_miss": "default"},
        {"pinned": tmp_path / "pinned.json"},
    ):
        wavetune.configure(**values)
        found.add(wavetune.fingerprint(ARCH))
        wavetune.configure(**dict.fromkeys(values))
    assert len(found) == 5
    wavetune.configure(measure_top_k=9, record=True, pinned=None)
    assert wavetune.fingerprint(ARCH) in found
    wavetune.configure(pinned=tmp_path / "gone.json")
    assert wavetune.fingerprint(ARCH) not in found


def test_stored_choices_count_for_their_device() -> None:
    """A choice that one rank measured shows on that rank, for the device it was measured on."""
    whole, part = wavetune.fingerprint(ARCH), wavetune.fingerprint(ARCH, 66)
    assert whole == part
    problem = GemmProblem(17, 48, 96)
    open_store(settings()).save(problem, MeasuredChoice(POINTER, 5.0, 6.0), arch=ARCH, num_sms=132)
    assert wavetune.fingerprint(ARCH) != whole
    assert wavetune.fingerprint(ARCH, 66) == part
    open_store(settings()).save(problem, MeasuredChoice(POINTER, 5.1, 6.1), arch=ARCH, num_sms=132)
    once = wavetune.fingerprint(ARCH)
    wavetune.clear_caches()
    assert wavetune.fingerprint(ARCH) == once


def test_without_a_gpu_there_are_no_stored_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU it is that of the files; an unknown name is an error."""

    def no_device(arch: str | None, num_sms: int | None) -> None:
        raise ArchError("no GPU")

    expected = wavetune.fingerprint(ARCH)
    with pytest.raises(ArchError):
        wavetune.fingerprint("h2000")
    monkeypatch.setattr("wavetune.runtime.fingerprint.resolve_device", no_device)
    assert wavetune.fingerprint() == expected


def test_processes_agree_whatever_their_hash_seed(tmp_path: Path) -> None:
    """Ranks are processes: digest and answers are the same under every seed of Python's hashes."""
    program = (
        "import wavetune; from wavetune import choose_config\n"
        "print(wavetune.fingerprint('h200'))\n"
        "for numerics in ('any', 'batch_invariant'):\n"
        "    for m in (1, 7, 300, 5000):\n"
        "        for n, k in ((4096, 4096), (640, 100000), (48, 1000000)):\n"
        "            print(dict(choose_config(m, n, k, arch='h200', numerics=numerics)))\n"
        "print([dict(c) for c in wavetune.reachable_configs(4096, 4096, (1, 300), arch='h200')])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "WAVETUNE_CACHE_DIR": str(tmp_path), "PATH": os.environ["PATH"]},
        ).stdout
        for seed in ("0", "1", "7")
    }  # fmt: skip
    assert len(outputs) == 1

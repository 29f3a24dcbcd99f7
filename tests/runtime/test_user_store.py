"""The user's store: what is saved is there for the next process, whatever happened to the file meanwhile."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.runtime import choice_file, user_store
from wavetune.runtime.choice_file import mount_type
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.user_store import STORE_NAME, StoredChoice, UserStore

ARCH, NUM_SMS = "nvidia-h200", 132


def config(block_m: int = 64, **fields: int | str) -> KernelConfig:
    """Return a complete GEMM configuration."""
    small = {"block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({"block_m": block_m, **small, **fields})


def choice(latency_us: float = 10.0, block_m: int = 64) -> MeasuredChoice:
    """Return a measured choice."""
    return MeasuredChoice(config(block_m), latency_us, 12.5)


def save(store: UserStore, m: int, latency_us: float = 10.0) -> None:
    """Save a choice for one problem."""
    store.save(GemmProblem(m, 4096, 4096), choice(latency_us), arch=ARCH, num_sms=NUM_SMS)


def load(store: UserStore, **changes: object) -> dict[tuple[tuple[int, ...], int], StoredChoice]:
    """Load the bf16 GEMMs."""
    scope = {"arch": ARCH, "num_sms": NUM_SMS, "kernel": "gemm", "dtype": "bf16", "layout": "nk"}
    return store.load(**{**scope, **changes})  # type: ignore[arg-type]


def sizes(store: UserStore) -> list[int]:
    """Return the first size of what is loaded."""
    return sorted(dims[0] for dims, _ in load(store))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of the warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path in a folder that does not exist yet."""
    return tmp_path / "cache" / "wavetune" / STORE_NAME


def test_the_next_process_finds_what_was_saved(path: Path) -> None:
    """A saved choice comes back equal, under its sizes and alignment, and nothing exists before the first save."""
    store = UserStore(path)
    assert load(store) == {}
    assert not path.parent.exists()
    store.save(GemmProblem(100, 4096, 4096, alignment=8), choice(9.5, 128), arch=ARCH, num_sms=NUM_SMS)
    for again in (store, UserStore(path)):
        assert load(again) == {((100, 4096, 4096), 8): StoredChoice(config(128), 9.5, 12.5)}
    assert [file.name for file in path.parent.iterdir()] == [STORE_NAME]


def test_each_gpu_kernel_and_type_has_its_own_choices(path: Path) -> None:
    """Choices are found only under the very scope they were made for."""
    store = UserStore(path)
    save(store, 5)
    store.save(GemmProblem(6, 4096, 4096, dtype="fp16"), choice(), arch=ARCH, num_sms=NUM_SMS)
    store.save(GemmProblem(7, 4096, 4096, layout="kn"), choice(), arch=ARCH, num_sms=NUM_SMS)
    store.save(GemmProblem(8, 4096, 4096), choice(), arch="nvidia-h100", num_sms=NUM_SMS)
    store.save(GemmProblem(9, 4096, 4096), choice(), arch=ARCH, num_sms=16)
    assert sizes(store) == [5]
    assert [dims[0] for dims, _ in load(store, dtype="fp16")] == [6]
    assert [dims[0] for dims, _ in load(store, layout="kn")] == [7]
    assert [dims[0] for dims, _ in load(store, arch="nvidia-h100")] == [8]
    assert [dims[0] for dims, _ in load(store, num_sms=16)] == [9]
    assert load(store, kernel="other") == {}


def test_the_newest_measurement_wins(path: Path) -> None:
    """A later measurement replaces an earlier one, even a faster one."""
    save(UserStore(path), 5, 10.0)
    save(UserStore(path), 5, 11.0)
    (stored,) = load(UserStore(path)).values()
    assert stored.latency_us == 11.0


def test_without_a_path_choices_stay_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    """A store without a file keeps choices for its process, and says once that they will be lost."""
    store = UserStore(None)
    assert sizes(store) == []
    assert warnings(caplog) == []
    save(store, 5)
    save(store, 6)
    assert sizes(store) == [5, 6]
    assert len(warnings(caplog)) == 1


def test_a_changed_kernel_does_not_use_the_choices_of_the_old_one(path: Path) -> None:
    """Choices of another known source are left out; where a source is not known, they count."""
    store = UserStore(path)
    for m, source in ((1, "aaaa"), (2, "bbbb"), (3, "")):
        measured = MeasuredChoice(config(), 10.0, 12.5, kernel_source=source)
        store.save(GemmProblem(m, 4096, 4096), measured, arch=ARCH, num_sms=NUM_SMS)
    assert sorted(dims[0] for dims, _ in load(store, kernel_source="aaaa")) == [1, 3]
    assert sizes(store) == [1, 2, 3]


def test_choices_of_another_triton_are_ignored_with_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of another Triton release stay in the file, unused; the warning names file and field, once."""
    monkeypatch.setattr(user_store, "triton_release", lambda: "3.6")
    save(UserStore(path), 5, 10.0)
    monkeypatch.setattr(user_store, "triton_release", lambda: "3.9")
    store = UserStore(path)
    assert sizes(store) == []
    assert sizes(store) == []
    (message,) = warnings(caplog)
    assert str(path) in message
    assert "triton is 3.6" in message
    assert "3.9" in message
    caplog.clear()
    save(store, 5, 11.0)
    assert [entry.latency_us for entry in load(UserStore(path)).values()] == [11.0]
    assert warnings(caplog) == []  # measured again: the old row is of no interest
    monkeypatch.setattr(user_store, "triton_release", lambda: "3.6")
    assert [entry.latency_us for entry in load(UserStore(path)).values()] == [10.0]
    monkeypatch.setattr(user_store, "triton_release", lambda: "")
    assert sizes(UserStore(path)) == [5]


def test_the_release_of_triton_is_found_without_loading_it() -> None:
    """The release is read from the installed package's metadata."""
    pytest.importorskip("triton")
    program = "import sys, wavetune.runtime.user_store as u; print(u.triton_release(), 'triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    release, is_loaded = done.stdout.split()
    assert release.count(".") == 1
    assert is_loaded == "False"


def test_importing_the_package_does_not_load_sqlite() -> None:
    """SQLite is loaded when a file is first touched."""
    program = (
        "import sys, pathlib, wavetune, wavetune.runtime.user_store as u; u.UserStore(pathlib.Path('/nowhere/x.db')); "
        "print('sqlite3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


DAMAGES: dict[str, tuple[str, object]] = {
    "sizes are no list": ("dims", "100"),
    "sizes are no JSON": ("dims", "[1, 2"),
    "a size is not positive": ("dims", "[0, 64, 64]"),
    "a size is a boolean": ("dims", "[true, 64, 64]"),
    "a size is missing": ("dims", "[64, 64]"),
    "sizes are a number": ("dims", 5),
    "sizes are not text": ("dims", b"\xff\xfe"),
    "deeply nested": ("dims", "[" * 100_000),
    "alignment is text": ("alignment", "sixteen"),
    "alignment is impossible": ("alignment", 3),
    "no configuration": ("config", None),
    "the configuration is a list": ("config", "[1]"),
    "a field is unknown": ("config", '{"block_q": 64}'),
    "a field is negative": ("config", json.dumps({**config(), "block_m": -64})),
    "the configuration is illegal": ("config", json.dumps({**config(), "schedule": "split_k", "split_k": 200})),
    "TMA on unaligned rows": ("alignment", 2),
    "no latency": ("latency_us", None),
    "a latency is text": ("latency_us", "fast"),
    "a latency is negative": ("latency_us", -1.0),
    "a latency is infinite": ("default_us", 9e999),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_skipped_with_a_warning(damage: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row that cannot be right is skipped, the others are used, and one warning names the file and the field."""
    column, value = DAMAGES[damage]
    store = UserStore(path)
    save(store, 5)
    measured = MeasuredChoice(config(load="tma"), 10.0, 12.5)
    store.save(GemmProblem(77, 4096, 4096), measured, arch=ARCH, num_sms=NUM_SMS)
    with sqlite3.connect(path) as sqlite:
        sqlite.execute(f"UPDATE choices SET {column} = ? WHERE dims LIKE '[77,%'", (value,))
    sqlite.close()
    store = UserStore(path)
    assert sizes(store) == [5]
    assert sizes(store) == [5]
    (message,) = warnings(caplog)
    assert str(path) in message
    assert "1 rows" in message


def garbage(path: Path) -> None:
    """Replace the file by something else."""
    path.write_bytes(os.urandom(5000))


def cut(path: Path) -> None:
    """Cut the end of the file off."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def zeros(path: Path) -> None:
    """Overwrite everything behind the header page with zeros."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def without_table(path: Path) -> None:
    """Drop the table."""
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("DROP TABLE choices")
    sqlite.close()


def other_columns(path: Path) -> None:
    """Rename a column."""
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("ALTER TABLE choices RENAME COLUMN latency_us TO seconds")
    sqlite.close()


@pytest.mark.parametrize("damage", [garbage, cut, zeros, without_table, other_columns])
def test_a_damaged_file_is_moved_aside(
    damage: Callable[[Path], None], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading a damaged file gives nothing and one warning; saving keeps it beside a new file, with one more."""
    save(UserStore(path), 1)
    with sqlite3.connect(path) as sqlite:
        row = sqlite.execute("SELECT * FROM choices").fetchone()
        rows = [(*row[:5], f"[{m}, 4096, 4096]", *row[6:]) for m in range(2, 200)]
        sqlite.executemany(f"INSERT INTO choices VALUES ({', '.join('?' * len(row))})", rows)
    sqlite.close()
    assert len(sizes(UserStore(path))) == 199
    damage(path)
    before = path.read_bytes()
    store = UserStore(path)
    load(store)
    load(store)
    assert len(warnings(caplog)) <= 1
    save(store, 5)
    save(store, 6)
    assert set(sizes(UserStore(path))) >= {5, 6}
    assert all(str(path) in message for message in warnings(caplog))
    moved = list(path.parent.glob(f"{STORE_NAME}.damaged-*"))
    if not moved:  # SQLite could live with it: nothing was lost then
        assert set(sizes(UserStore(path))) == set(range(1, 200))
        return
    assert [file.read_bytes() for file in moved] == [before]
    assert any(str(moved[0]) in message for message in warnings(caplog))
    assert len(warnings(caplog)) <= 2


def test_two_processes_that_find_the_damage_move_it_once(path: Path) -> None:
    """Processes that save into one damaged file at the same time lose no choice and keep one damaged copy."""
    save(UserStore(path), 5)
    garbage(path)
    threads = [threading.Thread(target=save, args=(UserStore(path), m)) for m in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes(UserStore(path)) == list(range(1, 13))
    assert len(list(path.parent.glob(f"{STORE_NAME}.damaged-*"))) == 1


@pytest.mark.parametrize("change", ["PRAGMA user_version = 9", "PRAGMA application_id = 7"])
def test_a_file_that_is_not_ours_is_left_alone(
    change: str, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer schema, or another program's database, is not touched; choices stay in memory, with warnings."""
    save(UserStore(path), 5)
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("PRAGMA journal_mode = DELETE")
        sqlite.execute(change)
    sqlite.close()
    before = path.read_bytes()
    store = UserStore(path)
    save(store, 6)
    save(store, 7)
    assert sizes(store) == [6, 7]
    assert path.read_bytes() == before
    assert len(warnings(caplog)) == 2
    assert all(str(path) in message for message in warnings(caplog))


def unwritable_places(tmp_path: Path) -> list[Path]:
    """Return paths at which no file can be created, also for root."""
    (tmp_path / "file").write_text("not a folder")
    return [tmp_path / "file" / "x.db", Path("/proc/none/x.db"), Path("/dev/null/x.db"), tmp_path]


def test_a_place_that_cannot_be_written_means_memory_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no file can be created, choices stay in memory; loading and saving warn once each, naming the place."""
    for place in unwritable_places(tmp_path):
        caplog.clear()
        store = UserStore(place)
        for m in (5, 6, 7):
            save(store, m)
            assert sizes(store)[-1] == m
        assert sizes(store) == [5, 6, 7]
        messages = warnings(caplog)
        assert sum("stay in the memory" in message for message in messages) == 1
        assert len(messages) <= 2
        assert all(str(place) in message for message in messages)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read_and_not_written(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Choices in a read-only folder are used; new ones stay in memory, with one warning."""
    save(UserStore(path), 5)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        store = UserStore(path)
        assert sizes(store) == [5]
        assert warnings(caplog) == []
        save(store, 6)
        assert sizes(store) == [5, 6]
        assert len(warnings(caplog)) == 1
        assert sizes(UserStore(path)) == [5]
    finally:
        path.parent.chmod(0o755)


def test_a_full_disk_keeps_choices_in_memory_until_there_is_room(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is written later, with the next choice after a while."""
    store = UserStore(path)
    original = choice_file.ChoiceFile.write

    def refuse(self: object, sql: str, row: tuple[object, ...]) -> None:
        raise choice_file.StoreError("x.db: the disk is full")

    monkeypatch.setattr(choice_file.ChoiceFile, "write", refuse)
    for m in (1, 2, 3):
        save(store, m)
    assert sizes(store) == [1, 2, 3]
    assert len(warnings(caplog)) == 1
    monkeypatch.setattr(choice_file.ChoiceFile, "write", original)
    save(store, 4)
    assert not path.exists()  # too early to try again
    monkeypatch.setattr(user_store, "RETRY_AFTER_S", 0.0)
    store._try_again_at = 0.0
    save(store, 5)
    assert sizes(UserStore(path)) == [1, 2, 3, 4, 5]


def test_without_shared_memory_the_plain_journal_is_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where write-ahead logging cannot work, saving and loading go through the rollback journal."""
    path.parent.mkdir(parents=True)
    Path(f"{path}-shm").mkdir()  # the file of the shared memory cannot be made
    store = UserStore(path)
    for m in (1, 2, 3):
        save(store, m)
    assert sizes(UserStore(path)) == [1, 2, 3]
    assert warnings(caplog) == []
    Path(f"{path}-shm").rmdir()
    with sqlite3.connect(path) as sqlite:
        assert sqlite.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    sqlite.close()


def test_a_log_left_on_a_file_system_without_shared_memory_is_read(path: Path, tmp_path: Path) -> None:
    """A file whose log was never written back (its writer was killed) is read where logging cannot work."""
    program = (
        "import os, sys, sqlite3; s = sqlite3.connect(sys.argv[1]); s.execute('PRAGMA wal_autocheckpoint = 0'); "
        's.execute("UPDATE choices SET latency_us = 7.0"); s.commit(); os._exit(0)'
    )
    save(UserStore(path), 5)
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    Path(f"{path}-shm").unlink()
    Path(f"{path}-shm").mkdir()
    assert [entry.latency_us for entry in load(UserStore(path)).values()] == [7.0]


def test_network_file_systems_get_the_plain_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that hosts share, a file is never in write-ahead mode, and one that is leaves it."""
    save(UserStore(path), 1)
    with sqlite3.connect(path) as sqlite:
        assert sqlite.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    sqlite.close()
    monkeypatch.setattr(choice_file, "_is_on_network", lambda path: True)
    save(UserStore(path), 2)
    with sqlite3.connect(path) as sqlite:
        assert sqlite.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    sqlite.close()
    assert sizes(UserStore(path)) == [1, 2]


def test_mount_types_come_from_the_longest_mount_point() -> None:
    """The innermost, last mounted file system that holds a path decides; escaped names are understood."""
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda rw",
        "2 1 0:5 / /home rw,relatime shared:3 master:1 - nfs4 server:/home rw",
        "3 2 0:6 / /home/local rw - xfs /dev/sdb rw",
        r"4 1 0:7 / /mnt/two\040words rw - cifs //server/share rw",
        "5 1 0:8 / /mnt rw - tmpfs none rw",
        "6 1 0:9 / /mnt rw - fuse.sshfs none rw",
        "damaged line",
    ]
    assert mount_type(lines, "/var/x.db") == "ext4"
    assert mount_type(lines, "/home/ann/x.db") == "nfs4"
    assert mount_type(lines, "/home/local/x.db") == "xfs"
    assert mount_type(lines, "/home/locals/x.db") == "nfs4"
    assert mount_type(lines, "/mnt/two words/x.db") == "cifs"
    assert mount_type(lines, "/mnt/x.db") == "fuse.sshfs"
    assert mount_type([], "/x") == ""


def test_a_kernel_that_only_its_launcher_knows_is_stored(path: Path) -> None:
    """Problems and configurations of a kernel that is not registered survive, with their own fields."""

    class RowProblem:
        kernel, dtype, dims, is_empty = "row_norm", "bf16", (7, 4096), False

    own = KernelConfig(block=128, mode="fast")
    store = UserStore(path)
    store.save(RowProblem(), MeasuredChoice(own, 3.0, 4.0), arch=ARCH, num_sms=NUM_SMS)
    assert load(UserStore(path), kernel="row_norm", layout="") == {((7, 4096), 0): StoredChoice(own, 3.0, 4.0)}

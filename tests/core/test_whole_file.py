"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from wavetune.core.problem import GemmProblem
from wavetune.core.whole_file import check_place, describe_os_error, one_at_a_time, replacing, write_whole
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError

WORKLOAD = Workload.from_problems([(GemmProblem(1, 2, 3), 1)])


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    """Whatever goes wrong while writing: nothing else lies in the folder afterwards."""
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail() -> None:
        with replacing(path) as place:
            place.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert path.read_text() == "old"
    write_whole(path, "new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file that it leads to is replaced, and the link stays."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Another file in the place of ``/dev/stdout``, which root may put there, would break the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    WORKLOAD.write(pipe)
    reader.join(timeout=30)
    assert '"problems"' in read[0]
    assert pipe.is_fifo()


def test_no_place_for_a_workload_is_named(tmp_path: Path) -> None:
    """A folder, a file in the place of a folder, a folder that is not there, a loop of links: one kind of error."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    places = {tmp_path: "Is a directory", Path("."): "Is a directory", tmp_path / "file" / "w": "Not a directory",
              tmp_path / "none" / "w": "there is no folder"}  # fmt: skip
    for place, message in places.items():
        with pytest.raises(WorkloadError, match=f"cannot write.*{message}"):
            WORKLOAD.write(place)
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]
    assert describe_os_error("a/b", PermissionError(13, "Permission denied")) == "a/b: cannot write (Permission denied)"


def test_threads_write_one_file(tmp_path: Path) -> None:
    """Nobody takes another one's half-written file away: each write succeeds, and one of them is the file."""
    path = tmp_path / "file"
    together = threading.Barrier(8)
    failures: list[Exception] = []

    def write(text: str) -> None:
        together.wait()
        try:
            for _ in range(30):
                write_whole(path, text)
        except Exception as error:
            failures.append(error)

    texts = [str(number) * 5000 for number in range(8)]
    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o444])
def test_who_may_read_a_file_stays(tmp_path: Path, mode: int) -> None:
    """The new file has the old one's mode, and never more; a file that was not there has the usual one."""
    path = tmp_path / "file"
    before = os.umask(0o022)
    try:
        write_whole(path, "old")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(mode)
        with replacing(path) as place:
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
            place.write_text("new")
    finally:
        os.umask(before)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_place_is_checked_without_a_trace(tmp_path: Path) -> None:
    """What cannot be written is said beforehand; checking leaves the old file, or none."""
    (tmp_path / "file").write_text("old")
    check_place(tmp_path / "file")
    check_place(tmp_path / "new")
    check_place("/dev/null")
    for place, kind in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "w", FileNotFoundError),
                        (tmp_path / "file" / "w", NotADirectoryError)):  # fmt: skip
        with pytest.raises(kind):
            check_place(place)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_one_at_a_time(tmp_path: Path) -> None:
    """Who reads a file to change it is not overtaken, under whatever name it goes."""
    path = tmp_path / "count"
    path.write_text("0")
    (tmp_path / "link").symlink_to(path)

    def count(name: str) -> None:
        for _ in range(50):
            with one_at_a_time(tmp_path / name):
                write_whole(path, str(int(path.read_text()) + 1))

    threads = [threading.Thread(target=count, args=(name,)) for name in ("count", "link") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "200"

"""Files are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from wavetune.core.problem import GemmProblem
from wavetune.core.whole_file import describe_os_error, replacing, write_whole
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

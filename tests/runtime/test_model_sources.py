"""Files that may not answer: one warning that names file and field, then the next source."""

from __future__ import annotations

import builtins
import errno
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import EXACT_ONLY, make_model

import wavetune
from wavetune.errors import NoModelError
from wavetune.runtime.codec import encode_model, read_model, write_model

ARCH = "nvidia-h200"
NAME = "gemm-bf16.json"
SIZES = (512, 4096, 4096)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return two folders that are searched in this order; the second one has a good model."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_model(make_model(), second / ARCH / NAME)
    (first / ARCH).mkdir(parents=True)
    wavetune.configure(models=[first, second])
    return first, second


def cut(data: bytes) -> bytes:
    """Lose the end of a file."""
    return data[:-20]


def edit(data: bytes) -> bytes:
    """Change a number without the digest."""
    return data.replace(b"33.25", b"11.25")


def age(data: bytes) -> bytes:
    """Return the file of an older compiler."""
    return encode_model(make_model(provenance={"versions": {"triton": "1.0.0"}}))


def move(field: str, value: str) -> Callable[[bytes], bytes]:
    """Return the file of another GPU, dtype or layout in this place."""
    return lambda data: encode_model(make_model(**{field: value}))


DAMAGES = {
    "cut": (cut, "file"),
    "edited": (edit, "digest"),
    "empty": (lambda data: b"", "file"),
    "not text": (lambda data: b"\xff\xfe\x00" * 40, "file"),
    "not a model": (lambda data: b'{"schema": "something"}', "schema"),
    "newer": (lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 9'), "schema_version"),
    "another GPU": (move("arch", "nvidia-h100"), "arch"),
    "another dtype": (move("dtype", "fp16"), "dtype"),
    "another layout": (move("layout", "kn"), "layout"),
    "another compiler": (age, r"provenance\.versions\.triton"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_gives_way_with_one_warning(
    folders: tuple[Path, Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next folder's file answers, and one warning names the bad file and its field."""
    first, second = folders
    spoil, field = DAMAGES[damage]
    (first / ARCH / NAME).write_bytes(spoil(encode_model(make_model())))
    with caplog.at_level(logging.WARNING, "wavetune"):
        for _ in range(3):
            choice = wavetune.explain_choice(*SIZES, arch=ARCH)
            wavetune.choose_config(*SIZES, arch=ARCH, num_sms=60)
    assert (choice.source, choice.config, choice.table) == ("exact", EXACT_ONLY, str(second / ARCH / NAME))
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    message = caplog.records[0].getMessage()
    assert message.startswith(str(first / ARCH / NAME))
    assert re.search(f"field {field}:", message)


@pytest.mark.parametrize("kind", ["folder", "unreadable", "dangling link"])
def test_what_cannot_be_read_gives_way(folders: tuple[Path, Path], kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A folder, a file without permission or a dangling link in the place of a model is no crash."""
    path = folders[0] / ARCH / NAME
    if kind == "folder":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(folders[0] / "nowhere")
    else:
        path.write_bytes(encode_model(make_model()))
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user reads everything")
    assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(folders[1] / ARCH / NAME)
    assert len(caplog.records) == (0 if kind == "dangling link" else 1)


def test_where_nothing_is_left_the_error_lists_what_was_refused(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """No model at all is an error that names every refused file with its field; the log has each once."""
    first, second = folders
    (first / "nvidia-b200").mkdir()
    (first / "nvidia-b200" / NAME).write_bytes(encode_model(make_model()))
    (second / "nvidia-b200").mkdir()
    (second / "nvidia-b200" / NAME).write_bytes(b"{")
    for ask in (wavetune.choose_config, wavetune.explain_choice) * 2:
        with pytest.raises(NoModelError) as caught:
            ask(1, 2, 3, arch="nvidia-b200")
        message = str(caught.value)
        assert message.startswith("no model nvidia-b200/gemm-bf16.json that can be used; refused: ")
        assert f"refused: {first / 'nvidia-b200' / NAME}: field arch: " in message
        assert f"{second / 'nvidia-b200' / NAME}: field file: " in message
    assert len(caplog.records) == 2


@pytest.mark.parametrize("where", ["versions", "environment"])
@pytest.mark.parametrize(
    ("recorded", "installed", "is_refused"),
    [
        ("3.6.0", "3.9", False), ("3.6.0+gitabc", "3.9", False), ("2.1.0", "3.9", True), ("4.0", "3.9", True),
        ("3.6.0", "", False), ("missing", "3.9", False), (3, "4.1", False),
    ],
)  # fmt: skip
def test_only_another_major_release_of_triton_is_foreign(
    folders: tuple[Path, Path], where: str, recorded: object, installed: str, is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A file is refused if its provenance names a release, one is installed, and the major numbers differ."""
    first, second = folders
    write_model(make_model(provenance={where: {"triton": recorded}}), first / ARCH / NAME)
    monkeypatch.setattr("wavetune.runtime.installed.triton_release", lambda: installed)
    table = wavetune.explain_choice(*SIZES, arch=ARCH).table
    assert table == str((second if is_refused else first) / ARCH / NAME)


def test_folders_without_models_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is missing, a file, or without the level of the GPU is named; the next folder answers."""
    good, flat, file = tmp_path / "good", tmp_path / "flat", tmp_path / "model.json"
    write_model(make_model(), good / ARCH / NAME)
    write_model(make_model(), flat / NAME)
    write_model(make_model(), file)
    wavetune.configure(models=[tmp_path / "missing", flat, file, good])
    for _ in range(2):
        assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(good / ARCH / NAME)
        wavetune.choose_config(*SIZES, arch=ARCH, num_sms=60)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(": ")[0] for message in messages] == [
        f"models folder {tmp_path / 'missing'} cannot be listed", f"models folder {flat}",
        f"models folder {file} cannot be listed",
    ]  # fmt: skip
    assert all("nvidia-h200/gemm-bf16.json" in message for message in messages)


def test_a_relative_folder_is_named_in_full(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    """After a change of folder the user sees where was looked."""
    monkeypatch.chdir(tmp_path)
    wavetune.configure(models="mine")
    wavetune.choose_config(*SIZES, arch=ARCH)
    assert str(tmp_path / "mine") in caplog.text


def test_a_folder_that_may_not_be_entered_gives_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may not look into a folder is told, and answered from the next one."""
    locked, good = tmp_path / "locked", tmp_path / "good"
    locked.mkdir()
    write_model(make_model(), good / ARCH / NAME)
    refuse_below(locked, monkeypatch)
    wavetune.configure(models=[locked, good])
    assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(good / ARCH / NAME)
    assert f"{locked / ARCH / NAME}: cannot read: Permission denied" in caplog.text


def refuse_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system refuse what lies in a folder, as it does for others than root after ``chmod 0``."""

    def refusing(call: Callable[..., object]) -> Callable[..., object]:
        def checked(path: object, *args: object, **options: object) -> object:
            if isinstance(path, str | Path) and folder in Path(path).parents:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **options)

        return checked

    monkeypatch.setattr(os, "stat", refusing(os.stat))
    monkeypatch.setattr(builtins, "open", refusing(builtins.open))


def test_a_repaired_file_answers_after_the_caches_are_cleared(folders: tuple[Path, Path]) -> None:
    """Files are read once; `clear_caches` has them read, and warned of, again."""
    first, second = folders
    path = first / ARCH / NAME
    path.write_bytes(b"{")
    assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(second / ARCH / NAME)
    write_model(replace(make_model(), bound_log2=2.0), path)
    assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(second / ARCH / NAME)
    wavetune.clear_caches()
    assert wavetune.explain_choice(*SIZES, arch=ARCH).table == str(path)
    assert read_model(path).bound_log2 == 2.0

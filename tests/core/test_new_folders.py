"""Folders that appear complete or not at all; what killed writers leave is removed, what living ones write never is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedarena.core.errors import BadInputError
from fedarena.core.folders import NewFolder, new_folder, remove_abandoned

WRITER = """
import sys
from pathlib import Path
from fedarena.core.folders import new_folder
with new_folder(Path(sys.argv[1]), "a folder") as folder:
    (folder / "part").mkdir()
    (folder / "part" / "file").write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of writing a folder."""
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with writer(tmp_path / "a") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(hidden(tmp_path)) == 2  # the folder and its lock
    with new_folder(tmp_path / "b", "a folder") as folder:
        assert {path.name.removesuffix(".lock") for path in hidden(tmp_path)} == {folder.name}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_folder_that_is_being_written_is_never_removed(tmp_path: Path) -> None:
    with writer(tmp_path / "a") as process:
        (temporary,) = (path for path in hidden(tmp_path) if path.is_dir())
        for _ in range(3):
            remove_abandoned(tmp_path)
        assert (temporary / "part" / "file").read_text() == "half"
        process.communicate("\n")
        assert process.returncode == 0
    assert (tmp_path / "a" / "part" / "file").read_text() == "half"
    assert hidden(tmp_path) == []


def test_nor_one_of_the_same_process(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a", "a folder") as first, new_folder(tmp_path / "b", "a folder") as second:
        assert first.is_dir()
        assert second.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    number = "0123456789abcdef" * 2
    folders = [f".a.{number}.tmp", ".a.1234.tmp", f"a.{number}.tmp", ".cache"]
    files = [".a.1234.tmp.lock", f"a.{number}.tmp.lock", ".lock", "notes.txt"]
    for name in folders:  # the first has no lock: of an earlier version, which may be at work on it
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("ten years of work")
    for name in files:
        (tmp_path / name).touch()
    with new_folder(tmp_path / "new", "a folder"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*folders, *files, "new"])
    assert all((tmp_path / name / "thesis.txt").exists() for name in folders)


def test_a_link_in_place_of_an_abandoned_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").touch()
    link = tmp_path / f".a.{'0' * 32}.tmp"
    link.symlink_to(tmp_path / "precious")
    link.with_name(f"{link.name}.lock").touch()
    remove_abandoned(tmp_path)
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(tmp_path / "a"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr("fedarena.core.folders.shutil.rmtree", lambda *args, **options: None)
        remove_abandoned(tmp_path)
    assert len(hidden(tmp_path)) == 2
    remove_abandoned(tmp_path)
    assert hidden(tmp_path) == []


def test_where_there_are_no_locks_folders_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with new_folder(tmp_path / "a", "a folder") as folder:
        assert [path.name for path in hidden(tmp_path)] == [folder.name]  # no lock that another machine could take
        remove_abandoned(tmp_path)
        (folder / "file").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "file"]


def test_whoever_comes_second_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(BadInputError, match="a was made by somebody else meanwhile"),
        new_folder(tmp_path / "a", "a folder"),
    ):
        (tmp_path / "a").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_lock_that_vanishes_under_its_writer_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who looks for abandoned folders may take the lock after it was made and before its writer has it."""
    import fcntl

    flock, removed = fcntl.flock, []

    def remove_before_the_first(descriptor: int, operation: int) -> None:
        if not removed and operation & fcntl.LOCK_EX:
            removed.append(hidden(tmp_path)[0])
            os.unlink(removed[0])
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_before_the_first)
    folder = NewFolder(tmp_path / "a")
    assert removed[0].exists()
    remove_abandoned(tmp_path)
    assert folder.temporary.is_dir()
    folder.discard()
    assert hidden(tmp_path) == []

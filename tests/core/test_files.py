"""Writing files beside their names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from fedarena.core.files import write_text


def test_what_is_no_plain_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    """A pipe, /dev/stdout or /dev/null would else be replaced by a file of that name, for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "some numbers")
    reader.join()
    assert found == ["some numbers"]
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").read_text() == "after"

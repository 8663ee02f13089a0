"""Writing files beside their names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa

from fedarena.core.arrow_memory import arrow_file
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


def test_arrow_reads_from_memory_of_its_own() -> None:
    """Its threads could not give memory of Python's back in a process that is about to end."""
    before = pa.total_allocated_bytes()
    file = arrow_file(b"some bytes" * 1_000)
    assert pa.total_allocated_bytes() >= before + 10_000
    assert file.read() == b"some bytes" * 1_000
    assert arrow_file(b"").read() == b""

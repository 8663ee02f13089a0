"""Running out of memory or of file descriptors says so, and never that a healthy file is damaged or should go."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedarena.core.errors import CannotReadError, DamagedFileError
from fedarena.core.files import reading
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec, load_federation
from fedarena.data.registry import cached_path

TOO_MANY = "cannot be read: too many open files; that does not mean that it is damaged"


@contextmanager
def no_file_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_many_open_files(store: Path) -> None:
    with no_file_descriptors(), pytest.raises(CannotReadError, match=rf"federation\.json {TOO_MANY}"):
        Federation.open(store)
    federation = Federation.open(store)
    with no_file_descriptors(), pytest.raises(CannotReadError, match=TOO_MANY):
        federation.verify()
    federation.verify()


def test_nobody_is_told_to_remove_a_healthy_store() -> None:
    options = {"clients": 20}
    load_federation("synthetic", options)
    with no_file_descriptors(), pytest.raises(CannotReadError, match=TOO_MANY) as caught:
        load_federation("synthetic", options)
    assert "emove" not in str(caught.value)
    path = cached_path("synthetic", options)
    assert path is not None
    (path / "federation.json").write_text("no JSON")
    with pytest.raises(DamagedFileError, match="Remove the folder"):
        load_federation("synthetic", options)


def test_too_little_memory_to_map_a_store(tmp_path: Path) -> None:
    task, rows = TaskSpec(kind="classification", classes=2), 2000
    columns = {"x": ColumnSpec(dtype="float32", shape=(4000,)), "y": ColumnSpec(dtype="int64")}
    with FederationWriter(tmp_path / "store", name="large", task=task, columns=columns) as writer:
        writer.add_client("a", train={"x": np.zeros((rows, 4000), np.float32), "y": np.zeros(rows, np.int64)})
    program = """if True:
        import os, resource, sys
        from fedarena.data import Federation
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + 2**23
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            Federation.open(sys.argv[1])
        except Exception as error:
            print(type(error).__name__, error)"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith(f"CannotReadError {tmp_path}/store/samples.arrow cannot be read: cannot allocate memory;")


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")])
def test_memory_that_a_library_does_not_get(tmp_path: Path, error: MemoryError) -> None:
    with (
        pytest.raises(CannotReadError, match=r"file cannot be read: there is not enough memory"),
        reading(tmp_path / "file"),
    ):
        raise error

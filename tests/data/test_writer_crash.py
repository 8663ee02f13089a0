"""A writer that is killed leaves nothing under the final name, or the complete store."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedarena.data import Federation

COMPLETE_CLIENTS = 6

SCRIPT = textwrap.dedent(
    f"""
    import io, os, signal, sys
    from pathlib import Path
    import numpy as np
    from PIL import Image
    import pandas  # or pyarrow imports it in every child
    from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
    from fedarena.data.store import table

    def write(path, wait=False):
        columns = {{"x": ColumnSpec(dtype="float32", shape=(3,)), "y": ColumnSpec(dtype="int64")}}
        columns["picture"] = ColumnSpec(dtype="uint8", shape=(3, 8, 8), encoding="jpeg")
        file = io.BytesIO()
        Image.new("RGB", (8, 8), "red").save(file, "JPEG")
        task = TaskSpec(kind="classification", classes=2)
        with FederationWriter(path, name="crash", task=task, columns=columns, rows_per_batch=16) as writer:
            for number in range({COMPLETE_CLIENTS}):
                part = {{"x": np.ones((3, 3), np.float32), "y": np.zeros(3, np.int64)}}
                part["picture"] = [file.getvalue()] * 3
                writer.add_client(str(number), train=part)
                if wait:
                    print(number, flush=True)
                    sys.stdin.readline()

    def dying_at(step):
        '''Counts everything that changes the disk, and is killed just before the given step.'''
        counted = 0

        def wrap(function):
            def counting(*arguments, **options):
                nonlocal counted
                if counted == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                counted += 1
                return function(*arguments, **options)
            return counting

        for name in ("mkdir", "fsync", "rename", "replace", "rmdir"):
            setattr(os, name, wrap(getattr(os, name)))
        table._ChecksummedFile.write = wrap(table._ChecksummedFile.write)
    """
)


def run_python(code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT + textwrap.dedent(code)], text=True, **options)


def assert_absent_or_complete(path: Path) -> bool:
    """Whether the store is there; if so, it must be whole."""
    if not path.exists():
        return False
    federation = Federation.open(path)
    federation.verify()
    assert federation.client_ids(federation.clients("all")) == [str(number) for number in range(COMPLETE_CLIENTS)]
    return True


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_before_every_single_change_of_the_disk(tmp_path: Path) -> None:
    """One process per crash point; a step beyond the last one lets the writer finish."""
    process = run_python(
        f"""
        folder, left_behind = Path({str(tmp_path)!r}), 0
        for step in range(200):
            child = os.fork()
            if child == 0:
                dying_at(step)
                write(folder / str(step))
                os._exit(0)
            if os.waitpid(child, 0)[1] == 0:
                print(step, left_behind)
                break
            left_behind += any(path.is_dir() for path in folder.glob(".*"))
        """,
        stdout=subprocess.PIPE,
    )
    steps, left_behind = map(int, process.communicate(timeout=120)[0].split())
    assert process.returncode == 0
    assert steps > 15  # so many changes were interrupted
    present = [assert_absent_or_complete(tmp_path / str(step)) for step in range(steps + 1)]
    assert present[-1]
    assert not any(present[: steps // 2])
    assert present == sorted(present)  # once it is there, it stays
    assert left_behind > steps // 2, "the killed writers must have left something behind, or nothing was tested"
    assert not list(tmp_path.glob(".*")), "each writer removes what those before it left"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("after", [0, COMPLETE_CLIENTS - 1])
def test_killed_by_somebody_else_and_written_again(tmp_path: Path, after: int) -> None:
    path = tmp_path / "store"
    process = run_python(f"write({str(path)!r}, wait=True)", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(after + 1):
        assert process.stdout.readline().strip() == str(number)
        if number < after:
            process.stdin.write("\n")
            process.stdin.flush()
    process.kill()
    process.communicate(timeout=60)
    assert not path.exists()
    again = run_python(f"write({str(path)!r})")
    assert again.wait(timeout=60) == 0
    assert assert_absent_or_complete(path)

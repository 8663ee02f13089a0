"""Workers, machines and drivers that are killed, and what a run does about it. All of it: `make test-ray`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_clusters import MANY_SHARDS, Silent, bits, on_cluster, opened, play

from fedarena.core.errors import RunFailedError
from fedarena.runs.cluster import staying
from fedarena.runs.cluster.working import OwnCodeError
from fedarena.runs.config import resolve, to_yaml
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.storage.run_data import load_run

pytest.importorskip("ray")
os.environ["RAY_AUTH_MODE"] = "disabled"
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]
SETTINGS: dict[str, Any] = MANY_SHARDS | {"algorithm": "scaffold", "rounds": 6}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bits(play(SETTINGS, tmp_path_factory.mktemp("alone"), "alone"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cluster on this machine; gives the file that makes methods go wrong on workers while it is there."""
    trigger = tmp_path_factory.mktemp("trigger") / "now"
    with pytest.MonkeyPatch.context() as patch, staying():
        patch.setenv("FEDARENA_TEST_TRIGGER", str(trigger))
        yield trigger


def _pids(run: Run) -> list[int]:
    assert run._crew is not None
    return [member.pid for member in run._crew.pool.members.values()]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_workers_killed_at_random_moments(cluster: Path, tmp_path: Path) -> None:
    """Twenty of them, in as many rounds: while they train, score, or wait."""
    settings = SETTINGS | {"rounds": 20, "evaluation": {"every": 5}}
    draw = random.Random(7)
    run = opened(on_cluster(settings, 2), tmp_path, "killed")
    kills: list[threading.Timer] = []
    while not run.is_over:
        (pid,) = draw.sample(_pids(run), 1)
        kills.append(threading.Timer(draw.uniform(0, 0.3), _kill, [pid]))
        kills[-1].start()
        run.advance(1)
        kills[-1].join()
    crew = run._crew
    assert crew is not None
    assert len(kills) == 20
    assert crew.pool.lost >= len(kills) / 2  # who is killed after its last task is missed in the next round
    run.close()
    assert any("is gone" in warning for warning in run._observer.warnings)
    assert bits(tmp_path / "killed") == bits(play(settings, tmp_path, "alone"))


def test_an_exception_is_the_users_own(cluster: Path, tmp_path: Path) -> None:
    run = opened(on_cluster(MANY_SHARDS | {"algorithm": "own_methods:Raises"}, 2), tmp_path, "raises")
    run.advance(1)
    cluster.touch()
    try:
        with pytest.raises(OwnCodeError, match="ValueError: a mistake of my own") as caught:
            run.advance()
    finally:
        cluster.unlink()
    assert "own_methods.py" in caught.value.__notes__[0]
    assert run._crew is not None
    assert run._crew.pool.lost == 0
    assert load_run(tmp_path / "raises").rounds.num_rows == 2  # those that were finished are kept


def test_a_shard_that_ends_workers_is_not_tried_forever(cluster: Path, tmp_path: Path) -> None:
    run = opened(on_cluster(MANY_SHARDS | {"algorithm": "own_methods:Ends"}, 1), tmp_path, "ends")
    run.advance(1)
    cluster.touch()
    try:
        with pytest.raises(RunFailedError, match=r"ended 3 workers, the last one on .*engine\.lanes"):
            run.advance()
    finally:
        cluster.unlink()
    assert bits(resume_run(tmp_path / "ends", Silent(), elsewhere="cohort").path) == bits(
        play(MANY_SHARDS | {"algorithm": "own_methods:Ends"}, tmp_path, "alone")
    )


MOMENTS = [random.Random(seed).uniform(0, 1.5) for seed in range(10)]  # seconds after the first file
ENDED = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.mark.parametrize(
    ("number", "moment"), [*((signal.SIGKILL, one) for one in MOMENTS), (signal.SIGTERM, 0.0), (signal.SIGINT, 0.0)]
)
def test_a_driver_that_ends(number: signal.Signals, moment: float, expected: dict[str, Any], tmp_path: Path) -> None:
    """It goes on with other workers, or with none; none of its processes is left behind."""
    settings = on_cluster(SETTINGS, 1) | {"name": "parted"}
    config, folder = tmp_path / "config.yaml", tmp_path / "parted"
    config.write_text(to_yaml(resolve(merge({}, settings)).to_dict()))
    command = [
        sys.executable,
        "-c",
        "from fedarena.cli import main; main()",
        "run",
        str(config),
        "--runs",
        str(tmp_path),
    ]
    marked = os.environ | {"FEDARENA_TEST_DRIVER": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=marked)
    deadline = time.monotonic() + 300
    while not (folder / "checkpoint").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(moment)
    if process.poll() is None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    if number in ENDED and process.returncode:
        assert process.returncode == ENDED[number]
        assert "all finished rounds are saved" in errors
    _wait_until(lambda: not _marked_processes(str(tmp_path)))
    if process.returncode:
        resume_run(folder, Silent(), elsewhere={"workers": 2} if moment in MOMENTS[:3] else "cohort")
    assert bits(folder) == expected


def _marked_processes(mark: str) -> list[str]:
    """What is there of a driver and everything that it started, but for Ray's agents.

    They are small, and look only now and then whether the process that they belong to is there.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FEDARENA_TEST_DRIVER={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [command for command in found if "Agent" not in command]


def _wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert is_so()

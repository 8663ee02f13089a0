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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_clusters import MANY_SHARDS, Silent, bits, on_cluster, opened, play

from fedarena.core.errors import RunFailedError
from fedarena.runs.cluster import staying
from fedarena.runs.cluster.pool import OwnCodeError
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


def test_workers_killed_at_random_moments(cluster: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(7)
    run = opened(on_cluster(SETTINGS, 2), tmp_path, "killed")
    killed = 0
    while not run.is_over:
        for pid in draw.sample(_pids(run), 1):
            threading.Timer(draw.uniform(0, 0.1), _kill, [pid]).start()
            killed += 1
        run.advance(1)
        time.sleep(0.2)
    crew = run._crew
    assert crew is not None
    assert crew.pool.lost >= killed / 2
    run.close()
    assert bits(tmp_path / "killed") == expected
    assert any("is gone" in warning for warning in run._observer.warnings)


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_driver_that_ends(number: int, expected: dict[str, Any], tmp_path: Path) -> None:
    settings = on_cluster(SETTINGS, 1) | {"name": "parted", "rounds": 6}
    config = tmp_path / "config.yaml"
    from fedarena.runs.config import merge, resolve, to_yaml

    config.write_text(to_yaml(resolve(merge({}, settings)).to_dict()))
    program = "from fedarena.cli import main; main()"
    command = [sys.executable, "-c", program, "run", str(config), "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rounds = tmp_path / "parted" / "checkpoint" / "state.json"
    deadline = time.monotonic() + 300
    while not rounds.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    if number != signal.SIGKILL and process.returncode:
        assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert "all finished rounds are saved" in errors
    if process.returncode:
        resume_run(tmp_path / "parted", Silent(), elsewhere="cohort")
    assert bits(tmp_path / "parted") == expected


def test_machines_that_are_killed(expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of a cluster; one goes, and another one comes."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(**small) for _ in range(2)]
        settings = on_cluster(SETTINGS, 2, address=cluster.address)
        run = opened(settings, tmp_path, "machines")
        run.advance(2)
        cluster.remove_node(nodes[0], allow_graceful=False)
        run.advance(2)
        assert run._crew is not None
        assert len(run._crew.pool.members) >= 1  # a replacement that finds no room is not waited for
        cluster.add_node(**small)
        run.advance().close()
    finally:
        cluster.shutdown()
    assert bits(tmp_path / "machines") == expected

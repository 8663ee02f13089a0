"""Machines of a cluster that are killed. No other cluster may be open here: a process can be in one only."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from small_clusters import MANY_SHARDS, bits, on_cluster, opened, play

pytest.importorskip("ray")
os.environ["RAY_AUTH_MODE"] = "disabled"
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_machines_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five nodes of a cluster, in the middle of rounds; another one comes for each."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    settings = MANY_SHARDS | {"algorithm": "scaffold", "rounds": 12}
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    draw = random.Random(3)
    cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(**small) for _ in range(2)]
        run = opened(on_cluster(settings, 2, address=cluster.address), tmp_path, "machines")
        for _ in range(5):
            gone = nodes.pop(0)
            killing = threading.Timer(draw.uniform(0, 0.3), cluster.remove_node, [gone], {"allow_graceful": False})
            killing.start()
            run.advance(2)  # a replacement that finds no room is not waited for
            killing.join()
            nodes.append(cluster.add_node(**small))
        run.advance()
        assert run._crew is not None
        assert run._crew.pool.lost >= 3  # who had nothing to do may have been missed by nobody
        run.close()
    finally:
        cluster.shutdown()
    assert bits(tmp_path / "machines") == bits(play(settings, tmp_path, "alone"))

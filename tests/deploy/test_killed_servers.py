"""A server killed with -9 at random moments: the same round goes on, nobody trains twice, and the bits are the same."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from small_deployments import Phone, Swarm, Trainer, deploy_folder, free_port, simulated_state, small_config

from fedarena.deploy.folder import DeployFolder
from fedarena.deploy.serving import open_server, serve
from fedarena.runs.observer import Observer
from fedarena.storage.checkpoint import read_state
from warm_processes import CONTEXT


def be_the_server(folder: Path, settings: dict[str, Any], port: int) -> None:
    serve(open_server(DeployFolder(folder), small_config(**settings), Observer()), f"127.0.0.1:{port}")


def state_of(run: Path) -> dict[str, torch.Tensor]:
    file = read_state(run).tensors.file
    return safetensors.torch.load_file(run / "checkpoint" / file)


def play_with_kills(tmp_path: Path, kills: int, settings: dict[str, Any], seed: int = 0) -> None:
    config = small_config(**settings)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    port, moments = free_port(), random.Random(seed)
    trainer = Trainer(config)
    swarm = Swarm(lambda: [Phone(name, n, given, port, trainer) for n, (name, given) in enumerate(invitations.items())])
    swarm.start()
    killed = 0
    while True:
        server = CONTEXT.Process(target=be_the_server, args=(folder.path, settings, port))
        server.start()
        if killed < kills:
            server.join(moments.uniform(0.1, 1.2) if killed % 4 else moments.uniform(0.0, 0.3))
            if server.exitcode is None:
                server.kill()
                killed += 1
        server.join(120)
        if server.exitcode == 0:
            break
        assert server.exitcode == -9
    time.sleep(0.1)
    swarm.join(20)
    assert swarm.failure is None
    run = folder.runs / "killed"
    found, wanted = state_of(run), simulated_state(config)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert sum(len(phone.trained) for phone in swarm.phones) == config.rounds * config.cohort


def test_a_server_that_is_killed_twice_goes_on(tmp_path):
    play_with_kills(tmp_path, 2, {"name": "killed", "algorithm": "scaffold", "rounds": 4})


@pytest.mark.slow
def test_a_server_that_is_killed_twenty_times_goes_on(tmp_path):
    play_with_kills(tmp_path, 20, {"name": "killed", "algorithm": "scaffold", "rounds": 60}, seed=1)

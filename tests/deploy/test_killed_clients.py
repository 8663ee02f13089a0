"""Clients killed with -9 at random moments: they keep what the server accepted, and the bits are the same."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from real_clients import RealClient, data_of, invitation_at
from small_deployments import deploy_folder, free_port, simulated_state, small_config
from test_killed_servers import be_the_server, state_of

from warm_processes import CONTEXT


def be_a_client(invitation: Path, settings: dict[str, Any], number: int) -> None:
    client = RealClient(invitation, data_of(small_config(**settings), number))
    client.run()
    if client.failure is not None:
        raise client.failure


def play_with_killed_clients(tmp_path: Path, kills: int, settings: dict[str, Any], seed: int = 0) -> None:
    config = small_config(**settings)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    port, moments = free_port(), random.Random(seed)
    files = [invitation_at(given, port, tmp_path) for given in invitations.values()]

    def start(number: int) -> Any:
        process = CONTEXT.Process(target=be_a_client, args=(files[number], settings, number))
        process.start()
        return process

    server = CONTEXT.Process(target=be_the_server, args=(folder.path, settings, port))
    server.start()
    clients = [start(number) for number in range(len(files))]
    until, killed = time.monotonic() + 300, 0
    while server.exitcode is None and time.monotonic() < until:
        server.join(moments.uniform(0.05, 0.5))
        number = moments.randrange(len(clients))
        if killed < kills and clients[number].exitcode is None:
            clients[number].kill()
            clients[number].join()
            clients[number] = start(number)
            killed += 1
    assert server.exitcode == 0
    assert killed == kills
    for client in clients:
        client.join(30)
        assert client.exitcode == 0
    found, wanted = state_of(folder.runs / "killed"), simulated_state(config)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
def test_clients_that_are_killed_twenty_times_come_back(tmp_path):
    play_with_killed_clients(tmp_path, 20, {"name": "killed", "algorithm": "scaffold", "rounds": 80}, seed=1)

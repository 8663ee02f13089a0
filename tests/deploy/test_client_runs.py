"""Real clients and a real server over gRPC on this machine: the simulator's bits, also after kills."""

from __future__ import annotations

import pytest
from real_clients import RealClient, data_of, invitation_at
from small_deployments import bits_of, deploy_folder, serving, simulated_bits, small_config


def play(config, tmp_path, make_client=RealClient):
    folder, invitations = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        clients = [
            make_client(invitation_at(zipped, server.service.port, tmp_path), data_of(config, number))
            for number, zipped in enumerate(invitations.values())
        ]
        for client in clients:
            client.start()
        server.run.advance()
        server.close("The run is finished")
        for client in clients:
            client.join(20)
            assert client.failure is None
            assert client.said[-1] == "The run is finished"
    server.run.close()
    return server, clients


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "scaffold"},
        {"transforms": [{"name": "top_k", "error_feedback": True}, "clip"], "adaptation": "head_only"},
    ],
    ids=["scaffold", "transforms"],
)
def test_clients_give_the_bits_of_the_simulation(settings, tmp_path):
    config = small_config(**settings)
    server, clients = play(config, tmp_path)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    said = [sentence for client in clients for sentence in client.said]
    assert sum("accepted" in sentence for sentence in said) == 9

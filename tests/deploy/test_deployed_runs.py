"""Whole runs over gRPC on this machine."""

from __future__ import annotations

import pytest
from small_deployments import bits_of, deploy_folder, play, simulated_bits, small_config


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_over_the_network_gives_the_bits_of_the_simulation(algorithm, tmp_path):
    config = small_config(algorithm=algorithm)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, swarm = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert sum(phone.uploads for phone in swarm.phones) == 9
    jobs = server.run.result().jobs.to_pydict()
    assert jobs["outcome"] == ["used"] * 9
    assert set(jobs["client"]) <= set(invitations)


def test_what_stays_on_devices_is_not_scored_and_said_so(tmp_path, recwarn):
    config = small_config(algorithm="ditto", rounds=1)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    row = server.run.result().rounds.to_pylist()[-1]
    assert row["accuracy"] is not None
    assert "personal_accuracy" not in row
    assert any("only the global one is scored" in str(one.message) for one in recwarn)

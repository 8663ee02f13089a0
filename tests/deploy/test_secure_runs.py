"""Secure sums over the network: the simulator's bits, whoever leaves, and a server that is killed between phases."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")
from small_deployments import bits_of, simulated_bits, small_config
from test_client_runs import play

SECURE = {"name": "bonawitz", "largest_weight": 600.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "scaffold", "secure_aggregation.rounding": "stochastic", "secure_aggregation.bits": 64},
    ],
    ids=["fedavg", "scaffold"],
)
def test_secure_sums_give_the_bits_of_the_simulation(settings, tmp_path):
    config = small_config(secure_aggregation=SECURE, **settings)
    server, clients = play(config, tmp_path)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    rounds = server.run.result().rounds.to_pylist()[1:]
    assert [row["secure_groups"] for row in rounds] == [1, 1, 1]

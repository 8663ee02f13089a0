"""Jobs that start from different models, trained in one call, equal jobs trained for each model by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from logistic_clients import LOCAL, SIZES, logistic_simulation, make_clients

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.simulate.simulation import transferred_bytes
from fedarena.train import CohortEngine, Job, ReferenceEngine, count_bytes, map_groups, train_jobs

VERSIONS = [0, 4, 0, 9, 4, 4, 0]


def moved(groups, by: float):
    return map_groups(lambda t: t * (1 + by) if t.is_floating_point() else t, groups)


def results_by_client(results) -> dict[int, dict[str, np.ndarray]]:
    found = {}
    for part in results:
        for row, client in enumerate(part.clients.tolist()):
            tensors = {
                f"{kind}/{group}/{name}": t[row].numpy()
                for kind, groups in (("update", part.update), ("memory", part.client_states))
                for group, named in groups.items()
                for name, t in named.items()
            }
            found[client] = tensors | {"loss": part.losses[row], "steps": part.work.steps[row]}
    return found


class OwnLoop(FedAvg):
    def train(self, client, model, data):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
@pytest.mark.parametrize("name", [*ALGORITHMS.names(), "own loop"])
def test_one_call_equals_a_call_for_each_version(make_federation, name: str, engine_kind) -> None:
    algorithm = OwnLoop() if name == "own loop" else ALGORITHMS.get(name)()
    federation = make_federation(make_clients(), 3, name="versions")
    # Where clients have done at different times, the cohort engine records a program for every number of lanes.
    local = LOCAL if name in ("fedavg", "scaffold", "own loop") else replace(LOCAL, epochs=None, steps=2)
    engine = logistic_simulation(federation, algorithm, local, engine_kind).engine
    state = algorithm.server_init(engine.initial_params())
    broadcasts = {version: moved(algorithm.broadcast(state), 0.1 * version) for version in (0, 4, 9)}
    memory = moved(algorithm.client_init(broadcasts[4]), 0.3)
    memories = {2: memory, 5: memory} if memory else {}
    jobs = [Job(client, 3 + client % 2, version=version) for client, version in enumerate(VERSIONS)]
    together = results_by_client(train_jobs(engine, jobs, broadcasts, memories))
    apart = {}
    for version, broadcast in broadcasts.items():
        same = [job for job in jobs if job.version == version]
        apart |= results_by_client(train_jobs(engine, same, {version: broadcast}, memories))
    assert sorted(together) == list(range(len(SIZES)))
    for client, expected in apart.items():
        assert together[client].keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(together[client][key], value, rtol=1e-10, atol=1e-12, err_msg=f"{client} {key}")
    if name == "fedavg":  # where a job starts makes a difference, or this test would show nothing
        elsewhere = results_by_client(train_jobs(engine, [replace(jobs[0], version=9)], broadcasts, {}))
        assert not np.allclose(together[0]["loss"], elsewhere[0]["loss"])


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_the_size_of_an_update_is_known_before_it_is(make_federation, name: str) -> None:
    algorithm = ALGORITHMS.get(name)()
    federation = make_federation(make_clients(), 3, name="sizes")
    engine = logistic_simulation(federation, algorithm, LOCAL, ReferenceEngine).engine
    broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
    down, up = transferred_bytes(algorithm, engine.initial_params())
    assert down == count_bytes(algorithm.download(broadcast))
    jobs = [Job(client, 1) for client in range(len(SIZES))]
    assert up * len(jobs) == sum(count_bytes(part.update) for part in train_jobs(engine, jobs, {0: broadcast}, {}))


def test_both_engines_tell_the_losses_that_clients_began_with(make_federation) -> None:
    federation = make_federation(make_clients(), 3, name="start losses")
    losses = []
    for kind in (CohortEngine, ReferenceEngine):
        algorithm = ALGORITHMS.get("qfedavg")()
        engine = logistic_simulation(federation, algorithm, LOCAL, kind).engine
        jobs, broadcast = [Job(client, 1) for client in range(len(SIZES))], {"params": engine.initial_params()}
        found = {
            int(client): float(loss)
            for part in train_jobs(engine, jobs, {0: broadcast}, {})
            for client, loss in zip(part.clients, part.work.start_loss, strict=True)
        }
        losses.append([found[client] for client in range(len(SIZES))])
    np.testing.assert_allclose(*losses, atol=1e-12)
    assert min(losses[0]) > 0.1

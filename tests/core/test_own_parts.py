"""Parts that strangers wrote, the obvious way: the same on both engines, or refused with a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from logistic_clients import (
    LOCAL,
    cohorts,
    flat,
    local_sgd,
    logistic_simulation,
    make_clients,
    phones_of_different_speeds,
    plain,
)
from test_transforms import ENGINES, rows_of, run

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.simulate import ClockOptions
from fedarena.simulate.protocols import Buffered
from fedarena.simulate.server import Server
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.transforms import Clip, ShardResult, TopK, Transform, UpdatePath
from fedarena.transforms.aggregators import Mean


class EverybodyCountsTheSame(FedAvg):
    """One number for all clients."""

    def client_weight(self, work):
        return 1.0


class NoisyStart(FedAvg):
    """Every client begins somewhere else."""

    def local_start(self, client):
        return {name: p + client.job.normal(name, p) for name, p in client.broadcast["params"].items()}


@pytest.mark.parametrize("algorithm", [EverybodyCountsTheSame, NoisyStart])
def test_obvious_code_means_the_same_on_both_engines(make_federation, algorithm) -> None:
    outcomes = [
        run(make_federation, kind, [], algorithm())[-1].snapshot.state["params"]
        for kind in (CohortEngine, ReferenceEngine)
    ]
    for name, p in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], p, rtol=0, atol=1e-9)


@ENGINES
def test_one_number_for_all_clients_is_a_mean(make_federation, engine_kind) -> None:
    first, *_, last = run(make_federation, engine_kind, [], EverybodyCountsTheSame())
    w = flat(first.snapshot.state["params"])
    for round, cohort in cohorts():
        w = w + np.mean([local_sgd(w, c, round, plain, LOCAL)[0] - w for c in cohort], axis=0)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)


class NoisyGradients(FedAvg):
    """Langevin dynamics."""

    seen: ClassVar[list[torch.Tensor]] = []
    write_only = ("seen",)

    def local_gradient(self, grad, params, client):
        noise = {name: client.job.normal(name, g) for name, g in grad.items()}
        self.seen.append(noise["1.weight"].detach().clone())
        return {name: g + noise[name] for name, g in grad.items()}


def test_every_local_step_draws_other_numbers(make_federation) -> None:
    NoisyGradients.seen = []
    run(make_federation, ReferenceEngine, [], NoisyGradients())
    draws = [tuple(noise.flatten().tolist()) for noise in NoisyGradients.seen[2:]]  # it is tried out twice before
    assert len(set(draws)) == len(draws) > 20


class SeesTheRound(FedAvg):
    """Uploads the round that its clients are told."""

    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {**update, "told": {"round": client.job.round.double()}}, state

    def server_step(self, state, mean_update, round):
        assert float(mean_update["told"]["round"]) == round
        return super().server_step(state, mean_update, round)


def test_clients_are_told_the_round_though_jobs_overlap(make_federation) -> None:
    parts = {"protocol": Buffered(buffer_size=2), "fleet": phones_of_different_speeds()}
    for kind in (CohortEngine, ReferenceEngine):
        run(make_federation, kind, [], SeesTheRound(), **parts)


def test_clipping_all_groups_leaves_what_says_who_trained_what() -> None:
    rows = rows_of({"params": {"w": torch.tensor([[3.0, 4.0]])}, "coverage": {"w": torch.tensor([[1.0, 1.0]])}})
    update, _ = Clip(bound=1.0, groups="all").at_client(rows, {}, {})
    assert update["coverage"]["w"].tolist() == [[1, 1]]
    assert update["params"]["w"].tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


class OneNumber(Mean):
    """Forgets along which dimension to add."""

    def finish(self, total):
        update = super().finish(total)
        return {**update, "params": {name: t.sum() for name, t in update["params"].items()}}


class ForgetsRows(Transform):
    """Gives one update for all."""

    def at_client(self, rows, kept, server):
        return {"params": {name: t.mean(0) for name, t in rows.update["params"].items()}}, kept


class WrongWeights(FedAvg):
    """Some weights are negative."""

    def client_weight(self, work):
        return -1.0 * work.samples


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"algorithm": WrongWeights()}, "client_weight must be 0 or more"),
        ({"transforms": [ForgetsRows()]}, r"ForgetsRows.at_client must give params/.* a row per client"),
    ],
)
def test_parts_of_a_wrong_form_are_refused(make_federation, parts, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        run(make_federation, CohortEngine, **{"transforms": [], **parts})


class NobodyCounts(FedAvg):
    def client_weight(self, work):
        return 0 * work.samples


def test_that_nobody_counts_is_not_called_divergence(make_federation) -> None:
    with pytest.raises(RunFailedError, match="client_weight is 0 for every client of a round"):
        run(make_federation, CohortEngine, [], NobodyCounts())


def test_an_update_of_another_shape_is_refused() -> None:
    path = UpdatePath(FedAvg(), (), OneNumber())
    rows = rows_of({"params": {"w": torch.ones(2, 3)}})
    server = Server(path, {"params": {"w": torch.zeros(3)}})
    partial = path.aggregator.add_up(rows)
    result = ShardResult({0: partial}, np.arange(2), [], np.zeros(2), None, 2, {})
    server.accept(result)
    with pytest.raises(BadInputError, match=r"OneNumber .* gave 'w' of shape \[\] for a parameter of shape \[3\]"):
        server.step(1)


def test_compressed_uploads_have_the_size_of_the_model_on_its_way(make_federation) -> None:
    sizes = []
    for model_bytes in (None, 1440):
        _, *rounds = run(make_federation, CohortEngine, [TopK(share=0.5)], clock=ClockOptions(model_bytes=model_bytes))
        sizes.append(np.concatenate([np.asarray(outcome.jobs["real_bytes_up"]) for outcome in rounds]))
    np.testing.assert_allclose(sizes[1], 10 * sizes[0])


def test_bytes_are_counted_without_a_look_at_the_model_while_others_train_with_it(make_federation, monkeypatch) -> None:
    federation = make_federation(make_clients(), 3, name="a federation of its own")
    simulation = logistic_simulation(federation, FedAvg(), LOCAL, CohortEngine)
    simulation = replace(simulation, clock=ClockOptions(model_bytes=1440))
    simulation.load()
    monkeypatch.setattr(type(simulation.engine), "initial_params", lambda engine: pytest.fail("it is not there"))
    assert simulation.sent_bytes(72) > 0


def test_compressing_twice_works(make_federation) -> None:
    *_, last = run(make_federation, CohortEngine, [TopK(share=0.8), TopK(share=0.3)])
    assert last.row["real_bytes_up"] <= last.row["bytes_up"]

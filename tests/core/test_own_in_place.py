"""Own parts at the server and on the way there may change in place what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import config, content, losses

from fedarena.algorithms import FedAvg
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.transforms import Transform

UNEVEN = {"name": "uniform", "seconds_per_sample": [0.05, 1.5]}


class AddsInPlace(FedAvg):
    def server_step(self, state, mean_update, round):
        for name, p in state["params"].items():
            p += mean_update["params"][name].mul_(0.5)
        return state


class Adds(FedAvg):
    def server_step(self, state, mean_update, round):
        params = {name: p + 0.5 * mean_update["params"][name] for name, p in state["params"].items()}
        return {**state, "params": params}


class OptimizerOfTorch(FedAvg):
    def server_step(self, state, mean_update, round):
        params = state["params"]
        for name, p in params.items():
            p.grad = -mean_update["params"][name]
        torch.optim.SGD(list(params.values()), lr=0.5).step()
        return state


class KeepsWhatItGives(Transform):
    def server_init(self, update):
        return {"momentum": {name: torch.zeros_like(u) for name, u in update["params"].items()}}

    def at_server(self, update, server, context):
        momentum = {name: 0.9 * server["momentum"][name] + u for name, u in update["params"].items()}
        return {**update, "params": momentum}, {"momentum": momentum}


@pytest.mark.parametrize("own", [AddsInPlace, OptimizerOfTorch])
@pytest.mark.parametrize(
    "settings",
    [
        {"server_lr_schedule": {"name": "exponential", "decay": 0.5}},
        {"fleet": UNEVEN, "protocol": {"name": "buffered", "buffer_size": 2}},
        {"fleet": UNEVEN, "protocol": {"name": "asynchronous", "updates_per_round": 2}},
        {"fleet": UNEVEN, "protocol": {"name": "staleness_aware", "seconds": 30.0}},
        {"transforms": [KeepsWhatItGives]},
    ],
)
def test_a_server_step_in_place_is_one_that_makes_new_tensors(tmp_path: Path, own, settings) -> None:
    settings = {"rounds": 4, **settings}
    in_place = losses(tmp_path, "cohort", "in place", algorithm=own, **settings)
    assert in_place == pytest.approx(losses(tmp_path, "cohort", algorithm=Adds, **settings), rel=1e-12)


def test_a_server_step_in_place_is_resumed_where_it_was(tmp_path: Path) -> None:
    settings = {
        "algorithm": AddsInPlace,
        "rounds": 4,
        "fleet": UNEVEN,
        "protocol": {"name": "buffered", "buffer_size": 2},
    }
    start_run(config(**settings), tmp_path / "whole")
    with Run.create(config(**settings), tmp_path / "parts") as run:
        run.advance(2)
    resume_run(tmp_path / "parts" / "small")
    assert content(tmp_path / "parts" / "small") == content(tmp_path / "whole" / "small")


class KeepsItsUpdate(FedAvg):
    """What a client keeps are the very tensors that it sends."""

    def client_init(self, broadcast):
        return {"last": {name: torch.zeros_like(p) for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad, params, client):
        return {name: g - client.state["last"][name] for name, g in grad.items()}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        return update, {"last": update["params"]}


class HalvesInPlace(Transform):
    def at_client(self, rows, kept, server):
        for u in rows.update["params"].values():
            u.mul_(0.5)
        return rows.update, kept


class Halves(Transform):
    def at_client(self, rows, kept, server):
        return {**rows.update, "params": {name: 0.5 * u for name, u in rows.update["params"].items()}}, kept


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_transform_in_place_leaves_what_clients_keep(tmp_path: Path, engine: str) -> None:
    settings = {"algorithm": KeepsItsUpdate, "rounds": 3, "cohort": 15}
    in_place = losses(tmp_path, engine, "in place", transforms=[HalvesInPlace], **settings)
    assert in_place == losses(tmp_path, engine, transforms=[Halves], **settings)

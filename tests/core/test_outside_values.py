"""What own code reads of variables of its file must not change in the middle of a run: steps have it inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models.tasks.classification import Classification

PULL = 0.0
settings = SimpleNamespace(pull=0.0, other=0.0)
weights = {"pull": torch.zeros(1)}
job = 0  # also the name of an attribute
seen: list[int] = []


def pulled(params: Any) -> Any:
    return PULL * params


class Number(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: g + PULL * params[name] for name, g in grad.items()}


class OfObject(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: g + settings.pull * params[name] for name, g in grad.items()}


class InDictionary(FedAvg):
    def local_loss(self, task, params, batch, client):
        return task.loss(params, batch) + weights["pull"].sum() * sum(p.sum() for p in params.values())


class ByFunction(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {"params": {name: u - pulled(u) for name, u in update["params"].items()}}, state


class ByMethod(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: self.changed(g, params[name]) for name, g in grad.items()}

    def changed(self, g, p):
        return g + PULL * p


class Innocent(FedAvg):
    """Reads attributes that are called like variables, appends, and reads what others do not touch."""

    def local_gradient(self, grad, params, client):
        share = client.job.share
        return {name: g * (share / share) + settings.other * params[name] + len(seen[:0]) for name, g in grad.items()}


def enclosed() -> tuple[Callable[[Any], Any], Callable[[], None]]:
    pull = 0.0

    def pulled(params: Any) -> Any:
        return pull * params

    def change() -> None:
        nonlocal pull
        pull = 1.0

    return pulled, change


pulled_by_enclosed, change_enclosed = enclosed()


class Enclosed(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: g + pulled_by_enclosed(params[name]) for name, g in grad.items()}


class Warm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)) * (1 + PULL)


class Scaled(Classification):
    def loss(self, params, batch):
        return super().loss(params, batch) * (1 + PULL)


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    change(False)


def change(now: bool = True) -> None:
    global PULL, job
    PULL = settings.pull = float(now)
    weights["pull"] = torch.full((1,), float(now))
    job = int(now)
    seen.append(1)


def go_on(folder: Path, change: Callable[[], None], engine: str, **settings: Any) -> None:
    base = {"federation": "digits", "model": "logistic_regression", "cohort": 3, "rounds": 3, "engine": engine}
    with fedarena.open(base | settings, runs_folder=folder) as run:
        run.advance(1)
        change()
        run.advance(1)


@pytest.mark.parametrize("engine", ["reference", "cohort"])
@pytest.mark.parametrize("method", [Number, OfObject, InDictionary, ByFunction, ByMethod])
def test_what_methods_read_may_not_change(method: type, engine: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"reads .*(PULL|pull).*, which has changed since the run began"):
        go_on(tmp_path, change, engine, algorithm=method)


def test_nor_what_functions_have_around_them(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="reads pull, which has changed"):
        go_on(tmp_path, change_enclosed, "cohort", algorithm=Enclosed)


@pytest.mark.parametrize("part", [{"model": Warm}, {"task": Scaled}], ids=["model", "task"])
def test_nor_what_models_and_losses_read(part: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="reads PULL, which has changed"):
        go_on(tmp_path, change, "cohort", **part)


def test_what_nobody_reads_may_change_and_lists_may_grow(tmp_path: Path) -> None:
    go_on(tmp_path, change, "cohort", algorithm=Innocent)


def test_between_runs_all_may_change(tmp_path: Path) -> None:
    go_on(tmp_path / "one", lambda: None, "cohort", algorithm=Number)
    change()
    go_on(tmp_path / "other", lambda: None, "cohort", algorithm=Number)

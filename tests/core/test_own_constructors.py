"""What somebody's own parts draw while they are made follows from the run's seed, wherever and whenever that is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import config, content

from fedarena.algorithms import FedAvg
from fedarena.core.registry import make_parts
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.simulate.selectors import Selector
from fedarena.transforms import TRANSFORMS, Transform

HERE = __name__


class RandomScale(Transform):
    """Multiplies updates by a number that its constructor draws, in one of many ways."""

    def __init__(self, by: str = "torch"):
        self.scale = {
            "torch": lambda: float(torch.rand(())),
            "numpy": np.random.rand,
            "a new generator": lambda: np.random.default_rng().random(),
            "python": random.random,
        }[by]()

    def at_client(self, rows, kept, server):
        return {g: {name: t * self.scale for name, t in ts.items()} for g, ts in rows.update.items()}, kept


class RandomLength(FedAvg):
    """A server whose steps are as long as its constructor draws."""

    def __init__(self):
        super().__init__()
        self.length = float(torch.rand(()))

    def server_step(self, state, mean_update, round):
        shorter = {name: self.length * t for name, t in mean_update["params"].items()}
        return super().server_step(state, {**mean_update, "params": shorter}, round)


class RandomFavourites(Selector):
    """Invites the clients that its constructor likes best."""

    def __init__(self):
        self.liking = np.random.rand(1000)

    def select(self, number, candidates, round):
        clients = candidates.clients
        return np.sort(clients[np.argsort(self.liking[clients])[:number]])


def hashed(folder: Path, **settings: Any) -> bytes:
    start_run(config(rounds=2, **settings), folder)
    return content(folder / "small")["tensors"]


@pytest.mark.parametrize("by", ["torch", "numpy", "a new generator", "python"])
def test_transforms_are_the_same_in_every_run(tmp_path: Path, by: str) -> None:
    chosen = [{"name": f"{HERE}:RandomScale", "by": by}]
    one, same, other = (
        hashed(tmp_path / str(number), transforms=chosen, seed=seed) for number, seed in enumerate((0, 0, 1))
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("part", [{"algorithm": f"{HERE}:RandomLength"}, {"selector": f"{HERE}:RandomFavourites"}])
def test_a_resumed_run_has_the_same_parts(tmp_path: Path, part: dict[str, str]) -> None:
    start_run(config(rounds=4, **part), tmp_path / "whole")
    run = Run.create(config(rounds=4, **part), tmp_path / "halves")
    run.advance(2)
    run.close()
    resume_run(tmp_path / "halves" / "small")
    assert content(tmp_path / "halves" / "small") == content(tmp_path / "whole" / "small")


def test_parts_of_the_same_name_draw_for_themselves() -> None:
    named = [{"name": f"{HERE}:RandomScale", "by": "torch"}, {"name": "sign"}, {"name": f"{HERE}:RandomScale"}]
    first, _, second = make_parts(TRANSFORMS, named, Transform, "a transform", 0)
    assert isinstance(first, RandomScale)
    assert isinstance(second, RandomScale)
    assert first.scale != second.scale
    again = make_parts(TRANSFORMS, named[::2], Transform, "a transform", 0)
    assert [part.scale for part in again] == [first.scale, second.scale]  # type: ignore[attr-defined]


def test_nobody_elses_generators_are_touched() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.default_generator.manual_seed(5)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(5)
    np.random.seed(5)
    torch.default_generator.manual_seed(5)
    make_parts(TRANSFORMS, [{"name": f"{HERE}:RandomScale"}], Transform, "a transform", 0)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


class RandomBlend(FedAvg):
    """Scores a mean of the last two models, whose shares its constructor draws."""

    def __init__(self):
        super().__init__()
        self.share = float(torch.rand(()))

    def server_init(self, params):
        return {"params": params, "before": params}

    def server_step(self, state, mean_update, round):
        return {**super().server_step(state, mean_update, round), "before": state["params"]}

    def evaluation_params(self, state):
        return {name: self.share * p + (1 - self.share) * state["before"][name] for name, p in state["params"].items()}


def test_a_run_starts_from_the_model_that_another_one_scored(tmp_path: Path) -> None:
    first = start_run(config(rounds=2, algorithm=f"{HERE}:RandomBlend"), tmp_path)
    chosen = {"algorithm": "fedavg", "rounds": 1, "weights": str(tmp_path / "small")}
    second = start_run(config(name="second", **chosen), tmp_path)
    assert second.rounds["loss"][0].as_py() == first.rounds["loss"][-1].as_py()

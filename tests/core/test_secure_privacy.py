"""Privacy with secure aggregation: rounding does not break the clipping norm, and clients add the noise together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import Sampled
from fedarena.privacy.distributed import _enlargement
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.train import Job, JobArrays, JobResults, Shard, Work, map_groups
from fedarena.train.examples import example_update

SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 12}},
    "model": "logistic_regression",
    "rounds": 4,
    "cohort": 6,
    "selector": "shuffled",
    "engine": {"name": "reference", "dtype": "float64"},
    "secure_aggregation": {"name": "bonawitz"},
}
CENTRAL = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "clip_norm": 0.5}}
DISTRIBUTED = {"privacy": {"name": "distributed_gaussian", "noise_multiplier": 1.0, "clip_norm": 0.5}}


def experiment(*settings: dict[str, Any]) -> Any:
    merged = merge({}, SMALL)
    for more in settings:
        merged = merge(merged, more)
    return prepare(resolve(merged), Observer())


def run(folder: Path, name: str, *settings: dict[str, Any]) -> Any:
    merged = merge({}, SMALL)
    for more in settings:
        merged = merge(merged, more)
    with pytest.warns(UserWarning, match="Privacy"):
        return fedarena.run(merged, name=name, runs_folder=folder, progress=False)


def term(path: Any, simulation: Any, length: float, client: int = 0) -> Any:
    """What a client adds whose update points everywhere alike and is so long."""
    update = example_update(simulation.algorithm, simulation.engine.initial_params())
    numbers = sum(t.numel() for tensors in update.values() for t in tensors.values())
    rows = map_groups(lambda t: torch.full((1, *t.shape), length / math.sqrt(numbers), dtype=t.dtype), update)
    jobs, one = JobArrays.of([Job(client, 1)]), np.ones(1, dtype=np.int64)
    result = JobResults(jobs, rows, {}, Work(one, one, one), np.zeros(1))
    server = path.server_init(update)
    return path.sums.restored(path.secure_term(path.send(result, Shard(jobs, {}, {}, 1), server)))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_rounding_makes_no_update_longer_than_the_norm(rounding: str) -> None:
    """On a grid so coarse that it would: all numbers are rounded up."""
    coarse = {"secure_aggregation": {"range": 5e4, "rounding": rounding}}
    simulation = experiment(CENTRAL, coarse).simulation
    path = simulation.path
    step = 1 / path.sums.fixed_point.scale(5e4)
    lengths = [
        float(torch.linalg.vector_norm(torch.cat([t.flatten() for t in added.tensors["params"].values()])))
        for added in (term(path, simulation, 3.0, client) for client in range(5))
    ]
    assert step > 1e-3
    assert max(lengths) <= 0.5
    assert min(lengths) > 0.4


def test_a_grid_that_is_too_coarse_for_the_norm_is_refused() -> None:
    with pytest.raises(BadInputError, match="Rounding for secure aggregation may make an update longer by"):
        experiment(CENTRAL, {"secure_aggregation": {"range": 1e6}})


def test_epsilon_is_that_of_central_noise(tmp_path: Path) -> None:
    central = run(tmp_path, "central", CENTRAL)
    together = run(tmp_path, "together", DISTRIBUTED)
    assert central.rounds["epsilon"].to_pylist() == together.rounds["epsilon"].to_pylist()
    told = together.summary["privacy"]
    assert told["epsilon"] == Sampled(12, 6, 1.0, "shuffled").epsilon(4, told["delta"])
    # Of a group of 6, 5 must stay; they have all the noise together.
    assert told["noisy_members_of_a_group"] == 5
    assert told["client_noise_deviation"] == pytest.approx(0.5 / math.sqrt(5), rel=1e-6)
    assert together.rounds["saturated"].to_pylist()[1:] == [None] * 4  # nobody tells what has no noise


@pytest.mark.parametrize("colluding", [0.0, 0.3])
def test_those_who_must_stay_have_the_noise_together(colluding: float) -> None:
    built = experiment(DISTRIBUTED, {"privacy": {"colluding": colluding}})
    simulation, mechanism = built.simulation, built.mechanism
    honest = 5 - math.floor(colluding * 6)
    added = [term(simulation.path, simulation, 0.0, client).tensors["params"] for client in range(40)]
    noise = torch.stack([torch.cat([t.flatten() for t in tensors.values()]) for tensors in added])
    sums = noise.view(-1, honest, noise.shape[1])[: 40 // honest].sum(1) if honest in (4, 5) else noise
    assert mechanism.summary(1)["noisy_members_of_a_group"] == honest
    assert float(sums.std()) == pytest.approx(0.5, rel=0.05)  # the multiplier times the norm
    assert torch.corrcoef(noise[:6]).fill_diagonal_(0).abs().max() < 5 / math.sqrt(noise.shape[1])


def test_fewer_than_those_who_must_stay_give_no_sum(tmp_path: Path) -> None:
    """Their noise would not be enough; the server's step is made without them."""
    leaving = {"clock.crash_rate": 0.3, "fleet": "uniform", "protocol": {"name": "readiness", "share": 1.0},
               "privacy.public_timing": True, "rounds": 8}  # fmt: skip
    found = run(tmp_path, "leaving", DISTRIBUTED, leaving)
    for row in found.rounds.to_pylist()[1:]:
        assert row["secure_groups"] == (row["clients"] > 0)
        assert row["clients"] in (0, 5, 6)
    assert found.rounds["lost_groups"].to_pylist()[1:].count(1) > 0
    assert found.summary["privacy"]["epsilon"] == Sampled(12, 6, 1.0, "shuffled").epsilon(
        8, found.summary["privacy"]["delta"]
    )


def test_noise_on_a_coarse_grid_is_enlarged_or_refused() -> None:
    assert _enlargement(100.0, 10, 10**6, 1.0) == 1.0
    steps, clients, numbers, multiplier = 1.25, 10, 10**4, 0.7
    larger = _enlargement(steps, clients, numbers, multiplier)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * (larger * steps) ** 2 * j / (j + 1)) for j in range(1, clients))
    norm = math.sqrt(clients) * steps / multiplier
    assert 1.0 < larger < 1.02
    assert norm**2 / (clients * (larger * steps) ** 2) + 2 * tau * numbers <= 1 / multiplier**2 * (1 + 1e-12)
    assert _enlargement(0.6, 10, 10**6, 1.0) == math.inf


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"secure_aggregation": "none"}, "every client adds a part of the noise, which protects it only if the server"),
        ({"selector": "poisson"}, "cohorts of selector=poisson may be too small for a secure sum"),
        ({"privacy.colluding": 0.5}, "privacy.colluding must be at least 0 and below 0.5, not 0.5"),
        ({"privacy.clip_norm": 0}, "privacy.clip_norm must be above 0"),
        ({"selector": "oort"}, "Privacy would be broken: the selector Oort"),
        ({"aggregator": "median"}, "Privacy would be broken: the aggregator Median"),
    ],
)
def test_what_breaks_the_promise_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        experiment(DISTRIBUTED, settings)


def test_a_budget_ends_the_run_before_it_is_exceeded(tmp_path: Path) -> None:
    found = run(tmp_path, "budget", DISTRIBUTED, {"privacy": {"epsilon": 4.0}, "rounds": 30})
    spent = [value for value in found.rounds["epsilon"].to_pylist() if value is not None]
    assert max(spent) <= 4.0 < Sampled(12, 6, 1.0, "shuffled").epsilon(len(spent), found.summary["privacy"]["delta"])
    assert "privacy budget" in found.summary["message"]

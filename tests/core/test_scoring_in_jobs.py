"""Losses that clients compute beside their training take time and operations wherever those of a job are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_worlds import make_world

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.analysis.correlation import metric_options
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.train import PartialWork

FORWARD = 2 * 64 * 10  # of logistic regression on a digit; training takes twice that, since pixels have no gradient
SECONDS = 0.6  # that phones train on a sample
SMALL = {
    "federation": {
        "name": "digits",
        "partition": {"name": "dirichlet", "clients": 12, "min_samples": 8},
        "train_fraction": 0.6,
        "validation_fraction": 0.2,
    },
    "model": "logistic_regression",
    "local": {"epochs": 2, "batch_size": 8},
    "fleet": {"name": "uniform", "seconds_per_sample": SECONDS},
    "rounds": 2,
    "cohort": 4,
}


class Asking(FedAvg):
    """Asks for the loss at the start, and does nothing with it."""

    needs_start_loss = True


FEDEX = {"name": "fedex", "judgement": "difference"}


def settings(**changes: Any) -> dict[str, Any]:
    return merge(merge({}, SMALL), changes)


def jobs_of(folder: Path, **changes: Any) -> Any:
    """The used jobs, and how many samples of each part their clients have."""
    config = settings(**changes)
    result = fedarena.run(config, runs_folder=folder, progress=False)
    jobs = result.jobs.to_pandas()
    data = prepare(resolve(config), Observer()).simulation.engine.data
    for part in ("train", "validation"):
        jobs[part] = data.counts(jobs["index"].to_numpy(), part)
    jobs["computed"] = jobs["trained_seconds"] - jobs["downloaded_seconds"]
    return jobs[jobs["outcome"] == "used"]


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"algorithm": "fedavg"}, {}),
        ({"algorithm": "qfedavg"}, {"train": 1}),
        ({"algorithm": "fedavg", "policy": FEDEX}, {"validation": 2}),
        ({"algorithm": "fedavg", "policy": {"name": "fedex", "judged_on": "train"}}, {"train": 1}),
        ({"algorithm": "qfedavg", "policy": "fedex"}, {"train": 1, "validation": 1}),
        ({"algorithm": "fedavg", "policy": "by_speed"}, {}),
    ],
)
def test_a_third_of_the_time_and_a_half_of_the_operations(
    changes: dict[str, Any], passes: dict[str, int], tmp_path: Path
) -> None:
    jobs = jobs_of(tmp_path, **changes)
    assert len(jobs)
    scored = sum((times * jobs[part] for part, times in passes.items()), start=0 * jobs["train"])
    np.testing.assert_allclose(jobs["computed"], SECONDS * (jobs["samples"] + scored / 3), rtol=1e-6)
    assert (jobs["flops"] == FORWARD * (2 * jobs["samples"] + scored)).all()
    if passes:
        assert (jobs["scored_samples"] == scored).all()
    else:
        assert "scored_samples" not in jobs


def test_phones_that_tell_operations_take_those_of_the_forward_pass(tmp_path: Path) -> None:
    table = tmp_path / "phones.csv"
    table.write_text("phone,flops_per_second,download_bits_per_second,upload_bits_per_second\na,1000,1e6,1e6\n")
    jobs = jobs_of(tmp_path, algorithm="qfedavg", fleet={"name": "table", "devices": str(table)})
    np.testing.assert_allclose(jobs["computed"], FORWARD * (2 * jobs["samples"] + jobs["train"]) / 1000, rtol=1e-6)


def test_a_policy_by_speed_knows_the_operations_of_losses(tmp_path: Path) -> None:
    """It is told of speeds while a run is being prepared."""
    table = tmp_path / "phones.csv"
    table.write_text("phone,flops_per_second,download_bits_per_second,upload_bits_per_second\na,1000,1e6,1e6\n")
    fleet = {"name": "table", "devices": str(table)}
    simulation = prepare(resolve(settings(algorithm="qfedavg", policy="by_speed", fleet=fleet)), Observer()).simulation
    assert simulation.policy is not None
    assert simulation.policy.speeds is not None
    clients = np.arange(3)
    expected = FORWARD * simulation.engine.data.counts(clients, "train") / 1000
    np.testing.assert_allclose(simulation.policy.speeds(clients, clients).scoring_seconds, expected)


def test_edges_ask_in_each_of_their_rounds(tmp_path: Path) -> None:
    edges = {"name": "by_chance", "number": 2, "rounds": 3}
    once, thrice = (
        prepare(resolve(settings(fleet="ideal", algorithm=Asking, **more)), Observer()).simulation.load()
        for more in ({}, {"edges": edges})
    )
    clients = np.arange(4)
    assert once.scored_samples is not None
    assert thrice.scored_samples is not None
    assert (thrice.scored_samples(clients) == 3 * once.scored_samples(clients)).all()


def test_clients_that_do_less_compute_their_losses_all_the_same() -> None:
    """A deadline leaves what losses take not to the training."""
    phones = make_world([10.0]).phones  # to download, to train on ten samples, and to upload, each
    load = replace(
        phones.load,
        processed_samples=lambda clients, shares: np.round(10 * shares).astype(int),
        partial_work=PartialWork("steps"),
        possible_shares=lambda clients, wanted: np.floor(10 * wanted + 1e-9) / 10,
        scored_samples=lambda clients: np.full(len(clients), 12),
        scoring_flops_per_sample=0.25,
    )
    client, number, start = np.array([0]), np.array([0]), np.zeros(1)
    whole = replace(phones, load=load).plan(client, number, start, 0)
    assert whole.compute_seconds.tolist() == pytest.approx([10 + 12 / 3])
    hasty = replace(phones, load=load, deadline_seconds=29.5)  # 9.5 to compute: 4 for losses, 5 for half of the steps
    jobs = hasty.plan(client, number, start, 0)
    assert jobs.shares.tolist() == [0.5]
    assert jobs.compute_seconds.tolist() == pytest.approx([5 + 4])
    done = hasty.done(jobs)
    assert done.flops.tolist() == [5 + 12 / 4]
    assert done.joules.tolist() == pytest.approx([2 * 9 + 20])
    assert hasty.speeds(client, number).scoring_seconds.tolist() == pytest.approx([4])


def test_metrics_of_fleets_are_of_all_that_is_computed() -> None:
    plain, fair = (
        metric_options(prepare(resolve(settings(algorithm=name)), Observer()).simulation, 1)
        for name in ("fedavg", "qfedavg")
    )
    # Two epochs, and a pass that takes a third of one in seconds, or a half in operations.
    assert fair.samples == pytest.approx(plain.samples * (2 + 1 / 3) / 2)
    operations = [one.samples * one.flops_per_sample for one in (plain, fair)]
    assert operations[1] == pytest.approx(operations[0] * (2 + 1 / 2) / 2)

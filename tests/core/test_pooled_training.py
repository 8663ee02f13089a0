"""Training on pooled samples, from the settings to the run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import StopAfter, config, content, interrupt

from fedarena.core.errors import BadInputError
from fedarena.display.report.sections.headline import facts
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve, resolve_settings
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.storage.run_data import load_runs
from fedarena.train.batches import sample_order

CENTRALIZED = {"training": "centralized", "cohort": 1, "algorithm": "fedavg"}


def test_the_cohort_of_centralized_training_is_one_by_itself() -> None:
    assert resolve({"training": "centralized"}).cohort == 1
    assert resolve_settings(None, {"training": "centralized"}).cohort == 1  # the quickstart has a cohort
    assert resolve({"training": "iid"}).cohort is resolve({}).cohort is None  # until it is known how many there are
    central = resolve({"training": "centralized", "cohort": 1})
    assert resolve(central.to_dict()) == central
    with pytest.raises(BadInputError, match="training=centralized has a single cohort of 1, not 7; leave cohort out"):
        resolve({"training": "centralized", "cohort": 7})


def test_centralized_training_is_sgd_on_the_shuffled_pool() -> None:
    """Against a plain loop over batches; the last batch of each round's samples is as long as the others."""
    settings = {**CENTRALIZED, "rounds": 4, "local": {"steps": 5, "batch_size": 8, "lr": 0.5}}
    experiment = prepare(config(**settings, engine={"name": "reference", "dtype": "float64"}), Observer())
    simulation, federation = experiment.simulation, experiment.federation
    outcomes = list(simulate(simulation))
    module = simulation.task.module
    module.load_state_dict(outcomes[0].snapshot.state["params"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    seen = []
    for outcome in outcomes[1:]:
        client = simulation.training_clients[[outcome.snapshot.round - 1]]
        block = simulation.engine.data.samples(client, "train").columns
        assert len(block["y"]) == outcome.row["samples"] == 5 * 8
        seen.append(block["x"].reshape(40, -1))
        order = sample_order(40, 0, outcome.snapshot.round, int(client[0]), 0)
        for rows in order.reshape(5, 8):
            optimizer.zero_grad()
            batch = simulation.task.batch({name: torch.from_numpy(v[rows]) for name, v in block.items()})
            torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"]).backward()
            optimizer.step()
    for name, p in module.named_parameters():
        torch.testing.assert_close(outcomes[-1].snapshot.state["params"][name], p.detach(), rtol=0, atol=1e-12)
    pool = federation.samples(federation.clients("train"), "train").columns["x"]
    known = {sample.tobytes() for sample in pool}
    assert all(sample.tobytes() in known for sample in np.concatenate(seen))
    assert outcomes[-1].row["bytes_up"] == outcomes[-1].row["bytes_down"] == 0


def test_epochs_of_centralized_training_are_over_everything() -> None:
    experiment = prepare(config(**CENTRALIZED, rounds=1, local={"epochs": 2, "batch_size": 50}), Observer())
    federation = experiment.federation
    in_pool = int(federation.counts(federation.clients("train"), "train").sum())
    *_, last = simulate(experiment.simulation)
    assert (last.row["samples"], last.row["clients"]) == (2 * in_pool, 1)
    assert last.row["steps"] == 2 * -(-in_pool // 50)


@pytest.mark.parametrize("training", ["iid", "centralized"])
@pytest.mark.parametrize("split", ["test", "train"])
def test_models_are_evaluated_on_the_real_clients(training: str, split: str) -> None:
    settings = {"algorithm": "fedavg", "cohort": 1, "rounds": 1, "evaluation.part": split}
    natural, pooled = (prepare(config(**settings, training=t), Observer()).simulation for t in ("natural", training))
    np.testing.assert_array_equal(natural.evaluation_clients, pooled.evaluation_clients)
    params = natural.engine.initial_params()
    ours, theirs = (s.engine.evaluate(params, s.evaluation_clients, s.evaluation_part) for s in (pooled, natural))
    np.testing.assert_array_equal(ours.means("loss"), theirs.means("loss"))
    assert not set(pooled.training_clients.tolist()) & set(natural.training_clients.tolist())


def test_clients_are_alike_when_their_samples_are_dealt_out() -> None:
    """The labels of a Dirichlet partition differ from client to client; dealt out anew they hardly do."""
    spreads = []
    for training in ("natural", "iid"):
        partition = {"name": "dirichlet", "clients": 20, "alpha": 0.1}
        federation = {"name": "digits", "partition": partition}
        simulation = prepare(config(training=training, federation=federation), Observer()).simulation
        clients, data = simulation.training_clients, simulation.engine.data
        block = data.samples(clients, "train")
        sizes = np.diff(block.offsets)
        owner = np.repeat(np.arange(len(clients)), sizes)
        labels = np.zeros((len(clients), 10))
        np.add.at(labels, (owner, block.columns["y"]), 1)
        large = sizes >= 30
        shares = labels[large] / sizes[large, None]
        spreads.append((np.abs(shares - labels.sum(0) / labels.sum()).sum(1) / 2).mean())
        assert labels.sum() == data.counts(clients, "train").sum()
    assert spreads[0] > 0.5
    assert spreads[1] < 0.2


@pytest.mark.parametrize("training", ["iid", "centralized"])
def test_a_resumed_run_is_the_same(tmp_path: Path, training: str) -> None:
    cohort = 1 if training == "centralized" else 4
    settings = config(training=training, cohort=cohort, rounds=6, local={"steps": 3, "batch_size": 8})
    start_run(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start_run(settings, tmp_path / "stopped", StopAfter(3, interrupt))
    resume_run(tmp_path / "stopped" / "small")
    assert content(tmp_path / "whole" / "small") == content(tmp_path / "stopped" / "small")


def test_the_name_of_a_run_says_how_it_was_trained(tmp_path: Path) -> None:
    run = start_run(config(**CENTRALIZED, rounds=1, name=None), tmp_path)
    assert run.name == "digits-centralized-fedavg-seed0"


def test_reports_say_how_runs_were_trained(tmp_path: Path) -> None:
    base = {"algorithm": "fedavg", "rounds": 1, "local": {"steps": 1}}
    start_run(config(**base, name="a"), tmp_path)
    start_run(config(**base, name="b", training="iid"), tmp_path)
    start_run(config(**base, name="c", training="centralized", cohort=1), tmp_path)
    runs = load_runs([tmp_path])
    assert [run.label for run in runs] == ["fedavg", "fedavg iid", "fedavg centralized"]
    assert load_runs([tmp_path / "c"])[0].label == "fedavg centralized"
    assert facts(runs).endswith("1 round · 4 clients a round")
    assert facts(runs[2:]).endswith("1 round · trained at the server")


def test_methods_with_memory_need_clients() -> None:
    with pytest.raises(BadInputError, match=r"scaffold needs clients that keep something .* training=centralized"):
        prepare(config(**{**CENTRALIZED, "algorithm": "scaffold"}), Observer())
    prepare(config(training="iid", algorithm="scaffold"), Observer())

"""Runs whose policy decides about hyperparameters: with fleets, protocols, privacy, and after interruptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena
from fedarena.catalogue import load_federation
from fedarena.core.errors import BadInputError, DivergedError
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, start_run

BASE = {
    "name": "run",
    "federation": {
        "name": "digits",
        "train_fraction": 0.6,
        "validation_fraction": 0.2,
        "partition": {"name": "dirichlet", "clients": 20},
    },
    "model": "logistic_regression",
    "rounds": 6,
    "cohort": 6,
    "seed": 4,
    "local": {"steps": 3, "batch_size": 8, "lr": 0.1},
    "evaluation": {"every": 6},
    "engine": "reference",  # which is at work sooner
}
LRS = {"local.lr": [0.002, 0.03, 0.4]}
WHOLE_SPACE = {
    "local.lr": {"from": 0.01, "to": 1.0, "log": True},
    "local.weight_decay": {"from": 0.0, "to": 0.01},
    "local.momentum": [0.0, 0.5],
    "local.steps": {"from": 1, "to": 4},
    "local.batch_size": [4, 8, 16],
}
PHONES = {
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4], "share": 0.6, "slot_seconds": 300},
    "clock.crash_rate": 0.1,
}


def settings(**changes: Any):
    return resolve(merge({}, BASE | changes))


def policy(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "search": LRS, **options}


def content(folder: Path) -> dict[str, Any]:
    """What must not depend on how often a run was interrupted."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    del summary["timing"]
    tables = {name: (folder / f"{name}.parquet").read_bytes() for name in ("rounds", "clients", "jobs")}
    tensors = (folder / "checkpoint" / state["tensors"]["file"]).read_bytes()
    return {"summary": summary, "tensors": tensors, **tables}


def columns(table: Any, *names: str) -> list[np.ndarray]:
    return [np.array(table[name].to_pylist(), dtype=float) for name in names]


@pytest.mark.slow
def test_fedex_concentrates_on_the_learning_rate_that_is_best(tmp_path: Path) -> None:
    run = start_run(settings(policy=policy("fedex", step_rule="adaptive"), rounds=25, cohort=10), tmp_path)
    summary = run.summary["policy"]
    assert summary["best"] == {"local.lr": 0.4}
    assert summary["probabilities"][0][2] > 0.8
    (entropy,) = columns(run.rounds, "policy_entropy")
    assert entropy[1] == pytest.approx(np.log(3))
    assert entropy[-1] == pytest.approx(summary["entropy"])
    shares = np.stack(columns(run.rounds, "arm_0", "arm_1", "arm_2"))[:, 1:]
    np.testing.assert_allclose(shares.sum(0), 1)
    arm, lr, loss, change = columns(run.jobs, "arm", "local.lr", "validation_loss", "validation_change")
    assert np.array_equal(lr, np.array(LRS["local.lr"])[arm.astype(int)])
    assert np.isfinite(loss).all()
    assert np.isnan(change).all()
    late = columns(run.jobs, "round")[0] > 20
    assert (arm[late] == 2).mean() > 0.6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["fedex", "personalized_fedex", "fts"])
def test_engines_agree(name: str, tmp_path: Path) -> None:
    found = []
    for engine in ("cohort", "reference"):
        chosen = {"name": name, "search": WHOLE_SPACE, **({} if name == "fts" else {"spread": 0.5})}
        changes = {"policy": chosen, "engine": {"name": engine, "dtype": "float64"}, "name": engine, "rounds": 4}
        found.append(start_run(settings(**changes), tmp_path))
    first, second = found
    assert first.jobs.column_names == second.jobs.column_names
    for table in ("rounds", "jobs", "clients"):
        for column in getattr(first, table).column_names:
            one, other = (getattr(run, table)[column].to_pylist() for run in found)
            if isinstance(one[-1], float):
                np.testing.assert_allclose(*(np.array(v, dtype=float) for v in (one, other)), rtol=0, atol=1e-8)
            else:
                assert one == other
    assert len(set(first.jobs["local.steps"].to_pylist())) > 2
    assert len(set(first.jobs["local.batch_size"].to_pylist())) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("fedex", "buffered"),
        ("fts", "buffered"),
        ("personalized_fedex", "ideal"),
        pytest.param("fedex", "ideal", marks=pytest.mark.slow),
        pytest.param("fts", "ideal", marks=pytest.mark.slow),
        pytest.param("personalized_fedex", "buffered", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(name: str, protocol: str, tmp_path: Path) -> None:
    search = {"local.lr": LRS["local.lr"], "local.steps": [1, 2, 5]}
    changes = {"policy": {"name": name, "search": search}, "protocol": protocol}
    if protocol == "buffered":
        changes |= PHONES | {"protocol": {"name": "buffered", "buffer_size": 3}}
    start_run(settings(**changes), tmp_path / "whole")
    run = Run.create(settings(**changes), tmp_path / "pieces")
    run.advance(2)
    run.close()
    for rounds in (1, None):
        run = Run.reopen(tmp_path / "pieces" / "run")
        run.advance(rounds)
        run.close()
    assert content(tmp_path / "whole" / "run") == content(tmp_path / "pieces" / "run")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "protocol",
    [
        "deadline",
        "asynchronous",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("synchronous", "readiness", "staleness_aware")),
    ],
)
def test_it_fits_every_protocol(protocol: str, tmp_path: Path) -> None:
    changes = {"policy": policy("fedex"), "protocol": protocol, "rounds": 8}
    run = start_run(settings(**changes, **PHONES), tmp_path)
    used = np.array(run.jobs["outcome"].to_pylist()) == "used"
    (loss,) = columns(run.jobs, "validation_loss")
    assert np.array_equal(np.isfinite(loss), used)
    (entropy,) = columns(run.rounds, "policy_entropy")
    assert entropy[-1] < np.log(len(LRS["local.lr"]))  # at first all are alike


def test_virtual_time_and_work_follow_the_steps_of_a_job(tmp_path: Path) -> None:
    search = {"local.steps": [1, 6], "local.batch_size": [2, 8]}
    fleet = {"name": "uniform", "seconds_per_sample": [1.0, 1.0]}
    run = start_run(settings(policy={"name": "fedex", "search": search}, fleet=fleet, protocol="synchronous"), tmp_path)
    steps, batch, samples, flops = columns(run.jobs, "local.steps", "local.batch_size", "samples", "flops")
    trained, downloaded, weight = columns(run.jobs, "trained_seconds", "downloaded_seconds", "loss")
    (scored,) = columns(run.jobs, "scored_samples")  # by which clients judge: a third of the time of training
    done = np.isfinite(weight)
    assert (samples[steps * batch == 2] == 2).all()
    assert (samples <= steps * batch).all()
    assert (samples[steps * batch == 48] > 8).all()
    assert (scored > 0).all()
    np.testing.assert_allclose((trained - downloaded)[done], (samples + scored / 3)[done], rtol=1e-6)
    assert len(set((flops / (samples + scored / 2))[done].round(6))) == 1
    rounds_steps = [
        s[columns(run.jobs, "round")[0] == r].sum() for r in range(1, 7) for s in [np.where(done, steps, 0)]
    ]
    assert run.rounds["steps"].to_pylist()[1:] == rounds_steps


@pytest.mark.parametrize(
    "aggregator", ["multi_krum", *(pytest.param(one, marks=pytest.mark.slow) for one in ("krum", "fools_gold"))]
)
def test_it_fits_aggregators_that_weigh_whole_updates(aggregator: str, tmp_path: Path) -> None:
    run = start_run(settings(policy=policy("fedex"), aggregator=aggregator), tmp_path)
    assert run.summary["policy"]["entropy"] < np.log(3)


def test_corrupted_clients_and_compression_leave_it_working(tmp_path: Path) -> None:
    changes = {"attack": {"name": "sign_flip", "share": 0.2}, "transforms": [{"name": "top_k", "share": 0.2}]}
    run = start_run(settings(policy=policy("fedex"), **changes), tmp_path)
    assert run.summary["policy"]["entropy"] < np.log(3)


@pytest.mark.slow
def test_private_feedback_is_clipped_and_noised_with_the_update(tmp_path: Path) -> None:
    """The same ε as without a policy, and what clients say drowns in noise if that is large."""
    found = {}
    for name, noise in (("fedex", 1e-3), ("fedex", 50.0), ("none", 50.0)):
        privacy = {"name": "gaussian", "noise_multiplier": noise, "clip_norm": 0.5}
        changes = {"privacy": privacy, "selector": "poisson", "cohort": 10, "rounds": 12}
        chosen = policy("fedex", step_rule="constant", step=20.0) if name == "fedex" else {"name": "none"}
        found[name, noise] = start_run(settings(**changes, policy=chosen, name=f"{name}{noise}"), tmp_path)
    epsilons = [found[name, 50.0].summary["privacy"]["epsilon"] for name in ("none", "fedex")]
    assert epsilons[0] == epsilons[1]
    assert found["fedex", 1e-3].summary["policy"]["best"] == {"local.lr": 0.4}
    quiet, loud = (np.stack(columns(found["fedex", z].rounds, "arm_0", "arm_1", "arm_2")) for z in (1e-3, 50.0))
    assert np.abs(np.diff(quiet[:, 2:])).max() < 0.3 < np.abs(np.diff(loud[:, 2:])).max()


def refused(**changes: Any) -> str:
    with pytest.raises(BadInputError) as refusal:
        start_run(settings(**changes), Path("/nowhere"))
    return str(refusal.value)


def test_what_would_break_a_guarantee_is_refused() -> None:
    private = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}
    assert "of which clipping and noise would leave nothing" in refused(policy=policy("fts"), **private)
    labels = refused(policy=policy("personalized_fedex"), **private)
    assert labels.startswith("Privacy would be broken: with policy=personalized_fedex, the server is told how often")
    for mechanism in ({"name": "dp_sgd", "noise_multiplier": 1.0}, {"name": "nbafl"}):
        sentence = refused(policy=policy("fedex"), privacy=mechanism)
        assert f"to which privacy={mechanism['name']} adds no noise; choose privacy=gaussian" in sentence


def test_what_does_not_fit_is_refused() -> None:
    federation = {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}}
    assert "and they have none; give federation.validation_fraction=0.1" in refused(
        policy=policy("fedex"), federation=federation
    )
    built = {"name": "store", "path": str(load_federation(federation).path)}
    assert "make the federation with some, or policy.judged_on=train" in refused(
        policy=policy("fedex"), federation=built
    )
    assert "the aggregator median does not add up" in refused(policy=policy("fedex"), aggregator="median")
    assert "a client of local_only has something else" in refused(policy=policy("fedex"), algorithm="local_only")
    dropout = {"name": "fedex", "search": {"model.dropout": [0.1, 0.5]}}
    assert "the model has none" in refused(policy=dropout)
    assert "To set options of policy ('arms'), name it: policy=fedex" in refused(policy={"arms": 3})
    partial = {"name": "fedex", "search": {"local.steps": [1, 2]}}
    assert "leave out local.steps" in refused(policy=partial, algorithm={"name": "fedprox", "partial_work": True})
    assert "training=iid has none" in refused(policy=policy("fedex"), training="iid")
    assert "policy.arms must be from 2 to 1000, not 1" in refused(policy=policy("fedex", arms=1))


def test_options_of_the_algorithm_can_be_searched(tmp_path: Path) -> None:
    search = {"algorithm.mu": {"from": 0.0, "to": 1.0}, "local.lr": LRS["local.lr"]}
    changes = {"algorithm": {"name": "fedprox", "mu": 0.3}, "policy": {"name": "fedex", "search": search, "arms": 4}}
    run = start_run(settings(**changes), tmp_path)
    arms = run.summary["policy"]["tables"][0]["arms"]
    assert arms[0]["algorithm.mu"] == 0.3
    assert all(0.2 <= arm["algorithm.mu"] <= 0.4 for arm in arms)


def test_a_fork_keeps_its_arms(tmp_path: Path) -> None:
    run = Run.create(settings(policy={"name": "fedex", "arms": 3}), tmp_path)
    run.advance(2)
    with pytest.raises(BadInputError, match="cannot change the seed or the settings that the policy decides on"):
        run.fork({"local.lr": 0.2}, name="other")
    fork = run.fork({"algorithm.server_lr": 0.5}, name="slower")
    fork.advance()
    assert fork.close().summary["policy"]["best"]
    run.close()


def test_settings_around_which_arms_lie_are_those_of_a_wrapper(tmp_path: Path) -> None:
    """What an outer search sets is the first arm, so every run with a policy can be searched like any other."""
    search = {"local.lr": {"from": 0.01, "to": 1.0, "log": True}, "local.weight_decay": {"from": 0.0, "to": 0.01}}
    for place, chosen in enumerate([{"local.lr": 0.02, "local.weight_decay": 0.003}, {"local.lr": 0.7}]):
        run = fedarena.run(
            merge(BASE | {"policy": {"name": "fedex", "search": search, "arms": 5}, "rounds": 1}, chosen),
            name=f"trial{place}",
            runs_folder=tmp_path,
        )
        first = run.summary["policy"]["tables"][0]["arms"][0]
        assert first == {"local.lr": 0.1, "local.weight_decay": 0.0} | chosen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["reference", "cohort"])
@pytest.mark.parametrize("name", ["fedex", "personalized_fedex", "fts"])
def test_an_arm_that_diverges_is_the_worst_and_ends_nothing(name: str, engine: str, tmp_path: Path) -> None:
    bold = {"name": name, "search": {"local.lr": [0.1, 1e38]}}
    changes: dict[str, Any] = {"policy": bold, "engine": engine, "algorithm": "scaffold", "rounds": 8}
    if name == "personalized_fedex":
        bold |= {"lr": 0.3, "code": "labels"}
    run = start_run(settings(**changes, evaluation={"every": 1}), tmp_path)
    lr, loss = columns(run.jobs, "local.lr", "loss")
    assert (lr > 1).any()
    assert np.array_equal(np.isnan(loss), lr > 1)
    (after,) = columns(run.rounds, "loss")
    assert np.isfinite(after).all()
    assert after[-1] < 0.9 * after[0]
    if name == "fedex":
        assert run.summary["policy"]["best"] == {"local.lr": 0.1}
        assert run.summary["policy"]["probabilities"][0][1] < 0.01


def test_without_a_policy_divergence_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        start_run(settings(local={"lr": 1e38}), tmp_path)

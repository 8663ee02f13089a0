"""Local mechanisms, DP-SGD and NbAFL in runs: what they spend, when they stop, what they refuse; NbAFL beside NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from logistic_clients import (
    CLASSES,
    FEATURES,
    LOCAL,
    SEED,
    by_samples,
    cohorts,
    flat,
    local_sgd,
    logistic_simulation,
    make_clients,
    plain,
)
from scipy import stats
from small_runs import StopAfter, config, content, interrupt

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import accounting
from fedarena.privacy.dp_sgd import uses_of_a_sample
from fedarena.privacy.extended import extended
from fedarena.privacy.nbafl import NoisyModels, ServerNoise
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.participation import Participation
from fedarena.train import CohortEngine, Job, JobArrays, JobContext, LocalTraining, ReferenceEngine
from fedarena.train.batches import batch_indices

pytestmark = pytest.mark.filterwarnings("ignore:Privacy")
QUICK = {"algorithm": "fedavg", "rounds": 10, "local.steps": 2, "engine": "reference"}
LOCAL_MECHANISMS = ["local_gaussian", "local_laplace", "privunit"]


def most_invited(run, round: int) -> int:
    jobs = run.jobs.to_pandas()
    return int(jobs[jobs["round"] <= round].groupby("client").size().max())


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_epsilon_is_that_of_the_client_who_was_asked_most(tmp_path, name: str) -> None:
    run = start_run(config(**QUICK, privacy={"name": name, "job_epsilon": 2.0}), tmp_path)
    epsilons = run.rounds.to_pandas()["epsilon"].to_numpy()
    privacy = run.summary["privacy"]
    for round in (1, 5, 10):
        uploads = most_invited(run, round)
        expected = 2.0 * uploads
        if name == "local_gaussian":
            sigma = accounting().get_sigma_gaussian(2.0, 20**-1.1)
            expected = accounting().get_epsilon_gaussian(sigma / math.sqrt(uploads), 20**-1.1)
        assert epsilons[round] == pytest.approx(expected, rel=1e-6)
    assert epsilons[0] == 0
    assert privacy["epsilon"] == epsilons[10]
    assert privacy["most_uploads_of_a_client"] == most_invited(run, 10) > 1
    assert privacy["delta"] == pytest.approx(20**-1.1 if name == "local_gaussian" else 0)


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_a_run_stops_before_a_client_spends_more_than_the_budget(tmp_path, name: str) -> None:
    budget = {"name": name, "job_epsilon": 1.0, "epsilon": 3.2}
    run = start_run(config(**QUICK | {"rounds": 40}, privacy=budget), tmp_path)
    spent = run.summary["privacy"]["epsilon"]
    assert 1.0 < spent <= 3.2
    assert run.summary["rounds_done"] < 40
    assert "privacy budget" in run.summary["message"]
    assert run.summary["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [*LOCAL_MECHANISMS, "nbafl", {"name": "dp_sgd", "noise_multiplier": 1.0}])
def test_resumed_runs_are_the_same(tmp_path, privacy) -> None:
    settings = QUICK | {"engine": "cohort", "privacy": privacy, "rounds": 8}
    start_run(config(**settings), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path / "half", StopAfter(4, interrupt))
    resume_run(tmp_path / "half" / "small")
    assert content(tmp_path / "half" / "small") == content(tmp_path / "whole" / "small")


@pytest.mark.parametrize(
    "privacy",
    [
        {"name": "local_laplace", "job_epsilon": 1.0, "epsilon": 2.0},
        {"name": "dp_sgd", "noise_multiplier": 2.0, "epsilon": 3.0},
        {"name": "dp_sgd", "epsilon": 3.0},
    ],
    ids=lambda privacy: "-".join(map(str, privacy.values())),
)
def test_who_is_invited_beyond_the_cohort_spends_as_well(tmp_path, privacy) -> None:
    """With 10 of 20 clients for a cohort of 8, everybody's turn comes in every second round, and not in every third."""
    invited = {"selector": "shuffled", "cohort": 8, "protocol": "synchronous", "fleet": "uniform", "rounds": 8}
    run = start_run(config(**QUICK | invited, privacy=privacy), tmp_path)
    assert max(run.rounds["epsilon"].to_pylist()) == run.summary["privacy"]["epsilon"] <= privacy["epsilon"]
    assert most_invited(run, 2) == 1
    assert most_invited(run, 3) == 2
    if privacy["name"] == "dp_sgd" and "noise_multiplier" not in privacy:  # which was found for all rounds
        assert run.summary["rounds_done"] == 8


def test_a_resumed_run_knows_what_its_clients_have_spent(tmp_path) -> None:
    """Before it has begun, too: with nothing counted yet, its budget would seem to be spent."""
    budget = {"name": "local_laplace", "job_epsilon": 1.0, "epsilon": 5.0}
    settings = QUICK | {"rounds": 40, "privacy": budget}
    whole = start_run(config(**settings), tmp_path / "whole")
    assert 6 < whole.summary["rounds_done"] < 40
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path / "half", StopAfter(6, interrupt))
    resume_run(tmp_path / "half" / "small")
    assert content(tmp_path / "half" / "small") == content(tmp_path / "whole" / "small")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*LOCAL_MECHANISMS, "nbafl"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_both_engines_agree(tmp_path, name: str, algorithm: str) -> None:
    if name == "nbafl" and algorithm == "scaffold":
        return
    losses = []
    for engine in ("reference", "cohort"):
        settings = QUICK | {"rounds": 2, "algorithm": algorithm, "privacy": name, "engine.dtype": "float64"}
        run = start_run(config(**settings | {"engine": {"name": engine, "dtype": "float64"}}), tmp_path / engine)
        losses.append(run.summary["final"]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy.job_epsilon": 0}, "privacy.job_epsilon must be above 0"),
        ({"privacy.epsilon": -2}, "privacy.epsilon must be above 0"),
        ({"privacy.epsilon": 0.5}, "too small for one round"),
        ({"privacy.clip_norm": 0}, "noise without clipping"),
        ({"privacy.audit": 0}, "how many canaries"),
        ({"selector": "oort"}, "Privacy would be broken: the selector Oort"),
        ({"selector": "by_size"}, "Privacy would be broken: the selector BySize"),
        ({"training": "iid"}, "choose training=natural"),
        ({"privacy.delta": 2}, "delta"),
        ({"privacy.norms": "guessed"}, "norms"),
    ],
)
def test_what_local_mechanisms_refuse(tmp_path, changes, said) -> None:
    name = "local_gaussian" if "privacy.delta" in changes else "privunit"
    with pytest.raises(BadInputError, match=said):
        start_run(config(**QUICK | {"privacy": {"name": name}} | changes), tmp_path)
    assert not list(tmp_path.iterdir())


def test_updates_of_which_parts_are_missing_are_refused(tmp_path) -> None:
    with pytest.raises(BadInputError, match="LocalLaplace does not fit TimelyFL"):
        start_run(config(**QUICK | {"algorithm": "timelyfl", "privacy": "local_laplace"}), tmp_path)


def test_epsilon_of_dp_sgd_is_that_of_the_most_used_sample(tmp_path) -> None:
    settings = QUICK | {"local.steps": 5, "local.batch_size": 8, "privacy": {"name": "dp_sgd", "noise_multiplier": 2.0}}
    run = start_run(config(**settings), tmp_path)
    federation = fedarena.load_federation("digits", partition={"name": "dirichlet", "clients": 20})
    jobs = run.jobs.to_pandas()
    worst = 0
    for index, count in jobs.groupby("index").size().items():
        samples = int(federation.counts(np.array([index]), "train")[0])
        worst = max(worst, count * math.ceil(5 / math.ceil(samples / 8)))
    assert run.summary["privacy"]["most_uses_of_a_sample"] == worst
    expected = accounting().get_epsilon_gaussian(2.0 / math.sqrt(worst), 1e-5)
    assert run.summary["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert run.rounds.to_pandas()["epsilon"].iloc[-1] == run.summary["privacy"]["epsilon"]


@pytest.mark.parametrize(("epochs", "steps"), [(1, None), (3, None), (None, 7)])
def test_no_sample_is_used_more_often_than_is_accounted_for(epochs, steps) -> None:
    local = LocalTraining(epochs=epochs, steps=steps, batch_size=4)
    algorithm = FedAvg()
    algorithm.prepare(10, local)
    for samples in (1, 3, 4, 5, 17, 40):
        batches = batch_indices(samples, local, seed=1, round=2, client=3)
        used = np.bincount(np.concatenate(batches), minlength=samples).max()
        assert used == uses_of_a_sample(np.array([samples]), algorithm)[0]


def test_the_noise_of_dp_sgd_is_found_and_the_run_has_all_its_rounds(tmp_path) -> None:
    settings = QUICK | {"rounds": 4, "privacy": {"name": "dp_sgd", "epsilon": 6.0}, "selector": "shuffled"}
    run = start_run(config(**settings), tmp_path)
    privacy = run.summary["privacy"]
    assert run.summary["rounds_done"] == 4
    assert privacy["epsilon"] <= 6.0
    worst = accounting().get_epsilon_gaussian(
        privacy["noise_multiplier"] / math.sqrt(privacy["most_uses_of_a_sample"]), 1e-5
    )
    assert privacy["epsilon"] == pytest.approx(worst, rel=1e-9)
    assert run.config["privacy"]["noise_multiplier"] == privacy["noise_multiplier"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy.noise_multiplier": None}, "needs privacy.epsilon or privacy.noise_multiplier"),
        ({"privacy.noise_multiplier": -1}, "noise_multiplier must be above 0"),
        ({"privacy.clip_norm": 0}, "noise without clipping"),
        ({"privacy.delta": 1}, "below 1"),
        ({"privacy.epsilon": 0.1}, "One round alone spends"),
        ({"algorithm": "qfedavg"}, "Privacy would be broken: clients of QFedAvg"),
        ({"training": "centralized", "cohort": None}, "training=natural"),
    ],
)
def test_what_dp_sgd_refuses(tmp_path, changes, said) -> None:
    with pytest.raises(BadInputError, match=said):
        start_run(config(**QUICK | {"privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}} | changes), tmp_path)
    assert not list(tmp_path.iterdir())


def noise_of(client: int, round: int) -> np.ndarray:
    shapes = {"1.weight": (CLASSES, FEATURES), "1.bias": (CLASSES,)}
    context = JobArrays.of([Job(client, round)]).contexts(torch.zeros((), dtype=torch.float64), SEED)
    drawn = [context.normal(f"nbafl {n}", torch.zeros((1, *shape), dtype=torch.float64)) for n, shape in shapes.items()]
    return np.concatenate([t.numpy().ravel() for t in drawn])


@pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
@pytest.mark.parametrize("is_per_sample", [True, False])
def test_nbafl_clips_models_and_makes_them_noisy(make_federation, engine_kind, is_per_sample: bool) -> None:
    clip, std = 0.6, 0.3
    algorithm = extended(FedAvg(), NoisyModels, clip_norm=clip, uplink_std=std, is_per_sample=is_per_sample)
    federation = make_federation(make_clients(), CLASSES)
    first, *_, last = simulate(logistic_simulation(federation, algorithm, LOCAL, engine_kind))
    w = flat(first.snapshot.state["params"])
    lengths = []
    for round, cohort in cohorts():
        models = []
        for client in cohort:
            model = local_sgd(w, client, round, plain, LOCAL)[0]
            lengths.append(np.linalg.norm(model))
            noise = std / len(list(make_clients().values())[client][1]) if is_per_sample else std
            models.append(model * min(1, clip / np.linalg.norm(model)) + noise * noise_of(client, round))
        w = by_samples(cohort) @ np.array(models)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)
    assert max(lengths) > clip


def test_the_servers_noise_has_its_deviation() -> None:
    update = {"params": {"w": torch.zeros(5000, dtype=torch.float64)}, "cohort": {"clients": torch.tensor(3.0)}}
    noisy, _ = ServerNoise(0.2).at_server(update, {}, JobContext(1.0, 1, 0, False, torch.tensor(5)))
    assert stats.kstest(noisy["params"]["w"].numpy() / 0.2, stats.norm.cdf).pvalue > 1e-3
    assert noisy["cohort"] == update["cohort"]


def test_nbafl_has_the_formulas_of_the_paper_and_of_fedhpo(tmp_path) -> None:
    federation = fedarena.load_federation("digits", partition={"name": "dirichlet", "clients": 20})
    smallest = int(federation.counts(federation.clients("train"), "train").min())
    c = math.sqrt(2 * math.log(1.25 / 0.01))
    few = {"name": "nbafl", "epsilon": 5.0, "clip_norm": 2.0, "uploads": 1}
    privacy = start_run(config(**QUICK, privacy=few), tmp_path / "paper").summary["privacy"]
    assert privacy["uplink_std"] == pytest.approx(2 * c * 1 * 2.0 / (smallest * 5.0))
    assert privacy["downlink_std"] == pytest.approx(2 * c * 2.0 * math.sqrt(10**2 - 1 * 20) / (smallest * 20 * 5.0))
    assert privacy["claimed_epsilon"] == 5.0
    assert "epsilon" not in privacy
    often = {"name": "nbafl", "uploads": 10}
    assert start_run(config(**QUICK, privacy=often), tmp_path / "often").summary["privacy"]["downlink_std"] == 0
    theirs = {"name": "nbafl", "formula": "fedhpo", "constant": 3.0, "epsilon": 5.0}
    privacy = start_run(config(**QUICK, privacy=theirs), tmp_path / "fedhpo").summary["privacy"]
    assert privacy["uplink_std"] == pytest.approx(1.0 * 10 * 3.0 / (smallest * 5.0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy.epsilon": 0}, "privacy.epsilon must be above 0"),
        ({"privacy.uploads": 0}, "privacy.uploads must be at least 1"),
        ({"privacy.constant": 3.0}, "privacy.formula=fedhpo"),
        ({"algorithm": "scaffold"}, "clients of Scaffold send control"),
        ({"algorithm": "fetchsgd"}, "clients of FetchSGD send sketch"),
    ],
)
def test_what_nbafl_refuses(tmp_path, changes, said) -> None:
    with pytest.raises(BadInputError, match=said):
        start_run(config(**QUICK | {"privacy": {"name": "nbafl"}} | changes), tmp_path)
    assert not list(tmp_path.iterdir())


def test_participation_counts_everybody_who_was_invited() -> None:
    participation = Participation()
    assert participation.most(0) == 0
    participation.prepare(np.array([2, 5, 9]))
    participation.observe(np.array([5, 9, 5]), version=1)
    participation.observe(np.array([9]), version=3)
    np.testing.assert_array_equal(participation.counts, [0, 2, 2])
    assert participation.most(3) == 2
    assert participation.most(5) == 4  # who comes in two more steps is not known yet
    assert participation.most(3, np.array([1.0, 3.0, 2.0])) == 6
    participation.limit = lambda rounds: -(-rounds // 4)
    assert participation.most(5) == 2  # a selector may see to it that these are others
    assert participation.most(10) == 3

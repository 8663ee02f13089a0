"""Runs with defences: beside plain NumPy on both engines, under attack, resumed, and refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import plain_defences as in_numpy
import pytest
import torch
from logistic_clients import (
    ENGINES,
    LOCAL,
    SIZES,
    flat,
    local_sgd,
    logistic_simulation,
    make_clients,
    phones_of_different_speeds,
    plain,
)
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg, FedNova, Scaffold
from fedarena.core.errors import BadInputError
from fedarena.data import PooledFederation
from fedarena.display.report.cautions import cautions
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Buffered, Deadline
from fedarena.simulate.trusted import TrustedTraining
from fedarena.storage.run_data import label_runs, load_run
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.transforms import Attack, Partial, Transform
from fedarena.transforms.aggregators import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    Defence,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    SignMajority,
    TrimmedMean,
)

NUMBERS = itertools.count()
SHARE = 0.14  # one of seven clients


# --- runs ------------------------------------------------------------------------------------------------------------


def run(make_federation, engine_kind, aggregator, algorithm=None, rounds=4, cohort=7, **parts):
    federation = make_federation(make_clients(), 3, name=f"defended {next(NUMBERS)}")
    simulation = logistic_simulation(
        federation, algorithm or FedAvg(), LOCAL, engine_kind, rounds=rounds, cohort=cohort
    )
    if aggregator.trusted_samples:
        pooled = PooledFederation(federation, federation.clients("all"), 2, aggregator.trusted_samples)
        own = simulation.engine.like_this(simulation.algorithm, LOCAL, pooled, simulation.seed)
        parts["trusted"] = TrustedTraining(own, int(pooled.made_up_clients(1)[0]))
    return list(simulate(replace(simulation, aggregator=aggregator, **parts)))


def changes(w: np.ndarray, round: int) -> np.ndarray:
    return np.array([local_sgd(w, client, round, plain, LOCAL)[0] - w for client in range(len(SIZES))])


IN_RUNS = {
    "median": (Median(), in_numpy.median),
    "trimmed_mean": (TrimmedMean(share=SHARE), lambda rows: in_numpy.trimmed_mean(rows, SHARE)),
    "krum": (Krum(share=SHARE), lambda rows: in_numpy.krum(rows, SHARE)),
    "multi_krum": (MultiKrum(share=SHARE), lambda rows: in_numpy.multi_krum(rows, SHARE)),
    "bulyan": (Bulyan(share=SHARE), lambda rows: in_numpy.bulyan(rows, SHARE)),
    "geometric_median": (
        GeometricMedian(iterations=4),
        lambda rows: in_numpy.geometric_median(rows, np.array(SIZES, dtype=float), 4, 1e-6),
    ),
    "norm_bound": (
        NormBound(bound=0.4),
        lambda rows: in_numpy.norm_bound(rows, np.array(SIZES, dtype=float), 0.4),
    ),
    "sign_majority": (SignMajority(step=0.05), lambda rows: in_numpy.sign_majority(rows, 0.05)),
}


@pytest.mark.sampled(5)
@ENGINES
@pytest.mark.parametrize("name", IN_RUNS)
def test_runs_are_those_of_plain_numpy_on_both_engines(make_federation, engine_kind, name) -> None:
    aggregator, rule = IN_RUNS[name]
    first, *_, last = run(make_federation, engine_kind, aggregator)
    w = flat(first.snapshot.state["params"])
    for round in range(1, 5):
        w = w + rule(changes(w, round))
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)


@ENGINES
def test_runs_with_something_kept_are_those_of_plain_numpy(make_federation, engine_kind) -> None:
    first, *_, clipped = run(make_federation, engine_kind, CenteredClipping(bound=0.3))
    start = flat(first.snapshot.state["params"])
    w, reference = start, np.zeros(18)
    for round in range(1, 5):
        reference = in_numpy.centered_clipping(changes(w, round), reference, 0.3, 1)
        w = w + reference
    np.testing.assert_allclose(flat(clipped.snapshot.state["params"]), w, atol=1e-9)
    _, *_, compared = run(make_federation, engine_kind, FoolsGold())
    w, history = start, np.zeros((7, 18))
    for round in range(1, 5):
        rows = changes(w, round)
        history += rows
        weights = in_numpy.fools_gold_weights(history)
        w = w + weights @ rows / weights.sum()
    np.testing.assert_allclose(flat(compared.snapshot.state["params"]), w, atol=1e-9)


@pytest.mark.sampled(1)
@ENGINES
def test_the_server_trains_on_samples_that_it_trusts(make_federation, engine_kind) -> None:
    aggregator = FLTrust(trusted_samples=20)
    outcomes = run(make_federation, engine_kind, aggregator, rounds=2)
    one, two = (run(make_federation, kind, aggregator, rounds=2)[-1] for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(flat(one.snapshot.state["params"]), flat(two.snapshot.state["params"]), atol=1e-9)
    counted = np.asarray(outcomes[1].jobs["counted"])
    rows = changes(flat(outcomes[0].snapshot.state["params"]), 1)
    moved = flat(outcomes[1].snapshot.state["params"]) - flat(outcomes[0].snapshot.state["params"])
    trust = counted[np.argsort(outcomes[1].jobs["index"])]
    assert 0 < trust.max() <= 1
    # All updates get the length of the server's own.
    direction = (trust / np.linalg.norm(rows, axis=1)) @ rows
    np.testing.assert_allclose(moved / np.linalg.norm(moved), direction / np.linalg.norm(direction), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold, FedNova])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(share=SHARE), MultiKrum(share=SHARE), Bulyan(share=SHARE)])
def test_engines_agree_on_clients_that_send_more(make_federation, algorithm, rule) -> None:
    one, other = (
        run(make_federation, kind, rule, algorithm())[-1].snapshot for kind in (CohortEngine, ReferenceEngine)
    )
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Median(), GeometricMedian(), FoolsGold(), CenteredClipping()])
def test_stale_updates_in_buffers_on_both_engines(make_federation, rule) -> None:
    parts = {"protocol": Buffered(buffer_size=3), "fleet": phones_of_different_speeds(), "rounds": 6}
    one, other = (run(make_federation, kind, rule, **parts) for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(
        flat(one[-1].snapshot.state["params"]), flat(other[-1].snapshot.state["params"]), atol=1e-9
    )
    stale = [age for outcome in one[1:] for age in outcome.jobs["staleness"].tolist()]
    weights = np.concatenate([outcome.jobs["weight"] for outcome in one[1:]])
    assert max(stale) > 0
    used = np.isfinite(weights)
    np.testing.assert_allclose(weights[used], (1.0 + np.array(stale)[used]) ** -0.5)


# --- attacked --------------------------------------------------------------------------------------------------------


class FarAway(Attack):
    """Corrupted clients want to go far in a direction of their own."""

    forges_updates = True

    def forge(self, rows, seen):
        return {"params": {name: torch.full_like(t, 1e6) for name, t in rows.update["params"].items()}}


class FarAwayTogether(FarAway):
    """The same, decided when all updates are there."""

    sees = "all"


STANDING = [
    Median(),
    TrimmedMean(share=SHARE),
    Krum(share=SHARE),
    MultiKrum(share=SHARE),
    Bulyan(share=SHARE),
    GeometricMedian(weighted=False, iterations=30),
    NormBound(bound=1.0),
    CenteredClipping(bound=1.0),
    SignMajority(),
    FLTrust(trusted_samples=20),
]


@pytest.mark.parametrize("attack", [FarAway, FarAwayTogether])
def test_the_mean_falls_to_one_attacker(make_federation, attack) -> None:
    *_, last = run(make_federation, CohortEngine, Mean(), attack=attack(share=SHARE))
    assert np.abs(flat(last.snapshot.state["params"])).max() > 1e3


@pytest.mark.sampled(5)
@pytest.mark.parametrize("attack", [FarAway, FarAwayTogether])
@pytest.mark.parametrize("rule", STANDING, ids=lambda rule: type(rule).__name__)
def test_defences_stand_one_attacker(make_federation, rule, attack) -> None:
    first, *rounds = run(make_federation, CohortEngine, rule, attack=attack(share=SHARE))
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, rounds[-1]))
    assert np.linalg.norm(end - start) < 5
    for outcome in rounds:
        jobs = outcome.jobs
        assert outcome.row["corrupted"] == 1
        attacker = np.flatnonzero(jobs["corrupted"])
        if not isinstance(rule, (SignMajority, FLTrust)):
            assert jobs["counted"][attacker] < 1e-3
        rejected = np.asarray(jobs["counted"]) == 0
        assert outcome.row["rejected"] == rejected.sum()
        assert outcome.row["rejected_corrupted"] == rejected[attacker].sum()
    if isinstance(rule, (Median, TrimmedMean, Krum, MultiKrum, Bulyan)):
        assert all(outcome.row["rejected_corrupted"] == 1 for outcome in rounds)


def test_the_median_falls_to_a_majority(make_federation) -> None:
    *_, last = run(make_federation, CohortEngine, Median(), attack=FarAway(share=0.6))
    assert np.abs(flat(last.snapshot.state["params"])).max() > 1e3


# --- too few ---------------------------------------------------------------------------------------------------------


class CountsSteps(Transform):
    """Counts at the server how often it was asked."""

    def server_init(self, update):
        return {"steps": {"n": torch.zeros(())}}

    def at_server(self, update, server, context):
        return update, {"steps": {"n": server["steps"]["n"] + 1}}


@ENGINES
def test_a_step_with_too_few_updates_is_not_made(make_federation, engine_kind) -> None:
    phones = phones_of_different_speeds(growth=2.0)
    protocol = Deadline(seconds=7.0, minimum_success_share=0.1)
    parts = {"protocol": protocol, "fleet": phones, "rounds": 8, "cohort": 5, "transforms": (CountsSteps(),)}
    outcomes = run(make_federation, engine_kind, Median(), **parts)
    came = [outcome.row["clients"] for outcome in outcomes[1:]]
    assert min(came) < 3 <= max(came)  # or this test would show nothing
    steps = 0
    for before, after in itertools.pairwise(outcomes):
        start, end = (flat(outcome.snapshot.state["params"]) for outcome in (before, after))
        enough = after.row["clients"] >= 3
        steps += enough
        assert after.row["succeeded"] == enough
        assert (start != end).any() == enough
        assert after.snapshot.transform_states[0]["steps"]["n"] == steps
        if not enough:
            used = np.isfinite(after.jobs["weight"])
            assert (np.asarray(after.jobs["counted"])[used] == 0).all()
            if used.any():
                assert after.row["rejected"] == used.sum()


def test_a_run_says_that_too_few_came(tmp_path: Path) -> None:
    phones = {"fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}, "cohort": 8, "rounds": 6}
    for name in ("krum", "mean"):
        chosen = {"aggregator": name, "protocol": {"name": "deadline", "seconds": 13.0}, "name": name}
        start_run(config(**phones | chosen), tmp_path)
    defended, plainly = (load_run(tmp_path / name) for name in ("krum", "mean"))
    left_out = [row["succeeded"] is False for row in defended.rounds.to_pylist()[1:]]
    assert 0 < sum(left_out) < 6
    (said,) = cautions_about_steps([defended])
    assert said.startswith(f"In {sum(left_out)} of 6 rounds fewer updates came than the aggregator krum needs")
    (said,) = cautions_about_steps([defended, plainly])
    assert " of 6 rounds under fedyogi krum fewer updates" in said
    assert not cautions_about_steps([plainly])


def cautions_about_steps(runs) -> list[str]:
    return [text for text in cautions(label_runs(runs)) if "the model stayed" in text]


# --- kept over an interruption ---------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "aggregator",
    [
        {"name": "fools_gold", "memory_bytes": 20_000},
        {"name": "centered_clipping", "bound": 0.5},
        {"name": "fl_trust", "trusted_samples": 30},
        {"name": "norm_bound", "noise": 0.01},
    ],
    ids=lambda aggregator: aggregator["name"],
)
def test_a_defended_run_that_is_interrupted_ends_the_same(tmp_path: Path, aggregator) -> None:
    chosen = {"aggregator": aggregator, "rounds": 8, "cohort": 6}
    start_run(config(**chosen), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**chosen), tmp_path, StopAfter(5, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_the_number_of_workers_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        engine = {"name": "cohort", "workers": workers, "lanes": 3}
        chosen = {"aggregator": {"name": "multi_krum"}, "rounds": 3, "cohort": 8, "engine": engine}
        start_run(config(**chosen), tmp_path / str(workers))
        whole = content(tmp_path / str(workers) / "small")
        found.append({name: whole[name] for name in ("tensors", "rounds.parquet", "jobs.parquet")})
    assert found[0] == found[1]


# --- of one's own ----------------------------------------------------------------------------------------------------


class ShorterHalf(Defence):
    """Takes the updates that are not longer than half of them are."""

    def weigh(self, updates):
        lengths = updates.norms()
        return (lengths <= np.median(lengths)).astype(float)


class RunningMean(Aggregator):
    """Keeps the last update at the server, and goes half of it again."""

    def server_init(self, update):
        return {"last": {name: torch.zeros_like(t) for name, t in update["params"].items()}}

    def add_up(self, rows):
        return Partial({"params": {n: t.sum(0) for n, t in rows.update["params"].items()}}, {"n": float(len(rows))})

    def conclude(self, total, kept, step):
        means = {name: t / total.numbers["n"] for name, t in total.tensors["params"].items()}
        both = {name: t + 0.5 * kept["last"][name] for name, t in means.items()}
        return {"params": both}, {"last": both}


class OneOfTheRows(RunningMean):
    """Depends on who is in the same rows."""

    def add_up(self, rows):
        return Partial({"params": {n: t[0] for n, t in rows.update["params"].items()}}, {"n": 1.0})


class Dice(RunningMean):
    """Draws from the global generator."""

    def conclude(self, total, kept, step):
        torch.rand(3)
        return super().conclude(total, kept, step)


def test_defences_and_aggregators_of_ones_own(make_federation, tmp_path: Path) -> None:
    first, *_, last = run(make_federation, CohortEngine, ShorterHalf())
    w = flat(first.snapshot.state["params"])
    for round in range(1, 5):
        rows = changes(w, round)
        lengths = np.linalg.norm(rows, axis=1)
        w = w + rows[lengths <= np.median(lengths)].mean(0)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)
    first, *_, last = run(make_federation, ReferenceEngine, RunningMean())
    w, update = flat(first.snapshot.state["params"]), 0.0
    for round in range(1, 5):
        update = changes(w, round).mean(0) + 0.5 * update
        w = w + update
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)
    start_run(config(aggregator=f"{__name__}:RunningMean", rounds=1), tmp_path)
    with pytest.raises(BadInputError, match="OneOfTheRows comes to something else"):
        start_run(config(aggregator=f"{__name__}:OneOfTheRows"), tmp_path / "refused")
    with pytest.raises(BadInputError, match=r"Dice\.conclude draws random numbers .*step\.context"):
        start_run(config(aggregator=f"{__name__}:Dice"), tmp_path / "dice")


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"aggregator": "krum", "cohort": 4}, r"gets 4 updates .*Krum needs at least 2f \+ 3 = 5 to stand f = 1 corr"),
        ({"aggregator": {"name": "krum", "share": 0.3}, "cohort": 8}, r"2f \+ 3 = 9 to stand f = 3 corrupted clients"),
        ({"aggregator": {"name": "bulyan", "share": 0.2}, "cohort": 10}, r"4f \+ 3 = 11 to stand f = 2"),
        ({"aggregator": {"name": "bulyan", "share": 0.25}}, "share must be at least 0 and below 0.25 for bulyan"),
        ({"aggregator": {"name": "trimmed_mean", "share": 0.5}}, "share must be at least 0 and below 0.5, not 0.5"),
        ({"aggregator": {"name": "trimmed_mean", "share": 0.45}, "cohort": 4}, r"2f \+ 1 = 5"),
        ({"aggregator": {"name": "krum", "share": -0.1}}, "share must be at least 0 and below 0.5"),
        ({"aggregator": {"name": "multi_krum", "selected": 0}}, "selected must be at least 1"),
        ({"aggregator": {"name": "multi_krum", "selected": 9}, "cohort": 8}, "is to select 9 of them"),
        ({"aggregator": "median", "cohort": 2}, "gets 2 updates .*Median needs at least 3"),
        ({"aggregator": "median", "protocol": "asynchronous"}, "gets 1 update under .*Median needs at least 3"),
        (
            {"aggregator": "krum", "protocol": {"name": "buffered", "buffer_size": 4}, "cohort": 10},
            "gets 4 updates .*Krum needs at least",
        ),
        ({"aggregator": {"name": "geometric_median", "iterations": 0}}, "iterations must be at least 1"),
        ({"aggregator": {"name": "geometric_median", "smoothing": 0.0}}, "smoothing must be above 0"),
        ({"aggregator": {"name": "centered_clipping", "bound": 0.0}}, "bound must be above 0"),
        ({"aggregator": {"name": "centered_clipping", "iterations": 0}}, "iterations must be at least 1"),
        ({"aggregator": {"name": "norm_bound", "bound": -1.0}}, "bound must be above 0"),
        ({"aggregator": {"name": "norm_bound", "noise": -1.0}}, "noise must not be negative"),
        ({"aggregator": {"name": "sign_majority", "step": 0.0}}, "step must be above 0"),
        ({"aggregator": {"name": "fools_gold", "confidence": 0.0}}, "confidence must be above 0"),
        ({"aggregator": {"name": "fools_gold", "memory_bytes": 0}}, "memory_bytes must be at least 1"),
        ({"aggregator": {"name": "fools_gold", "layers": "first"}}, "layers"),
        ({"aggregator": {"name": "fl_trust", "trusted_samples": 0}}, "trusted_samples must be at least 1"),
        ({"aggregator": {"name": "fl_trust", "trusted_samples": 10**6}}, "trusted_samples is 1000000, but .* has only"),
        ({"aggregator": "median", "algorithm": "timelyfl"}, "Median does not fit TimelyFL: some of its clients train"),
        ({"aggregator": "median", "algorithm": "local_only"}, "Median does not fit LocalOnly: its clients send no"),
        ({"aggregator": "norm_bound", "algorithm": "local_only"}, "NormBound does not fit LocalOnly"),
        (
            {"aggregator": "norm_bound", "algorithm": "scaffold"},
            "NormBound does not fit Scaffold: .* also send control",
        ),
        ({"aggregator": "fl_trust", "algorithm": "fednova"}, "FLTrust does not fit FedNova: .* also send steps"),
        ({"aggregator": "centered_clipping", "algorithm": "scaffold"}, "CenteredClipping does not fit Scaffold"),
        ({"aggregator": "sign_majority", "algorithm": "scaffold"}, "SignMajority does not fit Scaffold"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, chosen, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(**({"engine": "reference", "cohort": 8} | chosen)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("aggregator", ["fl_trust", "norm_bound", "centered_clipping"])
def test_defences_that_need_no_others_take_one_update_at_a_time(tmp_path: Path, aggregator: str) -> None:
    chosen = {"aggregator": aggregator, "protocol": "asynchronous", "rounds": 2, "fleet": "uniform"}
    start_run(config(**chosen), tmp_path)

"""What trials are judged by: numbers of runs computed by hand, Pareto fronts by brute force, constraints."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from small_studies import RATES, tune

import fedarena
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.hpo.tune.storage import read_study

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_every_objective_is_what_the_run_says(tmp_path: Path) -> None:
    names = ["loss", "accuracy", "worst_decile", "std", "loss_variance", "bytes_up", "bytes_down", "flops"]
    done = tune(tmp_path, trials=2, objective=[*names, "epsilon"], rounds=2, **PRIVATE)
    for trial in done.trials:
        run = fedarena.load(done.path / trial.runs[0])
        clients = run.clients.to_pandas().query("round == 2")
        last = run.rounds.to_pylist()[-1]
        worst = np.sort(clients["accuracy"])[: max(1, round(len(clients) / 10))].mean()
        totals = run.rounds.to_pandas()[["bytes_up", "bytes_down", "flops"]].sum()
        by_hand = [last["loss"], last["accuracy"], worst, np.std(clients["accuracy"]), np.var(clients["loss"])]
        assert trial.values == pytest.approx([*by_hand, *totals, last["epsilon"]])
    assert [one.maximize for one in done.objectives] == [False, True, True, *[False] * 6]


def test_bytes_are_those_that_were_sent(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=1, objective=["loss", "bytes_up"], rounds=2, transforms=[{"name": "ternary"}])
    rounds = fedarena.load(done.path / done.trials[0].runs[0]).rounds.to_pandas()
    assert done.trials[0].values[1] == rounds["real_bytes_up"].sum() < rounds["bytes_up"].sum()


PRIVATE = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}


def test_virtual_hours(tmp_path: Path) -> None:
    fleet = {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}
    done = tune(tmp_path, trials=1, objective=["loss", "virtual_hours"], fleet=fleet, protocol="synchronous")
    run = fedarena.load(done.path / done.trials[0].runs[0])
    assert done.trials[0].values[1] == run.summary["virtual_hours"] > 0


@pytest.mark.slow
def test_the_pareto_front_by_brute_force(tmp_path: Path) -> None:
    search = RATES | {"cohort": {"from": 2, "to": 12}}
    done = tune(tmp_path, trials=14, search=search, objective=["accuracy", "bytes_up"], rounds=1)
    assert done.plan.options.sampler == "nsga2"
    assert done.plan.options.pruner == "none"

    def beats(one, other) -> bool:
        (a, b), (c, d) = one.values, other.values
        return a >= c and b <= d and (a > c or b < d)

    unbeaten = [one for one in done.trials if not any(beats(other, one) for other in done.trials)]
    assert {trial.values for trial in done.pareto} == {trial.values for trial in unbeaten}
    assert done.best_trial.number == done.pareto[0].number
    assert done.best_value == max(trial.values[0] for trial in done.trials)
    files = {path.stem for path in (done.path / "pareto").iterdir()}
    assert files == {f"trial-{trial.number:04d}" for trial in done.pareto}
    assert len(done.pareto) > 1
    accuracies = [trial.values[0] for trial in done.pareto]
    assert all(a > b for a, b in itertools.pairwise(accuracies))


def test_a_study_that_is_read_again_has_the_limits_that_were_asked_for(tmp_path: Path) -> None:
    limits = ["bytes_up <= 123456789", "loss <= 98.7654321", "accuracy >= 1e-07", "flops >= 8"]
    done = tune(tmp_path, trials=1, rounds=1, constraints=limits)
    constraints = read_study(done.path).constraints
    assert [one.limit for one in constraints] == [123456789.0, 98.7654321, 1e-07, 8.0]
    assert [str(one) for one in constraints] == limits


@pytest.mark.parametrize("limit", ["accuracy >= 90", "accuracy_p10 >= 1.1", "loss <= -1", "bytes_up <= -1"])
def test_constraints_that_no_trial_can_keep_are_refused_at_once(tmp_path: Path, limit: str) -> None:
    with pytest.raises(BadInputError, match=f"No trial can keep the constraint {limit}: .* is never"):
        tune(tmp_path, trials=1, rounds=1, constraints=[limit])
    assert not list(tmp_path.iterdir())


def test_constraints_rule_out_what_breaks_them(tmp_path: Path) -> None:
    search = {"local.lr": [0.5, 1.0], "cohort": [2, 12]}
    free = tune(tmp_path / "free", trials=8, search=search, objective="accuracy", pruner="none")
    limit = 4 * 2 * 2600  # what two clients upload in four rounds
    kept = tune(
        tmp_path / "kept",
        trials=8,
        search=search,
        objective="accuracy",
        constraints=f"bytes_up <= {limit}",
        pruner="none",
    )
    assert free.best_configuration["cohort"] == 12
    assert kept.best_configuration["cohort"] == 2
    assert [t.feasible for t in kept.trials] == [t.configuration["cohort"] == 2 for t in kept.trials]
    with pytest.raises(RunFailedError, match="No trial keeps bytes_up <= 1"):
        tune(tmp_path / "none", trials=2, search=search, constraints=["bytes_up <= 1"], rounds=1)

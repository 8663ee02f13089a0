"""What keeps the guarantee of a private run and what would break it; forks; the command that plans."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_runs import config

from fedarena.core.errors import BadInputError
from fedarena.privacy import MECHANISMS
from fedarena.runs.run import start_run
from fedarena.simulate.selectors import Cyclic, LeavingSoon, Poisson, Uniform

PRIVATE = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}


class FirstOnes(Uniform):
    """Inherits the promise of a uniform draw, and does not keep it."""

    def select(self, number, candidates, round):
        return candidates.clients[:number]


class FirstByPoisson(Poisson):
    select = FirstOnes.select


class FirstInCycles(Cyclic):
    select = FirstOnes.select


class ByLoss(LeavingSoon):
    select = FirstOnes.select


class Told(Uniform):
    """Chooses as it inherits."""

    def observe(self, round, feedback):
        self.seen = feedback


REFUSED = [
    ({"selector": "oort"}, "Oort invites clients by their losses"),
    ({"selector": "power_of_choice"}, "PowerOfChoice invites clients by their losses"),
    ({"selector": "by_size"}, "by how many samples they have"),
    ({"selector": "leaving_soon"}, "by when they leave"),
    ({"selector": "in_turn"}, "does not draw clients in a way that can be accounted for"),
    ({"selector": FirstOnes}, "FirstOnes does not draw clients in a way that can be accounted for"),
    ({"selector": FirstByPoisson}, "FirstByPoisson does not draw clients in a way that can be accounted for"),
    (
        {
            "selector": {"name": FirstInCycles, "groups": 4},
            "privacy": {"name": "correlated_gaussian", "noise_multiplier": 1.0},
        },
        "FirstInCycles does not see to that",
    ),
    ({"selector": ByLoss, "privacy": "local_laplace"}, "ByLoss is told losses or sizes"),
    (
        {"selector": "power_of_choice", "privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}},
        "PowerOfChoice is told losses of clients' data",
    ),
    ({"selector": "oort", "privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}}, "Oort is told losses"),
    ({"aggregator": {"name": "by_age"}}, "gives one client more influence"),
    (
        {"aggregator": "fl_trust", "privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}},
        "with aggregator=fl_trust the server trains on clients' samples",
    ),
    ({"aggregator": "fl_trust", "privacy": "local_laplace"}, "with aggregator=fl_trust the server trains"),
    ({"attack": {"name": "min_max", "share": 0.3}}, "MinMax send what follows from the updates of others"),
    ({"attack": {"name": "a_little_is_enough", "share": 0.3}}, "follows from the updates of others"),
    ({"protocol": "synchronous", "fleet": "flash"}, "pushes another out of the round"),
    ({"protocol": "deadline", "fleet": "flash"}, "minimum_invited=1 and protocol.minimum_success_share=0.25"),
    ({"protocol": {"name": "readiness", "share": 0.8}}, "protocol.share=1"),
    ({"protocol": "readiness", "fleet": "flash"}, "privacy.public_timing=true"),
    ({"protocol": "buffered", "selector": "uniform"}, "depends on how fast others are"),
    ({"protocol": "buffered"}, "draws whole cohorts"),
    ({"clock.hours": 5}, "give a number of rounds instead"),
    ({"fleet": "flash", "protocol": "readiness", "selector": "uniform"}, "among those who are available"),
    ({"selector": "uniform", "algorithm": "scaffold"}, "whether they took part before"),
    ({"selector": "uniform", "transforms": ["top_k"]}, "whether they took part before"),
    ({"training": "iid"}, "made-up clients"),
    ({"training": "centralized", "cohort": 1}, "no clients who could be protected"),
    ({"privacy.epsilon": 0.0}, "privacy.epsilon must be above 0"),
    ({"privacy.epsilon": -1.0}, "privacy.epsilon must be above 0"),
    ({"privacy.delta": 1.0}, "privacy.delta must be above 0 and below 1"),
    ({"privacy.delta": 0.0}, "privacy.delta must be above 0 and below 1"),
    ({"cohort": 21}, "has only 20 clients"),
    ({"privacy.noise_cohort": 21}, "noise_cohort must be from 1 to the population of 20"),
    ({"privacy.noise_population": 1000}, "privacy.noise_population is for simulated cohorts"),
    (
        {"privacy.noise_cohort": 21, "privacy.noise_population": 20},
        "noise_cohort must be from 1 to the population of 20",
    ),
    ({"privacy.clip_norm": None}, "noise without clipping protects nobody"),
    ({"privacy.clip_norm": 0.0}, "noise without clipping protects nobody"),
    ({"privacy.noise_multiplier": None}, "needs privacy.epsilon or privacy.noise_multiplier"),
    ({"privacy.noise_multiplier": 0.0}, "noise_multiplier must be above 0"),
    ({"privacy.epsilon": 0.01}, "One round alone spends"),
    ({"privacy.clipping": "adaptive"}, "privacy.quantile_noise must be above half the noise multiplier"),
    ({"privacy.quantile": 1.0}, "privacy.quantile must be"),
    ({"privacy.accountant": "pld", "selector": "uniform"}, "for cohorts of a fixed size"),
]


@pytest.mark.parametrize(("chosen", "sentence"), REFUSED, ids=[str(chosen) for chosen, _ in REFUSED])
def test_what_would_break_the_guarantee_is_refused(tmp_path, chosen, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(**{"algorithm": "fedavg"} | PRIVATE | chosen), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "chosen",
    [
        {"protocol": "readiness", "fleet": "flash", "privacy.public_timing": True},
        {
            "protocol": {"name": "deadline", "seconds": 600, "minimum_invited": 1, "minimum_success_share": 0.25},
            "fleet": "flash",
            "privacy.public_timing": True,
        },
        {"protocol": "readiness"},
        {"selector": Told},
        {"selector": "by_size", "privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}},  # where sizes are public
        {"attack": {"name": "sign_flip", "share": 0.3}},
        {"selector": "shuffled", "algorithm": "scaffold"},
        {"transforms": ["top_k"], "privacy.accountant": "pld"},
        {"callbacks": [{"name": "patience"}], "privacy.clipping": "per_layer"},
    ],
    ids=str,
)
def test_what_keeps_the_guarantee_is_allowed(tmp_path, chosen) -> None:
    result = start_run(config(**{"algorithm": "fedavg", "rounds": 5} | PRIVATE | chosen), tmp_path)
    assert result.summary["status"] == "finished"
    # A step in every round, whoever came.
    assert result.rounds["epsilon"][-1].as_py() == result.summary["privacy"]["epsilon"]
    assert (np.diff(result.rounds["epsilon"].to_pylist()) >= 0).all()
    assert result.summary["privacy"]["epsilon"] > 0


def test_a_fork_of_a_private_run_keeps_what_was_accounted_for(tmp_path) -> None:
    from fedarena.runs.run import Run

    with Run.create(config(**PRIVATE | {"rounds": 4}), tmp_path) as run:
        run.advance(2)
        for changed in ({"cohort": 5}, {"selector": "uniform"}):
            with pytest.raises(BadInputError, match="A fork of a private run cannot change"):
                run.fork(changed)
        with run.fork({"local.lr": 0.01}, name="fork") as fork:
            fork.advance()
            assert fork.rounds["epsilon"].to_pylist() == sorted(fork.rounds["epsilon"].to_pylist())


@pytest.mark.parametrize(
    ("selector", "privacy"),
    [
        ("shuffled", {"name": "gaussian", "noise_multiplier": 1.0}),
        ({"name": "cyclic", "groups": 3}, {"name": "correlated_gaussian", "noise_multiplier": 1.0}),
        ("shuffled", {"name": "local_laplace"}),
    ],
    ids=str,
)
def test_a_private_fork_keeps_the_seed_that_says_whose_turn_it_is(tmp_path, selector, privacy) -> None:
    from fedarena.runs.run import Run

    with Run.create(config(selector=selector, privacy=privacy), tmp_path) as run:
        run.advance(1)
        with pytest.raises(BadInputError, match="cannot change the seed: whose turn it is"):
            run.fork({"seed": 5})


def test_a_private_fork_may_draw_by_another_seed_where_every_round_draws_anew(tmp_path) -> None:
    from fedarena.runs.run import Run

    with Run.create(config(**PRIVATE), tmp_path) as run:
        run.advance(1)
        run.fork({"seed": 5}, name="fork").close()


def test_a_fork_with_dp_sgd_keeps_how_often_a_sample_is_used(tmp_path) -> None:
    from fedarena.runs.run import Run

    private = {"privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}, "local": {"epochs": 3, "lr": 0.1}}
    with Run.create(config(**private), tmp_path) as run:
        run.advance(1)
        with pytest.raises(BadInputError, match="cannot change in how many steps of a job a sample is used"):
            run.fork({"local.epochs": 1})
        with run.fork({"local.lr": 0.01, "local.batch_size": 7}, name="fork") as fork:
            fork.advance()
            assert fork.rounds["epsilon"].to_pylist()[:2] == run.rounds["epsilon"].to_pylist()


def test_without_privacy_nothing_is_said_about_it(tmp_path) -> None:
    result = start_run(config(rounds=2), tmp_path)
    assert result.rounds["epsilon"].null_count == 3
    assert "privacy" not in result.summary
    assert "none" in MECHANISMS.names()


def test_the_command_solves_draws_and_writes(tmp_path, monkeypatch) -> None:
    from typer.testing import CliRunner

    from fedarena.cli import main

    monkeypatch.chdir(tmp_path)
    asked = ["privacy", "--epsilon", "3", "--population", "2000", "--cohort", "40", "--rounds", "50"]
    found = CliRunner().invoke(main, [*asked, "--json", "plan.json", "-o", "plan.html"])
    assert found.exit_code == 0, found.output
    numbers = json.loads((tmp_path / "plan.json").read_text())
    assert numbers["solved"] == "noise_multiplier"
    assert numbers["epsilon_over_rounds"][-1] == {"round": 50, "epsilon": numbers["epsilon"]}
    assert f"{numbers['noise_multiplier']:.5g}" in found.output
    assert "after 50 rounds" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    (tmp_path / "plan.json").unlink()
    (tmp_path / "plan.html").unlink()
    wrong = CliRunner().invoke(main, [*asked[:2], "-1", *asked[3:], "--json", "plan.json"])
    assert wrong.exit_code == 2
    assert not list(tmp_path.iterdir())

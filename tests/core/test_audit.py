"""The audit: what canaries prove, that broken mechanisms are caught, and that correct ones are not accused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from logistic_clients import logistic_simulation
from scipy import stats
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.display.report.cautions import cautions
from fedarena.privacy.accounting import accounting
from fedarena.privacy.audit import audit_result, turns_of
from fedarena.privacy.audit_bound import audit, chance_of_guesses, proved_epsilon
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.selectors import Cyclic, Poisson, Shuffled
from fedarena.train import LocalTraining, ReferenceEngine
from fedarena.transforms.aggregators import FixedMean, Mean
from fedarena.transforms.canaries import Canaries
from fedarena.transforms.clip_and_noise import ClipAndNoise

pytestmark = pytest.mark.filterwarnings("ignore:Privacy", "ignore:40 canaries")
NORM, NOISE, ROUNDS, EXPECTED, DELTA, CANARIES = 0.5, 4.0, 4, 2000, 1e-5, 300
FEATURES, CLASSES, CLIENTS = 1200, 4, 6


def test_the_bound_is_the_one_of_the_paper() -> None:
    """Beside the sum written down term by term."""
    for canaries, guesses, correct, epsilon, delta in (
        (100, 80, 61, 0.7, 1e-4),
        (50, 50, 50, 2.0, 0.0),
        (9, 5, 0, 1, 0.1),
    ):
        q = np.exp(epsilon) / (1 + np.exp(epsilon))
        chances = [stats.binom.pmf(k, guesses, q) for k in range(guesses + 1)]
        slack = max((sum(chances[correct - i : correct]) / i for i in range(1, correct + 1)), default=0.0)
        expected = min(1.0, sum(chances[correct:]) + 2 * canaries * delta * slack)
        assert chance_of_guesses(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_what_is_proved_is_where_luck_gets_too_unlikely() -> None:
    epsilon = proved_epsilon(200, 200, 180, 1e-5, 0.95)
    assert 1.0 < epsilon < np.log(0.9 / 0.1)
    assert chance_of_guesses(200, 200, 180, epsilon, 1e-5) == pytest.approx(0.05, rel=1e-6)
    assert proved_epsilon(200, 200, 105, 1e-5, 0.95) == 0.0  # a coin does as well
    assert proved_epsilon(200, 200, 200, 0.0, 0.95) == pytest.approx(
        np.log(0.05 ** (1 / 200) / (1 - 0.05 ** (1 / 200)))
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_randomized_response_is_not_accused_and_nearly_proved(epsilon: float) -> None:
    """The mechanism for which the bound is tight: every canary's coin is told with the probability e^ε / (1 + e^ε)."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(60):
        included = generator.random(400) < 0.5
        right = generator.random(400) < 1 / (1 + np.exp(-epsilon))
        told = np.where(right, included, ~included)
        found.append(audit(told + 1e-9 * generator.random(400), included, 0.0, 0.95)["epsilon"])
    assert np.mean(np.array(found) > epsilon) <= 0.1  # 5 % and luck
    assert np.median(found) > 0.6 * epsilon - 0.1


class NoClipping(ClipAndNoise):
    def at_client(self, rows, kept, server):
        update, kept = super().at_client(rows, kept, server)
        return update | rows.update, kept


def run_with_canaries(make_federation, mechanism: ClipAndNoise, aggregator) -> tuple[dict, float]:
    generator = np.random.default_rng(1)
    clients = {
        f"c{i}": (generator.normal(size=(5, FEATURES)), generator.integers(CLASSES, size=5)) for i in range(CLIENTS)
    }
    federation = make_federation(clients, CLASSES)
    local = LocalTraining(steps=1, batch_size=5, lr=0.05)
    simulation = logistic_simulation(federation, FedAvg(), local, ReferenceEngine, rounds=ROUNDS, cohort=CLIENTS)
    canaries = Canaries(CANARIES, 100 * NORM, simulation.seed, lambda round: np.ones(CANARIES, dtype=np.bool_))
    transforms = (canaries, mechanism)
    *_, last = simulate(replace(simulation, transforms=transforms, aggregator=aggregator, canaries=canaries))
    # Everybody is in every round, so that all rounds together are one Gaussian mechanism.
    proved = float(accounting().get_epsilon_gaussian(NOISE / np.sqrt(ROUNDS), DELTA))
    return audit_result(canaries, last.snapshot.transform_states[0], proved, DELTA), proved


def test_a_correct_mechanism_is_not_accused(make_federation) -> None:
    mechanism = ClipAndNoise(norm=NORM, noise_multiplier=NOISE, clients=EXPECTED)
    found, proved = run_with_canaries(make_federation, mechanism, FixedMean(EXPECTED))
    assert found["holds"] is True
    assert found["epsilon_lower"] <= proved == found["epsilon_upper"]
    assert found["correct"] > 0.5 * found["guesses"]  # it is not blind either
    assert 0.4 * proved < found["epsilon_estimate"] < 1.6 * proved
    assert 100 < found["included"] < 200


BROKEN = {
    "noise left out": (ClipAndNoise(norm=NORM, noise_multiplier=1e-6, clients=EXPECTED), FixedMean(EXPECTED)),
    "clipping off": (NoClipping(norm=NORM, noise_multiplier=NOISE, clients=EXPECTED), FixedMean(EXPECTED)),
    "denominator by who came": (ClipAndNoise(norm=NORM, noise_multiplier=NOISE, clients=EXPECTED), Mean()),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_mechanism_is_caught(make_federation, what: str) -> None:
    found, proved = run_with_canaries(make_federation, *BROKEN[what])
    assert found["epsilon_lower"] > proved, what
    assert found["holds"] is False
    assert found["epsilon_estimate"] > 2 * proved


SETTINGS = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "audit": 40}, "selector": "poisson", "rounds": 12}


@pytest.mark.slow
def test_the_summary_has_both_bounds_and_a_resumed_run_the_same(tmp_path) -> None:
    whole = start_run(config(**SETTINGS), tmp_path / "whole")
    assert whole.summary["privacy"]["audit"]["epsilon_upper"] == whole.summary["privacy"]["epsilon"]
    assert {"canaries", "epsilon_lower", "confidence", "guesses", "correct"} <= whole.summary["privacy"]["audit"].keys()
    assert any("canaries" in warning for warning in whole.summary["warnings"])
    assert any("That agrees with the proved upper bound" in sentence for sentence in cautions([whole]))
    broken = whole.summary["privacy"]["audit"] | {"epsilon_lower": 99.0, "holds": False}
    accused = replace(whole, summary=whole.summary | {"privacy": whole.summary["privacy"] | {"audit": broken}})
    assert any("the mechanism does not do what it claims" in sentence for sentence in cautions([accused]))
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**SETTINGS), tmp_path / "half", StopAfter(5, interrupt))
    resume_run(tmp_path / "half" / "small")
    assert content(tmp_path / "half" / "small") == content(tmp_path / "whole" / "small")
    table = whole.rounds.to_pandas()
    assert table["clients"].max() <= 20  # canaries are nobody's jobs


def test_canaries_go_with_algorithms_that_send_more(tmp_path) -> None:
    """They send nothing of what is not a change of the model."""
    settings = SETTINGS | {"algorithm": "scaffold", "rounds": 2}
    assert start_run(config(**settings), tmp_path).summary["privacy"]["audit"]["canaries"] == 40
    example = {"params": {"w": torch.zeros(3)}, "control": {"w": torch.zeros(3)}}
    canaries = Canaries(10, 2.0, 0, lambda round: np.ones(10, dtype=np.bool_))
    results, _ = canaries.results(example, 1, 0)
    assert len(results.clients) == canaries.included.sum() > 0
    torch.testing.assert_close(results.update["params"]["w"].norm(dim=1), torch.full((len(results.clients),), 2.0))
    assert not results.update["control"]["w"].any()


def test_an_audit_changes_the_training_and_is_part_of_the_configuration(tmp_path) -> None:
    with_audit, without = (
        start_run(
            config(**SETTINGS | {"rounds": 3, "privacy": SETTINGS["privacy"] | {"audit": audit}}), tmp_path / name
        )
        for name, audit in (("with", 40), ("without", None))
    )
    assert "audit" not in without.summary["privacy"]
    assert with_audit.summary["final"]["loss"] != without.summary["final"]["loss"]
    assert json.loads((tmp_path / "with" / "small" / "summary.json").read_text())["privacy"]["audit"]["canaries"] == 40


@pytest.mark.parametrize("audit", [0, -3, 1])
def test_an_audit_without_canaries_is_refused(tmp_path, audit: int) -> None:
    with pytest.raises(BadInputError, match=r"privacy\.audit is how many canaries are planted"):
        start_run(config(**SETTINGS | {"privacy": SETTINGS["privacy"] | {"audit": audit}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_simulated_cohort_cannot_be_audited(tmp_path) -> None:
    with pytest.raises(BadInputError, match="noise_cohort"):
        start_run(config(**SETTINGS | {"privacy": SETTINGS["privacy"] | {"noise_cohort": 10}}), tmp_path / "run")


class Facts:
    population, cohort, update, algorithm = 100, 20, {"params": {"w": torch.zeros(3)}}, None

    def __init__(self, selector):
        self.selector = selector


def test_canaries_have_the_chances_of_clients() -> None:
    by_chance = np.stack([turns_of(500, Facts(Poisson()), 3)(round) for round in range(1, 41)])
    assert abs(by_chance.mean() - 0.2) < 0.02
    in_passes = np.stack([turns_of(500, Facts(Shuffled()), 3)(round) for round in range(1, 41)])
    assert (in_passes.reshape(8, 5, 500).sum(1) == 1).all()  # once in every pass of five rounds
    in_groups = np.stack([turns_of(500, Facts(Cyclic(groups=5)), 3)(round) for round in range(1, 41)])
    rounds_of_each = [np.flatnonzero(column) for column in in_groups.T]
    assert min(np.diff(rounds).min() for rounds in rounds_of_each if len(rounds) > 1) >= 5

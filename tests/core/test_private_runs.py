"""Runs with user-level privacy: what they say of ε, budgets, noise that is found, resuming."""

from __future__ import annotations

import pytest
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg
from fedarena.privacy import Sampled
from fedarena.runs.run import resume_run, start_run

PRIVATE = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}


def test_epsilon_is_in_the_tables_and_in_the_summary(tmp_path) -> None:
    result = start_run(config(**PRIVATE | {"rounds": 6, "privacy.delta": 1e-3}), tmp_path)
    spent = result.rounds["epsilon"].to_pylist()
    sampled = Sampled(20, 4, 1.0)
    assert spent == [sampled.epsilon(round, 1e-3) for round in range(7)]
    assert spent[0] == 0
    for name in ("clip_norm", "clipped_share", "noise_to_signal"):
        assert any(value is not None for value in result.rounds[name].to_pylist()[1:])
    privacy = result.summary["privacy"]
    assert privacy["epsilon"] == spent[-1]
    assert privacy["bound"] == "Rényi divergences (RDP)"
    assert privacy["neighbours"] == "one client is added or removed"
    assert not privacy["simulated"]


def test_noise_is_found_for_all_rounds_and_written_down(tmp_path) -> None:
    chosen = PRIVATE | {"privacy": {"name": "gaussian", "epsilon": 20.0}, "rounds": 8}
    result = start_run(config(**chosen), tmp_path)
    assert result.summary["rounds_done"] == 8
    assert 20 * (1 - 1e-3) <= result.rounds["epsilon"][-1].as_py() <= 20.0
    written = result.config["privacy"]
    assert written["noise_multiplier"] == result.summary["privacy"]["noise_multiplier"]
    assert written["delta"] == pytest.approx(20**-1.1)
    # More rounds than it was found for: the noise stays what it is, and the budget ends the run.
    longer = resume_run(tmp_path / "small", rounds=20)
    assert longer.summary["rounds_done"] == 8
    assert "privacy budget" in longer.summary["message"]


def test_a_budget_is_never_exceeded(tmp_path) -> None:
    chosen = PRIVATE | {"privacy": {"name": "gaussian", "epsilon": 3.0, "noise_multiplier": 1.0}, "rounds": 40}
    result = start_run(config(**chosen), tmp_path)
    done, sampled = result.summary["rounds_done"], Sampled(20, 4, 1.0)
    delta = result.summary["privacy"]["delta"]
    assert 1 < done < 40
    assert sampled.epsilon(done, delta) <= 3.0 < sampled.epsilon(done + 1, delta)
    assert result.summary["status"] == "finished"
    assert result.summary["message"].startswith("stopped early: another round would spend more than the privacy budget")
    assert result.rounds["eval_clients"][-1].as_py() is not None  # the last model was scored


def test_a_simulated_cohort_is_named_as_such(tmp_path) -> None:
    result = start_run(config(**PRIVATE | {"privacy.noise_cohort": 16, "rounds": 2}), tmp_path)
    privacy = result.summary["privacy"]
    assert privacy["simulated"]
    assert privacy["epsilon"] == Sampled(20, 16, 1.0).epsilon(2, privacy["delta"])
    assert any("simulates the noise of cohorts of 16 with cohorts of 4" in said for said in result.summary["warnings"])


def test_a_simulated_cohort_may_come_from_more_clients_than_there_are(tmp_path) -> None:
    chosen = PRIVATE | {"privacy.noise_cohort": 1000, "privacy.noise_population": 10**6, "rounds": 2}
    result = start_run(config(**chosen), tmp_path)
    privacy = result.summary["privacy"]
    assert privacy["simulated"]
    assert privacy["population"] == 10**6
    assert privacy["delta"] == pytest.approx((10**6) ** -1.1)
    assert privacy["epsilon"] == Sampled(10**6, 1000, 1.0).epsilon(2, privacy["delta"])
    said = "cohorts of 1,000, drawn from 1,000,000 clients, with cohorts of 4"
    assert any(said in warning for warning in result.summary["warnings"])


@pytest.mark.slow
def test_a_private_run_that_was_interrupted_ends_in_the_same_bits(tmp_path) -> None:
    chosen = PRIVATE | {
        "algorithm": "scaffold",
        "rounds": 9,
        "privacy.clipping": "adaptive",
        "privacy.quantile_noise": 1.0,
        "privacy.epsilon": 300.0,
        "transforms": [{"name": "top_k", "share": 0.3}],
    }
    start_run(config(**chosen), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**chosen), tmp_path / "pieces", StopAfter(4, interrupt))
    resume_run(tmp_path / "pieces" / "small")
    whole, pieces = (content(tmp_path / kind / "small") for kind in ("whole", "pieces"))
    assert whole == pieces
    bounds = start_run(config(**chosen | {"name": "again"}), tmp_path).rounds["clip_norm"].to_pylist()[1:]
    assert len(set(bounds)) == 9  # there was something to go wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampling", ["poisson", "uniform", "shuffled"])
def test_every_way_of_sampling_has_its_own_accounting(tmp_path, sampling) -> None:
    result = start_run(config(**PRIVATE | {"selector": sampling, "rounds": 7, "algorithm": "fedavg"}), tmp_path)
    delta = result.summary["privacy"]["delta"]
    expected = [Sampled(20, 4, 1.0, sampling).epsilon(round, delta) for round in range(8)]
    assert result.rounds["epsilon"].to_pylist() == expected
    clients = result.rounds["clients"].to_pylist()[1:]
    if sampling == "poisson":
        assert len(set(clients)) > 1
    else:
        assert set(clients) == {4}


class WeightedBySquares(FedAvg):
    def client_weight(self, work):
        return work.samples**2


def test_a_weight_of_ones_own_that_privacy_overrules_is_named(tmp_path) -> None:
    weighted = {"algorithm": WeightedBySquares, "rounds": 1}
    said = start_run(config(**weighted, **PRIVATE), tmp_path / "private").summary["warnings"]
    assert any("client_weight of WeightedBySquares is not asked" in warning for warning in said)
    said = start_run(config(**weighted), tmp_path / "plain").summary["warnings"]
    assert not any("is not asked" in warning for warning in said)

"""Secure aggregation in the simulator: rounded sums, bytes and time, groups that are lost, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logistic_clients import LOCAL, SIZES, cohorts, flat, local_sgd, plain
from small_runs import StopAfter, content
from test_transforms import ENGINES
from test_transforms import run as simulated

import fedarena
from fedarena.client.secure_messages import Traffic
from fedarena.core.errors import BadInputError
from fedarena.runs.config import merge, resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.runs.run import Run, resume_run
from fedarena.simulate.secure_aggregation import Bonawitz, SecureRounds
from fedarena.simulate.secure_aggregation.base import SecureTraffic

PHONES = {"name": "uniform", "seconds_per_sample": 0.1, "download_bits_per_second": 1e6, "upload_bits_per_second": 1e5}
SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 12}},
    "model": "logistic_regression",
    "fleet": PHONES,
    "protocol": {"name": "synchronous", "over_commit": 1.0},
    "rounds": 2,
    "cohort": 6,
    "engine": {"name": "reference", "dtype": "float64"},
}
SECURE = {"secure_aggregation": {"name": "bonawitz"}}


def run(folder: Path, name: str, **settings: Any) -> Any:
    return fedarena.run(merge(merge({}, SMALL), settings), name=name, runs_folder=folder, progress=False)


def in_steps(values: np.ndarray, scale: float) -> np.ndarray:
    return np.rint(values * scale) / scale


@ENGINES
def test_the_mean_is_that_of_rounded_updates(make_federation: Any, engine_kind: Any) -> None:
    """Beside plain NumPy, with numbers so coarse that it shows."""
    secure = Bonawitz(range=1000.0, largest_weight=30.0, group=8)
    scale = secure.fixed_point().scale(30_000.0)
    assert scale == 2.0**13
    first, *_, last = simulated(make_federation, engine_kind, [], secure_aggregation=secure)
    w = flat(first.snapshot.state["params"])
    exact = w
    for round, cohort in cohorts():
        sizes = np.array([SIZES[client] for client in cohort], dtype=float)
        changes = [local_sgd(w, client, round, plain, LOCAL)[0] - w for client in cohort]
        w = w + sum(in_steps(size * change, scale) for size, change in zip(sizes, changes, strict=True)) / sizes.sum()
        others = [local_sgd(exact, client, round, plain, LOCAL)[0] - exact for client in cohort]
        exact = exact + sizes @ np.array(others) / sizes.sum()
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)
    assert np.abs(w - exact).max() > 1e-6  # or this test would show nothing


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fednova", "scaffold", "feddyn", "fedadam", "ditto"])
def test_both_engines_agree(tmp_path: Path, algorithm: str, rounding: str) -> None:
    secure = {"secure_aggregation": {"name": "bonawitz", "rounding": rounding, "group": 4}, "algorithm": algorithm}
    one, other = (
        run(tmp_path, kind, **secure, engine={"name": kind, "dtype": "float64"}) for kind in ("cohort", "reference")
    )
    for name, p in one.model().state_dict().items():
        torch.testing.assert_close(other.model().state_dict()[name], p, atol=1e-10, rtol=0)


def test_bytes_and_trips_count(tmp_path: Path) -> None:
    """Equal phones: two trips before and two after training, keys and shares with everybody's link, 4 bytes a word."""
    alone = run(tmp_path, "alone")
    secure = run(tmp_path, "secure", secure_aggregation={"name": "bonawitz", "trip_seconds": 2.0})
    traffic = Traffic(6)
    parameters, numbers = 64 * 10 + 10, 3 + 3
    words = 4 * (parameters + 4 * numbers)
    more_up = traffic.keys_up + traffic.unmasking_up
    more_down = traffic.keys_down + traffic.unmasking_down
    up, down = secure.rounds["bytes_up"].to_pylist()[1:], secure.rounds["bytes_down"].to_pylist()[1:]
    assert up == [6 * (words + more_up)] * 2
    assert down == [before + 6 * more_down for before in alone.rounds["bytes_down"].to_pylist()[1:]]
    seconds = 4 * 2.0 + 8 * more_down / 1e6 + 8 * (words + more_up - 8 * parameters) / 1e5
    took = [np.array(result.rounds["end_seconds"].to_pylist()) for result in (alone, secure)]
    np.testing.assert_allclose(took[1] - took[0], [0, seconds, 2 * seconds])
    assert secure.rounds["secure_groups"].to_pylist()[1:] == [1, 1]
    assert "secure_groups" not in alone.rounds.column_names
    assert secure.summary["secure_aggregation"]["lost_groups"] == 0


def test_everybody_waits_for_the_slowest_of_its_group() -> None:
    class Speeds:
        download_seconds = np.array([1.0, 2.0, 4.0, 8.0])
        upload_seconds = np.zeros(4)

    class PhonesOfFour:
        fleet = True
        load = type("Load", (), {"download_bytes": 100, "upload_bytes": 100})

        @staticmethod
        def speeds(clients: Any, numbers: Any) -> Any:
            return Speeds

    secure = Bonawitz(trip_seconds=0.5)
    rounds = SecureRounds(secure, 0, SecureTraffic(keys_down=50))
    found = rounds._waiting(np.arange(4), np.arange(4), PhonesOfFour(), 1)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, 2 * 0.5 + np.array([3.5, 3.0, 2.0, 0.0]))


def test_groups_are_even_and_change_from_round_to_round() -> None:
    rounds = SecureRounds(Bonawitz(group=10), 3, SecureTraffic())
    clients = np.arange(100, 135)
    first, second = (rounds.groups(clients, round) for round in (1, 2))
    assert sorted(np.bincount(first).tolist()) == [8, 9, 9, 9]
    assert (first != second).any()
    shuffled = np.random.default_rng(0).permutation(35)
    np.testing.assert_array_equal(rounds.groups(clients[shuffled], 1), first[shuffled])


def test_a_group_of_which_too_few_are_left_is_lost(tmp_path: Path) -> None:
    """A deadline that some miss: with 8 of 12 needed, nobody's update counts if fewer arrive."""
    slow = {
        "protocol": {"name": "deadline", "seconds": 60, "minimum_success_share": 0.1},
        "cohort": 12,
        "rounds": 6,
        "clock.crash_rate": 0.35,
        **SECURE,
    }
    found = run(tmp_path, "lossy", **slow)
    rounds, jobs = found.rounds.to_pylist()[1:], found.jobs.to_pylist()
    lost = [row["round"] for row in rounds if row["lost_groups"]]
    kept = [row["round"] for row in rounds if row["secure_groups"]]
    assert lost
    assert kept
    for round in lost + kept:
        outcomes = [job["outcome"] for job in jobs if job["round"] == round]
        arrived = sum(outcome in ("used", "lost with its group") for outcome in outcomes)
        assert (arrived < 9) == (round in lost)
        assert set(outcomes) - {"crashed"} == {"lost with its group" if round in lost else "used"}
    assert not any(row["succeeded"] for row in rounds if row["lost_groups"])
    assert found.summary["secure_aggregation"]["lost_groups"] == len(lost)


def test_numbers_that_are_cut_off_are_told(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"Secure aggregation cut off [\d,]+ numbers .* beyond secure_aggregation.range"
    ):
        found = run(tmp_path, "narrow", secure_aggregation={"name": "bonawitz", "range": 1e-3})
    assert min(found.rounds["saturated"].to_pylist()[1:]) > 0
    assert found.summary["warnings"][-1].startswith("Secure aggregation cut off")


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    secure = {"secure_aggregation": {"name": "bonawitz", "rounding": "stochastic"}, "rounds": 3}
    whole = resolve({**merge(merge({}, SMALL), secure), "name": "whole"})
    Run.create(whole, tmp_path / "a", StopAfter(9, lambda: None)).advance().close()
    stopped = Run.create(whole, tmp_path / "b", StopAfter(9, lambda: None))
    stopped.advance(1)
    stopped.close()
    resume_run(tmp_path / "b" / "whole", StopAfter(9, lambda: None))
    assert content(tmp_path / "a" / "whole") == content(tmp_path / "b" / "whole")
    assert "largest_weight: 1" in (tmp_path / "a" / "whole" / "config.yaml").read_text()


def test_runs_without_it_are_still_the_same_runs() -> None:
    plain, secure = (resolve(merge(merge({}, SMALL), more)) for more in ({}, SECURE))
    assert settings_fingerprint(plain) != settings_fingerprint(secure)
    assert plain.secure_aggregation == {"name": "none"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"aggregator": "krum"}, "gets sums of updates, and the aggregator krum needs every client's; choose"),
        ({"aggregator": "norm_bound"}, "the aggregator norm_bound needs every client's"),
        ({"aggregator": "by_age"}, "the aggregator by_age needs every client's"),
        ({"protocol": "buffered"}, "jobs of protocol=buffered go on when a round ends"),
        ({"attack": "a_little_is_enough"}, "nobody sees the updates of others, which the attack"),
        ({"training": "iid"}, "training=iid has no real clients"),
        ({"selector": "oort"}, "the selector oort asks for what single clients have learned"),
        ({"selector": "power_of_choice"}, "the selector power_of_choice asks for what single clients have learned"),
        ({"policy": "by_speed"}, "policy=by_speed judges what single clients have learned"),
        ({"edges": "by_chance"}, "edges=by_chance have sums of their own clients"),
        ({"download": "half"}, "what download=half takes is not counted together with keys"),
        ({"transforms": ["top_k"]}, "what TopK leaves out would be masked and sent all the same"),
        ({"algorithm": "qfedavg"}, "clients of QFedAvg send powers of their losses, for which no bound is known"),
        ({"algorithm": "timelyfl"}, "clients of TimelyFL send only layers that they have trained"),
        ({"algorithm": "fedkd"}, "how much clients of FedKD send depends on what they learned"),
        ({"algorithm": "local_only"}, "clients of LocalOnly send nothing that could be added up"),
        ({"cohort": 2}, "needs a cohort of at least 3, not 2"),
        ({"protocol.over_commit": 2.0}, "of a group of 12, 9 have to stay, and protocol=synchronous waits for about 6"),
        ({"secure_aggregation.group": 2}, "secure_aggregation.group must be from 3 to 64, not 2"),
        ({"secure_aggregation.threshold": 0.4}, "threshold must be at least 0.5 and below 1, not 0.4"),
        ({"secure_aggregation.range": 0}, "secure_aggregation.range must be above 0, not 0"),
        ({"secure_aggregation.trip_seconds": -1}, "trip_seconds must not be negative, but is -1"),
        ({"secure_aggregation.bits": 16}, "secure_aggregation.bits"),
        ({"privacy": {"name": "correlated_gaussian", "noise_multiplier": 1.0}, "protocol": "ideal",
          "selector": {"name": "cyclic", "groups": 2}},
         "privacy=correlated_gaussian has no proof for updates that are rounded"),
        ({"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson", "protocol": "ideal"},
         "cohorts of selector=poisson may be too small for a secure sum"),
        ({"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "audit": 4}, "protocol": "ideal"}, "canaries"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        run(tmp_path, "x", **merge(merge({}, SECURE), settings))

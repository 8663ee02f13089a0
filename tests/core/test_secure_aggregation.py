"""Secure aggregation in the simulator: rounded sums, bytes and time, groups that are lost, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logistic_clients import LOCAL, SIZES, cohorts, flat, local_sgd, plain
from small_runs import StopAfter, content
from small_worlds import MODEL_BYTES, make_world, play
from test_transforms import ENGINES
from test_transforms import run as simulated

import fedarena
from fedarena.client.secure_messages import Traffic
from fedarena.core.errors import BadInputError
from fedarena.metrics import OUTCOMES
from fedarena.runs.config import resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.simulate.protocols import Readiness
from fedarena.simulate.secure_aggregation import Bonawitz, SecureRounds
from fedarena.simulate.secure_aggregation.rounds import secure_row

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


@pytest.mark.sampled(1)
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
    """Equal phones: five trips behind a round, keys and shares with everybody's link, and 4 bytes a word."""
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
    seconds = 5 * 2.0 + 8 * more_down / 1e6 + 8 * (words + more_up - 8 * parameters) / 1e5
    took = [np.array(result.rounds["end_seconds"].to_pylist()) for result in (alone, secure)]
    np.testing.assert_allclose(took[1] - took[0], [0, seconds, 2 * seconds])
    assert secure.rounds["secure_groups"].to_pylist()[1:] == [1, 1]
    assert "secure_groups" not in alone.rounds.column_names
    assert secure.summary["secure_aggregation"]["lost_groups"] == 0


def closed(world: Any, trip_seconds: float = 0.0, cohort: int = 3) -> Any:
    """A round in which everybody is waited for, and its secure sums of updates of 1,000 bytes."""
    (plan,) = play(Readiness(share=1.0), world, 1, cohort)
    rounds = SecureRounds(Bonawitz(trip_seconds=trip_seconds), 0, MODEL_BYTES)
    return plan, rounds.closed(plan, world.phones, 1)


def test_everybody_waits_for_the_slowest_of_its_group() -> None:
    """Five trips, in each of which the slowest phone, with four seconds for 1,000 bytes, is waited for."""
    before, after = closed(make_world([1.0, 2.0, 4.0]), 0.5)
    sizes = Traffic(3)
    beside = sizes.keys_down + sizes.keys_up + sizes.unmasking_down + sizes.unmasking_up
    assert before.clock.time == 12.0
    assert after.clock.time == pytest.approx(12.0 + 5 * 0.5 + (beside + MODEL_BYTES) * 4 / 1000)
    masked = 12.0 + 3 * 0.5 + (sizes.keys_down + sizes.keys_up + MODEL_BYTES) * 4 / 1000
    np.testing.assert_allclose(after.ended.uploaded, masked)
    done = make_world([1.0, 2.0, 4.0]).phones.done(after.ended)
    own = 3 + (beside + MODEL_BYTES) / 1000  # of phones that take a second for 1,000 bytes
    np.testing.assert_allclose(np.sort(done.seconds), np.array([1.0, 2.0, 4.0]) * own)
    assert done.bytes_up.tolist() == [2 * MODEL_BYTES + sizes.keys_up + sizes.unmasking_up] * 3
    assert secure_row(after) == {"secure_groups": 1, "lost_groups": 0}


STAYS = (0, 1000)


@pytest.mark.parametrize(
    ("leaves", "outcomes", "groups"),
    [
        # While others train: five of six are a group, and four have to stay.
        ([(0, 20), STAYS, STAYS, STAYS, STAYS, STAYS], ["left while uploading", *["used"] * 5], (1, 0)),
        # Before its masked update is there: it is missing, and the other five are enough.
        ([(0, 40), STAYS, STAYS, STAYS, STAYS, STAYS], ["left while uploading", *["used"] * 5], (1, 0)),
        # Two before, with five needed: nobody's update can be read.
        ([(0, 40), (0, 40), STAYS, STAYS, STAYS, STAYS], [*["left while uploading"] * 2, *["lost with its group"] * 4],
         (0, 1)),
        # Those who leave after their masked updates are there count, if enough others take the masks off.
        ([(0, 95), STAYS, STAYS, STAYS, STAYS, STAYS], ["used"] * 6, (1, 0)),
        ([(0, 95), (0, 95), STAYS, STAYS, STAYS, STAYS], ["lost with its group"] * 6, (0, 1)),
        # Two are no group.
        ([(0, 20), (0, 20), (0, 20), (0, 20), STAYS, STAYS],
         [*["left while uploading"] * 4, *["lost with its group"] * 2], (0, 1)),
        ([(0, 20), (0, 20), (0, 20), (0, 20), (0, 20), (0, 25)], [], None),
    ],
)  # fmt: skip
def test_who_leaves_is_missing_and_too_many_take_their_group_with_them(
    leaves: list[tuple[int, int]], outcomes: list[str], groups: tuple[int, int] | None
) -> None:
    """Phones are done after 3 seconds, but for the last, after 30; masked updates are there after 92, sums after 99."""
    world = make_world([1.0] * 5 + [10.0], [[stay] for stay in leaves])
    before, after = closed(world, cohort=6)
    by_client = np.argsort(after.ended.clients)
    found = [OUTCOMES[outcome] for outcome in after.ended.outcomes[by_client].tolist()]
    if groups is None:  # the slow one left while it trained, and nobody was there any more
        assert "used" not in found
        assert after.clock.version == 0
        return
    assert found == outcomes
    assert tuple(secure_row(after).values()) == groups
    assert ((after.steps[by_client] >= 0) == (np.array(found) == "used")).all()
    assert (before.clock.version, after.clock.version) == (1, groups[0])


@pytest.mark.parametrize("leaving", ["abort", "pause"])
def test_who_leaves_has_sent_what_it_had_time_for(leaving: str) -> None:
    """Phones that take four seconds for 1,000 bytes are done after 12; one leaves while it sends its masked update."""
    sizes = Traffic(6)
    keys = 12 + (sizes.keys_down + sizes.keys_up) * 4 / 1000
    leaves = int(keys) + 3
    world = make_world([4.0] * 6, [[(0, leaves)], *[[STAYS]] * 5], leaving=leaving)
    _, after = closed(world, cohort=6)
    jobs = after.ended.take(np.argsort(after.ended.clients))
    assert [OUTCOMES[outcome] for outcome in jobs.outcomes.tolist()] == ["left while uploading", *["used"] * 5]
    # Whoever pauses is waited for until masked updates should be there.
    assert jobs.end[0] == pytest.approx(leaves if leaving == "abort" else keys + 4)
    assert np.isinf(jobs.uploaded[0])
    done = world.phones.done(jobs)
    sent = (leaves - keys) / 4 * MODEL_BYTES
    # Their updates went up before, too, in this made-up world.
    assert done.bytes_up[0] == pytest.approx(MODEL_BYTES + sizes.keys_up + sent, abs=2)
    assert done.bytes_down[0] == MODEL_BYTES + sizes.keys_down
    assert done.bytes_down[1] == MODEL_BYTES + sizes.keys_down + sizes.unmasking_down
    assert done.seconds[0] == pytest.approx(12 + (sizes.keys_down + sizes.keys_up + sent) * 4 / 1000, abs=0.01)


def test_groups_are_even_and_change_from_round_to_round() -> None:
    rounds = SecureRounds(Bonawitz(group=10), 3, 0)
    clients = np.arange(100, 135)
    first, second = (rounds.groups(clients, round) for round in (1, 2))
    assert sorted(np.bincount(first).tolist()) == [8, 9, 9, 9]
    assert (first != second).any()
    shuffled = np.random.default_rng(0).permutation(35)
    np.testing.assert_array_equal(rounds.groups(clients[shuffled], 1), first[shuffled])


def test_a_run_in_which_groups_are_lost(tmp_path: Path) -> None:
    """Phones that come and go: rounds of which every group was lost make no step, and the summary counts groups."""
    settings = {
        "fleet": "fedscale",
        "federation.partition.clients": 60,
        "rounds": 8,
        "secure_aggregation.trip_seconds": 900,
    }
    found = run(tmp_path, "lossy", **merge(merge({}, SECURE), settings))
    rounds = found.rounds.to_pylist()[1:]
    lost = [row for row in rounds if row["lost_groups"]]
    assert lost
    assert any(row["secure_groups"] for row in rounds)
    assert all(row["succeeded"] == (row["secure_groups"] > 0) for row in rounds)
    assert found.summary["secure_aggregation"]["lost_groups"] == sum(row["lost_groups"] for row in rounds)
    outcomes = found.jobs["outcome"].to_pylist()
    assert "lost with its group" in outcomes


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

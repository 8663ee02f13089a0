"""Partitioners that follow a law of sizes, of classes or of mixes: the laws hold, and plain code agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data.partitioners.inner_dirichlet import take_classes
from fedarena.data.partitioners.pathological import draw_classes
from fedarena.data.partitioners.sizes import proportional_sizes
from fedarena.data.registry import assign_clients

LABELS = np.random.default_rng(0).integers(0, 10, size=2000)
LAWS = {
    "linear": lambda clients: [k + 1 for k in range(clients)],
    "square": lambda clients: [(k + 1) ** 2 for k in range(clients)],
    "exponential": lambda clients: [np.exp(k) for k in range(clients)],
}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([*LAWS, "pathological", "inner_dirichlet"]),
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=200),
    clients=st.integers(5, 9),
    seed=st.integers(0, 3),
)
def test_every_sample_has_one_client_and_every_client_a_sample(name, labels, clients: int, seed: int) -> None:
    options: dict[str, Any] = {"name": name, "clients": clients, "seed": seed}
    if name == "pathological":
        options["classes_per_client"] = len(set(labels))
    client_of_sample = assign_clients(options, labels)
    assert client_of_sample.shape == (len(labels),)
    assert client_of_sample.dtype == np.int64
    assert set(client_of_sample.tolist()) == set(range(clients))


@pytest.mark.parametrize("name", [*LAWS, "pathological", "inner_dirichlet", "id_groups"])
def test_the_seed_decides(name: str) -> None:
    options = {"name": name} if name == "id_groups" else {"name": name, "clients": 8}
    labels = np.arange(200) % 20 if name == "id_groups" else LABELS
    first, again, other = (assign_clients({**options, "seed": seed}, labels) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "linear"}, [2, 2, 2, 3, 2, 2, 0, 2, 0, 1, 3, 1]),
        ({"name": "square"}, [3, 3, 3, 3, 3, 3, 1, 3, 0, 1, 3, 2]),
        ({"name": "exponential"}, [3, 3, 3, 3, 3, 3, 1, 3, 0, 2, 3, 2]),
        ({"name": "pathological"}, [0, 0, 2, 0, 2, 1, 3, 0, 3, 0, 1, 1]),
        ({"name": "inner_dirichlet"}, [3, 2, 1, 1, 2, 3, 0, 0, 3, 3, 2, 0]),
    ],
)
def test_partitions_do_not_change_by_accident(options: dict[str, Any], expected: list[int]) -> None:
    """Published results depend on them. Whoever changes them raises the version of the sources that use them."""
    assert assign_clients({"clients": 4, **options}, np.arange(60) % 3)[:12].tolist() == expected


@settings(deadline=None)
@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    total=st.integers(12, 500),
    min_samples=st.integers(0, 5),
)
def test_sizes_are_proportional_where_they_are_above_the_minimum(weights, total: int, min_samples: int) -> None:
    total = max(total, min_samples * len(weights))
    found = proportional_sizes(total, np.array(weights), min_samples)
    assert found.sum() == total
    assert found.min() >= min_samples
    # Whoever has more than the minimum has its share of what those together have; oracle: a plain division.
    above = [place for place, size in enumerate(found) if size > min_samples]
    rest = sum(found[place] for place in above)
    for place in above:
        share = rest * weights[place] / sum(weights[other] for other in above)
        assert abs(found[place] - share) < 1 + len(weights)  # others were rounded, too
    order = np.argsort(weights, kind="stable")
    assert (np.diff(found[order]) >= -1).all()


@pytest.mark.parametrize("name", LAWS)
def test_rising_sizes_follow_their_law(name: str) -> None:
    clients = 5
    client_of_sample = assign_clients({"name": name, "clients": clients}, LABELS)
    weights = LAWS[name](clients)
    exact = [2000 * weight / sum(weights) for weight in weights]
    assert np.abs(np.bincount(client_of_sample) - exact).max() < 1


def test_steep_laws_leave_everybody_something() -> None:
    found = np.bincount(assign_clients({"name": "exponential", "clients": 1000, "min_samples": 1}, LABELS))
    assert found.min() == 1
    assert found[-1] > found[-2] > found[-3] > 50
    even = np.bincount(assign_clients({"name": "exponential", "clients": 10, "rate": 0}, LABELS))
    assert set(even) == {200}


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=60, max_size=200),
    clients=st.integers(6, 12),
    classes_per_client=st.integers(1, 3),
    assignment=st.sampled_from(["random", "in_turn"]),
    seed=st.integers(0, 3),
)
def test_nobody_has_more_classes_than_were_allowed(labels, clients, classes_per_client, assignment, seed) -> None:
    classes = sorted(set(labels))
    options = {"name": "pathological", "clients": clients, "seed": seed, "assignment": assignment}
    options["classes_per_client"] = min(classes_per_client, len(classes))
    try:
        client_of_sample = assign_clients(options, labels)
    except BadInputError as error:
        # A class may have too few samples for all its holders.
        assert "always had fewer than 1" in str(error)  # noqa: PT017
        return
    samples = list(zip(client_of_sample.tolist(), labels, strict=True))
    holders = {label: sorted({client for client, found in samples if found == label}) for label in classes}
    for client in range(clients):
        assert len({label for owner, label in samples if owner == client}) <= options["classes_per_client"]
    for label in classes:
        sizes = [sum(1 for sample in samples if sample == (client, label)) for client in holders[label]]
        assert max(sizes) - min(sizes) <= 1
    if assignment == "in_turn":
        for client in range(clients):
            mine = {(client + k) % len(classes) for k in range(options["classes_per_client"])}
            assert {classes.index(label) for owner, label in samples if owner == client} <= mine


@settings(deadline=None)
@given(clients=st.integers(1, 8), classes=st.integers(1, 12), data=st.data())
def test_every_class_has_a_holder(clients: int, classes: int, data: st.DataObject) -> None:
    least = -(-classes // clients)
    per_client = data.draw(st.integers(least, max(least, classes)))
    held = draw_classes(clients, classes, per_client, np.random.default_rng(data.draw(st.integers(0, 100))))
    assert (held.sum(axis=1) == per_client).all()
    assert held.any(axis=0).all()


def plain_take_classes(turns, mixes, available, draws) -> list[int]:
    """One turn after the other: whoever's turn it is takes a class from its mix of what is left."""
    left, taken = list(available), []
    for client, draw in zip(turns, draws, strict=True):
        wanted = [mix if there > 0 else 0.0 for mix, there in zip(mixes[client], left, strict=True)]
        if sum(wanted) == 0:
            wanted = [float(there > 0) for there in left]
        cumulated = np.cumsum(wanted)
        last = max(number for number, mix in enumerate(wanted) if mix > 0)  # of chances so small that products are 0
        chosen = next((number for number, upto in enumerate(cumulated) if upto > draw * cumulated[-1]), last)
        left[chosen] -= 1
        taken.append(chosen)
    return taken


@settings(max_examples=60, deadline=None)
@given(
    available=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.001, 0.3, 5.0]),
    seed=st.integers(0, 1000),
    at_once=st.sampled_from([1, 7, 4096]),
)
@example(available=[1, 1, 1, 1, 1, 30], clients=2, alpha=0.001, seed=84, at_once=1)
def test_many_turns_at_once_are_turns_one_by_one(available, clients, alpha, seed, at_once) -> None:
    random = np.random.default_rng(seed)
    turns = random.integers(clients, size=sum(available))
    mixes, draws = random.dirichlet([alpha] * len(available), size=clients), random.random(len(turns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedarena.data.partitioners.inner_dirichlet._TURNS_AT_ONCE", at_once)
        found = take_classes(turns, mixes, np.array(available), draws)
    assert found.tolist() == plain_take_classes(turns, mixes, available, draws)
    assert np.bincount(found, minlength=len(available)).tolist() == available


def test_inner_dirichlet_keeps_sizes_and_skews_labels() -> None:
    def distance(alpha: float) -> float:
        client_of_sample = assign_clients({"name": "inner_dirichlet", "clients": 10, "alpha": alpha}, LABELS)
        assert set(np.bincount(client_of_sample)) == {200}
        overall = np.bincount(LABELS) / len(LABELS)
        mixes = [np.bincount(LABELS[client_of_sample == client], minlength=10) / 200 for client in range(10)]
        return float(np.mean([0.5 * np.abs(mix - overall).sum() for mix in mixes]))

    assert distance(0.05) > 0.5 > distance(1.0) > 0.2 > distance(1000.0)
    sizes = np.bincount(assign_clients({"name": "inner_dirichlet", "clients": 10, "sigma": 1.0}, LABELS))
    assert sizes.max() > 3 * sizes.min()


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.sampled_from("abcdefghijk"), min_size=1, max_size=80),
    group_size=st.integers(1, 5),
    remainder=st.sampled_from(["smaller", "spread", "refuse"]),
    order=st.sampled_from(["shuffled", "sorted"]),
)
def test_ids_stay_together_in_groups_of_a_size(keys, group_size: int, remainder: str, order: str) -> None:
    ids = sorted(set(keys))
    options = {"name": "id_groups", "group_size": group_size, "remainder": remainder, "order": order}
    left_over = len(ids) % group_size
    if remainder == "refuse" and left_over:
        with pytest.raises(BadInputError, match=f"{left_over} are left over"):
            assign_clients(options, np.array(keys))
        return
    client_of_sample = assign_clients(options, np.array(keys)).tolist()
    client_of_id = dict(zip(keys, client_of_sample, strict=True))
    assert [client_of_id[key] for key in keys] == client_of_sample
    sizes = sorted(list(client_of_id.values()).count(client) for client in set(client_of_sample))
    whole = len(ids) // group_size
    assert sorted(set(client_of_sample)) == list(range(len(sizes)))
    if remainder == "smaller":
        assert sizes == sorted([group_size] * whole + [left_over] * bool(left_over))
    else:
        assert len(sizes) == max(whole, 1)
        assert sizes[-1] - sizes[0] <= 1
    if order == "sorted":
        assert [client_of_id[name] for name in ids] == sorted(client_of_id.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "linear", "clients": 2001}, "2000 samples are not enough for 2001 clients"),
        ({"name": "pathological", "classes_per_client": 11}, "only 10 different labels"),
        ({"name": "pathological", "clients": 3, "classes_per_client": 3}, "cannot hold all 10 labels"),
        ({"name": "pathological", "clients": 5, "assignment": "in_turn"}, "cannot hold all 10 labels"),
        ({"name": "pathological", "clients": 20, "min_samples": 100}, "always had fewer than 100"),
        ({"name": "inner_dirichlet", "alpha": 0}, "alpha"),
        ({"name": "exponential", "rate": -1}, "rate"),
        ({"name": "id_groups", "group_size": 0}, "group_size"),
    ],
)
def test_impossible_partitions_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        assign_clients(options, LABELS)

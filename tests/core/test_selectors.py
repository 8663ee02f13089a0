"""What holds for every selector, and what each of the simple ones prefers."""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_candidates import Population, assert_frequencies, make_feedback

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.simulate.selectors import SELECTORS, Feedback, InTurn, LeavingSoon, PowerOfChoice, Selector

# The one that invites a part of the clients only has tests of its own.
VARIANTS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in SELECTORS.names() if name != "cyclic"] + [
    ("oort", {"explore_by": "uniform", "exploration": 0.5, "blacklist_after": 1, "pacer_window": 2}),
    ("oort", {"exploration": 0.0, "exploration_min": 0.0, "cutoff": 1.0}),
    ("power_of_choice", {"losses": "latest", "oversample": 1.5}),
    ("leaving_soon", {"least_seconds": 40.0, "oversample": 1.0}),
]
every_selector = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda part: str(part))


def random_feedback(random: np.random.Generator, clients: np.ndarray) -> Feedback:
    losses = random.choice([0.0, 0.5, 2.0, np.nan, np.inf], size=len(clients))
    seconds = random.choice([0.0, 1.0, 30.0, 4000.0], size=len(clients))
    return make_feedback(clients, losses, seconds, used=random.random(len(clients)) < 0.7, samples=7)


def population_of(random: np.random.Generator, clients: int) -> Population:
    return Population(
        sizes=random.integers(1, 100, clients),
        available=3 * np.flatnonzero(random.random(clients) < random.random()),
        busy=3 * np.flatnonzero(random.random(clients) < 0.2),
        seconds_left=lambda chosen: (chosen * 37 % 11) * 10.0,
        losses=lambda chosen: np.where(chosen % 7 == 0, np.nan, chosen % 5),
        every=3,
    )


@pytest.mark.sampled(6)
@every_selector
@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 60),
    number=st.integers(0, 70),
    rounds=st.integers(0, 6),
    seed=st.integers(0, 2**32),
)
def test_as_many_candidates_as_asked_or_all(
    name: str, options: dict[str, Any], clients: int, number: int, rounds: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    population = population_of(random, clients)
    selector = population.prepare(SELECTORS.get(name)(**options), cohort=5)
    for round in range(1, rounds + 1):  # with repetitions: whoever is fast may end two jobs in a round
        selector.observe(round, random_feedback(random, 3 * random.integers(clients, size=random.integers(12))))
    candidates = population.at(round=rounds + 1, seed=seed)
    selected = selector.select(number, candidates, rounds + 1)
    assert selected.dtype == np.int64
    assert (np.diff(selected) > 0).all()
    assert np.isin(selected, candidates.everybody()).all()
    if not selector.varies:
        assert len(selected) == min(number, len(candidates.everybody()))
    assert number > 0 or not len(selected)


@every_selector
def test_a_new_selector_that_sees_the_same_feedback_selects_the_same(name: str, options: dict[str, Any]) -> None:
    random = np.random.default_rng(5)
    population = Population(
        sizes=random.integers(1, 100, 80),
        available=range(0, 80, 2),
        seconds_left=lambda chosen: (chosen * 37 % 11) * 10.0,
        losses=lambda chosen: np.sin(chosen),
    )
    selector = population.prepare(SELECTORS.get(name)(**options))
    seen: list[Feedback] = []
    for round in range(1, 16):
        resumed = population.prepare(SELECTORS.get(name)(**options))
        for earlier, feedback in enumerate(seen, start=1):
            resumed.observe(earlier, feedback)
        selected = selector.select(8, population.at(round), round)
        assert resumed.select(8, population.at(round), round).tolist() == selected.tolist()
        assert selector.select(8, population.at(round), round).tolist() == selected.tolist()
        seen.append(random_feedback(random, selected))
        selector.observe(round, seen[-1])


@every_selector
def test_everybody_is_selected_when_so_many_are_wanted(name: str, options: dict[str, Any]) -> None:
    population = Population([3, 1, 2], seconds_left=lambda chosen: chosen * 1.0, losses=lambda chosen: chosen * 1.0)
    selector = population.prepare(SELECTORS.get(name)(**options), cohort=3)
    assert selector.select(3, population.at(), 1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", SELECTORS.names())
def test_settings_are_read_from_the_signature(name: str) -> None:
    resolved = resolve_part(SELECTORS, name, "selector")
    assert resolved.pop("name") == name
    assert isinstance(SELECTORS.get(name)(**resolved), Selector)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("power_of_choice", {"oversample": 0.5}, "selector.oversample must be at least 1, not 0.5"),
        ("leaving_soon", {"oversample": math.nan}, "selector.oversample must be at least 1, not nan"),
        ("leaving_soon", {"least_seconds": -1.0}, "selector.least_seconds must be at least 0, not -1.0"),
        ("oort", {"exploration": 1.5}, "selector.exploration must be between 0 and 1, not 1.5"),
        ("oort", {"cutoff": -0.1}, "selector.cutoff must be between 0 and 1, not -0.1"),
        ("oort", {"pacer_percentile": 101.0}, "selector.pacer_percentile must be between 0 and 100, not 101.0"),
        ("oort", {"pacer_window": 0}, "selector.pacer_window must be at least 1, not 0"),
        ("oort", {"alpha": -1.0}, "selector.alpha must be at least 0, not -1.0"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        SELECTORS.get(name)(**options)


def test_in_turn_goes_round() -> None:
    population = Population([1] * 3)
    selector = population.prepare(InTurn(), cohort=2)
    assert [selector.select(2, population.at(r), r).tolist() for r in (1, 2, 3)] == [[0, 1], [0, 2], [1, 2]]


def test_in_turn_passes_over_who_is_not_there() -> None:
    population = Population([1] * 7, available=[0, 1, 3, 4, 6], busy=[4])
    selector = population.prepare(InTurn(), cohort=2)
    rounds = [selector.select(2, population.at(round), round).tolist() for round in range(1, 6)]
    # They begin at the clients 0, 2, 4, 6 and 1.
    assert rounds == [[0, 1], [3, 6], [0, 6], [0, 6], [1, 3]]


def test_power_of_choice_takes_the_largest_current_losses() -> None:
    losses = np.array([0.5, 3.0, 0.1, 2.0, np.nan, 1.0])
    population = Population([1] * 6, available=[0, 1, 2, 3, 5], losses=lambda clients: losses[clients])
    selector = population.prepare(PowerOfChoice(oversample=3))
    assert selector.select(2, population.at(), 1).tolist() == [1, 3]
    population.available[4] = True  # a loss that is not known may be the largest
    assert selector.select(2, population.at(), 1).tolist() == [1, 4]


def test_power_of_choice_draws_its_candidates_by_size() -> None:
    """Of two candidates the one with the larger number wins, so how often it does shows who the candidates were."""
    sizes = [8.0, 4.0, 2.0, 1.0]
    population = Population(map(int, sizes), losses=lambda clients: clients * 1.0)
    selector = population.prepare(PowerOfChoice(oversample=2))
    counts, chances, total = np.zeros(4), np.zeros(4), sum(sizes)
    for round in range(5000):
        counts[selector.select(1, population.at(round), round)] += 1
    for first, second in permutations(range(4), 2):
        chances[max(first, second)] += sizes[first] / total * sizes[second] / (total - sizes[first])
    assert_frequencies(counts, chances)


def test_power_of_choice_with_the_latest_losses() -> None:
    population = Population([1] * 6)  # nobody can be asked for current losses
    selector = population.prepare(PowerOfChoice(oversample=6, losses="latest"))
    selector.observe(1, make_feedback([0, 1, 2, 3], losses=[0.5, 3.0, 9.0, 2.0], used=[True, True, False, True]))
    assert selector.select(3, population.at(2), 2).tolist() == [2, 4, 5]  # these have not reported a loss
    assert selector.select(5, population.at(2), 2).tolist() == [1, 2, 3, 4, 5]
    selector.observe(2, make_feedback([1, 2, 4, 5], losses=[0.1, 0.2, 0.3, 0.4]))
    assert selector.select(2, population.at(3), 3).tolist() == [0, 3]
    selector.observe(3, make_feedback([1], used=False))  # it still has the loss it reported before
    assert selector.select(2, population.at(4), 4).tolist() == [0, 3]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["power_of_choice", "leaving_soon"])
def test_chance_decides_between_equals(name: str) -> None:
    population = Population(
        [1] * 4, seconds_left=lambda clients: np.full(len(clients), 9.0), losses=lambda clients: np.ones(len(clients))
    )
    selector = population.prepare(SELECTORS.get(name)())
    pairs = list(combinations(range(4), 2))
    counts = dict.fromkeys(pairs, 0)
    for round in range(3000):
        a, b = selector.select(2, population.at(round), round).tolist()
        counts[a, b] += 1
    assert_frequencies(counts.values(), [1 / len(pairs)] * len(pairs))


def leaving(seconds: list[float]) -> Population:
    stays = np.array(seconds)
    return Population([1] * len(seconds), seconds_left=lambda clients: stays[clients])


def test_leaving_soon_takes_who_leaves_first_but_can_finish() -> None:
    population = leaving([50.0, 10.0, math.inf, 70.0, 30.0, 29.0])
    selector = population.prepare(LeavingSoon(oversample=6, least_seconds=30.0))
    assert selector.select(1, population.at(), 1).tolist() == [4]
    assert selector.select(3, population.at(), 1).tolist() == [0, 3, 4]
    assert selector.select(4, population.at(), 1).tolist() == [0, 2, 3, 4]
    # Nobody else can finish: then who stays longest.
    assert selector.select(5, population.at(), 1).tolist() == [0, 2, 3, 4, 5]


def test_leaving_soon_learns_how_long_a_job_takes() -> None:
    population = leaving([50.0, 10.0, math.inf, 70.0, 30.0, 29.0])
    selector = population.prepare(LeavingSoon(oversample=6))
    assert selector.select(1, population.at(), 1).tolist() == [1]
    # The median of 20, 40 and 60 seconds; a job that failed says nothing.
    selector.observe(1, make_feedback([0, 1, 2, 3], seconds=[60.0, 20.0, 40.0, 1.0], used=[True, True, True, False]))
    assert selector.select(1, population.at(2), 2).tolist() == [0]
    # Only the latest thousand count.
    selector.observe(2, make_feedback([4] * 1000, seconds=5.0))
    assert selector.select(1, population.at(3), 3).tolist() == [1]


def test_leaving_soon_chooses_among_as_many_as_it_drew() -> None:
    """With twice as many candidates as wanted, the first to leave is missed whenever it is not drawn."""
    population = leaving([1.0, 2.0, 3.0, 4.0])
    selector = population.prepare(LeavingSoon(oversample=2))
    counts = np.zeros(4)
    for round in range(4000):
        counts[selector.select(1, population.at(round), round)] += 1
    assert_frequencies(counts, [3 / 6, 2 / 6, 1 / 6, 0])


@pytest.mark.parametrize(
    ("selector", "others", "is_said"),
    [
        ("by_size", {}, True),
        ("power_of_choice", {"aggregator": "geometric_median"}, True),
        ("uniform", {}, False),
        ("by_size", {"algorithm": "scaffold"}, False),
        ("by_size", {"aggregator": "median"}, False),
    ],
)
def test_it_is_said_where_samples_count_twice(selector: str, others: dict[str, Any], is_said: bool) -> None:
    federation = {"name": "digits", "partition": {"name": "lognormal", "clients": 12}}
    config = resolve({"federation": federation, "cohort": 5, "selector": selector, **others})
    told = "weighted by that once more" in " ".join(prepare(config, Observer()).warnings)
    assert told == is_said

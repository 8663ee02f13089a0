"""Drawing among who is available: exact chances, and no look at the whole population."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from small_candidates import Population, assert_frequencies, select_uniform

from fedarena.core.errors import BadInputError
from fedarena.simulate.selectors import BySize, Uniform, Weights


def drawn_sets(sets: Iterable[np.ndarray]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(drawn.tolist()) for drawn in sets)


def successive(weights: dict[int, float], chosen: tuple[int, int]) -> float:
    """The chance that two draws one after the other, without replacement, give this pair."""
    total = sum(weights.values())
    a, b = (weights[client] for client in chosen)
    return a / total * b / (total - a) + b / total * a / (total - b)


@pytest.mark.parametrize("available", [None, range(50)], ids=["ideal", "all there"])
def test_uniform_where_everybody_is_there_is_one_plain_draw(available: Iterable[int] | None) -> None:
    population = Population([1] * 50, available)
    for round in (1, 2, 3):
        plain = select_uniform(population.clients, 6, 7, round)
        assert Uniform().select(6, population.at(round, seed=7), round).tolist() == plain.tolist()


# The more others there are, the more often rejection suffices; with none of them everybody is looked at.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("others", [0, 3, 60])
def test_every_set_of_available_clients_is_equally_likely(others: int) -> None:
    population = Population([1] * (6 + others), available=[0, 1, 3, 4, 5], busy=[4])
    found = drawn_sets(Uniform().select(2, population.at(round), round) for round in range(6000))
    pairs = list(combinations([0, 1, 3, 5], 2))
    assert set(found) <= set(pairs)
    assert_frequencies([found[pair] for pair in pairs], [1 / len(pairs)] * len(pairs))


@pytest.mark.slow
def test_single_draws_in_a_larger_population_are_uniform() -> None:
    there = list(range(0, 400, 6))
    population = Population([1] * 200, there, every=2)
    counts = np.zeros(400)
    for round in range(20000):
        counts[Uniform().select(1, population.at(round), round)] += 1
    assert counts.sum() == 20000
    assert_frequencies(counts, np.isin(np.arange(400), there) / len(there))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("others", [0, 4, 80])
def test_by_size_is_successive_sampling(others: int) -> None:
    sizes = {0: 1, 1: 2, 2: 3, 3: 4, 4: 20}
    population = Population([*sizes.values(), *[1] * others], available=[0, 5, 15, 20], every=5)
    selector = population.prepare(BySize())
    found = drawn_sets(selector.select(2, population.at(round), round) // 5 for round in range(6000))
    there = {client: float(sizes[client]) for client in (0, 1, 3, 4)}
    pairs = list(combinations(there, 2))
    assert_frequencies([found[pair] for pair in pairs], [successive(there, pair) for pair in pairs])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("others", [0, 80])
def test_acceptance_multiplies_the_chances(others: int) -> None:
    accepted = np.concatenate([[0.0, 0.2, 0.4, 1.0, 0.8], np.zeros(others)])
    population = Population([5, 4, 3, 2, 1, *[1] * others])
    weights = Weights.by_size(population.clients, population.samples)
    plain, weighted = np.zeros(len(accepted)), np.zeros(len(accepted))
    for round in range(6000):
        candidates = population.at(round)
        plain[candidates.draw(1, accept=lambda clients: accepted[clients])] += 1
        weighted[candidates.draw(1, accept=lambda clients: accepted[clients], weights=weights)] += 1
    assert_frequencies(plain, accepted / accepted.sum())
    products = accepted * population.sizes
    assert_frequencies(weighted, products / products.sum())


def test_acceptance_may_simply_be_yes_or_no() -> None:
    population = Population([1] * 300)
    drawn = population.at().draw(20, accept=lambda clients: clients % 2 == 0)
    assert len(set(drawn.tolist())) == 20
    assert (drawn % 2 == 0).all()
    assert population.at().draw(200, accept=lambda clients: clients % 2 == 0).tolist() == list(range(0, 300, 2))


@pytest.mark.parametrize("share", [0.5, 0.05])
@pytest.mark.parametrize("number", [1, 30])
def test_what_a_draw_looks_at_does_not_grow_with_the_population(share: float, number: int) -> None:
    population = Population(np.ones(200_000), np.flatnonzero(np.random.default_rng(3).random(200_000) < share))
    selector = population.prepare(BySize())
    for select in (Uniform().select, selector.select):
        population.looked_at = 0
        for round in range(40):
            assert len(select(number, population.at(round), round)) == number
        assert population.looked_at / 40 < 3 * number / share + 20


def test_one_giant_does_not_hold_up_the_draw() -> None:
    """Nearly every draw by size hits the same client; the others are still found, by looking at everybody once."""
    population = Population([10**12, *[1] * 5000], available=range(5001))
    drawn = population.prepare(BySize()).select(3, population.at(), 1)
    assert len(set(drawn.tolist())) == 3
    assert drawn[0] == 0
    assert population.looked_at < 4 * 5001
    assert population.questions < 20


def test_fewer_than_asked_and_nobody() -> None:
    population = Population([1] * 500, available=[3, 77, 400], busy=[77])
    assert Uniform().select(10, population.at(), 1).tolist() == [3, 400]
    assert Uniform().select(2, population.at(), 1).tolist() == [3, 400]
    assert Uniform().select(0, population.at(), 1).tolist() == []
    assert Uniform().select(10, Population([1] * 500, available=[]).at(), 1).tolist() == []
    assert Uniform().select(10, Population([]).at(), 1).tolist() == []


def test_selections_of_one_round_draw_different_numbers() -> None:
    population = Population([1] * 1000)
    turns = [tuple(population.at(turn=turn).draw(5).tolist()) for turn in (0, 1, 2, 0)]
    assert len(set(turns)) == 3
    assert turns[0] == turns[3]


def test_purposes_seeds_and_rounds_have_numbers_of_their_own() -> None:
    population = Population([1] * 1000)
    draws = [population.at().draw(5), population.at().draw(5, "other"), population.at(round=2).draw(5)]
    draws.append(population.at(seed=1).draw(5))
    assert len(drawn_sets(draws)) == 4


def test_who_is_a_candidate() -> None:
    population = Population([1] * 8, available=[1, 2, 5, 7], busy=[2, 3, 7])
    assert population.at().everybody().tolist() == [1, 5]
    assert population.at().are_available(np.array([7, 5, 0, 1])).tolist() == [False, True, False, True]
    assert population.at().seconds_left(np.array([1, 2])).tolist() == [np.inf, np.inf]
    with pytest.raises(BadInputError, match="losses of the current model are not known"):
        population.at().current_loss(np.array([1]))

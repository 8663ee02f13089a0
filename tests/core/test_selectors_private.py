"""Selectors whose chances an accountant of privacy knows: everybody by themselves, and shuffled passes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from small_candidates import Population, assert_frequencies
from small_runs import config

from fedarena.core.errors import BadInputError
from fedarena.runs.run import start_run
from fedarena.simulate.selectors import SELECTORS, Poisson, Shuffled


def test_cohorts_vary_like_as_many_coins() -> None:
    population, selector, rounds = Population([1] * 12), Poisson(), 3000
    drawn = [selector.select(4, population.at(round), round) for round in range(1, rounds + 1)]
    sizes = np.array([len(clients) for clients in drawn])
    probabilities = scipy.stats.binom.pmf(np.arange(13), 12, 4 / 12)
    few = probabilities * rounds < 5  # too few to count
    observed = np.bincount(sizes, minlength=13)
    assert_frequencies([*observed[~few], observed[few].sum()], [*probabilities[~few], probabilities[few].sum()])
    assert observed[0] > 0
    assert max(sizes) > 4
    taken = np.zeros((rounds, 12))
    for round, clients in enumerate(drawn):
        assert (np.diff(clients) > 0).all()
        taken[round, clients] = 1
    # Everybody is as likely, and whether one is drawn says nothing about another, or about the next round.
    assert np.abs(taken.mean(0) - 1 / 3).max() < 5 * np.sqrt(2 / 9 / rounds)
    together = np.corrcoef(taken.T) - np.eye(12)
    assert np.abs(together).max() < 5 / np.sqrt(rounds)
    assert np.abs(np.corrcoef(taken[1:, 0], taken[:-1, 0])[0, 1]) < 5 / np.sqrt(rounds)


@pytest.mark.parametrize("name", ["poisson", "shuffled"])
def test_nobody_takes_the_place_of_who_is_not_there(name) -> None:
    everybody, some = Population([1] * 30), Population([1] * 30, available=range(0, 30, 2), busy=[4])
    selector = SELECTORS.get(name)()
    for round in range(1, 20):
        whole = selector.select(10, everybody.at(round), round)
        there = selector.select(10, some.at(round), round)
        assert there.tolist() == [client for client in whole.tolist() if client % 2 == 0 and client != 4]


@pytest.mark.parametrize("name", ["poisson", "shuffled"])
def test_a_round_looks_at_no_more_clients_than_it_draws(name) -> None:
    population = Population([1] * 100_000, available=range(100_000))
    selector = SELECTORS.get(name)()
    drawn = selector.select(50, population.at(3), 3)
    assert population.looked_at == len(drawn) < 120


@pytest.mark.parametrize(("clients", "cohort", "rounds"), [(12, 4, 3), (13, 4, 4), (5, 5, 1), (9, 100, 1)])
def test_everybody_takes_part_once_in_every_pass(clients, cohort, rounds) -> None:
    population, selector = Population([1] * clients, every=3), Shuffled()
    passes = []
    for number in range(5):
        turns = [
            selector.select(cohort, population.at(r), r) for r in range(number * rounds + 1, (number + 1) * rounds + 1)
        ]
        assert sorted(np.concatenate(turns).tolist()) == population.clients.tolist()
        assert max(map(len, turns)) <= cohort
        assert max(map(len, turns)) - min(map(len, turns)) <= 1
        passes.append([turn.tolist() for turn in turns])
    if rounds > 1:
        assert len({str(turns) for turns in passes}) > 1
    # What was asked for before does not matter, nor in which order.
    again = Shuffled().select(cohort, population.at(2 * rounds + 1), 2 * rounds + 1)
    assert again.tolist() == passes[2][0]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["synchronous", "readiness", "deadline", "ideal"])
@pytest.mark.parametrize("selector", ["poisson", "shuffled"])
def test_rounds_go_on_with_cohorts_that_vary(tmp_path, protocol, selector) -> None:
    chosen = {"selector": selector, "protocol": protocol, "fleet": "flash", "rounds": 8, "cohort": 12}
    result = start_run(config(**chosen), tmp_path)
    invited = result.rounds["invited"].to_pylist()[1:]
    assert len(set(invited)) > 1 or (protocol, selector) == ("ideal", "shuffled")
    assert result.summary["rounds_done"] == 8


def test_cohorts_that_vary_do_not_fit_where_clients_come_one_by_one(tmp_path) -> None:
    with pytest.raises(BadInputError, match="draws whole cohorts"):
        start_run(config(selector="poisson", protocol="buffered"), tmp_path)


def test_a_client_is_as_likely_in_every_place_of_a_pass() -> None:
    population, selector = Population([1] * 6), Shuffled()
    places = np.zeros(3)
    for round in range(1, 1501):
        if 2 in selector.select(2, population.at(round), round):
            places[(round - 1) % 3] += 1
    assert_frequencies(places, [1 / 3] * 3)

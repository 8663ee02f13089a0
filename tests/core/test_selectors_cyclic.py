"""Groups of clients that take turns."""

from __future__ import annotations

import numpy as np
import pytest
from small_candidates import Population

from fedarena.core.errors import BadInputError
from fedarena.simulate.selectors import Cyclic


@pytest.mark.parametrize("draw", ["fixed_size", "poisson"])
def test_nobody_comes_again_before_all_groups_had_their_turn(draw) -> None:
    population = Population([1] * 30)
    selector = population.prepare(Cyclic(groups=5, draw=draw), cohort=4)
    last: dict[int, int] = {}
    for round in range(1, 41):
        for client in selector.select(4, population.at(round), round).tolist():
            assert round - last.get(client, -5) >= 5
            last[client] = round
    assert len(last) == 30  # everybody is in a group
    assert len({round % 5 for round in last.values()}) == 5


def test_a_fixed_number_is_drawn_with_equal_chances() -> None:
    population = Population([1] * 12)
    selector = population.prepare(Cyclic(groups=3), cohort=2)
    counts = np.zeros(12)
    for round in range(1, 1501):
        selected = selector.select(2, population.at(round), round)
        assert len(selected) == 2
        counts[selected] += 1
    np.testing.assert_allclose(counts, 250, atol=5 * np.sqrt(125))


def test_poisson_draws_are_independent_with_the_chance_that_is_accounted_for() -> None:
    population = Population([1] * 11)  # groups of 4, 4 and 3
    selector = population.prepare(Cyclic(groups=3, draw="poisson"), cohort=2)
    assert selector.smallest_group(11) == 3
    counts = np.zeros(11)
    for round in range(1, 1501):
        counts[selector.select(2, population.at(round), round)] += 1
    np.testing.assert_allclose(counts / 500, 2 / 3, atol=0.11)


def test_who_is_not_available_is_not_replaced_by_another_group() -> None:
    population = Population([1] * 8, available=[0, 1, 2])
    selector = population.prepare(Cyclic(groups=2), cohort=4)
    invited = [selector.select(4, population.at(round), round).tolist() for round in (1, 2)]
    assert sorted(invited[0] + invited[1]) == [0, 1, 2]


def test_a_resumed_selector_has_the_same_groups() -> None:
    population = Population([1] * 20)
    chosen = [
        [selector.select(3, population.at(round), round).tolist() for round in (1, 2, 7)]
        for selector in (population.prepare(Cyclic(groups=4), cohort=3) for _ in range(2))
    ]
    assert chosen[0] == chosen[1]


def test_bad_groups_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"selector\.groups must be at least 1, not 0"):
        Cyclic(groups=0)
    with pytest.raises(BadInputError, match="choose at most 2 groups, or a smaller cohort"):
        Population([1] * 9).prepare(Cyclic(groups=3), cohort=4)

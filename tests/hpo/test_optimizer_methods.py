"""Each optimizer by itself: rungs and brackets, evolution, densities, pruners, and the parts that they are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import plain_optimizers as plain
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from small_searches import LINE, MIXED, REAL, ROUNDS, SPACES, bowl, search

from fedarena.hpo import Space
from fedarena.hpo.optimizers import Proposal, make_optimizer
from fedarena.hpo.optimizers.axes import Axes, has_order
from fedarena.hpo.optimizers.bo_rf import expected_improvement
from fedarena.hpo.optimizers.kernel_density import KernelDensity, KernelDensityModel
from fedarena.hpo.optimizers.rungs import brackets, rungs
from fedarena.hpo.optimizers.values import tamed

# Rungs and brackets


def test_rungs_end_with_all_rounds() -> None:
    for max_rounds, eta in itertools.product(range(3, 260), (2, 3, 4)):
        min_rounds = 1 + max_rounds % 3
        ladder = rungs(max_rounds, min_rounds, eta)
        assert ladder[-1] == max_rounds
        assert all(low < high for low, high in itertools.pairwise(ladder))
        assert ladder[0] >= min_rounds
        assert max_rounds / eta ** len(ladder) < min_rounds  # where another rung would be


def test_brackets_of_the_paper() -> None:
    """Table 1 of Li et al., for R = 81 and η = 3."""
    table = [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    assert [[(rung.configurations, rung.rounds) for rung in bracket] for bracket in brackets(81, 1, 3)] == table


def by_rung(history: list[tuple[Proposal, float]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for proposal, _ in history:
        counts[proposal.rounds] = counts.get(proposal.rounds, 0) + 1
    return counts


def test_hyperband_climbs_its_brackets_with_the_best() -> None:
    history = search(make_optimizer("hyperband", REAL, 81, 1), lambda proposal: bowl(REAL, proposal), asks=206 + 81)
    first = history[:121]
    assert by_rung(first) == {1: 81, 3: 27, 9: 9, 27: 3, 81: 1}
    assert by_rung(history[:206]) == {1: 81, 3: 61, 9: 35, 27: 19, 81: 10}
    assert by_rung(history[206:]) == {1: 81}  # and all over again
    for low, high in ((1, 3), (3, 9), (9, 27), (27, 81)):
        below = sorted((value, proposal.course) for proposal, value in first if proposal.rounds == low)
        above = {proposal.course for proposal, _ in first if proposal.rounds == high}
        assert above == {course for _, course in below[: len(above)]}


def test_sizes_of_hpbandster() -> None:
    optimizer = make_optimizer({"name": "hyperband", "sizes": "hpbandster"}, REAL, 81, 1)
    history = search(optimizer, lambda proposal: bowl(REAL, proposal), asks=121 + 40 + 13 + 8 + 5)
    assert by_rung(history) == {1: 81, 3: 54, 9: 27, 27: 15, 81: 10}


def test_successive_halving_is_one_bracket() -> None:
    history = search(make_optimizer("sha", REAL, 27, 1), lambda proposal: bowl(REAL, proposal), asks=80)
    assert by_rung(history[:40]) == by_rung(history[40:]) == {1: 27, 3: 9, 9: 3, 27: 1}
    optimizer = make_optimizer({"name": "sha", "configurations": 6}, REAL, 27, 1, 3)
    assert by_rung(search(optimizer, lambda proposal: bowl(REAL, proposal), asks=9)) == {3: 6, 9: 2, 27: 1}


def test_asha_promotes_at_once() -> None:
    values = iter([5.0, 4.0, 3.0, 2.0, 9.0, 8.0, 1.0, 0.5])
    history = search(make_optimizer("asha", REAL, 9, 1), lambda proposal: next(values), asks=8)
    # Three have had 1 round, the best of which goes on; three more, and the best two of six would, one of which did.
    assert [(proposal.course, proposal.rounds) for proposal, _ in history] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (2, 3),
        (3, 1),
        (4, 1),
        (5, 1),
        (5, 3),
    ]


# Evolution


def test_differential_evolution_against_a_plain_one() -> None:
    def value(point: np.ndarray) -> float:
        return float(((point - 0.3) ** 2).sum())

    optimizer = make_optimizer("de", REAL, ROUNDS, 11)
    history = search(optimizer, lambda proposal: value(REAL.places(proposal.configuration)), asks=100)
    ours = np.array([REAL.places(proposal.configuration) for proposal, _ in history])
    np.testing.assert_allclose(ours, plain.evolve(value, 20, 3, 100, seed=11), atol=1e-12)


def test_dehb_promotes_in_its_first_pass_and_evolves_in_the_second() -> None:
    optimizer = make_optimizer("dehb", REAL, 81, 1)
    history = search(optimizer, lambda proposal: bowl(REAL, proposal), asks=2 * 206)
    assert optimizer.optimizer.population_sizes == {1: 81, 3: 34, 9: 15, 27: 8, 81: 5}
    first, second = history[:206], history[206:]
    for one_pass in (first, second):
        assert by_rung(one_pass) == {1: 81, 3: 61, 9: 35, 27: 19, 81: 10}
    started = [proposal.course for proposal, _ in first]
    assert len(set(started)) == 81 + 34 + 15 + 8 + 5  # the others went on
    assert len({proposal.course for proposal, _ in second}) == 206  # offspring are new
    lowest = [proposal for proposal, _ in second if proposal.rounds == 1]
    values = [bowl(REAL, proposal) for proposal in lowest]
    assert np.mean(values) < np.mean([value for proposal, value in first if proposal.rounds == 1])


def test_dehb_promotes_the_best_that_were_not_there() -> None:
    history = search(make_optimizer("dehb", REAL, 9, 4), lambda proposal: bowl(REAL, proposal), asks=9 + 3 + 1)
    low = sorted((value, proposal.course) for proposal, value in history if proposal.rounds == 1)
    assert [proposal.course for proposal, _ in history[9:12]] == [course for _, course in low[:3]]
    middle = sorted((value, proposal.course) for proposal, value in history if proposal.rounds == 3)
    assert history[12][0].course == middle[0][1]


# Densities


def test_density_against_a_plain_one() -> None:
    axes = Axes(MIXED)
    generator = np.random.default_rng(0)
    density = KernelDensity(axes.draw(12, generator), axes, 1e-3)
    at = axes.draw(9, generator)
    expected = [plain.density(density.points, density.bandwidths, axes.categories, one) for one in at]
    np.testing.assert_allclose(np.exp(density.log_density(at)), expected, rtol=1e-10)


def test_bandwidths_by_the_normal_reference_rule() -> None:
    points = np.array([[0.1, 0.5, 0.5], [0.3, 0.5, 0.1], [0.8, 0.5, 0.9]])
    density = KernelDensity(points, Axes(REAL), 1e-3)
    assert density.bandwidths[0] == pytest.approx(1.06 * points[:, 0].std() * 3 ** (-1 / 7))
    assert density.bandwidths[1] == 1e-3


def test_draws_follow_the_widened_density() -> None:
    density = KernelDensity(np.array([[0.5, 0.5, 0.5]] * 4), Axes(REAL), 0.02)
    drawn = density.draw(4000, 3.0, np.random.default_rng(1))
    assert drawn.std(axis=0) == pytest.approx([0.06] * 3, rel=0.1)
    edge = KernelDensity(np.array([[0.0, 1.0, 0.5]] * 4), Axes(REAL), 0.2).draw(500, 3.0, np.random.default_rng(1))
    assert edge.min() >= 0
    assert edge.max() <= 1


def model_of(space: Space, **options: Any) -> KernelDensityModel:
    settings = {"candidates": 64, "random_fraction": 0.0, "bandwidth_factor": 3.0, "min_bandwidth": 1e-3}
    return KernelDensityModel(space, np.random.default_rng(0), **{**settings, "good_fraction": 0.15, **options})


def test_good_and_bad_of_the_most_rounds_with_enough_points() -> None:
    model = model_of(REAL)
    generator = np.random.default_rng(1)
    for rounds, number in ((1, 40), (9, 6), (81, 5)):  # 3 hyperparameters: 4 points in each density, and 2 more
        for _ in range(number):
            configuration = REAL.sample(generator)
            model.observe(configuration, rounds, sum(configuration.values()) + rounds)
    densities = model.densities()
    assert densities is not None
    good, bad = densities
    assert (len(good.points), len(bad.points)) == (4, 4)  # those of 9 rounds
    assert good.points.sum(axis=1).max() < bad.points.sum(axis=1).max()
    for _ in range(40):
        model.observe(REAL.sample(generator), 27, math.inf)
    again = model.densities()
    assert again is not None
    assert (len(again[0].points), len(again[1].points)) == (6, 34)


def test_a_third_is_random() -> None:
    plain_draws = model_of(LINE, random_fraction=1.0)
    some = model_of(LINE, random_fraction=1 / 3)
    for model in (plain_draws, some):
        for place in np.linspace(0.49, 0.51, 30):
            model.observe({"local.lr": float(place)}, 1, abs(place - 0.5))
    far = [np.mean([abs(model.propose()["local.lr"] - 0.5) > 0.1 for _ in range(300)]) for model in (plain_draws, some)]
    assert far[0] == pytest.approx(0.8, abs=0.08)
    assert far[1] == pytest.approx(0.8 / 3, abs=0.08)


# TPE and its pruners


def climbed(history: list[tuple[Proposal, float]]) -> list[int]:
    """How many rungs each course had."""
    counts: dict[int, int] = {}
    for proposal, _ in history:
        counts[proposal.course] = counts.get(proposal.course, 0) + 1
    return list(counts.values())


def curves(number: int) -> Iterator[list[float]]:
    generator = np.random.default_rng(7)
    for _ in range(number):
        final = generator.random()
        yield [final + 1 / (rung + 1) + 0.1 * generator.random() for rung in range(4)]


def test_median_and_hyperband_stop_different_courses() -> None:
    ladder = rungs(27, 1, 3)
    given = list(curves(110))
    reached = {}
    for name in ("tpe_md", "tpe_hb"):
        optimizer = make_optimizer(name, REAL, 27, 5)
        history = search(optimizer, lambda proposal: given[proposal.course][ladder.index(proposal.rounds)], asks=110)
        reached[name] = climbed(history)[:-1]  # the last may go on
    assert reached["tpe_md"] == plain.median_rule(given[: len(reached["tpe_md"])], startup=5)
    number = min(len(one) for one in reached.values())
    assert number >= 30
    assert reached["tpe_hb"][:number] != reached["tpe_md"][:number]
    # The best third goes on instead of the better half, but in brackets that begin to choose later.
    complete = {name: sum(one == 4 for one in rungs_reached[:number]) for name, rungs_reached in reached.items()}
    assert complete["tpe_hb"] < complete["tpe_md"]


def test_hyperband_keeps_a_course_that_the_median_stops() -> None:
    """In a bracket that trains everything in full, nothing is stopped however bad it is."""
    ladder = rungs(27, 1, 3)

    def value(proposal: Proposal) -> float:
        return float(proposal.course + 10 - ladder.index(proposal.rounds))  # every course is worse than all before

    by_median = climbed(search(make_optimizer("tpe_md", REAL, 27, 5), value, asks=60))
    by_hyperband = climbed(search(make_optimizer("tpe_hb", REAL, 27, 5), value, asks=60))
    assert set(by_median[5:-1]) == {1}
    assert 4 in by_hyperband[5:-1]
    assert 1 in by_hyperband[5:-1]


def test_pruners_are_really_handed_over() -> None:
    made = {name: make_optimizer(name, REAL, 81, 0).optimizer._study.pruner for name in ("tpe_md", "tpe_hb")}
    assert type(made["tpe_md"]).__name__ == "MedianPruner"
    assert type(made["tpe_hb"]).__name__ == "HyperbandPruner"


@pytest.mark.parametrize(("max_rounds", "eta", "number"), [(243, 3, 6), (81, 3, 5), (250, 3, 6), (64, 2, 7), (1, 3, 1)])
def test_hyperband_pruner_has_a_bracket_for_each_rung(max_rounds: int, eta: int, number: int) -> None:
    """The logarithm of 243 to the base 3 is not quite 5 in floating point, and Optuna rounds it down."""
    optimizer = make_optimizer({"name": "tpe_hb", "eta": eta}, REAL, max_rounds, 0)
    search(optimizer, lambda proposal: bowl(REAL, proposal), asks=3)
    pruner = optimizer.optimizer._study.pruner
    if max_rounds > 1:
        assert pruner._n_brackets == number
    assert len(rungs(max_rounds, 1, eta)) == number


# Parts


@pytest.mark.parametrize("space", [*SPACES.values(), REAL])
def test_snapping_is_what_the_space_does(space: Space) -> None:
    points = np.random.default_rng(3).random((200, len(space)))
    expected = np.array([space.places(space.at(point)) for point in points])
    np.testing.assert_allclose(Axes(space).snap(points), expected, atol=1e-12)


def test_which_choices_have_an_order() -> None:
    space = Space.parse(
        {
            "up": [1, 2, 8],
            "down": [0.5, 0.1],
            "mixed": [1, 3, 2],
            "names": ["a", "b"],
            "truths": [False, True],
            "n": [1],
        }
    )
    assert [has_order(one) for one in space] == [True, True, False, False, False, True]


def test_tamed_values() -> None:
    np.testing.assert_array_equal(tamed([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(tamed([1.0, math.inf, 2.0, 1e300, 1.5]), [1.0, 4.75, 2.0, 4.75, 1.5])
    np.testing.assert_array_equal(tamed([math.inf, math.inf]), [0.0, 0.0])
    np.testing.assert_array_equal(tamed([2.0, 2.0, 2.0, math.inf, 5.0]), [2.0, 2.0, 2.0, 5.0, 5.0])
    assert np.isfinite(tamed([-1e308, 1e308, 0.0, math.inf])).all()


def test_expected_improvement_against_an_integral() -> None:
    for mean, deviation in ((0.0, 1.0), (2.0, 0.5), (-1.0, 0.1)):
        expected, _ = quad(lambda x, m=mean, d=deviation: (0.3 - x) * norm.pdf(x, m, d), -9, 0.3, points=[mean])
        ours = expected_improvement(np.array([mean]), np.array([deviation]), 0.3)
        assert ours[0] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert expected_improvement(np.array([0.1, 0.5]), np.zeros(2), 0.3) == pytest.approx([0.2, 0.0])

"""Optimizers: what they ask for, and that they find something."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plain_optimizers as plain
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedarena.core.errors import BadInputError
from fedarena.hpo import Space
from fedarena.hpo.optimizers import OPTIMIZERS, Checked, Optimizer, Proposal, make_optimizer, replay
from fedarena.hpo.optimizers.axes import Axes, has_order
from fedarena.hpo.optimizers.bo_rf import expected_improvement
from fedarena.hpo.optimizers.kernel_density import KernelDensity, KernelDensityModel
from fedarena.hpo.optimizers.rungs import brackets, rungs
from fedarena.hpo.optimizers.values import tamed

NAMES = OPTIMIZERS.names()
MULTI_FIDELITY = [name for name in NAMES if OPTIMIZERS.get(name).multi_fidelity]
ROUNDS = 81
FEW = {"bo_gp": 13, "bo_rf": 18}  # asks that show what is to be shown, where each takes its time

TABLE = Space.parse(
    {
        "local.lr": {"from": 1e-5, "to": 1.0, "log": True, "bins": 12},
        "local.weight_decay": [0.0, 0.001, 0.01, 0.1],
        "local.steps": {"from": 1, "to": 4},
        "local.batch_size": [4, 8, 16, 32, 64, 128, 256],
    }
).on_grid()
MIXED = Space.parse(
    {
        "local.lr": {"from": 1e-4, "to": 1.0, "log": True},
        "local.momentum": {"from": 0.0, "to": 0.9},
        "local.steps": {"from": 1, "to": 1000, "log": True},
        "cohort": {"from": 5, "to": 60},
        "algorithm": ["fedavg", "fedprox", "fedadam"],
        "model.hidden": [[32], [32, 32]],
        "local.batch_size": [16, 8, 4],
        "rounds": [50],
    }
)
LINE = Space.parse({"local.lr": {"from": 0.0, "to": 1.0}})
NAMED = Space.parse({"algorithm": ["fedavg", "fedprox", "fedadam", "scaffold"], "model": ["cnn", "mlp"]})
REAL = Space.parse({name: {"from": 0.0, "to": 1.0} for name in ("a", "b", "c")})
SPACES = {"table": TABLE, "mixed": MIXED, "line": LINE, "named": NAMED}


def bowl(space: Space, proposal: Proposal) -> float:
    """Smooth, smallest at 0.62 on every axis, and better with every round."""
    distances = space.places(proposal.configuration) - 0.62
    return float((distances**2).sum()) + 0.3 * (1 - proposal.rounds / ROUNDS)


def search(
    optimizer: Optimizer, value: Callable[[Proposal], float], rounds: int | None = None, asks: int = 10**9
) -> list[tuple[Proposal, float]]:
    """Everything that was evaluated until so many rounds were trained, or so much was asked."""
    history: list[tuple[Proposal, float]] = []
    had: dict[int, int] = {}
    while len(history) < asks and (rounds is None or sum(had.values()) < rounds):
        proposal = optimizer.ask()
        had[proposal.course] = proposal.rounds
        history.append((proposal, value(proposal)))
        optimizer.tell(*history[-1])
    return history


def best_after(name: str | dict[str, Any], space: Space, courses: int, seed: int) -> float:
    optimizer = make_optimizer(name, space, ROUNDS, seed)
    history = search(optimizer, lambda proposal: bowl(space, proposal), rounds=courses * ROUNDS)
    return min(value for proposal, value in history if proposal.rounds == ROUNDS)


def hostile(proposal: Proposal) -> float:
    """Courses that diverge, explode, or are all equally good."""
    return [math.inf, 1e300, -1.0, 0.5, 0.5, 3e8, 0.5][(proposal.course + proposal.rounds) % 7]


# What everybody must do


@pytest.mark.sampled(20)
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("name", NAMES)
def test_proposals_are_inside_the_space_whatever_is_told(name: str, space: Space) -> None:
    optimizer = OPTIMIZERS.get(name)(space, ROUNDS, 3)
    history = search(optimizer, hostile, asks=FEW.get(name, 60))
    courses: dict[int, Proposal] = {}
    for proposal, _ in history:
        assert space.check(proposal.configuration) == proposal.configuration
        assert type(proposal.rounds) is int
        assert 1 <= proposal.rounds <= ROUNDS
        if before := courses.get(proposal.course):
            assert before.configuration == proposal.configuration
            assert before.rounds < proposal.rounds
        courses[proposal.course] = proposal
    assert (min(proposal.rounds for proposal, _ in history) < ROUNDS) == (name in MULTI_FIDELITY)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name: str) -> None:
    asks = FEW.get(name, 50)

    def asked(seed: int) -> list[Proposal]:
        optimizer = make_optimizer(name, MIXED, ROUNDS, seed, 2)
        return [proposal for proposal, _ in search(optimizer, lambda one: bowl(MIXED, one), asks=asks)]

    np.random.seed(1)  # no optimizer may care
    first = asked(1)
    np.random.seed(2)
    assert asked(1) == first
    assert asked(2) != first


@pytest.mark.parametrize("name", NAMES)
def test_only_infinities(name: str) -> None:
    history = search(make_optimizer(name, TABLE, 9, 0), lambda proposal: math.inf, asks=14)
    assert all(proposal.rounds == (1 if name in MULTI_FIDELITY else 9) for proposal, _ in history[:1])
    assert len({proposal.course for proposal, _ in history}) == 14  # what diverged never goes on


@pytest.mark.parametrize("name", NAMES)
def test_no_fewer_rounds_than_all(name: str) -> None:
    history = search(make_optimizer(name, TABLE, 20, 0, 20), lambda proposal: bowl(TABLE, proposal), asks=12)
    assert {proposal.rounds for proposal, _ in history} == {20}


@pytest.mark.parametrize("name", NAMES)
def test_better_than_half_of_all_configurations(name: str) -> None:
    generator = np.random.default_rng(0)
    draws = [bowl(TABLE, Proposal(0, TABLE.sample(generator), ROUNDS)) for _ in range(500)]
    assert best_after(name, TABLE, FEW.get(name, 15), seed=1) < np.median(draws)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "baseline", "space", "courses", "seeds"),
    [
        ("bo_gp", "random", REAL, 18, 3),
        ("bo_rf", "random", REAL, 30, 3),
        ("bo_kde", "random", TABLE, 60, 6),
        ("cma_es", "random", REAL, 40, 5),
        ("tpe_md", "random", REAL, 30, 3),
        ("de", "random", REAL, 120, 5),
        ("bohb", "hyperband", TABLE, 30, 3),
        ("dehb", "hyperband", REAL, 60, 5),
        ("tpe_hb", "hyperband", REAL, 30, 3),
        ("asha", "random", TABLE, 20, 5),
    ],
)
def test_better_than_chance_on_a_smooth_function(
    name: str, baseline: str, space: Space, courses: int, seeds: int
) -> None:
    ours, theirs = (
        np.mean([best_after(one, space, courses, seed) for seed in range(seeds)]) for one in (name, baseline)
    )
    assert ours < theirs


@pytest.mark.parametrize("name", ["bo_gp", "bo_kde", "bo_rf"])
def test_nothing_is_tried_twice_as_long_as_there_is_something_else(name: str) -> None:
    space = Space.parse({"algorithm": ["fedavg", "fedprox", "fedadam"], "local.steps": [1, 2, 3]})
    history = search(make_optimizer(name, space, ROUNDS, 5), lambda proposal: bowl(space, proposal), asks=12)
    assert len({tuple(proposal.configuration.values()) for proposal, _ in history[:9]}) == 9


def test_nothing_is_written_or_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        search(make_optimizer(name, TABLE, ROUNDS, 0), lambda proposal: bowl(TABLE, proposal), asks=12)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


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


# Going on after an interruption


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_replay(name: str) -> None:
    asks = FEW.get(name, 40)

    def value(proposal: Proposal) -> float:
        return math.inf if proposal.course == 3 else bowl(TABLE, proposal)

    whole = make_optimizer(name, TABLE, ROUNDS, 6)
    history = search(whole, value, asks=asks)
    again = make_optimizer(name, TABLE, ROUNDS, 6)
    replay(again, history)
    assert search(again, value, asks=4) == search(whole, value, asks=4)


def test_a_replay_that_does_not_agree_is_refused() -> None:
    history = search(make_optimizer("hyperband", TABLE, 81, 6), lambda proposal: bowl(TABLE, proposal), asks=5)
    with pytest.raises(BadInputError, match=r"proposal 1 was 1 rounds of course 0 \(local.lr=.*seed"):
        replay(make_optimizer("hyperband", TABLE, 81, 7), history)
    with pytest.raises(BadInputError, match="proposal 1 was 1 rounds of course 0"):
        replay(make_optimizer("random", TABLE, 81, 6), history)


# Bad input


class Garbage(Optimizer):
    """Proposes what it is given."""

    answers: tuple[Any, ...] = ()

    def ask(self) -> Any:
        self._asked = getattr(self, "_asked", -1) + 1
        return self.answers[self._asked]

    def tell(self, proposal: Proposal, value: float) -> None:
        self.told = value


GOOD = {"a": 0.5, "b": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([None], "must propose a Proposal, not None"),
        ([GOOD], "must propose a Proposal, not {'a'"),
        ([Proposal(0, {**GOOD, "a": 2.0}, 5)], "the space does not have: a must be from 0 to 1, not 2.0"),
        ([Proposal(0, {"a": 0.1}, 5)], "the space does not have: The configuration lacks b, c"),
        ([Proposal(0, {**GOOD, "d": 1}, 5)], "no hyperparameter 'd'"),
        ([Proposal(0, {**GOOD, "a": math.nan}, 5)], "a must be from 0 to 1, not nan"),
        ([Proposal(0, [0.5], 5)], "a mapping of hyperparameters to values, not"),  # type: ignore[arg-type]
        ([Proposal(0, {**GOOD, "a": np.zeros(3)}, 5)], "a must be a number, not array"),
        ([Proposal(0, GOOD, 0)], "asks for 0 rounds, but only 2 to 81 can be"),
        ([Proposal(0, GOOD, 82)], "asks for 82 rounds"),
        ([Proposal(0, GOOD, 2.5)], "proposes the number of rounds 2.5, no whole number"),  # type: ignore[arg-type]
        ([Proposal(0, GOOD, True)], "proposes the number of rounds True"),
        ([Proposal("one", GOOD, 5)], "proposes the course 'one'"),  # type: ignore[arg-type]
        ([Proposal(-1, GOOD, 5)], "courses are numbered from 0"),
        ([Proposal(0, GOOD, 5), Proposal(0, {**GOOD, "a": 0.1}, 9)], "course 0, but with another configuration"),
        ([Proposal(0, GOOD, 5), Proposal(0, GOOD, 5)], "asks for 5 rounds of course 0, which has had 5 already"),
    ],
)
def test_garbage_is_refused_in_one_sentence(answers: list[Any], sentence: str) -> None:
    optimizer = Garbage(REAL, 81, 0, 2)
    optimizer.answers = tuple(answers)
    checked = Checked(optimizer, "mine")
    for _ in answers[:-1]:
        checked.tell(checked.ask(), 1.0)
    with pytest.raises(BadInputError) as refused:
        checked.ask()
    assert sentence in str(refused.value)
    assert "The optimizer mine" in str(refused.value)


def test_values_that_are_no_numbers_are_infinite() -> None:
    optimizer = Garbage(REAL, 81, 0)
    Checked(optimizer).tell(Proposal(0, GOOD, 5), math.nan)
    assert optimizer.told == math.inf


OWN = """
from fedarena.hpo.optimizers import Optimizer

class Middle(Optimizer):
    def __init__(self, space, max_rounds, seed, min_rounds=1, *, place: float = 0.5):
        super().__init__(space, max_rounds, seed, min_rounds)
        self.place = place

    def ask(self):
        return self.new_course(self.space.at([self.place] * len(self.space)))

    def tell(self, proposal, value):
        pass

class Half(Optimizer):
    def tell(self, proposal, value):
        pass

class Forgetful(Middle):
    def __init__(self, space, max_rounds, seed, min_rounds=1):
        self.place = 0.5
"""


def test_somebodys_own_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_search.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    optimizer = make_optimizer({"name": "own_search:Middle", "place": 0.25}, REAL, 30, 1)
    assert optimizer.ask() == Proposal(0, {"a": 0.25, "b": 0.25, "c": 0.25}, 30)
    with pytest.raises(BadInputError, match="'own_search:Middle' has no option 'spot'"):
        make_optimizer({"name": "own_search:Middle", "spot": 0.25}, REAL, 30, 1)
    with pytest.raises(BadInputError, match="subclass of"):
        make_optimizer("pathlib:Path", REAL, 30, 1)
    with pytest.raises(BadInputError, match="'own_search:Half' must have ask, and does not"):
        make_optimizer("own_search:Half", REAL, 30, 1)
    with pytest.raises(BadInputError, match="own_search:Forgetful does not begin with super"):
        make_optimizer("own_search:Forgetful", REAL, 30, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "hyperband", "eta": 1}, "optimizer.eta must be at least 2, not 1"),
        ({"name": "hyperband", "sizes": "big"}, "sizes"),
        ({"name": "bohb", "random_fraction": 1.5}, "random_fraction must be between 0 and 1"),
        ({"name": "bo_kde", "min_bandwidth": 0.0}, "min_bandwidth must be between"),
        ({"name": "de", "population": 3}, "population must be at least 4"),
        ({"name": "dehb", "crossover": -0.1}, "crossover must be between 0 and 1"),
        ({"name": "bo_rf", "trees": 0}, "trees must be at least 1"),
        ({"name": "bo_gp", "most_points": 1}, "most_points must be at least 2"),
        ({"name": "tpe_md", "eta": 0}, "eta must be at least 2"),
        ({"name": "cma_es", "sigma": 0.0}, "sigma must be between"),
        ({"name": "asha", "skipped_rungs": -1}, "skipped_rungs must be at least 0"),
        ({"name": "hyperbad"}, "did you mean 'hyperband'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make_optimizer(options, REAL, 81, 0)


@pytest.mark.parametrize("rounds", [(0, 5), (6, 5)])
def test_rounds_that_make_no_sense(rounds: tuple[int, int]) -> None:
    with pytest.raises(BadInputError, match=f"not for {rounds[0]} to {rounds[1]}"):
        make_optimizer("random", REAL, rounds[1], 0, rounds[0])


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_seeds_that_make_no_sense(seed: Any) -> None:
    with pytest.raises(BadInputError, match="whole number that is not negative"):
        make_optimizer("random", REAL, 5, seed)


@pytest.mark.parametrize(
    ("name", "package"), [("bo_gp", "optuna"), ("tpe_md", "optuna"), ("tpe_hb", "optuna"), ("cma_es", "cmaes")]
)
def test_packages_of_the_extra_are_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInputError, match=rf"{name} needs the package {package}.*pip install 'fedarena\[hpo\]'"):
        make_optimizer(name, REAL, 81, 0)
    make_optimizer("bohb", REAL, 81, 0)

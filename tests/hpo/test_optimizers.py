"""All optimizers alike: what they ask for, that they find something, go on where they were, and refuse bad input."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_searches import MIXED, REAL, ROUNDS, SPACES, TABLE, bowl, search

from fedarena.core.errors import BadInputError
from fedarena.hpo import Space
from fedarena.hpo.optimizers import OPTIMIZERS, Checked, Optimizer, Proposal, make_optimizer, replay

NAMES = OPTIMIZERS.names()
MULTI_FIDELITY = [name for name in NAMES if OPTIMIZERS.get(name).multi_fidelity]
FEW = {"bo_gp": 13, "bo_rf": 18}  # asks that show what is to be shown, where each takes its time


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

"""Oort against the paper written once more, slowly, client by client; and what it does with what goes wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_candidates import Population, assert_frequencies, make_feedback

from fedarena.simulate.selectors import Feedback, Oort


class PaperOort:
    """Scores and blacklist with dictionaries and loops, in the order of the paper's Algorithm 1."""

    def __init__(self, sizes: list[int], alpha: float, window: int, blacklist_after: int):
        self.sizes = sizes
        self.alpha, self.window, self.blacklist_after = alpha, window, blacklist_after
        self.utility: dict[int, float] = {}
        self.duration: dict[int, float] = {}
        self.last_round: dict[int, int] = {}
        self.picks: dict[int, int] = {}
        self.succeeded: set[int] = set()
        self.utility_of_rounds: list[float] = []
        self.percentile = 30

    def feed(self, round: int, feedback: Feedback) -> None:
        collected = 0.0
        for i, client in enumerate(feedback.clients.tolist()):
            self.last_round[client] = round
            self.picks[client] = self.picks.get(client, 0) + 1
            if not feedback.used[i]:
                self.duration[client] = max(self.duration.get(client, 0.0), feedback.seconds[i])
                continue
            self.succeeded.add(client)
            self.duration[client] = feedback.seconds[i]
            if math.isfinite(feedback.losses[i]):
                trained_on = min(self.sizes[client], feedback.samples[i])
                self.utility[client] = trained_on * math.sqrt(feedback.losses[i] ** 2)
                collected += self.utility[client]
        self.utility_of_rounds.append(collected)
        rounds, window = len(self.utility_of_rounds), self.window
        if rounds >= 2 * window and rounds % window == 0:
            before = sum(self.utility_of_rounds[rounds - 2 * window : rounds - window])
            lately = sum(self.utility_of_rounds[rounds - window : rounds])
            if before > lately:
                self.percentile = min(100, self.percentile + 5)

    def preferred_duration(self) -> float:
        durations = sorted(self.duration[client] for client in self.succeeded)
        if not durations or self.percentile == 100:
            return math.inf
        return durations[min(len(durations) * self.percentile // 100, len(durations) - 1)]

    def score(self, client: int, round: int) -> float:
        score = 0.0
        if client in self.utility:
            ordered = sorted(self.utility.values())
            cap = ordered[min(len(ordered) * 95 // 100, len(ordered) - 1)]
            clipped = [min(value, cap) for value in ordered]
            spread = max(clipped) - min(clipped)
            score = (min(self.utility[client], cap) - min(clipped)) / spread if spread else 1.0
        score += math.sqrt(0.1 * math.log(round) / self.last_round[client])
        preferred = self.preferred_duration()
        if self.duration[client] > preferred:
            score *= (preferred / self.duration[client]) ** self.alpha
        return score

    def blacklist(self) -> set[int]:
        often = [client for client in self.picks if self.picks[client] > self.blacklist_after]
        often.sort(key=lambda client: (-self.picks[client], client))
        return set(often[: int(0.3 * len(self.picks))])


@pytest.mark.parametrize("seed", range(4))
def test_scores_pacer_and_blacklist_are_those_of_the_paper(seed: int) -> None:
    random = np.random.default_rng(seed)
    population = Population(random.integers(1, 200, 60))
    speeds = random.lognormal(3, 1, 60)
    selector = Oort(pacer_window=5, blacklist_after=8)
    population.prepare(selector)
    paper = PaperOort(population.sizes.tolist(), alpha=2.0, window=5, blacklist_after=8)
    reached = set()
    for round in range(1, 81):
        known = sorted(paper.picks)
        np.testing.assert_allclose(
            selector.scores(round), [paper.score(client, round) for client in known], rtol=1e-12, atol=1e-14
        )
        clients = selector.select(10, population.at(round, seed), round)
        blacklisted = paper.blacklist()
        if len(known) >= 40:  # enough others, so nobody on the list is needed
            assert not blacklisted & set(clients.tolist())
        reached |= {("percentile", paper.percentile), ("blacklist", bool(blacklisted))}
        losses = random.exponential(size=10) * 0.97**round  # falling, so that the pacer has something to do
        losses[random.random(10) < 0.1] = 0.0
        losses[random.random(10) < 0.05] = np.nan
        feedback = make_feedback(
            clients,
            losses,
            seconds=speeds[clients] * random.uniform(0.8, 1.2, 10),
            used=random.random(10) < 0.8,
            samples=random.integers(1, 100, 10),
        )
        selector.observe(round, feedback)
        paper.feed(round, feedback)
    assert {("percentile", 30), ("percentile", 40), ("blacklist", False), ("blacklist", True)} <= reached


def explored(clients: int, losses: object, exploit_only: bool = True, **options: float) -> tuple[Population, Oort]:
    """A selector that has seen everybody once, in round 1, each with one sample."""
    population = Population([1] * clients)
    only = {"exploration": 0.0, "exploration_min": 0.0} if exploit_only else {}
    selector = Oort(**only, **options)  # type: ignore[arg-type]
    population.prepare(selector)
    selector.observe(1, make_feedback(range(clients), losses=losses, samples=1))  # type: ignore[arg-type]
    return population, selector


def test_the_best_are_exploited() -> None:
    losses = np.random.default_rng(0).permutation(20) + 1.0
    population, selector = explored(20, losses, cutoff=1.0, clip_percentile=100.0)
    assert selector.select(5, population.at(2), 2).tolist() == np.flatnonzero(losses > 15).tolist()


def test_who_comes_near_to_the_cutoff_may_be_drawn() -> None:
    losses = [1.0, 80.0, 96.0, 100.0, 101.0]
    population, selector = explored(5, losses, clip_percentile=100.0)
    # Two are wanted, so that 95 % of the score of 100 suffices: 96 has more, 80 has less.
    found = {tuple(selector.select(2, population.at(2, seed), 2).tolist()) for seed in range(200)}
    assert found == {(2, 3), (2, 4), (3, 4)}


def test_exploited_are_drawn_in_proportion_to_their_scores() -> None:
    losses = np.array([1.0, 2.0, 3.0, 4.0, 9.0])
    population, selector = explored(5, losses, cutoff=0.0, clip_percentile=100.0, uncertainty=0.0)
    counts = np.zeros(5)
    for seed in range(4000):
        counts[selector.select(1, population.at(2, seed), 2)] += 1
    assert_frequencies(counts, (losses - 1) / (losses - 1).sum())


def test_the_slow_and_the_failed_come_last() -> None:
    population = Population([1] * 6)
    selector = Oort(exploration=0.0, exploration_min=0.0, cutoff=1.0, clip_percentile=100.0)
    population.prepare(selector)
    selector.observe(
        1,
        make_feedback(
            range(6),
            losses=[9.0, 8.0, 7.0, 6.0, 5.0, 4.0],
            seconds=[1000.0, 10.0, 10.0, 10.0, 10.0, 10.0],
            used=[True, True, False, True, True, True],
            samples=1,
        ),
    )
    assert selector.select(3, population.at(2), 2).tolist() == [1, 3, 4]


def test_a_failure_keeps_the_utility_and_may_show_that_the_phone_is_slow() -> None:
    _, selector = explored(3, [4.0, 3.0, 1.0])
    before = selector.scores(3)
    selector.observe(2, make_feedback([0], seconds=0.5, used=False))  # shorter than its last job
    after = selector.scores(3)
    assert after[0] == pytest.approx(1 + math.sqrt(0.1 * math.log(3) / 2))
    np.testing.assert_array_equal(after[1:], before[1:])
    selector.observe(3, make_feedback([0], seconds=10.0, used=False))
    assert selector.scores(4)[0] == pytest.approx((1 + math.sqrt(0.1 * math.log(4) / 3)) / 100)


def test_new_clients_are_a_share_that_shrinks() -> None:
    population = Population([1] * 200)
    selector = Oort()
    population.prepare(selector)
    selector.observe(1, make_feedback(range(100)))
    for round, share in ((2, 0.9 * 0.98), (31, 0.9 * 0.98**30), (500, 0.3)):
        new = [(selector.select(7, population.at(round, seed), round) >= 100).mean() for seed in range(400)]
        # The number is 7 times the share, rounded up or down, so it deviates by less than one half on average.
        assert np.mean(new) == pytest.approx(share, abs=4 * 0.5 / 7 / math.sqrt(400))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("explore_by", "chances"), [("size", [0.1, 0.2, 0.7]), ("uniform", [1 / 3, 1 / 3, 1 / 3])])
def test_how_new_clients_are_drawn(explore_by: str, chances: list[float]) -> None:
    population = Population([1, 2, 7, 100], busy=[])
    selector = Oort(explore_by=explore_by)  # type: ignore[arg-type]
    population.prepare(selector)
    selector.observe(1, make_feedback([3]))
    counts = np.zeros(4)
    for seed in range(4000):
        counts[selector.select(1, population.at(2, seed), 2)] += 1
    # Now and then the one explored client is exploited instead.
    assert 0 < counts[3] < 1000
    assert_frequencies(counts[:3], chances)


def test_the_blacklist_is_used_only_when_nobody_else_is_there() -> None:
    population, selector = explored(10, np.arange(10.0), blacklist_after=2)
    for round in (2, 3):
        selector.observe(round, make_feedback([7, 8, 9], losses=9.0, samples=1))
    assert selector.select(7, population.at(4), 4).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert len(set(selector.select(9, population.at(4), 4).tolist()) & {7, 8, 9}) == 2
    assert selector.select(10, population.at(4), 4).tolist() == list(range(10))


def test_two_jobs_of_a_client_in_one_round_are_two_picks() -> None:
    population, selector = explored(5, [1.0, 2.0, 3.0, 4.0, 5.0], blacklist_after=2)
    selector.observe(2, make_feedback([4, 3, 4], losses=5.0, seconds=[1.0, 1.0, 2.0], samples=1))
    assert selector.select(4, population.at(3), 3).tolist() == [0, 1, 2, 3]
    assert len(selector.scores(3)) == 5


def test_at_most_a_share_is_blacklisted() -> None:
    population, selector = explored(10, 1.0, blacklist_after=1, blacklist_share=0.2)
    selector.observe(2, make_feedback(range(10), samples=1))
    selector.observe(3, make_feedback([4, 6], samples=1))  # the most often invited ones
    assert selector.select(8, population.at(4), 4).tolist() == [0, 1, 2, 3, 5, 7, 8, 9]


def test_the_pacer_relaxes_until_nobody_is_too_slow() -> None:
    population = Population([10] * 4)
    selector = Oort(pacer_window=1, pacer_percentile=50.0, pacer_step=50.0)
    population.prepare(selector)
    penalties = []
    for round in (1, 2):
        selector.observe(round, make_feedback(range(4), losses=1.0 / round, seconds=[1.0, 2.0, 4.0, 40.0]))
        scores = selector.scores(round)
        penalties.append(scores / scores[0])
    np.testing.assert_allclose(penalties, [[1, 1, 1, 0.01], [1, 1, 1, 1]])


@pytest.mark.parametrize("loss", [0.0, np.nan, np.inf, 1e308])
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_rounds_that_bring_nothing(loss: float, used: bool, seconds: float) -> None:
    population = Population([5] * 12, available=range(10))
    selector = Oort()
    population.prepare(selector)
    for round in range(1, 60):
        clients = selector.select(4, population.at(round), round)
        assert len(set(clients.tolist())) == 4
        selector.observe(round, make_feedback(clients, loss, seconds, used))
        assert np.isfinite(selector.scores(round + 1)).all()


def test_one_client_only() -> None:
    population = Population([5])
    selector = Oort()
    population.prepare(selector)
    for round in range(1, 30):
        assert selector.select(3, population.at(round), round).tolist() == [0]
        selector.observe(round, make_feedback([0], losses=2.0))

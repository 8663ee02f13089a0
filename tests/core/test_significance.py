"""Is a difference real? Tests against enumerations and published numbers, and on data whose truth is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedarena.analysis.comparison import (
    MOST_CLIENTS,
    MOST_METHODS,
    MethodScores,
    compare_methods,
    told_best,
)
from fedarena.analysis.paired import (
    FEWEST_FOR_BOOTSTRAP,
    holm,
    mean_interval,
    over_clients,
    over_seeds,
    wilcoxon_p_value,
)
from fedarena.analysis.ranks import cliques, critical_difference, friedman_p_value, mean_ranks

scores = st.floats(-1, 1).map(lambda value: round(value, 3))


def test_the_signed_rank_test_is_that_over_all_signs():
    differences = np.array([0.4, -0.1, 0.25, 0.31, -0.05, 0.6, 0.17])
    ranks = stats.rankdata(np.abs(differences))
    seen = ranks[differences > 0].sum()
    sums = np.array([ranks[np.array(signs)].sum() for signs in itertools.product([True, False], repeat=7)])
    middle = ranks.sum() / 2
    expected = np.mean(np.abs(sums - middle) >= abs(seen - middle))
    found = over_clients(differences)
    assert found.wilcoxon_p_value == pytest.approx(expected)
    assert (found.higher, found.lower) == (5, 2)
    assert found.sign_p_value == pytest.approx(2 * sum([1, 7, 21]) / 2**7)
    assert found.smallest_p_value == 2 / 2**7


@pytest.mark.parametrize("number", [1, 4, 6, 30, 51])
def test_the_signed_rank_test_is_scipys_also_where_differences_are_equal(number):
    random = np.random.default_rng(number)
    differences = random.normal(0.2, 1, number)
    assert wilcoxon_p_value(differences) == pytest.approx(stats.wilcoxon(differences).pvalue)
    if number < 10:
        equal = random.integers(1, 4, number) * random.choice([-1.0, 1.0], number)
        assert wilcoxon_p_value(equal) == pytest.approx(stats.wilcoxon(equal).pvalue)


def test_clients_without_a_difference_decide_nothing():
    some = np.array([0.1, -0.2, 0.3, 0.15, 0.22])
    alone, among = over_clients(some), over_clients(np.concatenate([some, np.zeros(40)]))
    assert among.sign_p_value == alone.sign_p_value
    assert among.wilcoxon_p_value == pytest.approx(alone.wilcoxon_p_value)
    nothing = over_clients(np.zeros(9))
    assert (nothing.wilcoxon_p_value, nothing.sign_p_value, nothing.interval) == (1, 1, (0, 0))


def test_few_seeds_have_students_interval():
    # A table of Student's t says 4.3027 for two degrees of freedom.
    low, high = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == pytest.approx((2 - 4.3027 / np.sqrt(3), 2 + 4.3027 / np.sqrt(3)), abs=1e-4)
    found = over_seeds(np.array([1.0, 2.0, 3.0]))
    assert found.p_value == pytest.approx(0.0742, abs=1e-4)


def test_one_seed_says_nothing_about_others():
    found = over_seeds(np.array([0.3]))
    assert (found.mean, found.interval, found.p_value) == (0.3, None, None)


def test_the_same_difference_twice_is_no_proof():
    assert over_seeds(np.array([0.1, 0.1])).p_value == 0.5
    assert over_seeds(np.array([0.4 - 0.3, 0.1])).p_value == 0.5, "also where rounding makes it another number"
    assert over_seeds(np.array([0.1] * 6)).p_value == 2 / 2**6
    assert over_seeds(np.zeros(3)).p_value == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [3, 5, FEWEST_FOR_BOOTSTRAP, 15, 40])
@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_intervals_hold_the_truth_as_often_as_they_say(number, draw):
    random = np.random.default_rng(number)
    repetitions = 400
    values = random.normal(0.3, 1, (repetitions, number))
    if draw == "skewed":
        values = random.gamma(4.0, 1.0, (repetitions, number)) - 3.7  # mean 0.3
    inside = [low <= 0.3 <= high for low, high in map(mean_interval, values)]
    # Four standard errors of a share of 0.95 among 400, and what a skewed distribution costs.
    assert 0.95 - 0.045 - (0.03 if draw == "skewed" else 0) < np.mean(inside) < 0.995


def test_a_bootstrap_of_many_agrees_with_students():
    values = np.random.default_rng(0).normal(0, 1, 150)
    error = values.std(ddof=1) / np.sqrt(150) * stats.t.isf(0.025, 149)
    assert mean_interval(values) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.03)


def test_holm_is_bonferroni_step_by_step():
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_helps(p_values):
    found = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, found, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(found, dtype=float)[order]) >= 0)
    assert min(found) == pytest.approx(min(1.0, min(p_values) * len(p_values)))


def test_holm_is_rarely_wrong_about_any_of_many_pairs():
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        methods = [MethodScores(str(i), dict(enumerate(random.normal(0, 1, 5))), {}) for i in range(4)]
        wrong += any(pair.differs_over_seeds for pair in compare_methods(methods, True).pairs)
    assert wrong / 200 < 0.05 + 0.045


def test_critical_differences_are_those_of_demsars_table():
    # q of Table 5(a) in Demšar (2006), times the square root of k(k+1)/(6N).
    for methods, q in ((2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)):
        assert critical_difference(methods, 24) == pytest.approx(q * np.sqrt(methods * (methods + 1) / 144), abs=2e-3)


def test_ranks_of_demsars_example():
    # Table 6 of Demšar (2006): AUC of C4.5, with m, with cf, with both, on 14 data sets. In the last row but one he
    # ranks 0.975 before 0.975, which had more digits.
    auc = np.array(
        [
            [0.763, 0.768, 0.771, 0.798],
            [0.599, 0.591, 0.590, 0.569],
            [0.954, 0.971, 0.968, 0.967],
            [0.628, 0.661, 0.654, 0.657],
            [0.882, 0.888, 0.886, 0.898],
            [0.936, 0.931, 0.916, 0.931],
            [0.661, 0.668, 0.609, 0.685],
            [0.583, 0.583, 0.563, 0.625],
            [0.775, 0.838, 0.866, 0.875],
            [1.000, 1.000, 1.000, 1.000],
            [0.940, 0.962, 0.965, 0.962],
            [0.619, 0.666, 0.614, 0.669],
            [0.972, 0.981, 0.9751, 0.975],
            [0.957, 0.978, 0.946, 0.970],
        ]
    )
    assert mean_ranks(auc, True) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=1e-3)
    assert friedman_p_value(auc) < 0.05
    assert critical_difference(4, 14, 0.1) == pytest.approx(1.12, abs=0.01)
    assert mean_ranks(-auc, False) == pytest.approx(mean_ranks(auc, True))


def test_nobody_prefers_anything():
    assert friedman_p_value(np.full((9, 4), 0.3)) == 1


def test_cliques_are_the_longest_rows_of_neighbours():
    apart = {frozenset(pair) for pair in ("ac", "ad", "ae", "be", "ce")}
    assert cliques("abcde", lambda one, other: frozenset((one, other)) in apart) == (
        ("a", "b"),
        ("b", "c", "d"),
        ("d", "e"),
    )
    assert cliques("ab", lambda one, other: True) == ()
    assert cliques("abc", lambda one, other: False) == (("a", "b", "c"),)


def method(label, by_seed, by_client=None):
    return MethodScores(label, dict(enumerate(by_seed)), by_client or {})


@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_exchanging_methods_changes_the_sign_alone(values):
    differences = np.array([one - other for one, other in values])
    for found, turned in ((f(differences), f(-differences)) for f in (over_seeds, over_clients)):
        assert turned.mean == -found.mean
        if found.interval is None:
            assert turned.interval is None
        else:
            assert turned.interval == pytest.approx((-found.interval[1], -found.interval[0]), abs=1e-12)
    assert over_seeds(-differences).p_value == over_seeds(differences).p_value
    assert over_clients(-differences).wilcoxon_p_value == over_clients(differences).wilcoxon_p_value
    assert over_clients(-differences).sign_p_value == over_clients(differences).sign_p_value


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_names_and_orders_change_nothing(data):
    seeds, clients = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 12))
    values = np.array(data.draw(st.lists(scores, min_size=3 * seeds * clients, max_size=3 * seeds * clients)))
    values = values.reshape(3, seeds, clients)

    def methods(seed_names, client_names, order):
        return [
            MethodScores(
                "abc"[place],
                {name: float(values[place, seed].mean()) for seed, name in enumerate(seed_names)},
                {
                    name: dict(zip(client_names, values[place, seed].tolist(), strict=True))
                    for seed, name in enumerate(seed_names)
                },
            )
            for place in order
        ]

    plain = compare_methods(methods(range(seeds), [f"{i:02}" for i in range(clients)], (0, 1, 2)), True)
    seed_names = data.draw(st.permutations([10 * seed + 7 for seed in range(seeds)]))
    client_names = data.draw(st.permutations([f"client {i}" for i in range(clients)]))
    renamed = compare_methods(methods(seed_names, client_names, data.draw(st.permutations((0, 1, 2)))), True)
    assert renamed.labels == plain.labels
    for one, other in zip(plain.pairs, renamed.pairs, strict=True):
        assert (one.first, one.second) == (other.first, other.second)
        assert one.seeds.mean == pytest.approx(other.seeds.mean, abs=1e-12)
        assert one.clients.median == pytest.approx(other.clients.median, abs=1e-12)
        assert one.p_sign == pytest.approx(other.p_sign)
        assert one.p_wilcoxon == pytest.approx(other.p_wilcoxon)
        if seeds > 1:
            assert one.seeds.interval == pytest.approx(other.seeds.interval, abs=1e-9)


def test_pairs_are_made_of_what_both_have():
    one = MethodScores("one", {0: 0.5, 1: 0.6, 2: 0.9}, {0: {"a": 0.5, "b": 0.4}, 1: {"a": 0.7, "c": 0.1}})
    other = MethodScores("other", {1: 0.5, 2: 0.7, 3: 0.1}, {1: {"a": 0.4, "b": 0.4, "c": 0.3}})
    (pair,) = compare_methods([other, one], True).pairs
    assert (pair.first, pair.second) == ("one", "other")
    assert (pair.seeds.seeds, pair.seeds.mean) == (2, pytest.approx(0.15))
    assert pair.clients.clients == 2  # with seed 1, a and c
    assert pair.clients.mean == pytest.approx((0.3 - 0.2) / 2)
    (strangers,) = compare_methods([method("x", [0.1]), MethodScores("y", {5: 0.3}, {})], True).pairs
    assert (strangers.seeds, strangers.clients, strangers.p_seeds) == (None, None, None)


def test_the_best_is_the_lowest_where_less_is_better():
    found = compare_methods([method("a", [3, 3.1]), method("b", [1, 1.2])], higher_is_better=False)
    assert found.labels == ("b", "a")
    assert found.pairs[0].seeds.mean == pytest.approx(-1.95)


def test_winners_beat_somebody_and_are_beaten_by_nobody():
    noise = np.array([0.0, 0.01, -0.01, 0.005])
    runs = {"good": 0.8 + noise, "as good": 0.799 - noise, "bad": 0.5 + noise[::-1]}
    by_seed = {label: dict(enumerate(values.tolist())) for label, values in runs.items()}
    assert told_best(by_seed, True) == {"good", "as good"}
    assert told_best(by_seed, False) == {"bad"}
    alike = {label: by_seed[label] for label in ("good", "as good")}
    assert told_best(alike, True) == frozenset(), "the best mean is no winner"
    one_seed = {label: {0: values[0]} for label, values in by_seed.items()}
    assert told_best(one_seed, True) == frozenset()
    assert told_best({"alone": {0: 1.0, 1: 1.0}}, True) == frozenset()
    # Worse on average, but so unsteady that no test tells it from the others: that makes it no winner.
    unsteady = {"unsteady": {0: 0.9, 1: 0.1, 2: 0.5, 3: 0.2}, **by_seed}
    assert told_best(unsteady, True) <= {"good", "as good"}


def test_three_methods_on_many_clients_are_ranked():
    random = np.random.default_rng(3)
    base = random.normal(0, 1, 60)
    by_client = {
        label: {0: {f"c{i}": float(value) for i, value in enumerate(base + gain + random.normal(0, 0.2, 60))}}
        for label, gain in (("a", 0.0), ("b", 0.01), ("c", 1.0))
    }
    found = compare_methods(
        [MethodScores(name, {0: 0.1 * i}, c) for i, (name, c) in enumerate(by_client.items())], True
    )
    assert found.ranking.labels[0] == "c"
    assert found.ranking.mean_ranks[0] == pytest.approx(1, abs=0.1)
    assert sum(found.ranking.mean_ranks) == pytest.approx(6)
    assert [set(clique) for clique in found.ranking.cliques] == [{"a", "b"}]
    assert found.ranking.friedman_p_value < 1e-6
    assert all(not pair.differs_over_seeds for pair in found.pairs), "one seed"


def test_equal_means_over_seeds_share_their_ranks_in_whichever_order_they_add_up():
    orders = {"a": (0.1, 0.2, 0.3), "b": (0.3, 0.2, 0.1), "c": (0.3, 0.1, 0.2)}
    methods = [
        MethodScores(label, {0: 0.2}, {seed: {f"c{i}": value for i in range(8)} for seed, value in enumerate(values)})
        for label, values in orders.items()
    ]
    ranking = compare_methods(methods, True).ranking
    assert ranking.mean_ranks == (2.0, 2.0, 2.0)
    assert ranking.friedman_p_value == 1.0


def test_a_client_with_an_enormous_score_makes_no_others_equal():
    shifts = {"a": 0.0, "b": 0.1, "c": 0.2}
    methods = [
        MethodScores(label, {0: 0.2}, {0: {"diverged": 1e14 * (1 + shift), **{f"c{i}": i + shift for i in range(9)}}})
        for label, shift in shifts.items()
    ]
    found = compare_methods(methods, False)
    assert found.ranking.mean_ranks == (1.0, 2.0, 3.0)
    for pair in found.pairs:
        assert (pair.clients.higher, pair.clients.lower) == (0, 10)
        assert pair.clients.wilcoxon_p_value == pytest.approx(2 / 2**10)
    tied = found.pair("a", "b").clients.median, found.pair("b", "c").clients.median
    assert tied == (-0.1, -0.1)


def test_very_many_methods_are_compared_with_the_best_and_very_many_clients_in_part():
    many = [method(f"m{i}", [float(i), float(i)]) for i in range(MOST_METHODS + 1)]
    found = compare_methods(many, True)
    assert len(found.pairs) == MOST_METHODS
    assert {pair.first for pair in found.pairs} == {f"m{MOST_METHODS}"}
    crowd = {0: {f"{i}": float(i % 2) for i in range(2 * MOST_CLIENTS)}}
    large = compare_methods([method("a", [1.0], crowd), method("b", [0.0], crowd)], True)
    assert large.clients == MOST_CLIENTS
    assert not large.looked_at_all_clients

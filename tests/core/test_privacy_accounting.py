"""What training costs in privacy, beside published values and plain integrals, and solving for what is not given."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fedarena.core.errors import BadInputError
from fedarena.privacy import Sampled, plan_privacy
from fedarena.privacy import accounting as accounting_module
from fedarena.privacy.accounting import Ledger, usual_delta
from fedarena.privacy.loss_distribution import LossOfOneStep

POISSON, UNIFORM, SHUFFLED = "poisson", "uniform", "shuffled"


def by_moments(sampled: Sampled, steps: int, delta: float) -> float:
    """ε by the conversion of the moments accountant, as papers and tutorials of that time have it."""
    orders = sampled._orders
    return float((steps * sampled._rdp - math.log(delta) / (orders - 1)).min())


@pytest.mark.parametrize(
    ("sampled", "steps", "published"),
    [
        # TensorFlow Privacy's tutorial and table of results: 60,000 digits, batches of 256, 60, 15, 60 and 45 epochs.
        (Sampled(60_000, 256, 1.12), 60 * 60_000 // 256, 2.92),
        (Sampled(60_000, 256, 1.3), 15 * 60_000 // 256, 1.19),
        (Sampled(60_000, 256, 1.1), 60 * 60_000 // 256, 3.01),
        (Sampled(60_000, 256, 0.7), 45 * 60_000 // 256, 7.10),
        # Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, section 3.2.
        (Sampled(10_000, 100, 4.0), 10_000, 1.26),
    ],
)
def test_published_values(sampled, steps, published) -> None:
    assert by_moments(sampled, steps, 1e-5) == pytest.approx(published, abs=0.01)
    # Better conversions, and a tight bound, can only say less.
    tight = Sampled(sampled.population, sampled.cohort, sampled.noise_multiplier, POISSON, "pld")
    assert tight.epsilon(steps, 1e-5) < sampled.epsilon(steps, 1e-5) < published


def test_divergences_are_those_of_a_plain_integral() -> None:
    rate, noise = 0.05, 1.3
    sampled = Sampled(1000, 50, noise)
    for order in (1.5, 2.0, 5.0, 12.0):

        def integrand(x: float, order=order) -> float:
            ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
            return norm.pdf(x, 0, noise) * ratio**order

        found = math.log(quad(integrand, -15, 30, limit=400)[0]) / (order - 1)
        place = int(np.flatnonzero(sampled._orders == order)[0])
        if float(order).is_integer():
            assert sampled._rdp[place] == pytest.approx(found, rel=1e-6)
        else:  # where the library has an upper bound
            assert found <= sampled._rdp[place] <= 1.2 * found


def exact_delta(epsilon: float, rate: float, noise: float, sensitivity: float = 1.0) -> float:
    """Of one step: the larger of both directions, integrated."""

    def with_client(x: float) -> float:
        return (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, sensitivity, noise)

    def without(x: float) -> float:
        return float(norm.pdf(x, 0, noise))

    def above(one, other) -> float:
        return quad(lambda x: max(0.0, one(x) - math.exp(epsilon) * other(x)), -15, 20, limit=1000)[0]

    return max(above(with_client, without), above(without, with_client))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rate", "noise", "delta"), [(0.1, 0.9, 1e-3), (0.02, 0.7, 1e-4)])
def test_one_step_by_the_privacy_loss_is_what_an_integral_gives(rate, noise, delta) -> None:
    exact = brentq(lambda epsilon: exact_delta(epsilon, rate, noise) - delta, 1e-4, 8)
    tight = Sampled(1000, round(1000 * rate), noise, POISSON, "pld").epsilon(1, delta)
    assert exact - 1e-4 <= tight <= exact + 2e-3
    assert Sampled(1000, round(1000 * rate), noise).epsilon(1, delta) >= exact


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_passes_over_shuffled_clients_cost_what_as_many_steps_with_everybody_do(accountant) -> None:
    noise, delta = 3.0, 1e-5
    for rounds, passes in ((1, 1), (10, 1), (11, 2), (20, 2), (21, 3)):
        deviation = noise / math.sqrt(passes)

        def delta_of(epsilon: float, deviation=deviation) -> float:  # Balle, Wang, 2018: exact
            return norm.cdf(0.5 / deviation - epsilon * deviation) - math.exp(epsilon) * norm.cdf(
                -0.5 / deviation - epsilon * deviation
            )

        exact = brentq(lambda epsilon: delta_of(epsilon) - delta, 1e-3, 20)
        found = Sampled(1000, 100, noise, SHUFFLED, accountant).epsilon(rounds, delta)
        if accountant == "pld":
            assert exact - 1e-6 <= found <= exact + 2e-3
        else:
            assert exact <= found <= 1.12 * exact


def test_a_cohort_of_a_fixed_size_costs_at_least_what_replacing_one_client_does() -> None:
    rate, noise, delta = 0.1, 2.0, 1e-3
    found = Sampled(1000, 100, noise, UNIFORM).epsilon(1, delta)
    # In one of the ways to replace a client the sum moves by two clipping norms if the client was drawn.
    assert exact_delta(found, rate, noise, sensitivity=2.0) <= delta
    assert found > Sampled(1000, 100, noise, POISSON).epsilon(1, delta)
    everybody = Sampled(50, 50, noise, UNIFORM).epsilon(4, delta)
    assert everybody == pytest.approx(Sampled(50, 50, noise / 2, POISSON).epsilon(4, delta), rel=0.05)


def test_epsilon_grows_with_rounds_and_is_none_at_first() -> None:
    for sampled in (Sampled(500, 20, 1.0), Sampled(500, 20, 2.0, UNIFORM), Sampled(500, 20, 2.0, SHUFFLED)):
        ledger = Ledger(sampled, 1e-4)
        spent = [ledger.epsilon(steps) for steps in range(30)]
        assert spent[0] == 0
        assert (np.diff(spent) >= 0).all()
        assert spent[1] > 0


def test_the_fast_conversion_is_that_of_the_library() -> None:
    library = accounting_module.accounting().rdp.rdp_privacy_accountant
    sampled = Sampled(3000, 60, 0.8)
    for steps in (1, 7, 100, 10_000):
        for delta in (1e-2, 1e-6):
            expected, _ = library.compute_epsilon(sampled._orders, steps * sampled._rdp, delta)
            assert sampled.epsilon(steps, delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampled", [Sampled(10**6, 1000, 0.6, POISSON, "pld"), Sampled(1000, 50, 1.1, POISSON, "pld")])
@pytest.mark.parametrize(("delta", "tolerance"), [(1e-6, 1e-6), (1e-3, 1e-8), (0.3, 1e-8)])
def test_the_composition_is_that_of_the_library(sampled, delta, tolerance) -> None:
    for steps in (1, 2, 37, 1500):
        expected = sampled._composed(steps).get_epsilon_for_delta(delta)
        assert sampled.epsilon(steps, delta) == pytest.approx(expected, rel=tolerance, abs=1e-12)
    assert sampled.epsilon(0, delta) == 0
    assert sampled.epsilon(1, 1e-16) == math.inf


@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-12, 1e-13])
def test_epsilon_is_enough_for_the_smallest_deltas(delta) -> None:
    # Products of probabilities, without transforms: every term is exact to 16 digits, however small it is.
    tail = 10.0 ** -np.arange(3, 8)
    of_one = np.concatenate([tail[::-1], [1 - 2 * tail.sum()], tail])
    loss, grid = LossOfOneStep(of_one, -len(tail), 0.05, 0.0), 0.05
    of_many, doublings = of_one, 11
    for _ in range(doublings):
        of_many = np.convolve(of_many, of_many)
    losses = (np.arange(len(of_many)) - len(of_many) // 2) * grid
    found = loss.epsilon(2**doublings, delta)
    exact = float((of_many * np.clip(-np.expm1(found - losses), 0, None)).sum())
    assert 0.9 * delta < exact <= delta


def test_noise_that_was_found_is_enough_where_numbers_are_rounded_otherwise() -> None:
    for epsilon in (0.5, 2.0, 8.0):
        plan = plan_privacy(epsilon=epsilon, population=1000, cohort=50, rounds=20)
        assert 0.9999 * epsilon < plan.epsilon <= epsilon * (1 - 1e-9)


def test_what_is_computed_ahead_is_the_same_in_whichever_order_it_is_asked_for(monkeypatch) -> None:
    sampled = Sampled(1000, 50, 1.1, POISSON, "pld")
    threads = set()
    computed = Ledger._computed
    monkeypatch.setattr(Ledger, "_computed", lambda *given: threads.add(threading.get_ident()) or computed(*given))
    ledger = Ledger(sampled, 1e-5)
    for steps in (0, 1, 2, 3, 7, 8, 2, 5, 6):
        assert ledger.epsilon(steps) == sampled.epsilon(steps, 1e-5)
    assert len(threads) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sampling", [POISSON, UNIFORM, SHUFFLED])
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.7, 40), (6.0, 300)])
def test_the_noise_that_is_found_spends_what_was_asked_for(sampling, epsilon, rounds) -> None:
    plan = plan_privacy(epsilon=epsilon, population=5000, cohort=50, rounds=rounds, sampling=sampling)
    assert plan.delta == usual_delta(5000) == pytest.approx(5000**-1.1)
    again = Sampled(5000, 50, plan.noise_multiplier, sampling).epsilon(rounds, plan.delta)
    assert epsilon * (1 - 1e-3) <= again <= epsilon


@pytest.mark.slow
def test_the_tighter_bound_needs_less_noise() -> None:
    given = {"epsilon": 3.0, "population": 2000, "cohort": 50, "rounds": 80, "delta": 1e-5}
    loose, tight = (plan_privacy(**given, accountant=accountant) for accountant in ("rdp", "pld"))
    assert tight.noise_multiplier < loose.noise_multiplier
    assert tight.epsilon == pytest.approx(3.0, rel=1e-3)
    assert tight.epsilon <= 3.0


@pytest.mark.slow
def test_every_other_number_is_found_from_the_rest() -> None:
    known = {"epsilon": 2.0, "delta": 1e-5, "noise_multiplier": 1.0, "cohort": 40, "population": 6000, "rounds": 250}

    def spent(**other) -> float:
        plan = {**known, **other}
        return Sampled(plan["population"], plan["cohort"], plan["noise_multiplier"]).epsilon(
            plan["rounds"], plan["delta"]
        )

    def solved(name: str):
        plan = plan_privacy(**{key: value for key, value in known.items() if key != name})
        assert plan.solved == name
        return getattr(plan, name)

    assert solved("epsilon") == spent()
    rounds = solved("rounds")
    assert spent(rounds=rounds) <= 2.0 < spent(rounds=rounds + 1)
    cohort = solved("cohort")
    assert spent(cohort=cohort) <= 2.0 < spent(cohort=cohort + 1)
    population = solved("population")
    assert spent(population=population) <= 2.0 < spent(population=population - 1)
    delta = solved("delta")
    assert spent(delta=delta) == pytest.approx(2.0, rel=1e-6)
    curve = plan_privacy(**{**known, "epsilon": None}).epsilon_over_rounds(5)
    assert [round for round, _ in curve] == [1, 63, 126, 188, 250]
    assert curve[-1][1] == spent()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epsilon": 0.0, "population": 100, "cohort": 10, "rounds": 5}, "epsilon must be above 0"),
        ({"epsilon": -2.0, "population": 100, "cohort": 10, "rounds": 5}, "epsilon must be above 0"),
        (
            {"epsilon": 1.0, "delta": 1.0, "population": 100, "cohort": 10, "rounds": 5},
            "delta must be above 0 and below",
        ),
        ({"epsilon": 1.0, "population": 100, "cohort": 101, "rounds": 5}, "from 1 to the population of 100, not 101"),
        ({"epsilon": 1.0, "population": 100, "cohort": 10, "rounds": 0}, "rounds must be from 1"),
        ({"noise_multiplier": 0.0, "population": 100, "cohort": 10, "rounds": 5}, "noise_multiplier must be from"),
        ({"epsilon": 1e-3, "noise_multiplier": 1.0, "population": 100, "cohort": 10}, "One round alone spends"),
        ({"epsilon": 1e-3, "noise_multiplier": 0.3, "population": 100, "rounds": 9}, "Even cohorts of 1 spend"),
        ({"epsilon": 1.0, "population": 100}, "Give all but one of"),
        ({"epsilon": 1.0, "population": 100, "cohort": 10, "rounds": 5, "noise_multiplier": 1, "delta": 0.1}, "none"),
        (
            {"epsilon": 1.0, "population": 100, "cohort": 10, "rounds": 5, "sampling": UNIFORM, "accountant": "pld"},
            "no bound by the privacy loss distribution for cohorts of a fixed size",
        ),
    ],
)
def test_what_cannot_be_solved_gets_a_sentence(given, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        plan_privacy(**given)


def test_the_extra_is_named_where_it_is_missing(monkeypatch) -> None:
    import sys

    accounting_module.accounting.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    try:
        with pytest.raises(BadInputError, match=r"pip install 'fedarena\[privacy\]'"):
            Sampled(100, 10, 1.0).epsilon(1, 1e-5)
    finally:
        accounting_module.accounting.cache_clear()


def test_divergences_of_the_same_steps_are_computed_once() -> None:
    first, again = (Sampled(100, 10, 1.25, accountant=accountant) for accountant in ("rdp", "pld"))
    assert first._rdp is again._rdp
    assert first._rdp is not Sampled(100, 10, 1.25, "uniform")._rdp
    with pytest.raises(ValueError, match="read-only"):
        first._rdp[0] = 0.0

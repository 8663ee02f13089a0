"""Attacks at the update beside plain NumPy on both engines; what they see, where they begin, and what they break."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
import torch
from attacked_clients import attacked_simulation, corrupted_of, federated, play
from logistic_clients import COHORT, ENGINES, SEED, cohorts, flat, phones_of_different_speeds

from fedarena.algorithms import Ditto, FedAvg, FetchSGD, QFedAvg, Scaffold
from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Asynchronous, Buffered, Synchronous
from fedarena.train import CohortEngine, Job, JobArrays, ReferenceEngine, Work
from fedarena.transforms import Attack, Clip, Rows, TopK, UpdatePath
from fedarena.transforms.aggregators import Mixing
from fedarena.transforms.attacks.a_little_is_enough import ALittleIsEnough, largest_z
from fedarena.transforms.attacks.base import AttackedRun
from fedarena.transforms.attacks.free_rider import FreeRider
from fedarena.transforms.attacks.gaussian import Gaussian
from fedarena.transforms.attacks.inner_product import InnerProduct
from fedarena.transforms.attacks.min_max import MinMax
from fedarena.transforms.attacks.min_sum import MinSum
from fedarena.transforms.attacks.model_replacement import ModelReplacement
from fedarena.transforms.attacks.scaling import replacing_scale
from fedarena.transforms.attacks.sign_flip import SignFlip
from fedarena.transforms.forging import forged

SHARE = 0.45  # three of seven


def check(make_federation, engine_kind, attack, lie) -> None:
    """The run ends where its NumPy version does, and both are somewhere else than without the attack."""
    first, *_, last = play(make_federation, engine_kind, attack)
    start = flat(first.snapshot.state["params"])
    expected = federated(start, attack, lie)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), expected, atol=1e-9)
    assert not np.allclose(expected, federated(start, attack))


def check_rows(attack, lie) -> None:
    """The same for updates of one step that are drawn."""
    for corrupted in (1, 3, 8):
        updates = np.random.default_rng(corrupted).normal(size=(8, 18)) + 0.3
        bad = np.arange(8) < corrupted
        attack.run = AttackedRun(None, None, 80, 10 * corrupted, 8, 0)  # type: ignore[arg-type]
        sent = forged(attack, rows_of(updates, bad), [], []).update["params"]["w"].numpy()
        np.testing.assert_allclose(sent[~bad], updates[~bad])
        expected = lie(updates, bad)
        np.testing.assert_allclose(sent[bad], np.broadcast_to(expected, sent[bad].shape), atol=1e-9)


def known(updates, bad, sees):
    """The honest updates that corrupted clients know."""
    return updates[~bad] if sees == "all" and not bad.all() else updates[bad]


def test_there_are_rounds_with_several_and_with_no_corrupted_clients() -> None:
    numbers = [np.isin(cohort, corrupted_of(SignFlip(share=SHARE))).sum() for _, cohort in cohorts()]
    assert len(corrupted_of(SignFlip(share=SHARE))) == 3
    assert max(numbers) >= 2
    assert min(numbers) < COHORT


@ENGINES
def test_sign_flip(make_federation, engine_kind) -> None:
    attack = SignFlip(share=SHARE, scale=2.5, from_round=3)
    check(make_federation, engine_kind, attack, lambda updates, bad, *_: -2.5 * updates[bad])


def keyed_normal(round: int, client: int, purpose: str, count: int) -> np.ndarray:
    """Box and Muller with splitmix64, in NumPy."""
    increment, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def scramble(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def derived(key: int, number: int) -> int:
        return scramble((key + number * increment) & mask)

    def uniform(key: int) -> np.ndarray:
        return np.array([scramble((key + place * increment) & mask) >> 11 for place in range(count)]) * 2.0**-53

    key = derived(int(streams.bits(SEED, "attack", round, client)), streams.purpose_bits(purpose))
    return np.sqrt(-2 * np.log1p(-uniform(derived(key, 1)))) * np.cos(2 * np.pi * uniform(derived(key, 2)))


@ENGINES
@pytest.mark.parametrize("add", [True, False])
def test_gaussian(make_federation, engine_kind, add) -> None:
    def lie(updates, bad, round, cohort, w):
        each = [
            np.concatenate([keyed_normal(round, c, f"params/1.{name}", n) for name, n in (("weight", 15), ("bias", 3))])
            for c in np.array(cohort)[bad].tolist()
        ]
        return 0.3 * np.array(each) + (updates[bad] if add else 0)

    check(make_federation, engine_kind, Gaussian(share=SHARE, std=0.3, add=add), lie)


def test_gaussian_noise_is_normal() -> None:
    rows = rows_of(np.zeros((4, 20_000)), corrupted=[True] * 4)
    noise = Gaussian(std=2.0).forge(rows, rows)["params"]["w"].numpy() / 2.0
    expected = NormalDist()
    for row in noise:
        ordered = np.sort(row)
        steps = np.arange(1, len(row) + 1) / len(row)
        distance = np.abs(np.array([expected.cdf(x) for x in ordered]) - steps).max()
        assert distance < 1.95 / np.sqrt(len(row))  # Kolmogorov and Smirnov: 1 in 1,000
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.05


@ENGINES
@pytest.mark.parametrize("scale", [None, 7.0])
def test_model_replacement(make_federation, engine_kind, scale) -> None:
    factor = scale or COHORT / max(1, COHORT * 3 / 7)
    check(
        make_federation,
        engine_kind,
        ModelReplacement(share=SHARE, scale=scale),
        lambda updates, bad, *_: factor * updates[bad],
    )


@pytest.mark.parametrize("sees", ["corrupted", "all"])
@pytest.mark.parametrize("z", [None, 1.3])
def test_a_little_is_enough(sees, z) -> None:
    def lie(updates, bad, *_):
        others = known(updates, bad, sees)
        n, m = len(updates), bad.sum()
        s = n // 2 + 1 - m
        safe = max(0.0, NormalDist().inv_cdf((n - m - s) / (n - m))) if 0 < s < n - m else 0.0
        return others.mean(0) - (safe if z is None else z) * others.std(0)

    check_rows(ALittleIsEnough(share=SHARE, sees=sees, z=z), lie)


@ENGINES
def test_a_little_is_enough_in_a_run(make_federation, engine_kind) -> None:
    def lie(updates, bad, *_):
        return updates[bad].mean(0) - 1.3 * updates[bad].std(0)

    check(make_federation, engine_kind, ALittleIsEnough(share=SHARE, z=1.3), lie)


def test_how_many_deviations_are_enough() -> None:
    assert largest_z(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))  # the paper's example: s = 2
    assert largest_z(10, 1) == 0  # one alone has no room
    assert largest_z(4, 4) == largest_z(1, 1) == largest_z(2, 1) == 0
    assert largest_z(10, 8) == pytest.approx(NormalDist().inv_cdf(1 / 2), abs=1e-12)
    assert all(largest_z(100, m) >= largest_z(100, m - 1) for m in range(2, 50))


@ENGINES
def test_inner_product(make_federation, engine_kind) -> None:
    def lie(updates, bad, *_, sees="all"):
        return -1.7 * known(updates, bad, sees).mean(0)

    check(make_federation, engine_kind, InnerProduct(share=SHARE, epsilon=1.7), lie)
    check_rows(InnerProduct(sees="corrupted", epsilon=1.7), partial(lie, sees="corrupted"))


def halving(fits, step: float = 50.0) -> float:
    """The largest γ that fits, found as the paper does."""
    gamma, good = step, 0.0
    for _ in range(200):
        step /= 2
        if fits(gamma):
            good, gamma = gamma, gamma + step
        else:
            gamma -= step
    return good


def direction_of(others: np.ndarray, kind: str) -> np.ndarray:
    mean = others.mean(0)
    return {"unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean), "std": -others.std(0)}[kind]


def farthest(updates, bad, *_, kind, direction, sees="all"):
    """What the paper's search comes to."""
    others = known(updates, bad, sees)
    squares = ((others[:, None] - others[None]) ** 2).sum(-1)
    p = direction_of(others, direction)

    def fits(gamma: float) -> bool:
        from_others = ((others.mean(0) + gamma * p - others) ** 2).sum(-1)
        if kind is MinMax:
            return bool(from_others.max() <= squares.max())
        return bool(from_others.sum() <= squares.sum(1).max())

    return others.mean(0) + (halving(fits) if (p**2).sum() and squares.any() else 0) * p


@pytest.mark.parametrize("sees", ["corrupted", "all"])
@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@pytest.mark.parametrize("kind", [MinMax, MinSum])
def test_farthest_updates_that_distances_allow(kind, direction, sees) -> None:
    check_rows(kind(direction=direction, sees=sees), partial(farthest, kind=kind, direction=direction, sees=sees))


@ENGINES
@pytest.mark.parametrize("kind", [MinMax, MinSum])
def test_farthest_updates_in_a_run(make_federation, engine_kind, kind) -> None:
    check(make_federation, engine_kind, kind(share=SHARE), partial(farthest, kind=kind, direction="std"))


def test_farthest_updates_when_all_are_equal_or_alone() -> None:
    for values in (np.ones((3, 5)), np.ones((1, 5)), np.zeros((4, 5))):
        rows = rows_of(values, corrupted=[True] * len(values))
        for attack in (MinMax(), MinSum(), MinMax(direction="unit"), MinSum(direction="sign")):
            sent = attack.forge(rows, rows)["params"]["w"].numpy()
            np.testing.assert_allclose(sent, values, atol=1e-7)


@ENGINES
def test_free_riders_who_send_nothing_or_noise(make_federation, engine_kind) -> None:
    check(
        make_federation,
        engine_kind,
        FreeRider(share=SHARE, sends="zero"),
        lambda updates, bad, *_: np.zeros_like(updates[bad]),
    )
    _, *rounds = play(make_federation, engine_kind, FreeRider(share=0.9, sends="noise", std=1e-9))
    moved = [flat(outcome.snapshot.state["params"]) for outcome in rounds]
    alone = [r for r, outcome in enumerate(rounds) if outcome.row["corrupted"] == COHORT and r]
    assert alone
    for r in alone:
        assert 0 < np.abs(moved[r] - moved[r - 1]).max() < 1e-7


@ENGINES
def test_free_riders_who_send_what_changed_since_the_last_time(make_federation, engine_kind) -> None:
    attack, seen, again = FreeRider(share=SHARE, sends="previous"), {}, []

    def lie(updates, bad, round, cohort, w):
        sent = []
        for client in np.array(cohort)[bad].tolist():
            before, at = seen.get(client, (w, round - 1))
            again.extend([client] if client in seen else [])
            sent.append((w - before) / (round - at))
            seen[client] = (w, round)
        return np.array(sent)

    check(make_federation, engine_kind, attack, lie)
    assert again


def test_what_free_riders_keep_is_beside_what_the_algorithm_keeps(make_federation) -> None:
    attack = FreeRider(share=SHARE, sends="previous")
    states = play(make_federation, CohortEngine, attack, Ditto())[-1].snapshot.client_states
    honest = {client: set(state) for client, state in states.items() if client not in corrupted_of(attack)}
    assert honest
    (of_ditto,) = {frozenset(groups) for groups in honest.values()}
    for client in set(states) - set(honest):
        assert set(states[client]) == {*of_ditto, "transform:attack:params", "transform:attack:steps"}


# --- together with everything else ------------------------------------------------------------------------------------


def rows_of(values, corrupted, change_groups=("params",), **groups) -> Rows:
    clients = len(values)
    jobs = JobArrays.of([Job(c, 1, corrupted=bool(corrupted[c])) for c in range(clients)])
    ones = np.ones(clients)
    update = {"params": {"w": torch.as_tensor(values)}, **groups}
    return Rows(update, jobs, Work(ones, ones, ones), ones, change_groups, stream="attack")


EVERY_ATTACK = [
    lambda: SignFlip(share=SHARE, groups="all"),
    lambda: Gaussian(share=SHARE, std=0.1),
    lambda: ModelReplacement(share=SHARE),
    lambda: ALittleIsEnough(share=SHARE, z=1.0),
    lambda: InnerProduct(share=SHARE),
    lambda: MinMax(share=SHARE),
    lambda: MinSum(share=SHARE, sees="corrupted", groups="all"),
    lambda: FreeRider(share=SHARE, sends="previous"),
]


COMBINATIONS = {
    "scaffold, synchronous": (Scaffold, lambda: {"protocol": Synchronous(over_commit=1.5)}),
    "ditto, buffered": (Ditto, lambda: {"protocol": Buffered(buffer_size=2)}),
    "asynchronous": (FedAvg, lambda: {"protocol": Asynchronous(updates_per_round=3), "aggregator": Mixing()}),
}


# Every attack in one of them, and every kind of sight in all of them.
PAIRS = [*zip(EVERY_ATTACK, itertools.cycle(COMBINATIONS)), *itertools.product(EVERY_ATTACK[-3:], COMBINATIONS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "combination"),
    dict.fromkeys(PAIRS),
    ids=lambda part: part if isinstance(part, str) else type(part()).__name__,
)
def test_both_engines_agree_whatever_it_is_combined_with(make_federation, make, combination) -> None:
    algorithm, parts = COMBINATIONS[combination]
    common = {"fleet": phones_of_different_speeds(), "transforms": (Clip(), TopK(share=0.5)), "rounds": 3}
    one, other = (
        play(make_federation, kind, make(), algorithm(), **common, **parts())[-1].snapshot
        for kind in (CohortEngine, ReferenceEngine)
    )
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-9)
    assert set(one.client_states) == set(other.client_states)


def test_the_table_of_jobs_says_who_attacks(make_federation) -> None:
    attack = SignFlip(share=SHARE, from_round=4)
    _, *rounds = play(make_federation, CohortEngine, attack)
    for outcome in rounds:
        expected = np.isin(outcome.jobs["index"], corrupted_of(attack)) & (outcome.row["round"] >= 4)
        np.testing.assert_array_equal(outcome.jobs["corrupted"], expected)
        assert outcome.row["corrupted"] == expected.sum()


def test_who_is_corrupted_follows_from_seed_and_share(make_federation) -> None:
    simulation = attacked_simulation(make_federation, CohortEngine, SignFlip(share=0.5))
    many = replace(simulation, training_clients=np.arange(0, 3000, 3))
    corrupted = many.corrupted_clients
    assert len(corrupted) == 500
    assert not (corrupted % 3).any()
    asked = np.array([2997, 0, 5, *corrupted[:3], 10_000])
    np.testing.assert_array_equal(many.are_corrupted(asked, 1), np.isin(asked, corrupted))
    assert many.are_corrupted(asked, 1)[3:6].all()
    others = replace(many, seed=SEED + 1).corrupted_clients
    assert 150 < len(np.intersect1d(corrupted, others)) < 350
    fewer = replace(many, attack=SignFlip(share=0.2)).corrupted_clients
    assert np.isin(fewer, corrupted).all()  # with a larger share, more of the same


def test_groups_that_are_forged() -> None:
    control = {"control": {"c": torch.ones(2, 3)}}
    rows = rows_of(np.ones((2, 4)), [True, True], **control)
    sent = SignFlip().forge(rows, rows)
    assert (sent["params"]["w"] == -1).all()
    assert (sent["control"]["c"] == 1).all()
    sent = SignFlip(groups="all").forge(rows, rows)
    assert (sent["control"]["c"] == -1).all()
    coverage = {"coverage": {"w": torch.ones(2, 4)}}
    sent = SignFlip(groups="all").forge(*[rows_of(np.ones((2, 4)), [True, True], **coverage)] * 2)
    assert (sent["coverage"]["w"] == 1).all()  # others would be divided by it


# --- breakdown --------------------------------------------------------------------------------------------------------


def stepped(updates, attack, transforms=()):
    """How far the mean moves when the first client is corrupted."""
    path = UpdatePath(FedAvg(), transforms, attack=attack)
    rows = rows_of(updates, [True] + [False] * (len(updates) - 1))
    sent = forged(attack, rows, path.transforms, [{}] * len(path.transforms))
    mean, _ = path.aggregate(path.aggregator.add_up(sent), {}, 1, 0)
    return path.finish(mean, [{}] * len(path.transforms), 1, 0)[0]["params"]["w"].numpy()


@pytest.mark.parametrize("clients", [3, 10, 40])
def test_the_mean_falls_to_one_attacker_and_clipping_bounds_what_it_does(clients) -> None:
    updates = np.random.default_rng(clients).normal(size=(clients, 30))
    honest = updates[1:].sum(0) / clients
    # Sent as many times as there are clients, its update makes the model its own, but for the others' step.
    np.testing.assert_allclose(stepped(updates, ModelReplacement(scale=float(clients))), updates[0] + honest)
    for scale in (1e3, 1e6):  # there is no bound
        moved = np.linalg.norm(stepped(updates, SignFlip(scale=scale)))
        assert moved > 0.9 * scale / clients * np.linalg.norm(updates[0])
    for attack in (ModelReplacement(scale=1e6), SignFlip(scale=1e6), Gaussian(std=1e6)):
        moved = stepped(updates, attack, [Clip(bound=0.5)])
        assert np.linalg.norm(moved - honest) <= 0.5 / clients + 1e-9  # forged updates are clipped, and only they here


@pytest.mark.parametrize("corrupted", [1, 2, 4, 6, 9])
def test_when_the_mean_walks_uphill(corrupted) -> None:
    """It does if and only if ε > (n - m) / m (Xie et al., section 4)."""
    updates = np.random.default_rng(0).normal(size=(10, 50)) + 1
    bad = np.arange(10) < corrupted
    rows = rows_of(updates, bad)
    threshold = (10 - corrupted) / corrupted
    for epsilon in (0.9 * threshold, 1.1 * threshold):
        sent = updates.copy()
        sent[bad] = InnerProduct(epsilon=epsilon).forge(rows.take(np.flatnonzero(bad)), rows)["params"]["w"].numpy()
        downhill = sent.mean(0) @ updates[~bad].mean(0) > 0
        assert downhill == (epsilon < threshold)


def test_a_scale_that_replaces_the_model() -> None:
    def scale(clients, corrupted, per_step):
        return replacing_scale(AttackedRun(None, None, clients, corrupted, per_step, 0))  # type: ignore[arg-type]

    assert scale(1000, 1, 20) == 20  # one alone
    assert scale(100, 20, 20) == 5  # four are expected, and do it together
    assert scale(10, 5, 1) == 1


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SignFlip(share=1.0), "attack.share must be at least 0 and below 1, not 1.0"),
        (lambda: SignFlip(share=-0.1), "attack.share must be at least 0 and below 1"),
        (lambda: SignFlip(share=float("nan")), "attack.share must be at least 0 and below 1"),
        (lambda: SignFlip(from_round=0), "attack.from_round must be at least 1, not 0"),
        (lambda: SignFlip(scale=0), "attack.scale must be above 0"),
        (lambda: Gaussian(std=0), "attack.std must be above 0"),
        (lambda: FreeRider(std=-1), "attack.std must be above 0"),
        (lambda: ModelReplacement(scale=-2), "attack.scale must be above 0"),
        (lambda: ALittleIsEnough(z=-1), "attack.z must be 0 or more"),
        (lambda: InnerProduct(epsilon=0), "attack.epsilon must be above 0"),
    ],
)
def test_bad_options(make, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make()


class Forgetful(Attack):
    """Forgets a tensor."""

    def forge(self, rows, seen):
        return {"params": {"1.weight": rows.update["params"]["1.weight"]}}


class Peeping(Attack):
    """Looks at others without saying so."""

    def forge(self, rows, seen):
        return {group: {name: t - t.mean(0) for name, t in ts.items()} for group, ts in rows.update.items()}


class Gambling(Attack):
    """Draws from torch's own generator."""

    def forge(self, rows, seen):
        return {group: {name: torch.randn_like(t) for name, t in ts.items()} for group, ts in rows.update.items()}


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (Peeping, "Peeping.forge gives a client another update when others are with it"),
        (Gambling, "Gambling.forge draws random numbers from the global generator"),
    ],
)
def test_own_attacks_that_would_depend_on_the_engine_are_refused(make_federation, attack, sentence) -> None:
    simulation = attacked_simulation(make_federation, CohortEngine, attack(share=SHARE))
    update = {"params": {"w": torch.ones(3, 2)}}
    with pytest.raises(BadInputError, match=sentence):
        simulation.path.check(update, None)


def test_an_own_attack_that_forgets_a_tensor_gets_a_sentence(make_federation) -> None:
    with pytest.raises(BadInputError, match=r"Forgetful.forge must give params/1.bias in the shape"):
        play(make_federation, CohortEngine, Forgetful(share=SHARE))


def test_attacks_that_do_not_fit_an_algorithm(make_federation) -> None:
    path = UpdatePath(FedAvg(), attack=SignFlip())
    with pytest.raises(BadInputError, match="The attack SignFlip does not fit FedAvg: its clients send no update"):
        path.check({}, None)
    path = UpdatePath(FetchSGD(), attack=FreeRider(sends="previous"))
    with pytest.raises(BadInputError, match="do not send changes of the model's parameters"):
        path.check({"sketch": {"table": torch.zeros(3)}}, None)


def test_start_losses_and_attacks_go_together(make_federation) -> None:
    outcomes = [
        play(make_federation, kind, MinMax(share=SHARE), QFedAvg())[-1].snapshot.state["params"]
        for kind in (CohortEngine, ReferenceEngine)
    ]
    for name, p in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], p, rtol=0, atol=1e-9)


def test_nobody_attacks_without_a_share(make_federation) -> None:
    simulation = attacked_simulation(make_federation, CohortEngine, SignFlip(share=0.0))
    honest = replace(simulation, attack=Attack(share=0.0))
    ends = [[*simulate(one)][-1].snapshot.state["params"] for one in (simulation, honest)]
    assert all(torch.equal(p, ends[1][name]) for name, p in ends[0].items())

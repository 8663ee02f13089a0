"""Defences beside plain NumPy, their laws, and what they say they used."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import plain_defences as in_numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.train import CohortEngine, Job, JobArrays, JobContext, ReferenceEngine, Work
from fedarena.transforms import Rows
from fedarena.transforms.aggregators import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    Collected,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    ServerStep,
    SignMajority,
    TrimmedMean,
    collected,
)
from fedarena.transforms.aggregators.base import VERDICT
from fedarena.transforms.aggregators.collected import collect_rows, merge_rows
from fedarena.transforms.aggregators.fools_gold import learning_rates

NUMBERS = itertools.count()
ENGINES = pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
SHARE = 0.14  # one of seven clients


def rows_of(matrix: np.ndarray, weights=None, staleness=None, clients=None, others=None) -> Rows:
    """Clients whose update is a weight and a bias, with the numbers of the matrix."""
    count = len(matrix)
    ages = np.zeros(count, dtype=int) if staleness is None else staleness
    ids = range(count) if clients is None else clients
    jobs = JobArrays.of([Job(int(c), 1, staleness=int(age)) for c, age in zip(ids, ages, strict=True)])
    t = torch.tensor(np.asarray(matrix), dtype=torch.float64)
    update = {"params": {"1.weight": t[:, :-1].reshape(count, -1, 1), "1.bias": t[:, -1:]}}
    counts = np.ones(count) if weights is None else np.asarray(weights, dtype=float)
    return Rows(update | (others or {}), jobs, Work(counts, None, None), counts, ("params",))


def at_step(version: int = 0, trusted=None) -> ServerStep:
    return ServerStep(JobContext(1.0, 1, version, False, torch.tensor(5)), trusted)


def vector_of(update) -> np.ndarray:
    return np.concatenate([update["params"][name].numpy().ravel() for name in ("1.weight", "1.bias")])


def concluded(aggregator: Aggregator, rows: Rows, cuts=(), kept=None, step: ServerStep | None = None):
    """What the aggregator makes of rows that come in pieces: the update, how much counted, and what is kept."""
    total = None
    for some in np.split(np.arange(len(rows)), cuts):
        if len(some):
            partial = aggregator.add_up(rows.take(some))
            total = partial if total is None else aggregator.merge(total, partial)
    if kept is None:
        kept = aggregator.server_init({"params": {name: t[0] for name, t in rows.update["params"].items()}})
    update, kept = aggregator.conclude(total, kept, step or at_step())
    verdict = update.pop(VERDICT)
    by_client = np.argsort(verdict["clients"].numpy(), kind="stable")
    return update, verdict["counted"].numpy()[by_client], kept


def vector(aggregator: Aggregator, matrix: np.ndarray, **parts) -> np.ndarray:
    return vector_of(concluded(aggregator, rows_of(matrix), **parts)[0])


def drawn(seed: int, clients: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, columns))


def trusting(own: np.ndarray) -> ServerStep:
    return at_step(trusted={"params": {name: t[0] for name, t in rows_of(own[None]).update["params"].items()}})


# --- beside NumPy ----------------------------------------------------------------------------------------------------

matrices = st.builds(drawn, st.integers(0, 10**6), st.integers(7, 15), st.integers(2, 9))


@settings(max_examples=30, deadline=None)
@given(matrices, st.data())
def test_every_rule_is_that_of_plain_numpy(matrix, data) -> None:
    weights = np.array(data.draw(st.lists(st.integers(1, 5), min_size=len(matrix), max_size=len(matrix))))
    share = data.draw(st.sampled_from([0.0, 0.05, 0.1, 0.14]))
    rows = rows_of(matrix, weights)
    ones = np.ones(len(matrix))
    own = matrix[0] + matrix[1]
    trust, _ = in_numpy.fl_trust(matrix, own)
    expected = [
        (Median(), in_numpy.median(matrix)),
        (Median(weighted=True), in_numpy.weighted_median(matrix, weights.tolist())),
        (TrimmedMean(share=share), in_numpy.trimmed_mean(matrix, share)),
        (TrimmedMean(share=0.3), in_numpy.trimmed_mean(matrix, 0.3)),
        (Krum(share=share), in_numpy.krum(matrix, share)),
        (MultiKrum(share=share), in_numpy.multi_krum(matrix, share)),
        (MultiKrum(share=share, selected=2), in_numpy.multi_krum(matrix, share, 2)),
        (GeometricMedian(iterations=3), in_numpy.geometric_median(matrix, weights, 3, 1e-6)),
        (GeometricMedian(iterations=3, weighted=False), in_numpy.geometric_median(matrix, ones, 3, 1e-6)),
        (CenteredClipping(bound=0.8, iterations=2), in_numpy.centered_clipping(matrix, 0 * own, 0.8, 2)),
        (NormBound(bound=0.7), in_numpy.norm_bound(matrix, weights, 0.7)),
        (SignMajority(step=0.3), in_numpy.sign_majority(matrix, 0.3)),
        (FLTrust(), trust),
    ]
    if not Bulyan(share=share).shortage(len(matrix)):
        expected.append((Bulyan(share=share), in_numpy.bulyan(matrix, share)))
    for aggregator, plainly in expected:
        update, counted, _ = concluded(aggregator, rows, step=trusting(own))
        np.testing.assert_allclose(vector_of(update), plainly, rtol=1e-9, atol=1e-9, err_msg=type(aggregator).__name__)
        assert ((counted >= 0) & (counted <= 1)).all()
        assert update["cohort"]["clients"] == len(matrix)


@settings(deadline=None)
@given(matrices, st.integers(0, 10**6))
def test_history_makes_sybils_count_less(matrix, seed) -> None:
    more = drawn(seed, *matrix.shape)
    defence = FoolsGold(layers="all")
    first, counted, kept = concluded(defence, rows_of(matrix))
    weights = in_numpy.fools_gold_weights(matrix)
    np.testing.assert_allclose(counted, weights, atol=1e-6)
    np.testing.assert_allclose(vector_of(first), weights @ matrix / weights.sum(), atol=1e-6)
    second, counted, kept = concluded(defence, rows_of(more), kept=kept)
    weights = in_numpy.fools_gold_weights(matrix + more)
    np.testing.assert_allclose(counted, weights, atol=1e-6)
    np.testing.assert_allclose(vector_of(second), weights @ more / weights.sum(), atol=1e-6)


def test_who_is_like_nobody_counts_fully() -> None:
    """Also who points away from everybody else, by whom others are pardoned."""
    cosines = np.full((5, 5), 0.1)
    cosines[4], cosines[:, 4] = -0.55, -0.55
    np.fill_diagonal(cosines, 1.0)
    assert learning_rates(cosines, 1.0).tolist() == [1, 1, 1, 1, 1]


def test_copies_of_an_update_are_found_out() -> None:
    matrix = drawn(3, 8, 30)
    matrix[5:] = matrix[5] + 1e-3 * drawn(4, 3, 30)
    _, counted, _ = concluded(FoolsGold(layers="all"), rows_of(matrix))
    assert (counted[5:] == 0).all()
    assert (counted[:5] > 0.5).all()


def test_memory_has_a_bound_and_forgets_who_has_not_come_for_longest() -> None:
    defence = FoolsGold(layers="all", memory_bytes=5 * 4 * 8)  # five clients with four numbers of eight bytes
    kept = None
    for version, clients in enumerate([[9, 1, 4], [2, 1, 7], [3, 8, 7]]):
        rows = rows_of(np.full((3, 4), 1.0 + version) + np.eye(3, 4), clients=clients)
        _, _, kept = concluded(defence, rows, kept=kept, step=at_step(version))
    assert kept["remembered"]["clients"].tolist() == [1, 2, 3, 7, 8]
    assert kept["remembered"]["versions"].tolist() == [1, 1, 2, 2, 2]
    bias = dict(zip([1, 2, 3, 7, 8], kept["history"]["params/1.bias"][:, 0].tolist(), strict=True))
    assert bias == {1: 1.0 + 2.0, 2: 2.0, 3: 3.0, 7: 2.0 + 3.0, 8: 3.0}
    rows = rows_of(np.eye(6, 4) + 1.0, clients=[9, 8, 7, 6, 5, 4])
    _, _, kept = concluded(defence, rows, kept=kept, step=at_step(3))
    assert kept["remembered"]["clients"].tolist() == [4, 5, 6, 7, 8, 9]  # as many as came


def test_only_the_last_layer_is_remembered_by_default() -> None:
    rows = rows_of(drawn(0, 4, 3))
    update = {"params": {"0.weight": torch.zeros(4, 7), **rows.update["params"]}}
    _, _, kept = concluded(FoolsGold(), replace(rows, update=update))
    assert list(kept["history"]) == ["params/1.weight", "params/1.bias"]


def test_the_reference_of_centered_clipping_is_the_last_update() -> None:
    defence, kept, reference = CenteredClipping(bound=0.5), None, np.zeros(6)
    for round in range(4):
        matrix = drawn(round, 5, 6)
        update, counted, kept = concluded(defence, rows_of(matrix), kept=kept)
        distances = np.linalg.norm(matrix - reference, axis=1)
        np.testing.assert_allclose(counted, np.minimum(1, 0.5 / distances))
        reference = in_numpy.centered_clipping(matrix, reference, 0.5, 1)
        np.testing.assert_allclose(vector_of(update), reference, atol=1e-12)


def test_the_geometric_median_is_where_distances_add_up_to_least() -> None:
    matrix = drawn(1, 9, 4)
    point = vector(GeometricMedian(iterations=1000, smoothing=1e-12), matrix)
    directions = (point - matrix) / np.linalg.norm(point - matrix, axis=1)[:, None]
    assert np.linalg.norm(directions.sum(0)) < 1e-6


def test_nobody_is_trusted_who_goes_the_other_way() -> None:
    own = np.array([1.0, 0.0, 0.0])
    matrix = np.array([[2.0, 0, 0], [-5, 0, 0], [0, 3, 0], [1, 1, 0]])
    update, counted, _ = concluded(FLTrust(), rows_of(matrix), step=trusting(own))
    np.testing.assert_allclose(counted, [1, 0, 0, np.sqrt(0.5)])
    np.testing.assert_allclose(vector_of(update), in_numpy.fl_trust(matrix, own)[0])
    for nobody in (-own, 0 * own):
        update, counted, _ = concluded(FLTrust(), rows_of(matrix[:1]), step=trusting(nobody))
        assert not vector_of(update).any()
        assert not counted.any()


def test_weak_noise_has_its_size_and_is_keyed() -> None:
    matrix = np.zeros((3, 4001))
    one, same, other = (
        vector(NormBound(noise=0.1), matrix, step=ServerStep(JobContext(1.0, 1, 0, False, torch.tensor(key))))
        for key in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert abs(one.std() - 0.1) < 0.01
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


# --- laws ------------------------------------------------------------------------------------------------------------

RULES = [
    Median(),
    Median(weighted=True),
    TrimmedMean(share=0.2),
    Krum(share=0.1),
    MultiKrum(share=0.1),
    Bulyan(share=0.1),
    GeometricMedian(),
    CenteredClipping(),
    NormBound(),
    SignMajority(),
    FoolsGold(),
    FLTrust(),
]
EQUIVARIANT = RULES[:7]


@settings(deadline=None)
@given(matrices, st.permutations(range(15)), st.sampled_from(RULES))
def test_the_order_of_clients_does_not_matter(matrix, order, aggregator) -> None:
    order = [place for place in order if place < len(matrix)]
    weights = 1.0 + np.arange(len(matrix))
    step = trusting(matrix[0])
    one, counted, _ = concluded(aggregator, rows_of(matrix, weights), step=step)
    there = rows_of(matrix[order], weights[order], clients=order)
    other, counted_there, _ = concluded(aggregator, there, step=step)
    np.testing.assert_allclose(vector_of(other), vector_of(one), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(counted_there, counted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@settings(deadline=None)
@given(matrices, st.integers(0, 10**6), st.sampled_from(EQUIVARIANT))
def test_updates_that_are_moved_move_the_result(matrix, seed, aggregator) -> None:
    by = drawn(seed, 1, matrix.shape[1])[0]
    np.testing.assert_allclose(vector(aggregator, matrix + by), vector(aggregator, matrix) + by, atol=1e-7)


@settings(deadline=None)
@given(matrices)
def test_coordinates_lie_between_those_of_clients_and_krum_takes_one(matrix) -> None:
    for rule in (Median(), TrimmedMean(share=0.2), Bulyan()):
        found = vector(rule, matrix)
        assert (found >= matrix.min(0) - 1e-12).all()
        assert (found <= matrix.max(0) + 1e-12).all()
    found, counted, _ = concluded(Krum(), rows_of(matrix))
    assert sorted(counted) == [0.0] * (len(matrix) - 1) + [1.0]
    np.testing.assert_array_equal(vector_of(found), matrix[np.argmax(counted)])


@settings(deadline=None)
@given(matrices, st.data(), st.sampled_from(RULES))
def test_how_rows_were_divided_changes_no_bit(matrix, data, aggregator) -> None:
    weights = 1.0 + np.arange(len(matrix))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(matrix) - 1), max_size=4, unique=True)))
    whole, pieces = (
        concluded(aggregator, rows_of(matrix, weights), some, step=trusting(matrix[0])) for some in ([], cuts)
    )
    for name, t in whole[0]["params"].items():
        if isinstance(aggregator, NormBound):  # sums
            torch.testing.assert_close(pieces[0]["params"][name], t, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(pieces[0]["params"][name], t)
    np.testing.assert_array_equal(pieces[1], whole[1])


@settings(max_examples=20, deadline=None)
@given(matrices, st.sampled_from(RULES), st.integers(1, 40))
def test_blocks_of_any_size_come_to_the_same(matrix, aggregator, numbers) -> None:
    whole = vector(aggregator, matrix, step=trusting(matrix[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collected.columns, "__defaults__", (False, numbers))
        patch.setattr(collected, "_TILE_COLUMNS", 2)
        patch.setattr(collected, "_TILE_ROWS", 3)
        in_blocks = vector(aggregator, matrix, step=trusting(matrix[0]))
    np.testing.assert_allclose(in_blocks, whole, rtol=1e-9, atol=1e-9)


def test_products_of_many_rows() -> None:
    matrix = drawn(0, 600, 40).astype(np.float32)
    total = collect_rows(rows_of(matrix[:100]))
    for first in range(100, 600, 100):
        total = merge_rows(total, collect_rows(rows_of(matrix[first : first + 100])))
    updates = Collected.of(total)
    exact = matrix.astype(np.float64) @ matrix.T.astype(np.float64)
    np.testing.assert_allclose(updates.products(), exact, atol=1e-10)
    np.testing.assert_array_equal(updates.products(), updates.products().T)
    distances = ((matrix[:, None].astype(np.float64) - matrix[None]) ** 2).sum(2)
    np.testing.assert_allclose(updates.squared_distances(), distances, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_cores_changes_no_bit(monkeypatch, threads) -> None:
    matrix = drawn(0, 40, 5000)
    weights = 1.0 + np.arange(40)
    alone = [vector_of(concluded(rule, rows_of(matrix, weights), step=trusting(matrix[0]))[0]) for rule in RULES]
    before = torch.get_num_threads()
    monkeypatch.setattr(collected, "available_cores", lambda: threads)
    torch.set_num_threads(threads)
    try:
        for rule, expected in zip(RULES, alone, strict=True):
            found, _, _ = concluded(rule, rows_of(matrix, weights), step=trusting(matrix[0]))
            np.testing.assert_array_equal(vector_of(found), expected)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


# --- what was used ---------------------------------------------------------------------------------------------------


def test_what_was_used_of_an_update() -> None:
    matrix = np.array([[0.0, 0, 9], [1, 1, 1], [2, 2, 2], [3, 3, 3], [9, 9, 0]])
    used = {
        Median(): [0, 0, 1, 0, 0],
        TrimmedMean(share=0.2): [0, 1, 1, 1, 0],
        SignMajority(): [1 / 3, 1, 1, 1, 2 / 3],
        NormBound(bound=2.0): np.minimum(1, 2 / np.linalg.norm(matrix, axis=1)),
    }
    for rule, expected in used.items():
        np.testing.assert_allclose(concluded(rule, rows_of(matrix))[1], expected, err_msg=type(rule).__name__)
    far = np.concatenate([drawn(0, 6, 3), [[50.0, 50, 50]]])
    np.testing.assert_array_equal(concluded(MultiKrum(), rows_of(far))[1], [1, 1, 1, 1, 1, 1, 0])
    _, of_bulyan, _ = concluded(Bulyan(), rows_of(far))
    assert of_bulyan[-1] == 0
    assert of_bulyan.sum() == pytest.approx(3)  # of five selected ones, three values of every coordinate
    _, near, _ = concluded(GeometricMedian(), rows_of(far))
    assert near[-1] < 0.1 < near.max() == 1


def test_what_else_clients_send_goes_with_their_updates() -> None:
    matrix = np.concatenate([drawn(0, 6, 3), [[50.0, 50, 50]]])
    control = {"control": {"c": torch.arange(7.0, dtype=torch.float64)[:, None] ** 2}}
    rows = rows_of(matrix, others=control)
    chosen, counted, _ = concluded(Krum(), rows)
    assert chosen["control"]["c"].tolist() == [np.argmax(counted) ** 2]
    several, _, _ = concluded(MultiKrum(), rows)
    assert several["control"]["c"].tolist() == [pytest.approx(np.mean(np.arange(6) ** 2))]
    median, _, _ = concluded(Median(), rows)
    assert median["control"]["c"].tolist() == [9]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_age_shrinks_updates(rule) -> None:
    ages = np.array([0, 3, 0, 1, 0, 0, 8])
    matrix, own = drawn(2, 7, 4), drawn(2, 7, 4)[0]
    step = trusting(own)
    stale, _, _ = concluded(rule, rows_of(matrix, staleness=ages), step=step)
    factors = np.ones(7) if isinstance(rule, SignMajority) else (1.0 + ages) ** -0.5
    np.testing.assert_allclose(rule.factors(ages), factors)
    if isinstance(rule, NormBound):  # shrunk after the bound
        shortened = [row * min(1.0, 1 / np.linalg.norm(row)) for row in matrix]
        np.testing.assert_allclose(vector_of(stale), (factors[:, None] * shortened).mean(0))
    elif isinstance(rule, FLTrust):  # shrunk after all are of one length
        trust = in_numpy.fl_trust(matrix, own)[1]
        made_alike = matrix / np.linalg.norm(matrix, axis=1, keepdims=True) * np.linalg.norm(own)
        np.testing.assert_allclose(vector_of(stale), (trust * factors) @ made_alike / trust.sum())
    else:
        np.testing.assert_allclose(vector_of(stale), vector(rule, matrix * factors[:, None], step=step))

"""Defences beside plain NumPy, their laws, on both engines, resumed, under attack, and refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import plain_defences as in_numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import (
    LOCAL,
    SIZES,
    flat,
    local_sgd,
    logistic_simulation,
    make_clients,
    phones_of_different_speeds,
    plain,
)
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg, FedNova, Scaffold
from fedarena.core.errors import BadInputError
from fedarena.data import PooledFederation
from fedarena.display.report.cautions import cautions
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Buffered, Deadline
from fedarena.simulate.trusted import TrustedTraining
from fedarena.storage.run_data import label_runs, load_run
from fedarena.train import CohortEngine, Job, JobArrays, JobContext, ReferenceEngine, Work
from fedarena.transforms import Attack, Partial, Rows, Transform
from fedarena.transforms.aggregators import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    Collected,
    Defence,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Mean,
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
    matrix, step = drawn(2, 7, 4), trusting(drawn(2, 7, 4)[0])
    stale, _, _ = concluded(rule, rows_of(matrix, staleness=ages), step=step)
    factors = np.ones(7) if isinstance(rule, SignMajority) else (1.0 + ages) ** -0.5
    np.testing.assert_allclose(rule.factors(ages), factors)
    if isinstance(rule, NormBound):  # shrunk after the bound
        shortened = [row * min(1.0, 1 / np.linalg.norm(row)) for row in matrix]
        np.testing.assert_allclose(vector_of(stale), (factors[:, None] * shortened).mean(0))
    else:
        np.testing.assert_allclose(vector_of(stale), vector(rule, matrix * factors[:, None], step=step))


# --- runs ------------------------------------------------------------------------------------------------------------


def run(make_federation, engine_kind, aggregator, algorithm=None, rounds=4, cohort=7, **parts):
    federation = make_federation(make_clients(), 3, name=f"defended {next(NUMBERS)}")
    simulation = logistic_simulation(
        federation, algorithm or FedAvg(), LOCAL, engine_kind, rounds=rounds, cohort=cohort
    )
    if aggregator.trusted_samples:
        pooled = PooledFederation(federation, federation.clients("all"), 2, aggregator.trusted_samples)
        own = simulation.engine.like_this(simulation.algorithm, LOCAL, pooled, simulation.seed)
        parts["trusted"] = TrustedTraining(own, int(pooled.made_up_clients(1)[0]))
    return list(simulate(replace(simulation, aggregator=aggregator, **parts)))


def changes(w: np.ndarray, round: int) -> np.ndarray:
    return np.array([local_sgd(w, client, round, plain, LOCAL)[0] - w for client in range(len(SIZES))])


IN_RUNS = {
    "median": (Median(), in_numpy.median),
    "trimmed_mean": (TrimmedMean(share=SHARE), lambda rows: in_numpy.trimmed_mean(rows, SHARE)),
    "krum": (Krum(share=SHARE), lambda rows: in_numpy.krum(rows, SHARE)),
    "multi_krum": (MultiKrum(share=SHARE), lambda rows: in_numpy.multi_krum(rows, SHARE)),
    "bulyan": (Bulyan(share=SHARE), lambda rows: in_numpy.bulyan(rows, SHARE)),
    "geometric_median": (
        GeometricMedian(iterations=4),
        lambda rows: in_numpy.geometric_median(rows, np.array(SIZES, dtype=float), 4, 1e-6),
    ),
    "norm_bound": (
        NormBound(bound=0.4),
        lambda rows: in_numpy.norm_bound(rows, np.array(SIZES, dtype=float), 0.4),
    ),
    "sign_majority": (SignMajority(step=0.05), lambda rows: in_numpy.sign_majority(rows, 0.05)),
}


@ENGINES
@pytest.mark.parametrize("name", IN_RUNS)
def test_runs_are_those_of_plain_numpy_on_both_engines(make_federation, engine_kind, name) -> None:
    aggregator, rule = IN_RUNS[name]
    first, *_, last = run(make_federation, engine_kind, aggregator)
    w = flat(first.snapshot.state["params"])
    for round in range(1, 5):
        w = w + rule(changes(w, round))
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)


@ENGINES
def test_runs_with_something_kept_are_those_of_plain_numpy(make_federation, engine_kind) -> None:
    first, *_, clipped = run(make_federation, engine_kind, CenteredClipping(bound=0.3))
    start = flat(first.snapshot.state["params"])
    w, reference = start, np.zeros(18)
    for round in range(1, 5):
        reference = in_numpy.centered_clipping(changes(w, round), reference, 0.3, 1)
        w = w + reference
    np.testing.assert_allclose(flat(clipped.snapshot.state["params"]), w, atol=1e-9)
    _, *_, compared = run(make_federation, engine_kind, FoolsGold())
    w, history = start, np.zeros((7, 18))
    for round in range(1, 5):
        rows = changes(w, round)
        history += rows
        weights = in_numpy.fools_gold_weights(history)
        w = w + weights @ rows / weights.sum()
    np.testing.assert_allclose(flat(compared.snapshot.state["params"]), w, atol=1e-9)


@ENGINES
def test_the_server_trains_on_samples_that_it_trusts(make_federation, engine_kind) -> None:
    aggregator = FLTrust(trusted_samples=20)
    outcomes = run(make_federation, engine_kind, aggregator, rounds=2)
    one, two = (run(make_federation, kind, aggregator, rounds=2)[-1] for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(flat(one.snapshot.state["params"]), flat(two.snapshot.state["params"]), atol=1e-9)
    counted = np.asarray(outcomes[1].jobs["counted"])
    rows = changes(flat(outcomes[0].snapshot.state["params"]), 1)
    moved = flat(outcomes[1].snapshot.state["params"]) - flat(outcomes[0].snapshot.state["params"])
    trust = counted[np.argsort(outcomes[1].jobs["index"])]
    assert 0 < trust.max() <= 1
    # All updates get the length of the server's own.
    direction = (trust / np.linalg.norm(rows, axis=1)) @ rows
    np.testing.assert_allclose(moved / np.linalg.norm(moved), direction / np.linalg.norm(direction), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold, FedNova])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(share=SHARE), MultiKrum(share=SHARE), Bulyan(share=SHARE)])
def test_engines_agree_on_clients_that_send_more(make_federation, algorithm, rule) -> None:
    one, other = (
        run(make_federation, kind, rule, algorithm())[-1].snapshot for kind in (CohortEngine, ReferenceEngine)
    )
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Median(), GeometricMedian(), FoolsGold(), CenteredClipping()])
def test_stale_updates_in_buffers_on_both_engines(make_federation, rule) -> None:
    parts = {"protocol": Buffered(buffer_size=3), "fleet": phones_of_different_speeds(), "rounds": 6}
    one, other = (run(make_federation, kind, rule, **parts) for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(
        flat(one[-1].snapshot.state["params"]), flat(other[-1].snapshot.state["params"]), atol=1e-9
    )
    stale = [age for outcome in one[1:] for age in outcome.jobs["staleness"].tolist()]
    weights = np.concatenate([outcome.jobs["weight"] for outcome in one[1:]])
    assert max(stale) > 0
    used = np.isfinite(weights)
    np.testing.assert_allclose(weights[used], (1.0 + np.array(stale)[used]) ** -0.5)


# --- attacked --------------------------------------------------------------------------------------------------------


class FarAway(Attack):
    """Corrupted clients want to go far in a direction of their own."""

    forges_updates = True

    def forge(self, rows, seen):
        return {"params": {name: torch.full_like(t, 1e6) for name, t in rows.update["params"].items()}}


class FarAwayTogether(FarAway):
    """The same, decided when all updates are there."""

    sees = "all"


STANDING = [
    Median(),
    TrimmedMean(share=SHARE),
    Krum(share=SHARE),
    MultiKrum(share=SHARE),
    Bulyan(share=SHARE),
    GeometricMedian(weighted=False, iterations=30),
    NormBound(bound=1.0),
    CenteredClipping(bound=1.0),
    SignMajority(),
    FLTrust(trusted_samples=20),
]


@pytest.mark.parametrize("attack", [FarAway, FarAwayTogether])
def test_the_mean_falls_to_one_attacker(make_federation, attack) -> None:
    *_, last = run(make_federation, CohortEngine, Mean(), attack=attack(share=SHARE))
    assert np.abs(flat(last.snapshot.state["params"])).max() > 1e3


@pytest.mark.parametrize("attack", [FarAway, FarAwayTogether])
@pytest.mark.parametrize("rule", STANDING, ids=lambda rule: type(rule).__name__)
def test_defences_stand_one_attacker(make_federation, rule, attack) -> None:
    first, *rounds = run(make_federation, CohortEngine, rule, attack=attack(share=SHARE))
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, rounds[-1]))
    assert np.linalg.norm(end - start) < 5
    for outcome in rounds:
        jobs = outcome.jobs
        assert outcome.row["corrupted"] == 1
        attacker = np.flatnonzero(jobs["corrupted"])
        if not isinstance(rule, (SignMajority, FLTrust)):
            assert jobs["counted"][attacker] < 1e-3
        rejected = np.asarray(jobs["counted"]) == 0
        assert outcome.row["rejected"] == rejected.sum()
        assert outcome.row["rejected_corrupted"] == rejected[attacker].sum()
    if isinstance(rule, (Median, TrimmedMean, Krum, MultiKrum, Bulyan)):
        assert all(outcome.row["rejected_corrupted"] == 1 for outcome in rounds)


def test_the_median_falls_to_a_majority(make_federation) -> None:
    *_, last = run(make_federation, CohortEngine, Median(), attack=FarAway(share=0.6))
    assert np.abs(flat(last.snapshot.state["params"])).max() > 1e3


# --- too few ---------------------------------------------------------------------------------------------------------


class CountsSteps(Transform):
    """Counts at the server how often it was asked."""

    def server_init(self, update):
        return {"steps": {"n": torch.zeros(())}}

    def at_server(self, update, server, context):
        return update, {"steps": {"n": server["steps"]["n"] + 1}}


@ENGINES
def test_a_step_with_too_few_updates_is_not_made(make_federation, engine_kind) -> None:
    phones = phones_of_different_speeds(growth=2.0)
    protocol = Deadline(seconds=7.0, minimum_success_share=0.1)
    parts = {"protocol": protocol, "fleet": phones, "rounds": 8, "cohort": 5, "transforms": (CountsSteps(),)}
    outcomes = run(make_federation, engine_kind, Median(), **parts)
    came = [outcome.row["clients"] for outcome in outcomes[1:]]
    assert min(came) < 3 <= max(came)  # or this test would show nothing
    steps = 0
    for before, after in itertools.pairwise(outcomes):
        start, end = (flat(outcome.snapshot.state["params"]) for outcome in (before, after))
        enough = after.row["clients"] >= 3
        steps += enough
        assert after.row["succeeded"] == enough
        assert (start != end).any() == enough
        assert after.snapshot.transform_states[0]["steps"]["n"] == steps
        if not enough:
            used = np.isfinite(after.jobs["weight"])
            assert (np.asarray(after.jobs["counted"])[used] == 0).all()
            if used.any():
                assert after.row["rejected"] == used.sum()


def test_a_run_says_that_too_few_came(tmp_path: Path) -> None:
    phones = {"fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}, "cohort": 8, "rounds": 6}
    for name in ("krum", "mean"):
        chosen = {"aggregator": name, "protocol": {"name": "deadline", "seconds": 13.0}, "name": name}
        start_run(config(**phones | chosen), tmp_path)
    defended, plainly = (load_run(tmp_path / name) for name in ("krum", "mean"))
    left_out = [row["succeeded"] is False for row in defended.rounds.to_pylist()[1:]]
    assert 0 < sum(left_out) < 6
    (said,) = cautions_about_steps([defended])
    assert said.startswith(f"In {sum(left_out)} of 6 rounds fewer updates came than the aggregator krum needs")
    (said,) = cautions_about_steps([defended, plainly])
    assert " of 6 rounds under fedyogi krum fewer updates" in said
    assert not cautions_about_steps([plainly])


def cautions_about_steps(runs) -> list[str]:
    return [text for text in cautions(label_runs(runs)) if "the model stayed" in text]


# --- kept over an interruption ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "aggregator",
    [
        {"name": "fools_gold", "memory_bytes": 20_000},
        {"name": "centered_clipping", "bound": 0.5},
        {"name": "fl_trust", "trusted_samples": 30},
        {"name": "norm_bound", "noise": 0.01},
    ],
    ids=lambda aggregator: aggregator["name"],
)
def test_a_defended_run_that_is_interrupted_ends_the_same(tmp_path: Path, aggregator) -> None:
    chosen = {"aggregator": aggregator, "rounds": 8, "cohort": 6}
    start_run(config(**chosen), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**chosen), tmp_path, StopAfter(5, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_the_number_of_workers_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        engine = {"name": "cohort", "workers": workers, "lanes": 3}
        chosen = {"aggregator": {"name": "multi_krum"}, "rounds": 3, "cohort": 8, "engine": engine}
        start_run(config(**chosen), tmp_path / str(workers))
        whole = content(tmp_path / str(workers) / "small")
        found.append({name: whole[name] for name in ("tensors", "rounds.parquet", "jobs.parquet")})
    assert found[0] == found[1]


# --- of one's own ----------------------------------------------------------------------------------------------------


class ShorterHalf(Defence):
    """Takes the updates that are not longer than half of them are."""

    def weigh(self, updates):
        lengths = updates.norms()
        return (lengths <= np.median(lengths)).astype(float)


class RunningMean(Aggregator):
    """Keeps the last update at the server, and goes half of it again."""

    def server_init(self, update):
        return {"last": {name: torch.zeros_like(t) for name, t in update["params"].items()}}

    def add_up(self, rows):
        return Partial({"params": {n: t.sum(0) for n, t in rows.update["params"].items()}}, {"n": float(len(rows))})

    def conclude(self, total, kept, step):
        means = {name: t / total.numbers["n"] for name, t in total.tensors["params"].items()}
        both = {name: t + 0.5 * kept["last"][name] for name, t in means.items()}
        return {"params": both}, {"last": both}


class OneOfTheRows(RunningMean):
    """Depends on who is in the same rows."""

    def add_up(self, rows):
        return Partial({"params": {n: t[0] for n, t in rows.update["params"].items()}}, {"n": 1.0})


class Dice(RunningMean):
    """Draws from the global generator."""

    def conclude(self, total, kept, step):
        torch.rand(3)
        return super().conclude(total, kept, step)


def test_defences_and_aggregators_of_ones_own(make_federation, tmp_path: Path) -> None:
    first, *_, last = run(make_federation, CohortEngine, ShorterHalf())
    w = flat(first.snapshot.state["params"])
    for round in range(1, 5):
        rows = changes(w, round)
        lengths = np.linalg.norm(rows, axis=1)
        w = w + rows[lengths <= np.median(lengths)].mean(0)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)
    first, *_, last = run(make_federation, ReferenceEngine, RunningMean())
    w, update = flat(first.snapshot.state["params"]), 0.0
    for round in range(1, 5):
        update = changes(w, round).mean(0) + 0.5 * update
        w = w + update
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-9)
    start_run(config(aggregator=f"{__name__}:RunningMean", rounds=1), tmp_path)
    with pytest.raises(BadInputError, match="OneOfTheRows comes to something else"):
        start_run(config(aggregator=f"{__name__}:OneOfTheRows"), tmp_path / "refused")
    with pytest.raises(BadInputError, match=r"Dice\.conclude draws random numbers .*step\.context"):
        start_run(config(aggregator=f"{__name__}:Dice"), tmp_path / "dice")


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"aggregator": "krum", "cohort": 4}, r"gets 4 updates .*Krum needs at least 2f \+ 3 = 5 to stand f = 1 corr"),
        ({"aggregator": {"name": "krum", "share": 0.3}, "cohort": 8}, r"2f \+ 3 = 9 to stand f = 3 corrupted clients"),
        ({"aggregator": {"name": "bulyan", "share": 0.2}, "cohort": 10}, r"4f \+ 3 = 11 to stand f = 2"),
        ({"aggregator": {"name": "bulyan", "share": 0.25}}, "share must be at least 0 and below 0.25 for bulyan"),
        ({"aggregator": {"name": "trimmed_mean", "share": 0.5}}, "share must be at least 0 and below 0.5, not 0.5"),
        ({"aggregator": {"name": "trimmed_mean", "share": 0.45}, "cohort": 4}, r"2f \+ 1 = 5"),
        ({"aggregator": {"name": "krum", "share": -0.1}}, "share must be at least 0 and below 0.5"),
        ({"aggregator": {"name": "multi_krum", "selected": 0}}, "selected must be at least 1"),
        ({"aggregator": {"name": "multi_krum", "selected": 9}, "cohort": 8}, "is to select 9 of them"),
        ({"aggregator": "median", "cohort": 2}, "gets 2 updates .*Median needs at least 3"),
        ({"aggregator": "median", "protocol": "asynchronous"}, "gets 1 update under .*Median needs at least 3"),
        (
            {"aggregator": "krum", "protocol": {"name": "buffered", "buffer_size": 4}, "cohort": 10},
            "gets 4 updates .*Krum needs at least",
        ),
        ({"aggregator": {"name": "geometric_median", "iterations": 0}}, "iterations must be at least 1"),
        ({"aggregator": {"name": "geometric_median", "smoothing": 0.0}}, "smoothing must be above 0"),
        ({"aggregator": {"name": "centered_clipping", "bound": 0.0}}, "bound must be above 0"),
        ({"aggregator": {"name": "centered_clipping", "iterations": 0}}, "iterations must be at least 1"),
        ({"aggregator": {"name": "norm_bound", "bound": -1.0}}, "bound must be above 0"),
        ({"aggregator": {"name": "norm_bound", "noise": -1.0}}, "noise must not be negative"),
        ({"aggregator": {"name": "sign_majority", "step": 0.0}}, "step must be above 0"),
        ({"aggregator": {"name": "fools_gold", "confidence": 0.0}}, "confidence must be above 0"),
        ({"aggregator": {"name": "fools_gold", "memory_bytes": 0}}, "memory_bytes must be at least 1"),
        ({"aggregator": {"name": "fools_gold", "layers": "first"}}, "layers"),
        ({"aggregator": {"name": "fl_trust", "trusted_samples": 0}}, "trusted_samples must be at least 1"),
        ({"aggregator": {"name": "fl_trust", "trusted_samples": 10**6}}, "trusted_samples is 1000000, but .* has only"),
        ({"aggregator": "median", "algorithm": "timelyfl"}, "Median does not fit TimelyFL: some of its clients train"),
        ({"aggregator": "median", "algorithm": "local_only"}, "Median does not fit LocalOnly: its clients send no"),
        ({"aggregator": "norm_bound", "algorithm": "local_only"}, "NormBound does not fit LocalOnly"),
        (
            {"aggregator": "norm_bound", "algorithm": "scaffold"},
            "NormBound does not fit Scaffold: .* also send control",
        ),
        ({"aggregator": "fl_trust", "algorithm": "fednova"}, "FLTrust does not fit FedNova: .* also send steps"),
        ({"aggregator": "centered_clipping", "algorithm": "scaffold"}, "CenteredClipping does not fit Scaffold"),
        ({"aggregator": "sign_majority", "algorithm": "scaffold"}, "SignMajority does not fit Scaffold"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, chosen, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(**({"engine": "reference", "cohort": 8} | chosen)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("aggregator", ["fl_trust", "norm_bound", "centered_clipping"])
def test_defences_that_need_no_others_take_one_update_at_a_time(tmp_path: Path, aggregator: str) -> None:
    chosen = {"aggregator": aggregator, "protocol": "asynchronous", "rounds": 2, "fleet": "uniform"}
    start_run(config(**chosen), tmp_path)

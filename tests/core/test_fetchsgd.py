"""FetchSGD against plain loops, with sketches written as matrices and without sketches at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logistic_clients import (
    CLASSES,
    COHORT,
    ENGINES,
    FEATURES,
    LOCAL,
    cohorts,
    flat,
    largest,
    mean_change,
    run_simulation,
)
from test_asynchronous_training import run as run_in_time

from fedarena.algorithms import FedAvg, FetchSGD
from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols import Asynchronous, Buffered
from fedarena.simulate.simulation import transferred_bytes
from fedarena.train import CohortEngine
from fedarena.train.sketch import CountSketch

LENGTH = CLASSES * FEATURES + CLASSES


def start_and_end(make_federation, algorithm, engine_kind) -> tuple[np.ndarray, np.ndarray]:
    first, last = run_simulation(make_federation, algorithm, LOCAL, engine_kind)
    return flat(first.snapshot.state["params"]), flat(last.snapshot.state["params"])


@pytest.mark.sampled(3)
@ENGINES
@pytest.mark.parametrize(("rows", "columns", "top"), [(3, 7, 4), (4, 5, 3), (1, 6, 5)])
def test_against_the_paper(make_federation, engine_kind, rows: int, columns: int, top: int) -> None:
    algorithm = FetchSGD(rows=rows, columns=columns, top=top, momentum=0.7, server_lr=0.8)
    start, end = start_and_end(make_federation, algorithm, engine_kind)
    units = torch.eye(LENGTH, dtype=torch.float64)
    matrices = np.stack([CountSketch(LENGTH, rows, columns).sketch(unit).numpy() for unit in units], axis=-1)
    w, momentum, error = start, np.zeros((rows, columns)), np.zeros((rows, columns))
    for round, cohort in cohorts():
        momentum = matrices @ mean_change(w, cohort, round, LOCAL) + 0.7 * momentum
        error = error + 0.8 * momentum
        estimates = [matrix.T @ row for matrix, row in zip(matrices, error, strict=True)]
        change = largest(np.median(estimates, axis=0), top)
        touched = matrices @ change != 0
        momentum, error = np.where(touched, 0, momentum), np.where(touched, 0, error)
        w = w + change
    np.testing.assert_allclose(end, w, rtol=0, atol=1e-10)
    assert np.abs(end - start).max() > 0.05
    assert np.abs(error).max() > 0.01  # something is left, or there would be nothing to remember


@ENGINES
def test_without_collisions_it_is_momentum_and_error_feedback(make_federation, engine_kind) -> None:
    """Sketches that hide nothing might as well be vectors."""
    algorithm = FetchSGD(rows=2, columns=LENGTH, top=5, momentum=0.6, server_lr=0.9)
    start, end = start_and_end(make_federation, algorithm, engine_kind)
    w, momentum, error = start, np.zeros_like(start), np.zeros_like(start)
    for round, cohort in cohorts():
        momentum = mean_change(w, cohort, round, LOCAL) + 0.6 * momentum
        error = error + 0.9 * momentum
        change = largest(error, 5)
        momentum, error = np.where(change != 0, 0, momentum), np.where(change != 0, 0, error)
        w = w + change
    np.testing.assert_allclose(end, w, rtol=0, atol=1e-10)


@ENGINES
def test_using_everything_it_is_fedavg(make_federation, engine_kind) -> None:
    """Whatever is used is no longer in momentum and error: nothing is left of a round."""
    everything = FetchSGD(rows=1, columns=LENGTH, top=LENGTH, server_lr=0.7)
    found = start_and_end(make_federation, everything, engine_kind)
    expected = start_and_end(make_federation, FedAvg(server_lr=0.7), engine_kind)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("protocol", [Buffered(buffer_size=2), Asynchronous(updates_per_round=3)])
def test_age_shrinks_sketches_as_it_shrinks_changes(make_federation, protocol) -> None:
    found = []
    # uploads must take as long, or phones would end in another order
    for algorithm in (FedAvg(), FetchSGD(rows=1, columns=LENGTH, top=LENGTH)):
        *_, last = run_in_time(make_federation, protocol, CohortEngine, algorithm)
        found.append(last)
    fedavg, fetchsgd = found
    assert fedavg.jobs["staleness"].max() > 0
    np.testing.assert_array_equal(fetchsgd.jobs["staleness"], fedavg.jobs["staleness"])
    np.testing.assert_allclose(*(flat(outcome.snapshot.state["params"]) for outcome in found), rtol=1e-9, atol=1e-11)


@ENGINES
def test_uploads_are_sketches_and_nothing_else(make_federation, engine_kind) -> None:
    algorithm = FetchSGD(rows=2, columns=3, top=4)
    _, last = run_simulation(make_federation, algorithm, LOCAL, engine_kind)
    assert transferred_bytes(algorithm, last.snapshot.state["params"]) == (LENGTH * 8, 2 * 3 * 8)
    assert (last.row["bytes_down"], last.row["bytes_up"]) == (COHORT * LENGTH * 8, COHORT * 2 * 3 * 8)


def model(length: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.zeros(length // 2, 2), "bias": torch.zeros(length % 2)}


def test_by_default_a_sketch_is_a_tenth_of_the_model() -> None:
    for length in (1, 49, 50, 51, 4810, 100_000):
        down, up = transferred_bytes(FetchSGD(), model(length))
        assert down == 4 * length
        assert length / 10 <= up / 4 < length / 10 + 5
    assert FetchSGD().notes(model(100_000)) == [
        "fetchsgd uploads sketches of 5 x 2,000 numbers instead of the model's 100,000 parameters, 10 times less, "
        "and uses the 500 largest of a round"
    ]


def test_options_larger_than_the_model_count_as_the_model() -> None:
    algorithm = FetchSGD(rows=2, columns=500, top=200)
    assert algorithm.notes(model(101)) == [
        "fetchsgd uploads sketches of 2 x 101 numbers, which is no less than the model's 101 parameters; "
        "choose fewer algorithm.rows or algorithm.columns",
        "algorithm.columns is 500; it counts as 101, as the model has no more",
        "algorithm.top is 200; it counts as 101, as the model has no more",
    ]
    state = algorithm.server_init(model(101))
    change = torch.arange(101.0) - 50
    table = CountSketch(101, 2, 101).sketch(change)
    stepped = algorithm.server_step(state, {"sketch": {"table": table}}, 1)
    assert torch.equal(torch.cat([p.flatten() for p in stepped["params"].values()]), change)
    assert all(torch.equal(p, torch.zeros_like(p)) for p in state["params"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, r"algorithm\.rows must be above 0, not 0"),
        ({"columns": 0}, r"algorithm\.columns must be above 0, not 0"),
        ({"top": -1}, r"algorithm\.top must be above 0, not -1"),
        ({"momentum": 1.0}, r"algorithm\.momentum must be at least 0 and below 1"),
        ({"server_lr": 0.0}, r"algorithm\.server_lr must be above 0"),
    ],
)
def test_bad_options_get_a_sentence(options, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        FetchSGD(**options)

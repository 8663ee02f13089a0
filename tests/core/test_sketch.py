"""The count sketch: its laws, and where it puts what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from fedarena.train.sketch import CountSketch, keep_largest

LENGTHS = st.integers(1, 60)
ROWS = st.integers(1, 6)
COLUMNS = st.integers(1, 70)
SEEDS = st.integers(0, 10**6)


def random_vector(length: int, seed: int) -> torch.Tensor:
    """A few large values among many small ones."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.normal(size=length) * 10.0 ** generator.integers(-3, 3, size=length))


def cells(sketch: CountSketch) -> np.ndarray:
    """As a matrix per row: ``[rows, columns, coordinates]``, found out by sketching one coordinate at a time."""
    units = torch.eye(sketch.length, dtype=torch.float64)
    return np.stack([sketch.sketch(unit).numpy() for unit in units], axis=-1)


@settings(deadline=None, max_examples=40)
@given(length=LENGTHS, rows=ROWS, columns=COLUMNS)
def test_every_coordinate_is_in_one_cell_of_each_row_and_cells_are_equally_full(length, rows, columns) -> None:
    found = cells(CountSketch(length, rows, columns))
    assert (np.abs(found).sum(1) == 1).all()
    assert set(np.unique(found)) <= {-1, 0, 1}
    filled = np.abs(found).sum(2)
    assert filled.max() == -(-length // columns)
    assert filled.min() == length // columns


@settings(deadline=None, max_examples=40)
@given(length=LENGTHS, rows=ROWS, columns=COLUMNS, seed=SEEDS, a=st.floats(-5, 5), b=st.floats(-5, 5))
def test_linear(length, rows, columns, seed, a, b) -> None:
    sketch, x, y = CountSketch(length, rows, columns), random_vector(length, seed), random_vector(length, seed + 1)
    together = sketch.sketch(a * x + b * y)
    torch.testing.assert_close(together, a * sketch.sketch(x) + b * sketch.sketch(y), rtol=0, atol=1e-9)
    np.testing.assert_allclose(sketch.sketch(x), cells(sketch) @ x.numpy(), rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(length=LENGTHS, rows=ROWS, more=st.integers(0, 9), seed=SEEDS)
def test_exact_when_there_are_columns_enough(length, rows, more, seed) -> None:
    sketch, x = CountSketch(length, rows, length + more), random_vector(length, seed)
    assert torch.equal(sketch.estimate(sketch.sketch(x)), x)


@settings(deadline=None, max_examples=40)
@given(length=LENGTHS, rows=ROWS, columns=COLUMNS, seed=SEEDS)
def test_estimates_are_medians_over_rows(length, rows, columns, seed) -> None:
    """Of an even number of rows, the mean of the two in the middle."""
    sketch = CountSketch(length, rows, columns)
    table = torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))
    by_row = np.einsum("rci,rc->ri", cells(sketch), table.numpy())
    np.testing.assert_allclose(sketch.estimate(table), np.median(by_row, axis=0), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(length=st.integers(20, 300), columns=st.integers(5, 40), seed=SEEDS)
def test_errors_are_bounded(length, columns, seed) -> None:
    """A row is off by more than three standard deviations, |x| / sqrt(columns), with a chance of at most 1/9.

    That more than half of 31 rows are has a chance of some 1e-8.
    """
    sketch, x = CountSketch(length, 31, columns), random_vector(length, seed)
    error = (sketch.estimate(sketch.sketch(x)) - x).abs().max()
    assert error <= 3 * x.norm() / columns**0.5


def test_the_error_of_a_row_has_the_variance_of_the_theory() -> None:
    """Over many rows: the square of the error is |x|² / columns in the mean, a bit less without replacement."""
    length, columns, rows = 40, 8, 2000
    sketch, x = CountSketch(length, rows, columns), random_vector(length, seed=3)
    by_row = np.einsum("rci,rc->ri", cells(sketch), sketch.sketch(x).numpy())
    errors = by_row - x.numpy()
    others = (x.norm() ** 2 - x**2).numpy()
    meeting = (length / columns - 1) / (length - 1)
    np.testing.assert_allclose((errors**2).mean(0), meeting * others, rtol=0.25)
    assert meeting <= 1 / columns
    assert np.abs(errors.mean(0)).max() < 5 * np.sqrt(others.max() / columns / rows)  # signs make it unbiased


def test_many_at_once_are_as_one_by_one() -> None:
    sketch = CountSketch(50, 3, 8)
    rows = torch.stack([random_vector(50, seed) for seed in range(4)])
    each = torch.stack([sketch.sketch(row) for row in rows])
    torch.testing.assert_close(vmap(sketch.sketch)(rows), each, rtol=0, atol=1e-12)


def test_the_same_on_every_machine() -> None:
    """Sketches of different machines are added up, so where a coordinate goes must never change."""
    table = CountSketch(6, 2, 4).sketch(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]))
    assert table.tolist() == [[-30.0, 24.0, -1.0, -4.0], [14.0, 24.0, 1.0, 4.0]]


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=30), data=st.data())
def test_of_equal_values_the_first_are_kept(values, data) -> None:
    count = data.draw(st.integers(1, len(values)))
    largest = np.argsort(-np.abs(values), kind="stable")[:count]
    expected = np.where(np.isin(np.arange(len(values)), largest), values, 0)
    assert keep_largest(torch.tensor(values, dtype=torch.float64), count).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_keep_their_type(dtype: torch.dtype) -> None:
    sketch = CountSketch(9, 2, 4)
    table = sketch.sketch(torch.ones(9, dtype=dtype))
    assert table.dtype == sketch.estimate(table).dtype == keep_largest(sketch.estimate(table), 2).dtype == dtype

"""Norms of sums of products that are not written down: as exact as of the matrices, and never too small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fedarena.train.product_rows import ProductRows


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.booleans(),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_norms_without_the_matrices(
    counts: list[int], shifted: bool, cancelling: float, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    samples = sum(counts)
    left, right = (torch.randn(samples, size, generator=random, dtype=dtype) for size in (3, 7))
    factors = torch.randn(samples, generator=random, dtype=dtype)
    if samples > 1:  # the more two samples are alike with opposite signs, the less is left of them
        left[1], right[1] = (side[0] + (1 - cancelling) * side[1] for side in (left, right))
        factors[1] = -factors[0]
    shift = torch.randn(len(counts), generator=random, dtype=dtype) if shifted else None
    rows = ProductRows(left, right, factors, np.array(counts), shift, torch.randn(3, 7, generator=random, dtype=dtype))
    precise = ProductRows(
        *(t.double() for t in (left, right, factors)),
        np.array(counts),
        None if shift is None else shift.double(),
        rows.start.double(),
    )
    expected = torch.linalg.vector_norm(precise.written().flatten(1), dim=1)
    tolerance = 1e-10 if dtype == torch.float64 else 3e-4
    torch.testing.assert_close(rows.norms(), expected, rtol=tolerance, atol=tolerance / 100)
    with pytest.MonkeyPatch.context() as patch, NobodyWaits():
        patch.setattr(ProductRows, "_in_double", True)  # as on a GPU
        norms = rows.norms()
    # Sums are exact but for rounding, which may make a norm longer by less than a millionth of what cancels.
    assert (norms >= expected * (1 - 1e-12)).all()
    torch.testing.assert_close(norms, expected, rtol=1e-6, atol=1e-4)


def test_no_norm_on_a_gpu_seems_less_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two samples that cancel nearly altogether, of which hardly a digit is left in the sum."""
    monkeypatch.setattr(ProductRows, "_in_double", True)
    random = torch.Generator().manual_seed(0)
    pairs = 200
    left, right = (
        torch.randn(pairs, 1, size, generator=random, dtype=torch.float64).repeat(1, 2, 1) for size in (3, 7)
    )
    right[:, 1] += 1e-8 * torch.randn(pairs, 7, generator=random, dtype=torch.float64)
    factors = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(pairs)
    sides = (side.flatten(0, 1) for side in (left, right))
    rows = ProductRows(*sides, factors, np.full(pairs, 2), None, torch.zeros(3, 7, dtype=torch.float64))
    expected = torch.linalg.vector_norm(rows.written().flatten(1), dim=1)
    assert (rows.norms() >= expected).all()
    assert (rows.norms() <= 1e-5).all()


class NobodyWaits(TorchDispatchMode):
    """Fails where a GPU would have to be waited for."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        assert function.overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return function(*arguments, **(named or {}))

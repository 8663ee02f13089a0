"""Tensors of many steps in rows of bytes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train.captured import Packing

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
_FORMS = st.lists(
    st.tuples(st.sampled_from(_DTYPES), st.lists(st.integers(1, 5), max_size=3)),
    min_size=1,
    max_size=5,
)


@given(_FORMS, st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_what_is_unpacked_was_packed(forms, rows, seed):
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(0, 2, (rows, *shape), generator=random).to(dtype) for dtype, shape in forms]
    packing = Packing([t[0] for t in tensors])
    packed = packing.pack(tensors)
    for number, row in enumerate(packed):
        for t, unpacked in zip(tensors, packing.unpack(row), strict=True):
            assert unpacked.dtype == t.dtype
            assert torch.equal(unpacked, t[number])


@given(_FORMS)
def test_every_tensor_begins_at_a_multiple_of_16_bytes_of_its_row(forms):
    packing = Packing([torch.zeros(shape, dtype=dtype) for dtype, shape in forms])
    packed = packing.pack([torch.zeros(2, *shape, dtype=dtype) for dtype, shape in forms])
    assert packed.shape[1] % 16 == 0
    for t in packing.unpack(packed[1]):
        assert (t.data_ptr() - packed.data_ptr()) % 16 == 0


def test_rows_that_are_not_in_one_piece_can_be_packed():
    t = torch.arange(24.0).view(2, 3, 4).transpose(1, 2)
    packing = Packing([t[0]])
    assert torch.equal(packing.unpack(packing.pack([t])[1])[0], t[1])

"""The count sketch. Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.

A long vector as a small table: in every row, each coordinate is added to one of the columns, with a random sign. A
coordinate is estimated from its cell of each row, times its sign, and the median over the rows is taken: large ones are
found, small ones are noise that mostly cancels. Sketching is linear: the sketch of a sum is the sum of the sketches.

In each row the coordinates are shuffled and dealt out to the columns in turn, so two of them meet with a chance of at
most 1 / columns, as with independent hashes, and not at all if there are enough columns. Adding up is then a gather and
a sum, which gives the same bits each time on any device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.core import streams


class CountSketch:
    """Sketches of vectors of one length; where a coordinate goes depends on length, row and `key`, on every machine."""

    def __init__(self, length: int, rows: int, columns: int, device: torch.device | str = "cpu", key: int = 0):
        self.length, self.rows, self.columns = length, rows, columns
        self._depth = -(-length // columns)  # coordinates in a cell, at most
        orders, signs = zip(*(_deal(length, row, key) for row in range(rows)), strict=True)
        self._orders = [torch.from_numpy(order).to(device) for order in orders]
        self._signs = [torch.from_numpy(sign).to(device) for sign in signs]

    def sketch(self, values: Tensor) -> Tensor:
        """The table ``[rows, columns]`` of a vector; of several, which are rows of a matrix, one table each."""
        unused = self._depth * self.columns - self.length
        shape = (*values.shape[:-1], self._depth, self.columns)
        table = [
            F.pad(values.index_select(-1, order.long()) * signs, (0, unused)).view(shape).sum(-2)
            for order, signs in zip(self._orders, self._signs, strict=True)
        ]
        return torch.stack(table, dim=-2)

    def estimate(self, table: Tensor) -> Tensor:
        """The vector that a table is the sketch of, as well as one can tell: the median over the rows."""
        estimates = torch.empty(self.rows, self.length, dtype=table.dtype, device=table.device)
        for row, (order, signs) in enumerate(zip(self._orders, self._signs, strict=True)):
            in_order = table[row].repeat(self._depth)[: self.length] * signs
            estimates[row].index_copy_(0, order.long(), in_order)
        middle = estimates.sort(0).values[(self.rows - 1) // 2 : self.rows // 2 + 1]
        return middle.mean(0)

    def mean_estimate(self, tables: Tensor) -> Tensor:
        """The vectors that tables ``[…, rows, columns]`` are sketches of: the mean over the rows, which is linear."""
        total = tables.new_zeros(*tables.shape[:-2], self.length)
        for row, (order, signs) in enumerate(zip(self._orders, self._signs, strict=True)):
            in_order = tables[..., row, :].repeat(*[1] * (tables.dim() - 2), self._depth)[..., : self.length] * signs
            total.index_copy_(-1, order.long(), total.index_select(-1, order.long()) + in_order)
        return total / self.rows

    def coordinates_in_columns(self) -> Tensor:
        """How many coordinates are added up in the cells of each column."""
        columns = torch.arange(self.columns, device=self._orders[0].device)
        return ((self.length - 1 - columns) // self.columns + 1).clamp(min=1)


def keep_largest(values: Tensor, count: int) -> Tensor:
    """The vector with all but its `count` largest values by size set to 0; of equal ones the first are kept.

    `torch.topk` chooses among equal values as it likes, and cells give many coordinates the same estimate.
    """
    sizes = values.abs()
    least = sizes.topk(count).values[-1]
    larger, equal = sizes > least, sizes == least
    kept = larger | (equal & (equal.cumsum(0) <= count - larger.sum()))
    return torch.where(kept, values, 0.0)


def _deal(length: int, row: int, key: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """The coordinates in the order in which they are dealt out in a row, and the sign of each."""
    coordinates = np.arange(length, dtype=np.uint64)
    width = np.uint64((length - 1).bit_length())
    # Sorting numbers that end with the coordinate is much faster than sorting coordinates by random numbers.
    keys = (streams.bits(key, "count sketch", row, coordinates) >> width << width) | coordinates
    keys.sort()
    order = keys & ((np.uint64(1) << width) - np.uint64(1))
    positive = (keys >> width) & np.uint64(1)
    return order.astype(np.int32), np.where(positive, 1, -1).astype(np.int8)

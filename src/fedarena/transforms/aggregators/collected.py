"""The update of every single client at the server, for aggregators that need them all.

Rows stay where they are, in the pieces in which they came. What is computed from all of them is computed block by
block: a block has some columns of all rows, so that beside the rows there is never more than a few blocks in memory.
How columns are divided depends on the number of rows and the shapes of tensors alone, every block is computed by one
thread, and sums are in float64 and in a fixed order, so results depend neither on the number of cores nor on the
pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups, JobArrays, Work
from fedarena.train.execution import available_cores, in_order
from fedarena.transforms.aggregators.base import Partial, named
from fedarena.transforms.rows import FloatArray, IntArray, Rows

R = TypeVar("R")
T = TypeVar("T")
_JOB, _WORK, _WEIGHTS, _SEED = "job:", "work:", "weights:", "seed:"
_FACTS = (_JOB, _WORK, _WEIGHTS, _SEED)
# Marks groups that move the model.
_CHANGE = "change:"
# In a block, of all rows together: large enough that memory is given back to the system at once, and does not pile up.
_BLOCK_NUMBERS = 1 << 24
_TILE_ROWS = 256  # of a piece of the matrix of products
_TILE_COLUMNS = 1 << 13


def collect_rows(rows: Rows) -> Partial:
    """The rows as they are, in the form of a partial result: one piece."""
    # Settings of jobs have done their work.
    known = {name: values for name, values in vars(rows.jobs).items() if name != "hyperparameters"}
    jobs = {name: torch.from_numpy(np.array(values)) for name, values in known.items() if values is not None}
    work = {name: torch.as_tensor(np.array(values)) for name, values in vars(rows.work).items() if values is not None}
    update = {(_CHANGE if group in rows.change_groups else "") + group: t for group, t in rows.update.items()}
    weights, seed = torch.from_numpy(rows.weights.copy()), torch.tensor(rows.seed)
    facts = {_WEIGHTS: {"": weights}, _SEED: {"": seed}, _JOB: jobs, _WORK: work}
    return Partial(named("0|", update | facts), {"pieces": 1.0})


def merge_rows(total: Partial, more: Partial) -> Partial:
    """The pieces of both, one after the other; nothing is copied."""
    before = int(total.numbers["pieces"])
    for group, tensors in more.tensors.items():
        piece, _, name = group.partition("|")
        total.tensors[f"{int(piece) + before}|{name}"] = tensors
    total.numbers["pieces"] += more.numbers["pieces"]
    return total


@contextmanager
def one_thread() -> Iterator[None]:
    """In which torch computes with one thread: sums over several round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of the calling thread
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Columns:
    """Some columns of a tensor of which every client has a row, and all these rows."""

    group: str
    name: str
    is_change: bool  # whether they move the model
    first: int
    last: int  # one behind the last of them
    parts: Sequence[Tensor]  # of every piece

    def rows(self, wanted: IntArray | None = None) -> Tensor:
        """``[clients, columns]``, in memory of their own; of all clients, or of those at some positions (sorted)."""
        if wanted is None:
            return torch.cat([self._cut(part) for part in self.parts])
        bounds = np.cumsum([0, *(len(part) for part in self.parts)])
        cuts = np.searchsorted(wanted, bounds)
        found: list[Tensor] = []
        for part, begin, first, last in zip(self.parts, bounds, cuts, cuts[1:], strict=False):
            if last > first:
                places = torch.from_numpy(wanted[first:last] - begin)
                found.append(self._cut(part)[places.to(part.device)])
        return torch.cat(found)

    def of(self, groups: Groups) -> Tensor:
        """The same columns of one update."""
        return groups[self.group][self.name].reshape(-1)[self.first : self.last]

    def _cut(self, part: Tensor) -> Tensor:
        return part.reshape(len(part), -1)[:, self.first : self.last]


@dataclass(frozen=True)
class Collected:
    """Updates of all clients of a step of the server, and what can be computed from them in little memory."""

    pieces: Sequence[Groups]

    @classmethod
    def of(cls, total: Partial) -> Collected:
        """What was collected by `collect_rows` and `merge_rows`."""
        by_piece: list[Groups] = [{} for _ in range(int(total.numbers["pieces"]))]
        for group, tensors in total.tensors.items():
            piece, _, name = group.partition("|")
            by_piece[int(piece)][name] = tensors
        return cls(by_piece)

    @cached_property
    def clients(self) -> IntArray:
        """Who they are of, in the order of the rows."""
        return torch.cat([piece[_JOB]["clients"] for piece in self.pieces]).numpy()

    @cached_property
    def weights(self) -> FloatArray:
        """How much each counts, by the algorithm."""
        return torch.cat([piece[_WEIGHTS][""] for piece in self.pieces]).numpy()

    @property
    def staleness(self) -> IntArray:
        """How many steps of the server ago each of them began."""
        return torch.cat([piece[_JOB]["staleness"] for piece in self.pieces]).numpy()

    @property
    def seed(self) -> int:
        """Of the run."""
        return int(self.pieces[0][_SEED][""])

    @property
    def changes(self) -> Groups:
        """The update of the first client, as far as it moves the model: it shows names and shapes."""
        return {
            group.removeprefix(_CHANGE): {name: t[0] for name, t in tensors.items()}
            for group, tensors in self.pieces[0].items()
            if group.startswith(_CHANGE)
        }

    def __len__(self) -> int:
        return len(self.clients)

    def tensors(self) -> Iterator[tuple[str, str, list[Tensor]]]:
        """Group, name and the rows of every piece, of every tensor that clients send."""
        for group, name, _, parts in self._tensors():
            yield group, name, parts

    def columns(self, only_changes: bool = False, numbers: int = _BLOCK_NUMBERS) -> list[Columns]:
        """All columns of what clients send, or of what moves the model, in blocks of at most so many numbers."""
        width = max(1, numbers // len(self))
        return [
            Columns(group, name, is_change, first, min(first + width, size), parts)
            for group, name, is_change, parts in self._tensors()
            if is_change or not only_changes
            for size in [parts[0][0].numel()]
            for first in range(0, size, width)
        ]

    def combined(
        self, combine: Callable[[Columns], tuple[Tensor, R]], only_changes: bool = False
    ) -> tuple[Groups, list[tuple[Columns, R]]]:
        """One update whose columns are what `combine` makes of those of all clients, and what else it found out."""
        update: Groups = {}
        for group, name, is_change, parts in self._tensors():
            if is_change or not only_changes:
                made = torch.empty_like(parts[0][0], memory_format=torch.contiguous_format)
                update.setdefault(group, {})[name] = made
        found: list[tuple[Columns, R]] = []
        columns = self.columns(only_changes)
        for some, (values, more) in zip(columns, self._in_blocks(combine, columns), strict=True):
            some.of(update).copy_(values)
            found.append((some, more))
        return update, found

    def weighted_mean(self, weights: FloatArray, only_changes: bool = False) -> Groups:
        """The mean of what clients send, in which each counts so much; those with weight 0 are not even read."""
        used = np.flatnonzero(weights)
        factors = weights[used] / weights[used].sum()

        def combine(some: Columns) -> tuple[Tensor, None]:
            rows = some.rows(used).double()
            return torch.from_numpy(factors).to(rows.device) @ rows, None

        return self.combined(combine, only_changes)[0]

    def norms(self) -> FloatArray:
        """Of every client's change of the model."""
        return np.sqrt(self._sum_of_changes(lambda some: some.rows().double().square().sum(1)))

    def distances_to(self, point: Groups) -> FloatArray:
        """How far every client's change of the model is from this one."""
        return np.sqrt(self._sum_of_changes(lambda some: (some.rows().double() - some.of(point)).square().sum(1)))

    def products_with(self, point: Groups) -> FloatArray:
        """The scalar products of every client's change of the model with this one."""
        return self._sum_of_changes(lambda some: some.rows().double() @ some.of(point).double())

    def squared_distances(self) -> FloatArray:
        """Between the changes of the model of any two clients, from their scalar products."""
        products = self.products()
        squares = np.diag(products)
        distances: FloatArray = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
        np.fill_diagonal(distances, 0.0)
        return distances

    def products(self) -> FloatArray:
        """The scalar products of the changes of the model of any two clients."""
        count = len(self)
        tiles = [np.arange(first, min(first + _TILE_ROWS, count)) for first in range(0, count, _TILE_ROWS)]
        pairs = list(itertools.combinations_with_replacement(tiles, 2))
        columns = self.columns(only_changes=True, numbers=_TILE_COLUMNS * count)

        def multiply(pair: tuple[IntArray, IntArray]) -> FloatArray:
            one, other = pair
            total = torch.zeros(len(one), len(other), dtype=torch.float64)
            for some in columns:
                rows = some.rows(one).double()
                others = rows if other is one else some.rows(other).double()
                total += (rows @ others.T).cpu()
            return total.numpy()

        products = np.zeros((count, count))
        for (one, other), of_pair in zip(pairs, self._in_blocks(multiply, pairs), strict=True):
            products[np.ix_(one, other)] = of_pair
        return np.triu(products) + np.triu(products, 1).T  # to the last bit the same both ways

    def _sum_of_changes(self, function: Callable[[Columns], Tensor]) -> FloatArray:
        """A number for every client: the sum over all columns that move the model."""
        total = np.zeros(len(self))
        for of_block in self._in_blocks(lambda some: function(some).cpu().numpy(), self.columns(only_changes=True)):
            total += of_block
        return total

    def _in_blocks(self, function: Callable[[T], R], blocks: Sequence[T]) -> Iterator[R]:
        """What the function makes of every block, in their order, on all cores, but each on one of them."""
        on_cpu = all(t.device.type == "cpu" for tensors in self.pieces[0].values() for t in tensors.values())

        def work(block: T) -> R:
            with one_thread():
                return function(block)

        yield from in_order(work, blocks, available_cores() if on_cpu else 1)

    def _tensors(self) -> Iterator[tuple[str, str, bool, list[Tensor]]]:
        """Group, name, whether it moves the model, and the rows of every piece."""
        for group, tensors in self.pieces[0].items():
            if group not in _FACTS:
                for name in tensors:
                    parts = [piece[group][name] for piece in self.pieces]
                    yield group.removeprefix(_CHANGE), name, group.startswith(_CHANGE), parts


def collected_rows(total: Partial, change_groups: tuple[str, ...]) -> Rows:
    """All rows together, in memory of their own."""
    collected = Collected.of(total)
    update: Groups = {}
    for group, name, parts in collected.tensors():
        update.setdefault(group, {})[name] = torch.cat(parts)

    def joined(kind: str) -> dict[str, Any]:
        first, *_ = collected.pieces
        return {name: torch.cat([piece[kind][name] for piece in collected.pieces]).numpy() for name in first[kind]}

    jobs, work = JobArrays(**joined(_JOB)), Work(**joined(_WORK))
    return Rows(update, jobs, work, collected.weights, change_groups, collected.seed)

"""Updates of some clients in a dense layer, as products that need not be computed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.train.algorithm import Work
from fedarena.train.engine import JobResults
from fedarena.train.jobs import IntArray
from fedarena.train.tensors import Groups, finite_rows, sent_to
from fedarena.train.wide_products import product

# In single precision, a norm is that of the written matrix if its square is less of the square that it could have at
# most. In double precision, the sum of so many products is wrong by less than this of it.
_LEAST_LEFT, _ROUNDING = 1e-3, 1e-13


@dataclass(frozen=True)
class Overlaps:
    """Products of samples of `right` with those of earlier batches, which training computes anyway."""

    products: Tensor  # [clients, samples, samples]; anything for samples of the same batch or of a later one
    batch: int  # samples of a batch

    def each_pair_once(self, right: Tensor) -> Tensor:
        """Products that are half of all, whose other half are these transposed; `right` is as in ``left · right``."""
        batches = right.shape[1] // self.batch
        within = right.view(len(right), batches, self.batch, -1)
        products = self.products.view(len(right), batches, self.batch, batches, self.batch)
        number = torch.arange(batches, device=right.device)
        is_earlier = number.view(-1, 1, 1, 1) > number.view(1, 1, -1, 1)
        total = torch.where(is_earlier, products, 0)
        total.diagonal(dim1=1, dim2=3).copy_((within @ within.transpose(2, 3)).permute(0, 2, 3, 1)).mul_(0.5)
        return total.view(self.products.shape)


@dataclass(frozen=True)
class ProductRows:
    """For each of some clients, the matrix ``leftᵀ · diag(factors) · right + shift · start`` of its own samples.

    It stands where a tensor ``[clients, outputs, inputs]`` would. Left and right may be in memory that is used again:
    whoever is given them adds them up before asking for more.
    """

    left: Tensor  # [samples, outputs] of all clients, one after the other
    right: Tensor  # [samples, inputs]
    factors: Tensor  # [samples]
    counts: IntArray  # [clients] how many of the samples are whose
    shift: Tensor | None  # [clients]; None: 0
    start: Tensor  # [outputs, inputs]
    overlaps: Overlaps | None = None  # on a CPU, where they are known; all clients have equally many samples then

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, clients: Any) -> ProductRows:
        """Some of the clients."""
        chosen = np.arange(len(self))[clients]
        begins = np.cumsum(self.counts) - self.counts
        of_chosen = np.concatenate([np.arange(begins[c], begins[c] + self.counts[c]) for c in chosen])
        rows = sent_to(self.device, of_chosen)
        shift = None if self.shift is None else self.shift[sent_to(self.device, chosen)]
        return ProductRows(
            self.left[rows], self.right[rows], self.factors[rows], self.counts[chosen], shift, self.start
        )

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.left.device

    @property
    def shape(self) -> torch.Size:
        """Of the tensor that this stands for."""
        return torch.Size([len(self), *self.start.shape])

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self.left.dtype

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of the matrices of all clients, each times its weight: one product."""
        if len(self) and (self.counts == self.counts[0]).all():  # a GPU has less to do
            of_samples = weights.repeat_interleave(int(self.counts[0]))
        else:
            of_samples = weights.repeat_interleave(sent_to(self.device, self.counts), output_size=len(self.left))
        total = product((self.left * (self.factors * of_samples).unsqueeze(-1)).t(), self.right)
        return total if self.shift is None else total + (self.shift @ weights) * self.start

    def norms(self) -> Tensor:
        """The Euclidean norm of the matrix of every client, in double precision."""
        squares, lengths = self._squares_of_products()
        if self.shift is not None:
            squares_of_start, lengths_of_start = self._squares_of_shifts()
            squares, lengths = squares + squares_of_start, lengths + lengths_of_start
        if self._in_double:
            # Nobody's norm may seem less than it is, or clipping would let too much through. To look closely at those
            # whose sums nearly cancel, one would have to wait for the GPU to know who they are.
            return (squares.clamp(min=0) + _ROUNDING * lengths.square()).sqrt()
        norms = squares.clamp(min=0).sqrt()
        # What nearly cancels leaves hardly a digit of its sum, but many of the matrix.
        for client in (squares < _LEAST_LEFT * lengths.square()).nonzero().flatten().tolist():
            norms[client] = torch.linalg.vector_norm(self[[client]].written())
        return norms

    def _squares_of_products(self) -> tuple[Tensor, Tensor]:
        """The squared norms without `shift`, and the sums of the lengths of what they are sums of."""
        most = int(self.counts.max(initial=0))
        if most and most * len(self) == len(self.left):  # nothing has to be copied
            left, right = (self._precise(side.view(len(self), most, -1)) for side in (self.left, self.right))
            return _squares(left, right, self.factors.view(len(self), most), self.overlaps)
        squares, lengths = (torch.zeros(len(self), dtype=torch.float64, device=self.device) for _ in range(2))
        ends = np.cumsum(self.counts)
        # Clients of about the same number of samples at once, so that little is computed of what fills up.
        sizes = np.array([int(count).bit_length() for count in self.counts])
        for size in np.unique(sizes[sizes > 0]):
            some = np.flatnonzero(sizes == size)
            counts = self.counts[some]
            places = np.arange(int(counts.max()))
            rows = np.minimum((ends[some] - counts)[:, None] + places, ends[some][:, None] - 1)
            at, index, counted = (sent_to(self.device, a) for a in (some, rows, places < counts[:, None]))
            left, right = (self._precise(side[index]) for side in (self.left, self.right))
            squares[at], lengths[at] = _squares(left, right, self.factors[index] * counted)
        return squares, lengths

    def _squares_of_shifts(self) -> tuple[Tensor, Tensor]:
        """What `shift` adds to squared norms, and to the lengths."""
        assert self.shift is not None
        shift, start = self.shift.double(), self._precise(self.start)
        counts = sent_to(self.device, self.counts)
        client = torch.arange(len(self), device=self.device).repeat_interleave(counts, output_size=len(self.left))
        of_samples = ((self._precise(self.right) @ start.t()) * self.left).sum(1, dtype=torch.float64) * self.factors
        along_start = torch.zeros_like(shift).index_add_(0, client, of_samples)
        length = shift.abs() * torch.linalg.vector_norm(start).double()
        return 2 * shift * along_start + length.square(), length

    @property
    def _in_double(self) -> bool:
        """Whether norms are computed in double precision: GPUs may round single precision, and are fast in double."""
        return self.device.type == "cuda"

    def _precise(self, t: Tensor) -> Tensor:
        """What is to be multiplied for a norm."""
        return t.double() if self._in_double else t

    def written(self) -> Tensor:
        """The matrices themselves."""
        rows = self.left.new_empty(len(self), *self.start.shape)
        scaled = self.left * self.factors.unsqueeze(-1)
        begin = 0
        for matrix, count in zip(rows, self.counts.tolist(), strict=True):
            torch.mm(scaled[begin : begin + count].t(), self.right[begin : begin + count], out=matrix)
            begin += count
        return rows if self.shift is None else rows + self.shift.view(-1, 1, 1) * self.start


def _squares(left: Tensor, right: Tensor, factors: Tensor, overlaps: Overlaps | None = None) -> tuple[Tensor, Tensor]:
    """Squared norms of clients' products ``[clients, samples, …]``, and the sums of the lengths of samples' parts."""
    # ‖Σ f l rᵀ‖² = Σ Σ f f' (l · l') (r · r'), in which no matrix of the layer's size appears; every pair counts twice.
    half = product(right, right.transpose(1, 2)) * 0.5 if overlaps is None else overlaps.each_pair_once(right)
    half.mul_(product(left, left.transpose(1, 2))).mul_(factors.unsqueeze(1)).mul_(factors.unsqueeze(2))
    lengths = (2 * half.diagonal(dim1=1, dim2=2)).sqrt()
    return 2 * half.sum((1, 2), dtype=torch.float64), lengths.sum(1, dtype=torch.float64)


def finite_clients(update: Groups, clients: int) -> npt.NDArray[np.bool_]:
    """Which clients' updates have no number that is NaN or infinite; one at a time where there are products."""
    plain: Groups = {}
    finite = np.ones(clients, dtype=np.bool_)
    for group, tensors in update.items():
        plain[group] = {name: t for name, t in tensors.items() if not isinstance(t, ProductRows)}
        for t in tensors.values():
            if isinstance(t, ProductRows):
                finite &= [bool(torch.isfinite(t[[client]].written()).all()) for client in range(clients)]
    return finite & finite_rows(plain, clients)


def written_down(results: JobResults, at_once: int) -> Iterator[JobResults]:
    """The same results with tensors only, of so many clients at once."""
    if not any(isinstance(t, ProductRows) for tensors in results.update.values() for t in tensors.values()):
        yield results
        return
    for begin in range(0, len(results.clients), at_once):
        some = np.arange(begin, min(begin + at_once, len(results.clients)))
        amounts = {name: None if value is None else value[some] for name, value in vars(results.work).items()}
        yield replace(
            results,
            jobs=results.jobs.take(some),
            update={
                group: {name: _rows(t, some) for name, t in tensors.items()}
                for group, tensors in results.update.items()
            },
            work=Work(**amounts),
            losses=results.losses[some],
        )


def _rows(t: Tensor | ProductRows, clients: IntArray) -> Tensor:
    return t[clients].written() if isinstance(t, ProductRows) else t[sent_to(t.device, clients)]

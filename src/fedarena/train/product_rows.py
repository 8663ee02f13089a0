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
from fedarena.train.tensors import Groups, finite_rows


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

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, clients: Any) -> ProductRows:
        """Some of the clients."""
        chosen = np.arange(len(self))[clients]
        begins = np.cumsum(self.counts) - self.counts
        rows = torch.from_numpy(np.concatenate([np.arange(begins[c], begins[c] + self.counts[c]) for c in chosen]))
        rows = rows.to(self.left.device)
        shift = None if self.shift is None else self.shift[torch.from_numpy(chosen).to(self.left.device)]
        return ProductRows(
            self.left[rows], self.right[rows], self.factors[rows], self.counts[chosen], shift, self.start
        )

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.left.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self.left.dtype

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of the matrices of all clients, each times its weight: one product."""
        of_samples = weights.repeat_interleave(torch.from_numpy(self.counts).to(self.device))
        total = (self.left * (self.factors * of_samples).unsqueeze(-1)).t() @ self.right
        return total if self.shift is None else total + (self.shift @ weights) * self.start

    def written(self) -> Tensor:
        """The matrices themselves."""
        rows = self.left.new_empty(len(self), *self.start.shape)
        scaled = self.left * self.factors.unsqueeze(-1)
        begin = 0
        for matrix, count in zip(rows, self.counts.tolist(), strict=True):
            torch.mm(scaled[begin : begin + count].t(), self.right[begin : begin + count], out=matrix)
            begin += count
        return rows if self.shift is None else rows + self.shift.view(-1, 1, 1) * self.start


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
    return t[clients].written() if isinstance(t, ProductRows) else t[torch.from_numpy(clients).to(t.device)]

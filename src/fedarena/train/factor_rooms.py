"""Room for the factors of clients' dense layers that are not written down, and what a step reads and writes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedarena.train.unwritten import DenseLayer


@dataclass(frozen=True)
class LayerInStep:
    """What a step reads of a layer in all lanes, and where it writes what is new."""

    read: tuple[Tensor, ...]  # what `Factors` or `KnownFactors` have beside start and scale
    new: tuple[Tensor, ...]  # left; if rows are not known before, right and their overlaps with earlier ones, too

    @property
    def lasting(self) -> tuple[Tensor, ...]:
        """What has the same form in all steps; the rest depends on how many samples came before."""
        return self.new[:2]

    def after_one_step(self) -> LayerInStep:
        """An example to record a program of; without a sample before, that might leave out something."""
        left = self.new[0]
        overlaps = left.new_zeros(*left.shape[:2], left.shape[1])
        factors = left[..., :1].transpose(1, 2).clone()
        if len(self.new) == 1:
            return LayerInStep((left.clone(), overlaps, factors, self.read[-1].clone()), self.new)
        right = self.new[1]
        return LayerInStep((left.clone(), right.clone(), factors), (left, right, overlaps))


@dataclass(frozen=True)
class FactorRoom:
    """Room for the factors of all steps in a layer; everything has a row per lane."""

    layer: DenseLayer
    samples: int  # rows of a step
    left: Tensor  # [lanes, samples, outputs]
    right: Tensor  # [lanes, samples, inputs]
    overlaps: Tensor  # [lanes, samples, samples] of rows with those of earlier steps; with all, if they are known
    of_start: Tensor | None = None  # [lanes, samples, outputs] rows times what everybody downloaded, if they are known

    def fill(self, clients: int, column: Tensor, rows: Tensor, start: Tensor) -> None:
        """Computes all that is known before so many clients train, from the `rows` of a column in each lane."""
        assert self.of_start is not None
        into = self.right.flatten(0, 1)
        if column.dtype == into.dtype:
            torch.index_select(column.flatten(1), 0, rows.flatten(), out=into)
        else:
            into.copy_(column.flatten(1).index_select(0, rows.flatten()))
        right = self.right[:clients]
        torch.mm(right.flatten(0, 1), start.t(), out=self.of_start[:clients].flatten(0, 1))
        torch.bmm(right, right.transpose(1, 2), out=self.overlaps[:clients])
        for rest in (self.of_start[clients:], self.overlaps[clients:]):  # lanes of nobody
            rest.zero_()

    def in_step(self, step: int, width: int, factors: Tensor) -> LayerInStep:
        """The part that concerns a step of so many lanes; `factors` ``[lanes, samples]`` are those before it."""
        before, now = slice(0, step * self.samples), slice(step * self.samples, (step + 1) * self.samples)
        left, right, overlaps = self.left[:width], self.right[:width], self.overlaps[:width, now, before]
        of_rows = factors[:width, None, before]
        if self.of_start is None:
            return LayerInStep((left[:, before], right[:, before], of_rows), (left[:, now], right[:, now], overlaps))
        return LayerInStep((left[:, before], overlaps, of_rows, self.of_start[:width, now]), (left[:, now],))

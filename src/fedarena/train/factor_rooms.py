"""Room for the factors of clients' dense layers that are not written down, and what a step reads and writes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedarena.train.unwritten import DenseLayer
from fedarena.train.wide_products import product


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
class LayerInScript:
    """The same as expressions in a script of many steps, which is given all of a layer's room.

    The script knows the number of the `first` step and of the present one, counted from that.
    """

    number: int  # of the layer
    known: bool  # whether rows are known before

    @property
    def parameters(self) -> dict[str, str]:
        """What the script is given, see `FactorRoom.for_script`."""
        names = ["left", "overlaps", "factors", "of_start" if self.known else "right"]
        return {**{self._name(name): "Tensor" for name in names}, self._name("rows"): "int"}

    @property
    def new(self) -> list[str]:
        """Where the step writes."""
        left = f"{self._name('left')}[:, {self._now}]"
        return [left] if self.known else [left, f"{self._name('right')}[:, {self._now}]", self._overlaps]

    @property
    def read(self) -> list[str]:
        """What it reads."""
        left = f"{self._name('left')}[:, {self._before}]"
        factors = f"{self._name('factors')}[first + i].unsqueeze(1)[:, :, {self._before}]"
        if self.known:
            return [left, self._overlaps, factors, f"{self._name('of_start')}[:, {self._now}]"]
        return [left, f"{self._name('right')}[:, {self._before}]", factors]

    @property
    def _overlaps(self) -> str:
        return f"{self._name('overlaps')}[:, {self._now}, {self._before}]"

    @property
    def _before(self) -> str:
        return f":(first + i) * {self._name('rows')}"

    @property
    def _now(self) -> str:
        return f"(first + i) * {self._name('rows')}:(first + i + 1) * {self._name('rows')}"

    def _name(self, what: str) -> str:
        return f"{what}_{self.number}"


@dataclass(frozen=True)
class FactorRoom:
    """Room for the factors of all steps in a layer; everything has a row per lane."""

    layer: DenseLayer
    samples: int  # rows of a step
    left: Tensor  # [lanes, samples, outputs]
    right: Tensor  # [lanes, samples, inputs]
    overlaps: Tensor  # [lanes, samples, samples] of rows with those of earlier steps; the rest means nothing
    of_start: Tensor | None = None  # [lanes, samples, outputs] rows times what everybody downloaded, if they are known

    def fill(self, clients: int, column: Tensor, rows: Tensor, places: Tensor | None, start: Tensor) -> None:
        """Computes all that is known before so many clients train, from the `rows` of a column in each lane.

        Where not all of them are samples that count, `places` says which are; the others become zeros.
        """
        assert self.of_start is not None
        into, samples = self.right.flatten(0, 1), rows.flatten()
        if places is not None:
            some = column.flatten(1).index_select(0, samples[places]).to(into.dtype)
            into.zero_().index_copy_(0, places, some)
            self.of_start.zero_().flatten(0, 1).index_copy_(0, places, product(some, start.t()))
        elif column.dtype == into.dtype:
            torch.index_select(column.flatten(1), 0, samples, out=into)
        else:
            into.copy_(column.flatten(1).index_select(0, samples))
        right = self.right[:clients]
        if places is None:
            self.of_start[:clients].flatten(0, 1).copy_(product(right.flatten(0, 1), start.t()))
        earlier = right.shape[1] - self.samples  # rows that somebody comes after
        if earlier:
            later, before = right[:, self.samples :], right[:, :earlier]
            self.overlaps[:clients, self.samples :, :earlier] = product(later, before.transpose(1, 2))
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

    def for_script(self, width: int, factors: Tensor) -> list[Tensor | int]:
        """What a script of steps of so many lanes is given; `factors` ``[steps, lanes, samples]`` are those of all."""
        rows = self.right if self.of_start is None else self.of_start
        return [self.left[:width], self.overlaps[:width], factors[:, :width], rows[:width], self.samples]


def script_of_layers(
    layers: Sequence[LayerInScript], changed: int, lasting: int, of_batch: int
) -> tuple[dict[str, str], list[str]]:
    """Parameters and arguments (see `Script.repeated`) of steps that write to layers and so many other tensors."""
    changes, lasts, batches = (
        [f"{name}_{number}" for number in range(count)]
        for name, count in (("changed", changed), ("lasting", lasting), ("batches", of_batch))
    )
    tensors = dict.fromkeys(["scales", *changes, *lasts, *batches], "Tensor")
    parameters = {"first": "int", **tensors, **{n: kind for layer in layers for n, kind in layer.parameters.items()}}
    of_layers = [*(e for layer in layers for e in layer.new), *(e for layer in layers for e in layer.read)]
    return parameters, [*changes, *of_layers, "scales[first + i]", *lasts, *(f"{name}[i]" for name in batches)]

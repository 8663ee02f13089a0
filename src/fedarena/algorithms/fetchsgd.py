"""FetchSGD. Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with Sketching", ICML 2020.

A client uploads a count sketch of its change of the model, and nothing else. Sketches are linear, so the server has
the sketch S of the mean change, and keeps momentum and error in sketches, too: S_u = S + momentum S_u;
S_e = S_e + server_lr S_u. It moves the model by U, the `top` largest coordinates of what S_e is estimated to be the
sketch of. What was used is taken out: where the sketch of U is not 0, S_e and S_u become 0.

That last step is the authors' form for experiments; their Algorithm 1 has S_e - sketch(U) instead. As in FLHetBench's
comparison, clients sketch the change that local training makes, of which the paper's single gradient is a special case.
Clients download the whole model, because whoever was away would need all changes it missed.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedarena.algorithms.checks import check_fraction, check_positive
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.limits import Limits
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, Work
from fedarena.train.sketch import CountSketch, keep_largest

_DEFAULT_COMPRESSION = 10  # how much smaller than the model a sketch is
_DEFAULT_COLUMNS_PER_TOP = 4  # with much fewer columns, large coordinates hide each other


@ALGORITHMS.register("fetchsgd")
class FetchSGD(Algorithm):
    """Uploads a table of `rows` and `columns` (by default a tenth of the model), of which `top` values are used.

    By default, `top` is a quarter of the columns.
    """

    change_groups = ("sketch",)

    def __init__(
        self,
        *,
        rows: Annotated[int, Limits(least=1, most=1000)] = 5,
        columns: int | None = None,
        top: int | None = None,
        momentum: float = 0.9,
        server_lr: float = 1.0,
    ):
        check_positive(rows=rows, server_lr=server_lr)
        check_fraction(momentum=momentum)
        for name, value in (("columns", columns), ("top", top)):
            if value is not None:
                check_positive(**{name: value})
        self.rows, self.columns, self.top = rows, columns, top
        self.momentum, self.server_lr = momentum, server_lr
        self._sketches: dict[tuple[int, torch.device], CountSketch] = {}

    def notes(self, params: Tensors) -> list[str]:
        """How much smaller uploads are, and which options are larger than the model."""
        length = _length(params)
        columns, top = self._columns(length), self._top(length)
        sketch = f"fetchsgd uploads sketches of {self.rows:,} x {columns:,} numbers"
        model = f"the model's {length:,} parameters"
        factor = length / (self.rows * columns)
        if factor > 1:
            notes = [f"{sketch} instead of {model}, {factor:.3g} times less, and uses the {top:,} largest of a round"]
        else:
            notes = [f"{sketch}, which is no less than {model}; choose fewer algorithm.rows or algorithm.columns"]
        for name, wanted in (("columns", self.columns), ("top", self.top)):
            if wanted is not None and wanted > length:
                notes.append(f"algorithm.{name} is {wanted:,}; it counts as {length:,}, as the model has no more")
        return notes

    def server_init(self, params: Tensors) -> Groups:
        """Parameters, and the sketches of momentum and error, zero at first."""
        like = next(iter(params.values()))
        empty = torch.zeros(self.rows, self._columns(_length(params)), dtype=like.dtype, device=like.device)
        return {"params": params, "momentum": {"sketch": empty}, "error": {"sketch": empty.clone()}}

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """A sketch of the change of the model."""
        change = _flatten({name: p - client.broadcast["params"][name] for name, p in params.items()})
        return {"sketch": {"table": self._sketch(change).sketch(change)}}, client.state

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Moves the model by the largest coordinates of momentum and what was not used so far."""
        momentum = mean_update["sketch"]["table"] + self.momentum * state["momentum"]["sketch"]
        error = state["error"]["sketch"] + self.server_lr * momentum
        sketch = self._sketch(_flatten(state["params"]))
        change = keep_largest(sketch.estimate(error), self._top(sketch.length))
        used = sketch.sketch(change) != 0
        return {
            **state,
            "params": _add(state["params"], change),
            "momentum": {"sketch": torch.where(used, 0.0, momentum)},
            "error": {"sketch": torch.where(used, 0.0, error)},
        }

    def _columns(self, length: int) -> int:
        if self.columns is None:
            return -(-length // (_DEFAULT_COMPRESSION * self.rows))
        return min(self.columns, length)

    def _top(self, length: int) -> int:
        if self.top is None:
            return -(-self._columns(length) // _DEFAULT_COLUMNS_PER_TOP)
        return min(self.top, length)

    def _sketch(self, vector: Tensor) -> CountSketch:
        """The sketch of vectors like this one, made once."""
        key = (len(vector), vector.device)
        if key not in self._sketches:
            self._sketches[key] = CountSketch(len(vector), self.rows, self._columns(len(vector)), vector.device)
        return self._sketches[key]


def _length(params: Tensors) -> int:
    return sum(p.numel() for p in params.values())


def _flatten(tensors: Tensors) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors.values()])


def _add(params: Tensors, change: Tensor) -> Tensors:
    parts = torch.split(change, [p.numel() for p in params.values()])
    return {name: p + part.view(p.shape) for part, (name, p) in zip(parts, params.items(), strict=True)}

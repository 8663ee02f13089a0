"""Dense layers whose weights are never written down for every client.

After some steps of SGD on few samples, a client's weights are ``scale · W0 + leftᵀ · diag(factors) · right``: W0 is
what everybody downloaded, `right` has what went into the layer, sample after sample, and `left` the gradients of what
came out of it. So the product with W0 is one for all clients, the rest are two small ones, and a step only appends its
samples. Momentum and weight decay change `scale` and `factors` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fedarena.models import Task, Tensors
from fedarena.train.optimizers import LocalTraining
from fedarena.train.overlaps import overlaps

FloatArray = npt.NDArray[np.float64]
# Found by measuring on a CPU: how many numbers the factors may have beside those of the weights, and how small weights
# are that cost next to nothing anyway.
_WORTHWHILE_SHARE = 0.5
_FEWEST_WEIGHTS = 1 << 16
_TRIED_SAMPLES = (2, 3)
_TRIED_RANK = 2
_TOLERANCE = 1e3  # times the smallest difference of numbers
# What gives a tensor another form, or tells one, without looking at its numbers.
_CHANGE_NOTHING = frozenset(
    {
        *("flatten", "view", "reshape", "contiguous", "squeeze", "unsqueeze", "float", "double", "to", "detach"),
        *("__get__", "size", "dim", "numel", "stride", "is_floating_point", "__len__"),
    }
)


@dataclass(frozen=True)
class DenseLayer:
    """A layer that multiplies by its weights once in a step."""

    name: str  # of its weights among the parameters
    inputs: int
    outputs: int
    positions: int  # for how many rows of the product a sample makes, such as the places of a sequence
    column: str | None = None  # of a batch, if its rows are nothing else, and are known before a client trains

    def pays(self, samples: int) -> bool:
        """Whether factors are worth it for a client that processes so many samples in all its steps together."""
        written = self.inputs * self.outputs
        factors = samples * self.positions * (self.inputs + self.outputs)
        return written >= _FEWEST_WEIGHTS and factors < _WORTHWHILE_SHARE * written


@dataclass(frozen=True)
class Factors:
    """The weights of one client in a layer, before a step."""

    start: Tensor  # [outputs, inputs] what it downloaded
    scale: Tensor | None  # how much of it is left; None: all
    left: Tensor  # [samples, outputs]
    right: Tensor  # [samples, inputs]
    factors: Tensor  # [1, samples]

    def product(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows times the transposed weights, and times the rows that came before."""
        of_start = rows @ self.start.t()
        if self.scale is not None:
            of_start = of_start * self.scale
        products = overlaps(rows, self.right)
        return of_start + (products * self.factors) @ self.left, products


@dataclass(frozen=True)
class KnownFactors:
    """The same where the rows are known before, and so are their products with what was downloaded and other rows."""

    start: Tensor
    scale: Tensor | None
    left: Tensor
    overlaps: Tensor  # [rows, samples] of the rows that are next and those that came before
    factors: Tensor
    of_start: Tensor  # [rows, outputs]

    def product(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The transposed weights times the rows that are known; those that are given do not count."""
        of_start = self.of_start if self.scale is None else self.of_start * self.scale
        return of_start + (self.overlaps * self.factors) @ self.left, self.overlaps


class UnwrittenWeights(TorchFunctionMode):
    """Within this context, layers with placeholders for weights get their products from a function."""

    def __init__(self, products: Mapping[int, Callable[[Tensor], Tensor]]):
        super().__init__()
        self._products = products  # by the id of the placeholder

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces dense layers, and leaves everything else alone."""
        if function is F.linear:
            input, weight, bias = _of_linear(*args, **(kwargs or {}))
            if id(weight) in self._products:
                product = self._products[id(weight)](input)
                return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))


def _of_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def placeholder(like: Tensor) -> Tensor:
    """What stands for weights or samples that are not there: whoever uses it as if it were them gets NaN."""
    return torch.full((), torch.nan, dtype=like.dtype, device=like.device).expand(like.shape)


def loss_without_weights(
    loss: Callable[[Tensors], Tensor],
    written: Tensors,
    unwritten: Mapping[str, Factors | KnownFactors],
    probes: Tensors,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """The loss of a model whose dense layers are products, the rows that went into them, and these times earlier ones.

    The gradients of the loss with respect to the `probes`, which are zeros that are added to what comes out of the
    layers, are those of the rows that come out.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    placeholders = {name: placeholder(weights.start) for name, weights in unwritten.items()}

    def product(name: str, input: Tensor) -> Tensor:
        rows = input.reshape(-1, input.shape[-1])
        product, overlaps = unwritten[name].product(rows)
        seen[name] = (rows, overlaps)
        outputs = product + probes[name]
        return outputs.view(*input.shape[:-1], outputs.shape[-1])

    def product_of(name: str) -> Callable[[Tensor], Tensor]:
        return lambda input: product(name, input)

    with UnwrittenWeights({id(weight): product_of(name) for name, weight in placeholders.items()}):
        value = loss({**written, **placeholders})
    return value, {name: (rows.detach(), overlaps.detach()) for name, (rows, overlaps) in seen.items()}


def find_dense_layers(task: Task, params: Tensors) -> tuple[DenseLayer, ...]:
    """The large layers of a model that need not be written down, found out by trying.

    Each must multiply by its weights once, and they must be used for nothing else.
    """
    large = {name for name, p in params.items() if p.dim() == 2 and p.numel() >= _FEWEST_WEIGHTS}
    if not large:
        return ()
    try:
        with _in_full_precision():
            return _tried_layers(task, params, large)
    except Exception:  # whatever an own model may raise that is tried in this way; there is always the usual one
        return ()


def _tried_layers(task: Task, params: Tensors, large: set[str]) -> tuple[DenseLayer, ...]:
    found = [_rows_of_layers(task, params, samples) for samples in _TRIED_SAMPLES]
    layers = []
    for name in params:
        positions = {rows.get(name, 0) / samples for rows, samples in zip(found, _TRIED_SAMPLES, strict=True)}
        if name in large and len(positions) == 1 and (of_sample := positions.pop()) >= 1 and of_sample % 1 == 0:
            outputs, inputs = params[name].shape
            layers.append(DenseLayer(name, inputs, outputs, int(of_sample)))
    if not _are_exact(task, params, layers):  # one may spoil it for all
        layers = [layer for layer in layers if _are_exact(task, params, [layer])]
    if not _are_exact(task, params, layers):
        return ()
    return tuple(_with_column(task, params, layer) for layer in layers)


def _with_column(task: Task, params: Tensors, layer: DenseLayer) -> DenseLayer:
    """The layer with the column that its rows are, if there is one, and nothing else in the model looks at it."""
    if type(task).batch is not Task.batch or type(task)._floats is not Task._floats or layer.positions > 1:
        return layer
    batch = _example(task, _TRIED_SAMPLES[-1], params)
    given = {name: p.detach() for name, p in params.items()}
    versions = {name: batch[name]._version for name in task.inputs}
    with torch.no_grad(), _Noting({name: batch[name] for name in versions}) as noting:
        task.loss(given, batch)
    (rows,) = noting.inputs[id(given[layer.name])]
    all_rows = [one.data_ptr() for inputs in noting.inputs.values() for one in inputs]
    for name, version in versions.items():
        values = batch[name]
        if name in noting.seen or all_rows.count(values.data_ptr()) > 1:
            continue
        as_they_were = values._version == version and values.is_contiguous() and rows.is_contiguous()
        same = as_they_were and rows.data_ptr() == values.data_ptr() and rows.numel() == values.numel()
        found = replace(layer, column=name)
        if same and _are_exact(task, params, [found]):
            return found
    return layer


@contextmanager
def _in_full_precision() -> Iterator[None]:
    """Within this context a GPU rounds no inputs of products, as it may have been told to by whoever came before."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    try:
        yield
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed


class _Noting(TorchFunctionMode):
    """Notes which weights dense layers use, for which rows, and which of some named tensors others see.

    What stands for such a tensor is NaN, which a comparison turns into an answer like any other.
    """

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.inputs: dict[int, list[Tensor]] = {}
        self.seen: set[str] = set()
        self._names = {_memory(t): name for name, t in named.items()}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if function is F.linear:
            input, weight, bias = _of_linear(*args, **(kwargs or {}))
            self.inputs.setdefault(id(weight), []).append(input)
            given = [] if bias is None else [bias]
        elif getattr(function, "__name__", "") in _CHANGE_NOTHING and len(given) == 1:
            is_view = not isinstance(result, Tensor) or _memory(result) == _memory(given[0])
            given = [] if is_view else given
        self.seen.update(self._names[place] for t in given if (place := _memory(t)) in self._names)
        return result


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _rows_of_layers(task: Task, params: Tensors, samples: int) -> dict[str, int]:
    """How many rows go into the layers that are used once, for so many samples."""
    given = {name: p.detach() for name, p in params.items()}
    with torch.no_grad(), _Noting(given) as noting:
        task.loss(given, _example(task, samples, params))
    rows = {_memory(one) for inputs in noting.inputs.values() for one in inputs}  # which may be weights
    used = {
        name: noting.inputs.get(id(p), [])
        for name, p in given.items()
        if name not in noting.seen and _memory(p) not in rows
    }
    return {name: inputs[0].shape[:-1].numel() for name, inputs in used.items() if len(inputs) == 1}


def _example(task: Task, samples: int, params: Tensors) -> Tensors:
    device = next(iter(params.values())).device
    batch = task.batch({name: values.to(device) for name, values in task.example(samples).items()})
    key = torch.zeros((), dtype=torch.int64, device=device)
    return {**task.meaningless(batch, torch.Generator().manual_seed(0)), "key": key}


def _are_exact(task: Task, params: Tensors, layers: Collection[DenseLayer]) -> bool:
    """Whether loss and gradients are the same with and without the weights of these layers written down.

    And without the samples, where they are said to be known to these layers alone.
    """
    samples = _TRIED_SAMPLES[-1]
    batch = _example(task, samples, params)
    known = {layer.column: placeholder(batch[layer.column]) for layer in layers if layer.column is not None}
    random = torch.Generator().manual_seed(0)
    unwritten: dict[str, Factors | KnownFactors] = {}
    full: Tensors = {}
    inputs: Tensors = {}
    probes: Tensors = {}
    for layer in layers:
        start = params[layer.name].detach()
        left, right = (
            torch.randn(_TRIED_RANK, size, generator=random).to(start) for size in (layer.outputs, layer.inputs)
        )
        factors = torch.full((1, _TRIED_RANK), 0.5 / layer.inputs).to(start)
        unwritten[layer.name] = Factors(start, None, left, right, factors)
        full[layer.name] = start + (left.t() * factors) @ right
        if layer.column is not None:
            rows = inputs[layer.name] = batch[layer.column].reshape(samples, -1)
            unwritten[layer.name] = KnownFactors(start, None, left, rows @ right.t(), factors, rows @ start.t())
        probes[layer.name] = torch.zeros(samples * layer.positions, layer.outputs).to(start)
    written = {name: p.detach() for name, p in params.items() if name not in unwritten}

    def loss(params: Tensors) -> Tensor:
        return task.loss(params, batch)

    def loss_in_factors(trained: tuple[Tensors, Tensors]) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        def unseeing(params: Tensors) -> Tensor:
            return task.loss(params, {**batch, **known})

        return loss_without_weights(unseeing, trained[0], unwritten, trained[1])

    gradient, value = torch.func.grad_and_value(loss)({**written, **full})
    found, (found_value, seen) = torch.func.grad_and_value(loss_in_factors, has_aux=True)((written, probes))
    pairs = [(value, found_value)]
    pairs += [(gradient[name], found[0][name]) for name in written]
    pairs += [(gradient[name], found[1][name].t() @ inputs.get(name, seen[name][0])) for name in unwritten]
    # Some gradients are nothing but rounding, such as those of attention's biases of keys.
    largest = max(float(expected.abs().max()) for expected, _ in pairs)
    tolerance = _TOLERANCE * torch.finfo(value.dtype).eps * largest
    return all(bool(((expected - found).abs() <= tolerance).all()) for expected, found in pairs)


@lru_cache(maxsize=8)
def linear_course(local: LocalTraining, steps: int, lr_scales: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """What clients' weights are before each of so many steps of SGD, and after the last: ``scale · W0 + Σ factor · g``.

    The gradients g are those of the steps so far. Scales ``[steps + 1, clients]``, factors ``[steps + 1, clients,
    steps]``; clients may have learning rates of their own.
    """
    lr = local.lr * np.array(lr_scales)[:, None]
    clients = len(lr)
    # Of weights and of their momentum: how much of W0 and of every gradient is in them.
    weights, momentum = np.zeros((clients, 1 + steps)), np.zeros((clients, 1 + steps))
    weights[:, 0] = 1
    course = [weights]
    for step in range(steps):
        gradient = local.weight_decay * weights
        gradient[:, 1 + step] += 1
        momentum = local.momentum * momentum + gradient
        weights = weights - lr * momentum
        course.append(weights)
    all_steps = np.stack(course)
    return all_steps[..., 0], all_steps[..., 1:]

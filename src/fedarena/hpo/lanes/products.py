"""Layers of many trials that see the same samples, as products of large matrices.

Under `vmap`, a linear layer whose weights differ from trial to trial is a small product per trial, for which the
samples are copied. As they are the same for all trials, it is one product of ``[trials · outputs, inputs]`` by
``[inputs, samples]``. Its rows are the outputs, so samples are innermost in memory; softmax over a few classes is
then a sum of a few long vectors, where torch's own goes through each sample by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.train.replaced_layers import ReplacedLayers, Replacements

_MOST_CLASSES = 64  # with more, torch's own softmax and lookup are as fast


class SharedSamples(ReplacedLayers):
    """Within this context, layers that see the same samples in all trials are computed for all trials at once."""

    def __init__(self) -> None:
        super().__init__(_REPLACEMENTS)


class _PartOfAGradient(torch.autograd.Function):
    """What functions compute that know their gradient themselves; gradients of gradients are nobody's business here."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        """Nobody asks for it."""
        raise NotImplementedError


class _Product(_PartOfAGradient):
    """A matrix product; where one of the factors is the same for all trials, the others become one large matrix."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """Of ``[m, k]`` by ``[k, n]``."""
        return a @ b

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        """The products of all trials."""
        count: int = info.batch_size
        if in_dims[1] is None:
            assert in_dims[0] is not None
            a = a.movedim(in_dims[0], 0)
            return (a.reshape(count * a.shape[1], a.shape[2]) @ b).view(count, a.shape[1], -1), 0
        b = b.movedim(in_dims[1], 0)
        if in_dims[0] is None:
            columns = b.mT.reshape(count * b.shape[2], b.shape[1])
            return (columns @ a.mT).view(count, b.shape[2], -1).mT, 0
        return a.movedim(in_dims[0], 0) @ b, 0


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        """``[samples, inputs]`` by ``[outputs, inputs]``."""
        product: Tensor = _Product.apply(x, weight.mT)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keeps what gradients are made of."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gradients of samples and weights."""
        x, weight = ctx.saved_tensors
        of_x = _Product.apply(grad, weight) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        return of_x, _Product.apply(grad.mT, x)  # type: ignore[no-untyped-call]


class _GraphProduct(_PartOfAGradient):
    """As `_Product`, of stacks of matrices: graphs that are the same for all trials, by what each trial has there."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """Of ``[graphs, m, k]`` by ``[graphs, k, n]``."""
        return a @ b

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        """The products of all trials; nodes stay innermost in memory, as `_Product` leaves them."""
        count: int = info.batch_size
        if in_dims[0] is None:
            assert in_dims[1] is not None
            rows = b.movedim(in_dims[1], 0).permute(1, 0, 3, 2)  # [graphs, trials, n, k]
            graphs, _, n, k = rows.shape
            mixed = rows.reshape(graphs, count * n, k) @ a.mT
            return mixed.view(graphs, count, n, -1).permute(1, 0, 3, 2), 0
        a = a.movedim(in_dims[0], 0)
        return a @ (b if in_dims[1] is None else b.movedim(in_dims[1], 0)), 0


class _Mixing(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """A stack of products."""
        product: Tensor = _GraphProduct.apply(a, b)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keeps what gradients are made of."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of both factors; that of a graph nobody asks for."""
        a, b = ctx.saved_tensors
        of_a = _GraphProduct.apply(grad, b.mT) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        of_b = _GraphProduct.apply(a.mT, grad) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return of_a, of_b


def _matmul(input: Tensor, other: Tensor) -> Tensor | None:
    is_stack = input.dim() == other.dim() == 3 and len(input) == len(other)
    if not is_stack or input.dtype != other.dtype or torch.is_autocast_enabled(input.device.type):
        return None
    product: Tensor = _Mixing.apply(input, other)  # type: ignore[no-untyped-call]
    return product


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if input.dim() < 2 or input.dtype != weight.dtype or torch.is_autocast_enabled(input.device.type):
        return None
    rows: Tensor = _Linear.apply(input.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
    output = rows if input.dim() == 2 else rows.reshape(*input.shape[:-1], -1)
    return output if bias is None else output + bias


def _log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor | None:
    if dim is None or dtype is not None or input.shape[dim] > _MOST_CLASSES:
        return None
    shifted = input - input.amax(dim, keepdim=True).detach()
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor | None:
    """One of the last dimension's few values each, as a sum in which all others are 0."""
    if dim not in (-1, input.dim() - 1) or index.dim() < 2 or index.shape[-1] != 1 or input.shape[-1] > _MOST_CLASSES:
        return None
    classes = torch.arange(input.shape[-1], device=input.device)
    chosen = (index.mT == classes.unsqueeze(-1)).mT  # samples innermost, as in the scores
    return torch.where(chosen, input, 0).sum(-1, keepdim=True)


def _argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | None:
    """The first of the few places along the last dimension where the largest value is."""
    if dim not in (-1, input.dim() - 1) or keepdim or input.shape[-1] > _MOST_CLASSES:
        return None
    if not input.is_floating_point():
        return None
    places = torch.arange(input.shape[-1], device=input.device, dtype=input.dtype)
    is_largest = input == input.amax(-1, keepdim=True)
    return torch.where(is_largest, places, input.shape[-1]).amin(-1).long()


def shared_product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product without a gradient, in which one factor may be the same for all trials."""
    product: Tensor = _Product.apply(a, b)  # type: ignore[no-untyped-call]
    return product


_REPLACEMENTS: Replacements = {
    F.linear: _linear,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.matmul: _matmul,
    torch.bmm: _matmul,
    F.log_softmax: _log_softmax,
    torch.Tensor.gather: _gather,
    torch.gather: _gather,
    torch.Tensor.argmax: _argmax,
    torch.argmax: _argmax,
}

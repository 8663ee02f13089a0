"""Layers for pictures whose channels are innermost in memory, the layout in which GPUs convolve fastest.

Torch's group normalization wants another layout, so that pictures would be turned around before and after each, and
gives a whole group of a sample to one processor of the GPU, of which there are many more than a client has samples.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedarena.train.usable_kernels import usable_kernels


class NormalizedAsTheyLie(TorchFunctionMode):
    """Within this context, group normalization of pictures leaves them in the layout in which they come."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces group normalization with a weight, and leaves everything else alone."""
        if function is F.group_norm:
            found = _group_norm(*args, **(kwargs or {}))
            if found is not None:
                return found
        return function(*args, **(kwargs or {}))


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor | None:
    if input.dim() != 4 or weight is None or bias is None:
        return None
    output: Tensor
    kernels = _kernels() if input.is_cuda else None
    if kernels is not None:
        output = _KernelGroupNorm.apply(kernels, input, num_groups, weight, bias, eps)  # type: ignore[no-untyped-call]
        return output
    if input.dtype != weight.dtype:
        return None
    output = _GroupNorm.apply(input, num_groups, weight, bias, eps)  # type: ignore[no-untyped-call]
    return output


def _kernels() -> ModuleType | None:
    return usable_kernels("fedarena.train.group_norm_kernels", "Layers of group normalization run")


class _KernelGroupNorm(torch.autograd.Function):
    """Group normalization by kernels, see `group_norm_kernels`; pictures may be rounded more than weights are."""

    @staticmethod
    def forward(
        ctx: Any, kernels: ModuleType, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Normalizes ``[batch, channels, height, width]``."""
        ctx.kernels, ctx.picture = kernels, x.shape[2:]
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
        output, mean, inverse = kernels.normalized(pixels, groups, weight, bias, eps)
        ctx.save_for_backward(pixels, mean, inverse, weight)
        return _pictures(output, ctx.picture)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, Tensor, Tensor, None]:
        """The gradients of pictures, weight and bias."""
        pixels, mean, inverse, weight = ctx.saved_tensors
        grad = grad.permute(0, 2, 3, 1).flatten(1, 2).contiguous()
        of_x, of_weight, of_bias = ctx.kernels.gradients(grad, pixels, weight, mean, inverse)
        return None, _pictures(of_x, ctx.picture), None, of_weight, of_bias, None


class _GroupNorm(torch.autograd.Function):
    """The same where there are no kernels. Pictures are ``[batch, pixels, groups, channels of a group]`` here.

    Small clients wait for how many operations there are rather than for how much each does, so there are few.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalizes ``[batch, channels, height, width]``."""
        ctx.picture, ctx.groups = x.shape[2:], groups
        x, weight, bias = _rows(x, groups), weight.view(groups, -1), bias.view(groups, -1)
        variance, mean = torch.var_mean(x, dim=(1, 3), correction=0, keepdim=True)
        inverse = (variance + eps).rsqrt()
        scale = inverse * weight
        output = torch.addcmul(torch.addcmul(bias, mean, scale, value=-1), x, scale)
        ctx.save_for_backward(x, mean, inverse, scale, weight)
        return _pictures(output, ctx.picture)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        """The gradients of pictures, weight and bias."""
        x, mean, inverse, scale, weight = ctx.saved_tensors
        grad = _rows(grad, ctx.groups)
        sums = grad.new_empty(2, len(x), 1, *weight.shape)  # of gradients, and of their products with x
        torch.sum(grad, 1, keepdim=True, out=sums[0])
        torch.sum(grad * x, 1, keepdim=True, out=sums[1])
        of_all, of_products = (sums * weight).sum(-1, keepdim=True).unbind()
        mean_inverse = inverse / (x.shape[1] * x.shape[3])
        slope = torch.addcmul(of_products, of_all, mean, value=-1) * (inverse * inverse * mean_inverse)  # downwards
        shift = torch.addcmul(slope * mean, of_all, mean_inverse, value=-1)
        of_x = torch.addcmul(torch.addcmul(shift, x, slope, value=-1), grad, scale)
        of_weight = (torch.addcmul(sums[1], sums[0], mean, value=-1) * inverse).sum(0)
        return _pictures(of_x, ctx.picture), None, of_weight.flatten(), sums[0].sum(0).flatten(), None


def _rows(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(batch, height * width, groups, channels // groups)


def _pictures(rows: Tensor, size: torch.Size) -> Tensor:
    return rows.view(len(rows), *size, -1).permute(0, 3, 1, 2)

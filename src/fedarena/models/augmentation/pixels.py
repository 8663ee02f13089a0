"""Moving the pixels of pictures, of each in its own way, in operations that `vmap` can compute for many clients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary


def drawn_below(bits: Tensor, bound: int) -> Tensor:
    """Random bits as whole numbers from 0 to below `bound`."""
    return bits.remainder(bound)  # of 2^64 numbers, so that all are equally likely


def drawn_true(bits: Tensor) -> Tensor:
    """True for about every second one of such bits."""
    return bits < 0


def positions(starts: Tensor, flipped: Tensor | None, length: int) -> Tensor:
    """Where the pixels of a line of this length come from, for every sample: from its start on, or the other way."""
    forward = torch.arange(length, device=starts.device)
    if flipped is not None:
        forward = torch.where(flipped.unsqueeze(-1), length - 1 - forward, forward)
    return starts.unsqueeze(-1) + forward


def picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of every picture the pixels in its rows and columns: ``[samples, channels, rows, columns]``.

    Channels are innermost in memory, in which convolutions on a CPU are faster. Whoever overrides this function may be
    faster still.
    """
    if has_torch_function_unary(x):
        return handle_torch_function(picked, (x,), x, rows, columns)
    samples = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    pixels: Tensor = x.permute(0, 2, 3, 1)[samples, rows.unsqueeze(-1), columns.unsqueeze(-2)]
    return pixels.permute(0, 3, 1, 2)


def resized(x: Tensor, height: int, width: int) -> Tensor:
    """Pictures in another size: linear interpolation with antialiasing, as Pillow's and torch's, as two products."""
    if tuple(x.shape[-2:]) == (height, width):
        return x
    return _weights(x.shape[-2], height, x) @ x @ _weights(x.shape[-1], width, x).mT


def _weights(before: int, after: int, like: Tensor) -> Tensor:
    """How much every pixel of a line counts in every pixel of the resized line."""
    scale = before / after
    old, new = (torch.arange(n, dtype=torch.float64, device=like.device) + 0.5 for n in (before, after))
    distance = (old - (new * scale).unsqueeze(-1)).abs() / max(scale, 1.0)
    triangle = (1 - distance).clamp(min=0)
    return (triangle / triangle.sum(-1, keepdim=True)).to(like.dtype)

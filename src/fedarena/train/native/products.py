"""Products of matrices in lanes by our own kernels for CPUs, in single precision.

Only who has asked `why_absent` may call these.
"""

from __future__ import annotations

import torch
from torch import Tensor


# These are parts of scripts, too, which know what is given to them and nothing else.
def products_of_lanes(left: Tensor, right: Tensor) -> Tensor:
    """The product ``[lanes, rows, columns]`` of matrices ``[lanes, …]``, which may be turned."""
    lanes, rows, columns = left.size(0), left.size(1), right.size(2)
    if left.stride(1) != 1 and left.stride(2) != 1:
        left = left.contiguous()
    if right.stride(0) == 0 and left.is_contiguous():  # the same for all
        left, right = left.view(1, lanes * rows, left.size(2)), right[:1]
    out = torch.empty([left.size(0), left.size(1), columns], dtype=left.dtype)
    torch.ops.fedarena_cpu.products(
        left,
        right,
        out,
        left.size(0),
        left.size(1),
        left.size(2),
        columns,
        left.stride(0),
        left.stride(1),
        left.stride(2),
        right.stride(0),
        right.stride(1),
        right.stride(2),
        out.stride(0),
        out.stride(1),
    )
    return out.view(lanes, rows, columns)


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two matrices, which may be turned."""
    return products_of_lanes(left.unsqueeze(0), right.unsqueeze(0))[0]


def subtract_products(weights: Tensor, left: Tensor, right: Tensor, times: float) -> None:
    """Subtracts products of few terms, so many times, from weights."""
    if weights.stride(2) != 1:
        weights.sub_(products_of_lanes(left, right), alpha=times)
        return
    if right.stride(2) != 1:
        right = right.contiguous()
    torch.ops.fedarena_cpu.subtract_products(
        weights,
        left,
        right,
        left.size(0),
        left.size(1),
        left.size(2),
        right.size(2),
        weights.stride(0),
        weights.stride(1),
        left.stride(0),
        left.stride(1),
        left.stride(2),
        right.stride(0),
        right.stride(1),
        times,
    )

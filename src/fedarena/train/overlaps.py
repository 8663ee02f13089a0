"""Products of the rows that go into a dense layer with those that went into it before, in many lanes.

Rows are long and few. Where lanes are few, too, libraries leave most of a GPU idle with one of them; a kernel of our
own divides the length among processors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedarena.train.operations import OfLanes, Operation
from fedarena.train.usable_kernels import usable_kernels

_COLUMNS, _DEPTH = 64, 64  # of a product that a processor computes at once
_FEWEST_PLACES, _MOST_PLACES = 16, 64  # for rows
_BUSY = 1024  # parts that keep a GPU busy
_FEWEST_TURNS = 4  # of a part: fewer would not be worth adding up


def overlaps(rows: Tensor, others: Tensor) -> Tensor:
    """Every row times every other one, of one client; gradients are those of the rows alone."""
    if not rows.is_cuda:
        return rows @ others.t()
    exact = not torch.backends.cuda.matmul.allow_tf32
    found: Tensor = _LaneOverlaps.apply(rows.unsqueeze(0), others.unsqueeze(0), exact)  # type: ignore[no-untyped-call]
    return found.squeeze(0)


def try_out() -> None:
    """Makes and runs the kernel, to see whether that is possible here."""
    row = torch.ones(1, 1, 2 * _FEWEST_TURNS * _DEPTH, device="cuda")
    in_parts(row, row, 2, exact=False)


def parts_of(rows: Tensor, others: Tensor) -> int:
    """Among how many processors the length of rows is divided, by sizes alone; 1: a library does as well."""
    lanes, count, length = rows.shape
    if count > _MOST_PLACES or rows.dtype != torch.float32:
        return 1
    of_lanes = lanes * -(-others.shape[1] // _COLUMNS)
    return max(1, min(_BUSY // of_lanes, length // (_FEWEST_TURNS * _DEPTH)))


def in_parts(rows: Tensor, others: Tensor, parts: int, exact: bool) -> Tensor:
    """The same in all lanes by the kernel; unless it is `exact`, with inputs rounded to tf32."""
    from fedarena.train.triton_overlaps import overlaps_kernel  # which takes a while, for GPUs only

    rows, others = (t if t[0].is_contiguous() else t.contiguous() for t in (rows, others))
    lanes, count, length = rows.shape
    out = rows.new_empty(lanes, parts, count, others.shape[1])
    of_part = -(-length // (parts * _DEPTH)) * _DEPTH
    overlaps_kernel[(-(-others.shape[1] // _COLUMNS), lanes * parts)](
        rows, others, out, rows.stride(0), others.stride(0),
        COUNT=count, OTHERS=others.shape[1], LENGTH=length, PARTS=parts, OF_PART=of_part,
        PRECISION="ieee" if exact else "tf32", COLUMNS=_COLUMNS, DEPTH=_DEPTH,
        PLACES=max(_FEWEST_PLACES, 1 << (count - 1).bit_length()), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(1)


def _run(rows: Tensor, others: Tensor, exact: bool) -> Tensor:
    parts = parts_of(rows, others)
    if parts == 1 or usable_kernels(__name__, "Products of long rows run") is None:
        return torch.bmm(rows, others.mT)
    return in_parts(rows, others, parts, exact)


_OVERLAPS = Operation(
    "overlaps_of_lanes",
    _run,
    lambda rows, others, exact: rows.new_empty(*rows.shape[:2], others.shape[1]),
    for_gpus=True,
)


class _LaneOverlaps(OfLanes):
    """Rows of every lane ``[lanes, rows, length]`` times others ``[lanes, others, length]``."""

    @staticmethod
    def forward(rows: Tensor, others: Tensor, exact: bool) -> Tensor:
        """Products ``[lanes, rows, others]``."""
        found: Tensor = _OVERLAPS(rows, others, exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the others."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the rows."""
        return torch.bmm(grad, ctx.saved_tensors[0]), None, None

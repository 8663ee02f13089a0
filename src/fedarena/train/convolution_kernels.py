"""Convolutions of many clients, each with weights of its own, as kernels for a GPU.

What `products` writes down as patches, these kernels read from the pictures themselves while they multiply: the product
is the same, but nothing of the size of patches goes through memory. Pictures are ``[lanes, samples, height, width,
channels]`` here, kernels ``[lanes, outputs, height, width, channels]``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedarena.train.operations import OfLanes, Operation
from fedarena.train.usable_kernels import usable_kernels

Pair = tuple[int, int]

# Parts of a product that keep a GPU busy, and how many times each goes on at least: fewer would not be worth adding up,
# unless there are only a few lanes, whose clients the others wait for.
_BUSY, _FEWEST_TURNS, _FEW_LANES = 512, 4, 4
_MOST_PARTS = 128
_ADDED_AT_ONCE = 4096  # numbers
_EVERY_PROCESSOR = 80  # parts of a product from which on smaller ones are not faster


def available() -> bool:
    """Whether such kernels can be made on this machine's GPU; torch usually brings what compiles them."""
    return usable_kernels(__name__, "Convolutions of many clients run") is not None


def try_out() -> None:
    """Makes and runs all kernels, to see whether that is possible here."""
    x, weight = torch.ones(1, 1, 9, 9, 3, device="cuda"), torch.ones(1, 16, 3, 3, 3, device="cuda")
    grad = convolve(x, weight, (1, 1), exact=False)
    weight_gradient(x, grad, (3, 3), (1, 1), exact=False)
    bias_gradient(grad)


def tiles(channels: int, outputs: int, rows: int, lanes: int) -> dict[str, int]:
    """How the product of a lane is divided among processors, by sizes alone: into smaller parts where lanes are few."""
    columns = min(128, max(16, 1 << (outputs - 1).bit_length()))
    t = {
        "ROWS": 128 if rows > 64 else 64,
        "COLUMNS": columns,
        "DEPTH": 32,
        "num_warps": 8 if columns == 128 else 4,
        "num_stages": 3,
    }
    deeper = 64 if channels % 64 == 0 else 32
    for fewer_rows, fewer_columns in ((64, columns), (64, min(32, columns)), (16, min(32, columns))):
        if lanes * _divide_up(rows, t["ROWS"]) * _divide_up(outputs, t["COLUMNS"]) >= _EVERY_PROCESSOR:
            break
        t = {"ROWS": fewer_rows, "COLUMNS": fewer_columns, "DEPTH": deeper, "num_warps": 4, "num_stages": 4}
    return t


def _stages_with_room(t: dict[str, int], of_processor: int) -> int:
    """How many steps of a product a processor reads ahead, which changes no bit: as many as it has memory for."""
    of_stage = t["DEPTH"] * (t["ROWS"] + t["COLUMNS"]) * torch.float32.itemsize
    return max(1, min(t["num_stages"], of_processor // of_stage))


@cache
def _bytes_of_processor() -> int:
    """Memory of one of the GPU's processors; an H100 has more than twice as much as most others."""
    if not torch.cuda.is_available():  # where kernels are interpreted
        return 1 << 20
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(known, "shared_memory_per_block_optin", known.shared_memory_per_block))


def gradient_tiles(channels: int, outputs: int, kernel: Pair, rows: int, lanes: int) -> dict[str, int]:
    """The same for gradients of weights, which are sums over parts of the rows: more of them where lanes are few.

    Two warps, because four would multiply by instructions that want these operands turned around in memory.
    """
    patch, few = channels * kernel[0] * kernel[1], lanes <= _FEW_LANES
    t = {
        "ROWS": 32,
        "COLUMNS": min(64, max(16, 1 << (outputs - 1).bit_length())),
        "DEPTH": 32 if patch <= 32 or few else 64,
        "num_warps": 4 if patch <= 32 and few else 2,
        "num_stages": 3,
    }
    parts = max(1, min(8, rows // (512 if patch <= 32 else 2048)))
    of_lanes = lanes * _divide_up(patch, t["DEPTH"]) * _divide_up(outputs, t["COLUMNS"])
    most = min(_MOST_PARTS, rows // (t["ROWS"] * _fewest_turns(lanes)))
    while parts * of_lanes * 2 <= _BUSY and parts * 2 <= most:
        parts *= 2
    return {"PARTS": parts, **t}


def _fewest_turns(lanes: int) -> int:
    return 1 if lanes <= _FEW_LANES else _FEWEST_TURNS


def convolve(x: Tensor, weight: Tensor, padding: Pair, exact: bool) -> Tensor:
    """Every lane's convolution, one pixel at a time; unless it is `exact`, with inputs rounded to tf32."""
    lanes, samples, height, width, channels = x.shape
    outputs, kernel_h, kernel_w = weight.shape[1:4]
    out = _output(x, weight, *padding)
    out_height, out_width = out.shape[2:4]
    rows = samples * out_height * out_width
    t = tiles(channels, outputs, rows, lanes)
    t = {**t, "num_stages": _stages_with_room(t, _bytes_of_processor())}
    grid = (_divide_up(rows, t["ROWS"]), _divide_up(outputs, t["COLUMNS"]), lanes)
    from fedarena.train.triton_convolution import convolve_kernel  # which takes a while, for GPUs only

    convolve_kernel[grid](
        x.contiguous(), weight.contiguous(), out, samples, height, width, out_height, out_width,
        CHANNELS=channels, OUTPUTS=outputs, KERNEL_H=kernel_h, KERNEL_W=kernel_w, PAD_H=padding[0], PAD_W=padding[1],
        PRECISION="ieee" if exact else "tf32", ONE_TAP=channels % t["DEPTH"] == 0, **t,
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, grad: Tensor, kernel: Pair, padding: Pair, exact: bool) -> Tensor:
    """The gradients of every lane's weights, from the pictures that came in and the gradients of what went out.

    They are to be added up over the first dimension after the lanes', of parts, by a compiler together with what
    follows.
    """
    lanes, samples, height, width, channels = x.shape
    out_height, out_width, outputs = grad.shape[2:]
    t = gradient_tiles(channels, outputs, kernel, samples * out_height * out_width, lanes)
    out = x.new_empty(lanes, t["PARTS"], outputs, *kernel, channels, dtype=torch.float32)
    tiles_of_lane = (_divide_up(kernel[0] * kernel[1] * channels, t["DEPTH"]), _divide_up(outputs, t["COLUMNS"]))
    grid = (*tiles_of_lane, lanes * t["PARTS"])
    from fedarena.train.triton_convolution import weight_gradient_kernel

    weight_gradient_kernel[grid](
        x.contiguous(), grad.contiguous(), out, samples, height, width, out_height, out_width,
        CHANNELS=channels, OUTPUTS=outputs, KERNEL_H=kernel[0], KERNEL_W=kernel[1], PAD_H=padding[0], PAD_W=padding[1],
        PRECISION="ieee" if exact else "tf32", ONE_TAP=channels % t["DEPTH"] == 0, **t,
    )  # fmt: skip
    return out


def bias_gradient(grad: Tensor) -> Tensor:
    """The gradients of every lane's biases: sums over the pixels of what went out, in parts like those of weights.

    A compiler would add up all while it computes the gradients, by one processor for a lane and a few channels.
    """
    lanes, outputs = len(grad), grad.shape[-1]
    rows = grad[0, ..., 0].numel()
    t = bias_tiles(outputs, rows, lanes)
    out = grad.new_empty(lanes, t["PARTS"], outputs, dtype=torch.float32)
    from fedarena.train.triton_convolution import sum_of_pixels_kernel

    sum_of_pixels_kernel[(_divide_up(outputs, t["COLUMNS"]), lanes * t["PARTS"])](
        grad.contiguous(), out, rows, OUTPUTS=outputs, **t
    )
    return out


def bias_tiles(outputs: int, rows: int, lanes: int) -> dict[str, int]:
    """How many processors add up the pixels of a lane, and how many pixels each does at once."""
    columns = min(64, max(16, 1 << (outputs - 1).bit_length()))
    at_once = _ADDED_AT_ONCE // columns
    turns, of_lanes = _divide_up(rows, at_once), lanes * _divide_up(outputs, columns)
    parts = max(1, min(_divide_up(turns, _fewest_turns(lanes)), 2 * _BUSY // of_lanes, _MOST_PARTS))
    return {"PARTS": parts, "ROWS": at_once, "COLUMNS": columns, "num_warps": 4}


def _divide_up(size: int, piece: int) -> int:
    return -(-size // piece)


def _output(x: Tensor, weight: Tensor, pad_h: int, pad_w: int) -> Tensor:
    lanes, samples, height, width, _ = x.shape
    outputs, kernel_h, kernel_w = weight.shape[1:4]
    return x.new_empty(lanes, samples, height + 2 * pad_h - kernel_h + 1, width + 2 * pad_w - kernel_w + 1, outputs)


def _run_convolve(x: Tensor, weight: Tensor, pad_h: int, pad_w: int, exact: bool) -> Tensor:
    return convolve(x, weight, (pad_h, pad_w), exact)


def _run_gradient(x: Tensor, grad: Tensor, kernel_h: int, kernel_w: int, pad_h: int, pad_w: int, exact: bool) -> Tensor:
    return weight_gradient(x, grad, (kernel_h, kernel_w), (pad_h, pad_w), exact)


def _gradient_form(x: Tensor, grad: Tensor, kernel_h: int, kernel_w: int, *_: Any) -> Tensor:
    channels, outputs, rows = x.shape[-1], grad.shape[-1], grad[0, ..., 0].numel()
    parts = gradient_tiles(channels, outputs, (kernel_h, kernel_w), rows, len(x))["PARTS"]
    return x.new_empty(len(x), parts, outputs, kernel_h, kernel_w, channels, dtype=torch.float32)


def _bias_form(grad: Tensor) -> Tensor:
    parts = bias_tiles(grad.shape[-1], grad[0, ..., 0].numel(), len(grad))["PARTS"]
    return grad.new_empty(len(grad), parts, grad.shape[-1], dtype=torch.float32)


_CONVOLVE = Operation(
    "convolve_lanes",
    _run_convolve,
    lambda x, weight, pad_h, pad_w, exact: _output(x, weight, pad_h, pad_w),
    for_gpus=True,
)
_WEIGHT_GRADIENT = Operation("convolution_weights_of_lanes", _run_gradient, _gradient_form, for_gpus=True)
_BIAS_GRADIENT = Operation("convolution_biases_of_lanes", bias_gradient, _bias_form, for_gpus=True)


class _InputGradient(OfLanes):
    """A convolution of gradients with the kernels turned around."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, padding: Pair, exact: bool) -> Tensor:
        """Gradients of pictures."""
        kernel_h, kernel_w = weight.shape[2:4]
        turned = weight.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()
        found: Tensor = _CONVOLVE(grad, turned, kernel_h - 1 - padding[0], kernel_w - 1 - padding[1], exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


class _WeightGradient(OfLanes):
    """A product of patches and gradients."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, kernel: Pair, padding: Pair, exact: bool) -> Tensor:
        """Gradients of weights."""
        parts: Tensor = _WEIGHT_GRADIENT(x.contiguous(), grad, *kernel, *padding, exact)
        return parts.sum(1).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


class LaneConvolution(OfLanes):
    """The convolution of every lane, with steps of one pixel."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: Pair, exact: bool) -> Tensor:
        """What comes out, ``[lanes, samples, height, width, outputs]``."""
        found: Tensor = _CONVOLVE(x.contiguous(), weight.contiguous(), *padding, exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps what came in."""
        x, weight, ctx.padding, ctx.exact = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """The gradients of pictures and weights."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        of_weight = _WeightGradient.apply(x, grad, tuple(weight.shape[2:4]), ctx.padding, ctx.exact)  # type: ignore[no-untyped-call]
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _InputGradient.apply(grad, weight, ctx.padding, ctx.exact)  # type: ignore[no-untyped-call]
        return of_x, of_weight, None, None


class _BiasGradient(OfLanes):
    """A sum over pixels."""

    @staticmethod
    def forward(grad: Tensor) -> Tensor:
        """Gradients of biases."""
        parts: Tensor = _BIAS_GRADIENT(grad)
        return parts.sum(1).to(grad.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


class LaneBias(OfLanes):
    """What is added to the pixels that come out of every lane's convolution."""

    @staticmethod
    def forward(x: Tensor, bias: Tensor) -> Tensor:
        """Pictures ``[lanes, samples, height, width, outputs]`` and biases ``[lanes, outputs]``."""
        return x + bias[:, None, None, None]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradients of pictures and biases."""
        grad = grad.contiguous()
        of_bias: Tensor | None = _BiasGradient.apply(grad) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return grad, of_bias

"""Recurrent layers of many clients on a GPU: a step of the sequence is one product and one kernel for all its gates.

What the steps are is said in `recurrence.py`; these compute the same. A kernel reads and writes every number of a step
once, where plain operations would go through memory many times. Each program of it has a block of the hidden units of a
lane's samples. A step is named by its number, not by where it begins in memory, so that all steps share one kernel.
Where products are rounded to fewer bits, so is all that goes into them or comes out; cells and biases are not, and
kernels compute as exactly as these are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_BLOCK = 512


@triton.jit
def _read(at: tl.tensor, inside: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    return tl.load(at, mask=inside).to(DTYPE)


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    return 1 / (1 + tl.exp(-x))


@triton.jit(do_not_specialize=["t"])
def _open_lstm(
    product: tl.tensor,
    gates: tl.tensor,
    states: tl.tensor,
    cells: tl.tensor,
    opened: tl.tensor,
    squashed: tl.tensor,
    t: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = cells.dtype.element_ty
    lane = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    first_gate = unit // WIDTH * (4 * WIDTH) + unit % WIDTH
    multiplied = product + lane * 4 * size + first_gate
    step = (lane * length + t) * size
    given, noted = gates + 4 * step + first_gate, opened + 4 * step + first_gate
    before = (lane * (length + 1) + t) * size + unit
    cell = _read(cells + before, inside, DTYPE)
    enter = _sigmoid(_read(multiplied, inside, DTYPE) + _read(given, inside, DTYPE))
    forget = _sigmoid(_read(multiplied + WIDTH, inside, DTYPE) + _read(given + WIDTH, inside, DTYPE))
    candidate = libdevice.tanh(_read(multiplied + 2 * WIDTH, inside, DTYPE) + _read(given + 2 * WIDTH, inside, DTYPE))
    leave = _sigmoid(_read(multiplied + 3 * WIDTH, inside, DTYPE) + _read(given + 3 * WIDTH, inside, DTYPE))
    cell = forget * cell + enter * candidate
    squash = libdevice.tanh(cell)
    tl.store(states + before + size, leave * squash, mask=inside)
    tl.store(cells + before + size, cell, mask=inside)
    tl.store(squashed + step + unit, squash, mask=inside)
    tl.store(noted, enter, mask=inside)
    tl.store(noted + WIDTH, forget, mask=inside)
    tl.store(noted + 2 * WIDTH, candidate, mask=inside)
    tl.store(noted + 3 * WIDTH, leave, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _open_lstm_back(
    product: tl.tensor,
    grad: tl.tensor,
    of_cell: tl.tensor,
    cells: tl.tensor,
    opened: tl.tensor,
    squashed: tl.tensor,
    of_gates: tl.tensor,
    t: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = cells.dtype.element_ty
    lane = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    step = (lane * length + t) * size
    first_gate = 4 * step + unit // WIDTH * (4 * WIDTH) + unit % WIDTH
    before = (lane * (length + 1) + t) * size + unit
    carried = of_cell + lane * size + unit
    noted, found = opened + first_gate, of_gates + first_gate
    enter, forget = _read(noted, inside, DTYPE), _read(noted + WIDTH, inside, DTYPE)
    candidate, leave = _read(noted + 2 * WIDTH, inside, DTYPE), _read(noted + 3 * WIDTH, inside, DTYPE)
    squash = _read(squashed + step + unit, inside, DTYPE)
    hidden_grad = _read(product + lane * size + unit, inside, DTYPE) + _read(grad + before + size, inside, DTYPE)
    cell_grad = _read(carried, inside, DTYPE) + hidden_grad * leave * (1 - squash * squash)
    tl.store(found, cell_grad * candidate * enter * (1 - enter), mask=inside)
    tl.store(found + WIDTH, cell_grad * _read(cells + before, inside, DTYPE) * forget * (1 - forget), mask=inside)
    tl.store(found + 2 * WIDTH, cell_grad * enter * (1 - candidate * candidate), mask=inside)
    tl.store(found + 3 * WIDTH, hidden_grad * squash * leave * (1 - leave), mask=inside)
    tl.store(carried, cell_grad * forget, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _open_gru(
    product: tl.tensor,
    gates: tl.tensor,
    bias: tl.tensor,
    states: tl.tensor,
    opened: tl.tensor,
    t: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = bias.dtype.element_ty
    lane = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    sample, column = unit // WIDTH, unit % WIDTH
    multiplied = product + lane * 3 * size + sample * (3 * WIDTH) + column
    step = (lane * length + t) * size
    given = gates + 3 * step + sample * (3 * WIDTH) + column
    noted = opened + 4 * step + sample * (4 * WIDTH) + column
    before = (lane * (length + 1) + t) * size + unit
    hidden = _read(states + before, inside, DTYPE)
    reset = _sigmoid(_read(multiplied, inside, DTYPE) + _read(given, inside, DTYPE))
    update = _sigmoid(_read(multiplied + WIDTH, inside, DTYPE) + _read(given + WIDTH, inside, DTYPE))
    memory = _read(multiplied + 2 * WIDTH, inside, DTYPE) + _read(bias + lane * WIDTH + column, inside, DTYPE)
    candidate = libdevice.tanh(_read(given + 2 * WIDTH, inside, DTYPE) + reset * memory)
    tl.store(states + before + size, candidate + update * (hidden - candidate), mask=inside)
    tl.store(noted, reset, mask=inside)
    tl.store(noted + WIDTH, update, mask=inside)
    tl.store(noted + 2 * WIDTH, memory, mask=inside)
    tl.store(noted + 3 * WIDTH, candidate, mask=inside)


@triton.jit(do_not_specialize=["t"])
def _open_gru_back(
    product: tl.tensor,
    grad: tl.tensor,
    kept: tl.tensor,
    states: tl.tensor,
    opened: tl.tensor,
    of_all: tl.tensor,
    t: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = kept.dtype.element_ty
    lane = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    first = 4 * (lane * length + t) * size + unit // WIDTH * (4 * WIDTH) + unit % WIDTH
    before = (lane * (length + 1) + t) * size + unit
    carried = kept + lane * size + unit
    noted, found = opened + first, of_all + first
    reset, update = _read(noted, inside, DTYPE), _read(noted + WIDTH, inside, DTYPE)
    memory, candidate = _read(noted + 2 * WIDTH, inside, DTYPE), _read(noted + 3 * WIDTH, inside, DTYPE)
    hidden_grad = _read(product + lane * size + unit, inside, DTYPE) + _read(grad + before + size, inside, DTYPE)
    hidden_grad += _read(carried, inside, DTYPE)
    candidate_grad = hidden_grad * (1 - update) * (1 - candidate * candidate)
    apart = _read(states + before, inside, DTYPE) - candidate
    tl.store(found, candidate_grad * memory * reset * (1 - reset), mask=inside)
    tl.store(found + WIDTH, hidden_grad * apart * update * (1 - update), mask=inside)
    tl.store(found + 2 * WIDTH, candidate_grad * reset, mask=inside)
    tl.store(found + 3 * WIDTH, candidate_grad, mask=inside)
    tl.store(carried, hidden_grad * update, mask=inside)


def lstm_steps(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, cells, gates and tanh of cells."""
    gates, width = gates.contiguous(), weight.shape[2]
    lanes, length, samples, _ = gates.shape
    states, cells = _states(hidden.to(gates.dtype), length), _states(cell, length)
    opened, squashed = torch.empty_like(gates), gates.new_empty(lanes, length, samples, width)
    product = gates.new_empty(lanes, samples, 4 * width)
    across, grid = weight.transpose(1, 2), _grid(lanes, samples * width)
    for t in range(length):
        torch.bmm(states[:, t], across, out=product)
        _open_lstm[grid](
            product, gates, states, cells, opened, squashed, t, length, samples * width, WIDTH=width, BLOCK=_BLOCK
        )
    return states, cells, opened, squashed


def lstm_steps_back(
    grad: Tensor, grad_cell: Tensor, weight: Tensor, cells: Tensor, opened: Tensor, squashed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates before they open, of the first hidden state and of the first cell."""
    grad, cells, opened, squashed = (t.contiguous() for t in (grad, cells, opened, squashed))
    lanes, length, samples, width = squashed.shape
    of_gates, of_cell = torch.empty_like(opened), cells.new_empty(lanes, samples, width).copy_(grad_cell)
    product, grid = grad.new_zeros(lanes, samples, width), _grid(lanes, samples * width)
    for t in reversed(range(length)):
        _open_lstm_back[grid](
            *(product, grad, of_cell, cells, opened, squashed, of_gates),
            *(t, length, samples * width),
            WIDTH=width,
            BLOCK=_BLOCK,
        )
        torch.bmm(of_gates[:, t], weight, out=product)
    return of_gates, product.add_(grad[:, 0]), of_cell


def gru_steps(gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states; both gates, memory and candidate."""
    gates, bias, width = gates.contiguous(), bias.contiguous(), weight.shape[2]
    lanes, length, samples, _ = gates.shape
    states, opened = _states(hidden.to(gates.dtype), length), gates.new_empty(lanes, length, samples, 4, width)
    product = gates.new_empty(lanes, samples, 3 * width)
    across, grid = weight.transpose(1, 2), _grid(lanes, samples * width)
    for t in range(length):
        torch.bmm(states[:, t], across, out=product)
        _open_gru[grid](product, gates, bias, states, opened, t, length, samples * width, WIDTH=width, BLOCK=_BLOCK)
    return states, opened


def gru_steps_back(grad: Tensor, weight: Tensor, states: Tensor, opened: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both gates, memory and candidate before they open, and of the first hidden state."""
    grad, states, opened = grad.contiguous(), states.contiguous(), opened.contiguous()
    lanes, length, samples, _, width = opened.shape
    of_all = opened.new_empty(lanes, length, samples, 4 * width)
    product, grid = grad.new_zeros(lanes, samples, width), _grid(lanes, samples * width)
    kept = torch.zeros_like(product, dtype=torch.promote_types(grad.dtype, torch.float32))
    for t in reversed(range(length)):
        _open_gru_back[grid](
            product, grad, kept, states, opened, of_all, t, length, samples * width, WIDTH=width, BLOCK=_BLOCK
        )
        torch.bmm(of_all[:, t, :, : 3 * width], weight, out=product)
    return of_all, product.add_(kept).add_(grad[:, 0])


def try_out() -> None:
    """Makes and runs a kernel, to see whether that is possible here."""
    one = torch.ones(1, 1, 1, device="cuda")
    lstm_steps(one.new_ones(1, 1, 1, 4), one.new_ones(1, 4, 1), one, one)


def _states(first: Tensor, length: int) -> Tensor:
    """Room for the states before the first step and after each, with the first."""
    lanes, samples, width = first.shape
    states = first.new_empty(lanes, length + 1, samples, width)
    states[:, 0].copy_(first)
    return states


def _grid(lanes: int, size: int) -> tuple[int, int]:
    return lanes, triton.cdiv(size, _BLOCK)

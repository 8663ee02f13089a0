"""LSTM layers of many clients by our own kernels for CPUs, in single precision; see `recurrence` for what they compute.

Only who has asked `why_absent` may call these.
"""

from __future__ import annotations

import torch
from torch import Tensor


# These are scripts, which know what is given to them and nothing else.
def lstm_steps(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and cells ``[lanes, length + 1, samples, width]``, and for the gradient gates and tanh of cells."""
    lanes, length, samples, width = gates.size(0), gates.size(1), gates.size(2), weight.size(2)
    if gates.stride(3) != 1:
        gates = gates.contiguous()
    states = torch.empty([lanes, length + 1, samples, width], dtype=gates.dtype)
    cells, opened = torch.empty_like(states), torch.empty([lanes, length, samples, 4 * width], dtype=gates.dtype)
    squashed = torch.empty([lanes, length, samples, width], dtype=gates.dtype)
    torch.ops.fedarena_cpu.lstm(
        gates,
        weight.contiguous(),
        hidden.contiguous(),
        cell.contiguous(),
        states,
        cells,
        opened,
        squashed,
        lanes,
        length,
        samples,
        width,
        gates.stride(0),
        gates.stride(1),
        gates.stride(2),
    )
    return states, cells, opened, squashed


def lstm_steps_back(
    grad: Tensor, grad_cell: Tensor, weight: Tensor, cells: Tensor, opened: Tensor, squashed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates before they open, of the first hidden state and of the first cell."""
    lanes, length, samples, width = opened.size(0), opened.size(1), opened.size(2), weight.size(2)
    if grad.stride(3) != 1:
        grad = grad.contiguous()
    of_gates = torch.empty([lanes, length, samples, 4 * width], dtype=grad.dtype)
    of_hidden = torch.empty([lanes, samples, width], dtype=grad.dtype)
    of_cell = torch.empty_like(of_hidden)
    torch.ops.fedarena_cpu.lstm_back(
        grad,
        grad_cell.contiguous(),
        weight.contiguous(),
        cells.contiguous(),
        opened.contiguous(),
        squashed.contiguous(),
        of_gates,
        of_hidden,
        of_cell,
        lanes,
        length,
        samples,
        width,
        grad.stride(0),
        grad.stride(1),
        grad.stride(2),
    )
    return of_gates, of_hidden, of_cell

"""LSTM layers of many clients by oneDNN, torch's library of layers on CPUs, one lane after the other.

It keeps the weights of a lane in its own order while it goes through the steps, and is near the most that a core can
do; products for all lanes at once are not. Only the calls come from here, so that no Python is between them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedarena.train.operations import Operation, Stacked, WithoutGradient

# Below so many operations for a lane (of a layer, forward) its calls cost more than all lanes step by step.
_FEWEST_FLOPS = 3e6


def suits_library(x: Tensor, width: int) -> bool:
    """Whether it should compute a layer of this width for inputs ``[length, samples, inputs]``."""
    length, samples, inputs = x.shape
    if x.device.type != "cpu" or x.dtype != torch.float32 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return 2 * length * samples * 4 * width * (width + inputs) >= _FEWEST_FLOPS


def library_lstm(
    x: Tensor, input_weight: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Hidden states ``[length, samples, width]`` and the last cell of a layer."""
    tensors = (t.unsqueeze(0) for t in (x, input_weight, weight, bias, hidden, cell))
    states, last_cell, *_ = _LibraryLSTM.apply(*tensors)  # type: ignore[no-untyped-call]
    return states[0], last_cell[0]


def _joined(lanes: list[Tensor]) -> Tensor:
    return lanes[0].unsqueeze(0) if len(lanes) == 1 else torch.stack(lanes)


# Arguments of oneDNN's layers after the tensors: not reversed, nothing packed, 2 for an LSTM, width, one layer, with
# biases, one direction, samples not first, for training; its gradients have them in another order. It takes tensors to
# be contiguous, and computes something else without a word where they are not.
def _steps(
    x: Tensor, input_weight: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, the last of them and of the cells, and oneDNN's own notes for the gradient."""
    width, no_bias = weight.size(2), torch.zeros_like(bias[0])
    states: list[Tensor] = []
    lasts: list[Tensor] = []
    last_cells: list[Tensor] = []
    notes: list[Tensor] = []
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # or else it takes no notes
    for i in range(x.size(0)):
        weights = (input_weight[i].contiguous(), weight[i].contiguous(), bias[i].contiguous(), no_bias)
        first = (hidden[i].contiguous(), cell[i].contiguous())
        state, last, last_cell, note = torch.ops.aten.mkldnn_rnn_layer(
            x[i].contiguous(), *weights, *first, False, [], 2, width, 1, True, False, False, True
        )
        states.append(state)
        lasts.append(last)
        last_cells.append(last_cell)
        notes.append(note)
    torch.set_grad_enabled(before)
    return _joined(states), _joined(lasts), _joined(last_cells), _joined(notes)


def _steps_back(
    grad: Tensor,
    grad_cell: Tensor,
    x: Tensor,
    input_weight: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    states: Tensor,
    last: Tensor,
    last_cell: Tensor,
    notes: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of inputs, weights of inputs, weights, biases, the first hidden state and the first cell."""
    width, no_bias, no_grad = weight.size(2), torch.zeros_like(bias[0]), torch.zeros_like(last[0])
    found: list[list[Tensor]] = [[], [], [], [], [], []]
    for i in range(x.size(0)):
        weights = (input_weight[i].contiguous(), weight[i].contiguous(), bias[i].contiguous(), no_bias)
        given = (x[i].contiguous(), *weights, hidden[i].contiguous(), cell[i].contiguous())
        grads = (grad[i].contiguous(), no_grad, grad_cell[i].contiguous())
        of_x, of_input_weight, of_weight, of_bias, _, of_hidden, of_cell = torch.ops.aten.mkldnn_rnn_layer_backward(
            *given, states[i], last[i], last_cell[i], *grads, False, 2, width, 1, True, True, False, [], False, notes[i]
        )
        found[0].append(of_x)
        found[1].append(of_input_weight)
        found[2].append(of_weight)
        found[3].append(of_bias)
        found[4].append(of_hidden)
        found[5].append(of_cell)
    return (
        _joined(found[0]),
        _joined(found[1]),
        _joined(found[2]),
        _joined(found[3]),
        _joined(found[4]),
        _joined(found[5]),
    )


def _forms(x: Tensor, input_weight: Tensor, weight: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    raise NotImplementedError("how large oneDNN's notes are, only it knows")


def _forms_back(grad: Tensor, grad_cell: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t) for t in kept[:6])


_STEPS = Operation("library_lstm", _steps, _forms)
_STEPS_BACK = Operation("library_lstm_back", _steps_back, _forms_back)


class _LibraryLSTM(Stacked):
    samples_at, results_at = (None,) * 6, (0,) * 4

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """See `_steps`."""
        states, last, last_cell, notes = _STEPS(*tensors)
        return states, last_cell, last, notes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keeps what the gradient needs."""
        states, last_cell, last, notes = output
        ctx.mark_non_differentiable(last, notes)
        ctx.save_for_backward(*inputs, states, last, last_cell, notes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_cell: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        """See `_steps_back`."""
        found: tuple[Tensor, ...] = _LibraryLSTMBack.apply(grad, grad_cell, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return found


class _LibraryLSTMBack(WithoutGradient):
    samples_at, results_at = (None,) * 12, (0,) * 6

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """See `_steps_back`."""
        found: tuple[Tensor, ...] = _STEPS_BACK(*tensors)
        return found

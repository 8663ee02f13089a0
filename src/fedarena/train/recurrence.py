"""Recurrent layers of many clients, a step of the sequence for all lanes at a time.

What does not depend on the step before is left to others: the products of the inputs are made for all steps at once
before, and the gradients of the weights are one product after. A step is one product for all lanes and a few operations
on gates. Their gradients are the product of what comes from the step after and factors that are known before. On a GPU
the operations on gates are one kernel (`recurrence_kernels.py`), if there is a compiler for it. On a CPU, all steps of
an LSTM may be one (`native/`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedarena.train.native import lstm as native_lstm
from fedarena.train.operations import Operation, Stacked, WithoutGradient
from fedarena.train.usable_kernels import usable_kernels


# Views are made for all steps at once: to look at a tensor takes as long as to compute a small one.
def plain_lstm_steps(
    gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and cells ``[lanes, length + 1, samples, width]``, and for the gradient gates and tanh of cells."""
    lanes, length, samples, width = gates.size(0), gates.size(1), gates.size(2), weight.size(2)
    states = torch.empty([lanes, length + 1, samples, width], dtype=gates.dtype, device=gates.device)
    cells, opened = torch.empty_like(states), torch.empty_like(gates, memory_format=torch.contiguous_format)
    squashed = torch.empty([lanes, length, samples, width], dtype=gates.dtype, device=gates.device)
    product = torch.empty([lanes, samples, 4 * width], dtype=gates.dtype, device=gates.device)
    states[:, 0].copy_(hidden)
    cells[:, 0].copy_(cell)
    weight = weight.transpose(1, 2)
    states_at, cells_at, squashed_at = states.unbind(1), cells.unbind(1), squashed.unbind(1)
    given_at, opened_at, enter_and_forget_at = gates.unbind(1), opened.unbind(1), opened[..., : 2 * width].unbind(1)
    enter, forget, candidate, leave = opened.view(lanes, length, samples, 4, width).unbind(3)
    enter_at, forget_at, candidate_at, leave_at = (
        enter.unbind(1),
        forget.unbind(1),
        candidate.unbind(1),
        leave.unbind(1),
    )
    for t in range(length):
        torch.bmm(states_at[t], weight, out=product)
        torch.add(product, given_at[t], out=opened_at[t])
        enter_and_forget_at[t].sigmoid_()
        candidate_at[t].tanh_()
        leave_at[t].sigmoid_()
        cell_after = cells_at[t + 1]
        torch.mul(forget_at[t], cells_at[t], out=cell_after)
        cell_after.addcmul_(enter_at[t], candidate_at[t])
        torch.tanh(cell_after, out=squashed_at[t])
        torch.mul(leave_at[t], squashed_at[t], out=states_at[t + 1])
    return states, cells, opened, squashed


def plain_lstm_steps_back(
    grad: Tensor, grad_cell: Tensor, weight: Tensor, cells: Tensor, opened: Tensor, squashed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates before they open, of the first hidden state and of the first cell."""
    lanes, length, samples, width = opened.size(0), opened.size(1), opened.size(2), weight.size(2)
    gates = opened.view(lanes, length, samples, 4, width)
    enter, forget, candidate, leave = gates.unbind(3)
    factors = torch.empty_like(gates)  # of the gradient of the cell, and last of that of the hidden state
    torch.ops.aten.sigmoid_backward(candidate, enter, grad_input=factors[:, :, :, 0])
    torch.ops.aten.sigmoid_backward(cells[:, :-1], forget, grad_input=factors[:, :, :, 1])
    torch.ops.aten.tanh_backward(enter, candidate, grad_input=factors[:, :, :, 2])
    torch.ops.aten.sigmoid_backward(squashed, leave, grad_input=factors[:, :, :, 3])
    into_cell = torch.ops.aten.tanh_backward(leave, squashed)
    of_cell = grad_cell.clone(memory_format=torch.contiguous_format)
    of_hidden = torch.zeros([lanes, samples, width], dtype=grad.dtype, device=grad.device)
    of_gates, of_cell_of_gates = factors.view(lanes, length, samples, 4 * width), of_cell.unsqueeze(2)
    grad_at, into_cell_at, forget_at, of_gates_at = (
        grad.unbind(1),
        into_cell.unbind(1),
        forget.unbind(1),
        of_gates.unbind(1),
    )
    by_cell_at, by_hidden_at = factors[:, :, :, :3].unbind(1), factors[:, :, :, 3].unbind(1)
    for back in range(length):
        t = length - 1 - back
        of_hidden.add_(grad_at[t + 1])
        of_cell.addcmul_(of_hidden, into_cell_at[t])
        by_cell_at[t].mul_(of_cell_of_gates)
        by_hidden_at[t].mul_(of_hidden)
        of_cell.mul_(forget_at[t])
        torch.bmm(of_gates_at[t], weight, out=of_hidden)
    of_hidden.add_(grad_at[0])
    return of_gates, of_hidden, of_cell


def _gru_steps(gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states ``[lanes, length + 1, samples, width]``; for the gradient both gates, memory and candidate."""
    lanes, length, samples, width = gates.size(0), gates.size(1), gates.size(2), weight.size(2)
    states = torch.empty([lanes, length + 1, samples, width], dtype=gates.dtype, device=gates.device)
    opened = torch.empty([lanes, length, samples, 4, width], dtype=gates.dtype, device=gates.device)
    product = torch.empty([lanes, samples, 3 * width], dtype=gates.dtype, device=gates.device)
    product_of_both, product_of_memory = product[..., : 2 * width], product[..., 2 * width :]
    weight, bias = weight.transpose(1, 2), bias.unsqueeze(1)
    states[:, 0].copy_(hidden)
    states_at, given_at = states.unbind(1), gates[..., : 2 * width].unbind(1)
    given_candidate_at, both_at = gates[..., 2 * width :].unbind(1), opened.flatten(3)[..., : 2 * width].unbind(1)
    reset, update, memory, candidate = opened.unbind(3)
    reset_at, update_at, memory_at, candidate_at = (
        reset.unbind(1),
        update.unbind(1),
        memory.unbind(1),
        candidate.unbind(1),
    )
    for t in range(length):
        torch.bmm(states_at[t], weight, out=product)
        torch.add(product_of_both, given_at[t], out=both_at[t])
        both_at[t].sigmoid_()
        torch.add(product_of_memory, bias, out=memory_at[t])
        torch.addcmul(given_candidate_at[t], reset_at[t], memory_at[t], out=candidate_at[t])
        candidate_at[t].tanh_()
        torch.lerp(candidate_at[t], states_at[t], update_at[t], out=states_at[t + 1])
    return states, opened


def _gru_steps_back(grad: Tensor, weight: Tensor, states: Tensor, opened: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both gates, memory and candidate before they open, and of the first hidden state."""
    lanes, length, samples, width = opened.size(0), opened.size(1), opened.size(2), weight.size(2)
    reset, update, memory, candidate = opened.unbind(3)
    factors = torch.empty_like(opened)
    into_candidate = factors[:, :, :, 3]
    torch.ops.aten.tanh_backward(1 - update, candidate, grad_input=into_candidate)
    torch.mul(into_candidate, reset, out=factors[:, :, :, 2])
    torch.ops.aten.sigmoid_backward(into_candidate * memory, reset, grad_input=factors[:, :, :, 0])
    torch.ops.aten.sigmoid_backward(states[:, :-1] - candidate, update, grad_input=factors[:, :, :, 1])
    of_hidden = torch.zeros([lanes, samples, width], dtype=grad.dtype, device=grad.device)
    product, of_hidden_of_all, of_all = torch.empty_like(of_hidden), of_hidden.unsqueeze(2), factors.flatten(3)
    grad_at, update_at, factors_at = grad.unbind(1), update.unbind(1), factors.unbind(1)
    multiplied_at = of_all[..., : 3 * width].unbind(1)
    for back in range(length):
        t = length - 1 - back
        of_hidden.add_(grad_at[t + 1])
        factors_at[t].mul_(of_hidden_of_all)
        torch.bmm(multiplied_at[t], weight, out=product)
        of_hidden.mul_(update_at[t]).add_(product)
    of_hidden.add_(grad_at[0])
    return of_all, of_hidden


def _lstm_forms(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    lanes, length, samples, width = *gates.shape[:3], weight.shape[2]
    states, cells = (t.new_empty(lanes, length + 1, samples, width) for t in (gates, cell))
    opened = torch.empty_like(gates, memory_format=torch.contiguous_format)
    return states, cells, opened, gates.new_empty(lanes, length, samples, width)


def _lstm_back_forms(grad: Tensor, grad_cell: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
    lanes, _, samples, width = grad.shape
    return torch.empty_like(kept[2]), *(t.new_empty(lanes, samples, width) for t in (grad, kept[1]))


def _gru_forms(gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    lanes, length, samples, width = *gates.shape[:3], weight.shape[2]
    return gates.new_empty(lanes, length + 1, samples, width), gates.new_empty(lanes, length, samples, 4, width)


def _gru_back_forms(grad: Tensor, weight: Tensor, states: Tensor, opened: Tensor) -> tuple[Tensor, ...]:
    lanes, length, samples, _, width = opened.shape
    return opened.new_empty(lanes, length, samples, 4 * width), grad.new_empty(lanes, samples, width)


def _by_kernels(name: str, steps: Callable[..., Any]) -> Callable[..., Any]:
    """The steps of this name with gates as kernels, or as they are where kernels cannot be made."""

    def run(*tensors: Tensor) -> Any:
        kernels = kernels_on_gpu()
        return (steps if kernels is None else getattr(kernels, name))(*tensors)

    return run


def kernels_on_gpu() -> ModuleType | None:
    """Those for gates, if they can be made here."""
    return usable_kernels("fedarena.train.recurrence_kernels", "Recurrent layers run")


_LSTM_STEPS = Operation("lstm", plain_lstm_steps, _lstm_forms, _by_kernels("lstm_steps", plain_lstm_steps))
_LSTM_STEPS_BACK = Operation(
    "lstm_back", plain_lstm_steps_back, _lstm_back_forms, _by_kernels("lstm_steps_back", plain_lstm_steps_back)
)
_GRU_STEPS = Operation("gru", _gru_steps, _gru_forms, _by_kernels("gru_steps", _gru_steps))
_GRU_STEPS_BACK = Operation(
    "gru_back", _gru_steps_back, _gru_back_forms, _by_kernels("gru_steps_back", _gru_steps_back)
)


def lstm(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, natively: bool = False) -> tuple[Tensor, Tensor]:
    """Hidden states ``[length, samples, width]`` and the last cell of a layer.

    The gates ``[length, samples, 4 * width]`` are what inputs and biases come to; hidden state and cell are the first.
    On a CPU the steps may be taken `natively`, by kernels of our own.
    """
    layer = _NATIVE_LSTM if natively else _LSTM
    states, last_cell, *_ = layer.apply(*(t.unsqueeze(0) for t in (gates, weight, hidden, cell)))  # type: ignore[no-untyped-call]
    return states[0, 1:], last_cell[0]


def gru(gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
    """Hidden states ``[length, samples, width]`` of a layer; the bias is that of the memory, which is reset."""
    states, _ = _GRU.apply(*(t.unsqueeze(0) for t in (gates, weight, bias, hidden)))  # type: ignore[no-untyped-call]
    return states[0, 1:]  # type: ignore[no-any-return]


def _lstm_function(steps: Operation, steps_back: Operation) -> type[Stacked]:
    """The function whose steps, and those of its gradient, are computed in this way."""

    class Gradient(WithoutGradient):
        samples_at, results_at = (2, 1, None, 2, 2, 2), (2, 1, 1)

        @staticmethod
        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            """See `plain_lstm_steps_back`."""
            found: tuple[Tensor, ...] = steps_back(*tensors)
            return found

    class Layer(Stacked):
        samples_at, results_at = (2, None, 1, 1), (2, 1, 2, 2, 2)

        @staticmethod
        def forward(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            """Hidden states, the last cell, and what the gradient needs."""
            states, cells, opened, squashed = steps(gates, weight, hidden, cell)
            return states, cells[:, -1].clone(), cells, opened, squashed

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
            """Keeps what the gradient needs."""
            states, _, *kept = output
            ctx.mark_non_differentiable(*kept)
            ctx.save_for_backward(inputs[1], states, *kept)

        @staticmethod
        def backward(ctx: Any, grad: Tensor, grad_cell: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
            """The gradient of the weights is one product over all steps."""
            weight, states, *kept = ctx.saved_tensors
            of_gates, of_hidden, of_cell = Gradient.apply(grad, grad_cell, weight, *kept)  # type: ignore[no-untyped-call]
            return of_gates, _weight_gradient(of_gates, states), of_hidden, of_cell

    return Layer


class _GRU(Stacked):
    samples_at, results_at = (2, None, None, 1), (2, 2)

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states, and what the gradient needs."""
        found: tuple[Tensor, Tensor] = _GRU_STEPS(gates, weight, bias, hidden)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps what the gradient needs."""
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        """The gradient of the weights is one product over all steps."""
        weight, states, opened = ctx.saved_tensors
        of_all, of_hidden = _GRUBack.apply(grad, weight, states, opened)  # type: ignore[no-untyped-call]
        width = states.shape[-1]
        of_gates = torch.cat([of_all[..., : 2 * width], of_all[..., 3 * width :]], -1)
        of_weight = _weight_gradient(of_all[..., : 3 * width], states)
        return of_gates, of_weight, of_all[..., 2 * width : 3 * width].sum((1, 2)), of_hidden


class _GRUBack(WithoutGradient):
    samples_at, results_at = (2, None, 2, 2), (2, 1)

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """See `_gru_steps_back`."""
        found: tuple[Tensor, ...] = _GRU_STEPS_BACK(*tensors)
        return found


def _weight_gradient(of_gates: Tensor, states: Tensor) -> Tensor:
    return of_gates.flatten(1, 2).mT @ states[:, :-1].flatten(1, 2)


_LSTM = _lstm_function(_LSTM_STEPS, _LSTM_STEPS_BACK)
_NATIVE_LSTM = _lstm_function(
    Operation("native_lstm", native_lstm.lstm_steps, _lstm_forms),
    Operation("native_lstm_back", native_lstm.lstm_steps_back, _lstm_back_forms),
)

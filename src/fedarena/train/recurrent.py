"""Recurrent layers, and windows of characters, as operations for many clients at once.

Torch's LSTM and GRU would be computed for one client after the other under `vmap`, or as many small operations of every
step of the sequence. What is replaced here: any number of layers, in one or both directions. What is not: sequences
that are packed, projections, products that a CPU rounds; those stay torch's own. Dropout between layers draws numbers
for one client at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedarena.models.characters import LSTMLayer, WindowModel, layers_by
from fedarena.train.layers import LayerTracker
from fedarena.train.library_lstm import library_lstm, suits_library
from fedarena.train.recurrence import gru, kernels_on_gpu, lstm
from fedarena.train.token_windows import suits_tables, window_sums

# One layer in one direction: inputs, weights of inputs, weights, two biases, first hidden state (and first cell), to
# hidden states (and last cell).
_Layer = Callable[..., tuple[Tensor, ...]]


class RecurrentLayers(TorchFunctionMode):
    """Within this context, recurrent layers are operations that `vmap` knows.

    With `of_samples`, gradients of every sample by itself are wanted, so samples with the same weights stay together.
    With `natively`, a CPU's LSTM layers are computed by kernels of our own.
    """

    def __init__(self, of_samples: bool = False, natively: bool = False):
        super().__init__()
        self._of_samples, self._natively = of_samples, natively
        self._open = ExitStack()

    def __enter__(self) -> RecurrentLayers:
        self._open.enter_context(layers_by(self._own_layer, self._own_windows))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._open.close()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces recurrent layers that are simple enough, and leaves everything else alone."""
        found: Any = None
        if function is Tensor.data_ptr:
            return _place(*args)
        if function in (torch.lstm, torch.gru) and not kwargs and len(args) == 9 and isinstance(args[2], list):
            found = self._layers(self._lstm_layer if function is torch.lstm else _gru_layer, *args)
        return function(*args, **(kwargs or {})) if found is None else found

    def _own_layer(self, x: Tensor, layer: LSTMLayer) -> Tensor | None:
        """The layer of our own models, unless its parts are more than their weights, as with low-rank changes."""
        if not (_only_weights(layer.input) and _only_weights(layer.recurrent) and _plain(x)):
            return None
        weights = (layer.input.weight, layer.recurrent.weight, layer.input.bias, torch.zeros_like(layer.input.bias))
        zeros = x.new_zeros(x.shape[0], layer.hidden, dtype=layer.input.bias.dtype)
        return self._lstm_layer(x.transpose(0, 1), *weights, zeros, zeros)[0].transpose(0, 1)

    def _own_windows(self, tokens: Tensor, model: WindowModel) -> Tensor | None:
        """The hidden layer of our own model of characters, by tables where that pays."""
        embed, window = model.embed, model.window
        if self._of_samples or not (_only_weights(window) and _only_weights(embed, nn.Embedding)):
            return None
        if not suits_tables(tokens, embed.weight):
            return None
        return window_sums(embed.weight, window.weight, window.bias, tokens)

    def _layers(
        self,
        one: _Layer,
        x: Tensor,
        first: Any,
        weights: list[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        training: bool,
        both_directions: bool,
        samples_first: bool,
    ) -> tuple[Tensor, ...] | None:
        """What torch's function of these arguments gives: hidden states, and the last of every layer and direction."""
        directions, each = 2 if both_directions else 1, 4 if has_biases else 2
        if training and dropout and layers > 1:
            raise NotImplementedError("dropout between layers draws numbers for one client at a time")
        if len(weights) != layers * directions * each or not _plain(x):
            return None
        starts = [first] if isinstance(first, Tensor) else list(first)
        if samples_first:
            x = x.transpose(0, 1)
        lasts: list[Sequence[Tensor]] = []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                own = weights[number * each : (number + 1) * each]
                if not has_biases:
                    own = [*own, *[x.new_zeros(len(own[0]))] * 2]
                given = x.flip(0) if direction else x
                states, *cells = one(given, *own, *(start[number] for start in starts))
                lasts.append([states[-1], *cells])
                outputs.append(states.flip(0) if direction else states)
            x = torch.cat(outputs, -1) if both_directions else outputs[0]
        output = x.transpose(0, 1) if samples_first else x
        return output, *(torch.stack(kind) for kind in zip(*lasts, strict=True))

    def _lstm_layer(
        self, x: Tensor, input_weight: Tensor, weight: Tensor, bias: Tensor, other: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, ...]:
        natively = self._natively and x.device.type == "cpu" and x.dtype == torch.float32
        if not natively and not self._of_samples and suits_library(x, weight.shape[-1]):
            return library_lstm(x, input_weight, weight, bias + other, hidden, cell)
        gates = _products(x, input_weight, bias + other)
        return lstm(gates, weight.to(gates.dtype), hidden, cell.to(weight.dtype), natively)


def _gru_layer(
    x: Tensor, input_weight: Tensor, weight: Tensor, bias: Tensor, other: Tensor, hidden: Tensor
) -> tuple[Tensor, ...]:
    both = 2 * weight.shape[-1]
    gates = _products(x, input_weight, torch.cat([bias[:both] + other[:both], bias[both:]]))
    return (gru(gates, weight.to(gates.dtype), other[both:], hidden),)


def _products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What inputs and biases come to, for all steps of the sequence; biases are rounded if the products are."""
    if torch.is_autocast_enabled(x.device.type):
        bias = bias.to(torch.get_autocast_dtype(x.device.type))
    return F.linear(x, weight, bias)


def _place(t: Tensor) -> int:
    """Where a tensor lies; torch's layers ask on a GPU whether cuDNN can have their weights in a row.

    Those of many clients cannot be asked. Since they all seem to lie at the same place, they are left alone.
    """
    with suppress(RuntimeError):
        return t.data_ptr()
    return 0


def _plain(x: Tensor) -> bool:
    """Whether there are numbers, and they are not rounded where plain operations alone would have to compute."""
    rounded = torch.is_autocast_enabled(x.device.type)
    return x.dim() == 3 and x.numel() > 0 and (not rounded or (x.is_cuda and kernels_on_gpu() is not None))


def _only_weights(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether a layer is torch's own, and nobody changes what it gets or puts out."""
    hooks = (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values())
    return type(layer) is kind and all(hook.__module__ == LayerTracker.__module__ for hook in hooks)

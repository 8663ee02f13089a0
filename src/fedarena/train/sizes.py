"""How much memory the training of a model takes, found out by trying it."""

from __future__ import annotations

from torch import Tensor, nn

from fedarena.models import Task
from fedarena.models.characters import LSTMLayer
from fedarena.train.layers import count_output_bytes

_TENSORS_PER_OUTPUT = 4
_MOST_TRIED = 4096  # samples that a model is tried out on
# Samples that a model is tried out with to see how much memory a batch takes; larger ones take as much more.
_LARGEST_TRIED = 4096


def has_convolutions(task: Task) -> bool:
    """Whether a layer of the model is a convolution."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.module.modules())


def has_recurrence(task: Task) -> bool:
    """Whether a layer of the model goes through sequences step by step."""
    return any(isinstance(layer, LSTMLayer | nn.LSTM | nn.GRU) for layer in task.module.modules())


def bytes_per_lane(task: Task, batch_size: int) -> int:
    """A lane's parameters and what the model's layers put out for a batch, with all that comes of it in a step."""
    parameters = sum(p.numel() * p.element_size() for p in task.module.parameters())
    tried = min(batch_size, _LARGEST_TRIED, task.largest_batch or batch_size)
    return parameters + _TENSORS_PER_OUTPUT * output_bytes(task, tried) * batch_size // tried


def output_bytes(task: Task, samples: int) -> int:
    """What the model's layers put out for so many samples."""
    if samples > _MOST_TRIED:  # as many as nobody has; each adds the same
        most, more = output_bytes(task, _MOST_TRIED), output_bytes(task, _MOST_TRIED // 2)
        return most + (most - more) * (samples - _MOST_TRIED) // (_MOST_TRIED - _MOST_TRIED // 2)
    device = next(task.module.parameters()).device
    example = {name: t.to(device) for name, t in task.example(samples).items()}
    batch = task.batch(example)
    return count_output_bytes(task.module, *task.model_inputs(batch))


def gate_bytes(task: Task, batch_size: int) -> int:
    """What a batch takes besides in torch's recurrent layers, which do not put out the products that open their gates.

    Those of our own layers count among what layers put out.
    """
    total = 0

    def count(layer: nn.RNNBase, inputs: object, output: tuple[Tensor, ...]) -> None:
        nonlocal total
        gates = 4 if isinstance(layer, nn.LSTM) else 3
        total += 2 * gates * layer.num_layers * output[0].numel() * output[0].element_size()

    layers = [layer for layer in task.module.modules() if isinstance(layer, nn.LSTM | nn.GRU)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    if layers:
        output_bytes(task, 1)
    for handle in handles:
        handle.remove()
    return _TENSORS_PER_OUTPUT * total * batch_size

"""How much memory the training of a model takes, found out by trying it."""

from __future__ import annotations

import torch

from fedarena.models import Task
from fedarena.train.layers import count_output_bytes

_TENSORS_PER_OUTPUT = 4
_MOST_TRIED = 4096  # samples that a model is tried out on
# Samples that a model is tried out with to see how much memory a batch takes; larger ones take as much more.
_LARGEST_TRIED = 4096


def has_convolutions(task: Task) -> bool:
    """Whether a layer of the model is a convolution."""
    return any(isinstance(layer, torch.nn.modules.conv._ConvNd) for layer in task.module.modules())


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

"""What a model answers to made-up samples, by which it is known again in another process.

Its source may be the same and the model another one: if it is built in the order of a set of texts, which Python mixes
anew in every process, or by what an environment variable or another file says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedarena.core.seeding import seeded
from fedarena.models.probes import in_mode, made_up_batch
from fedarena.models.tasks import Task
from fedarena.models.trainable import trainable_parameters

_SAMPLES = 3
_MOST_NUMBERS = 64
_SEED = 4  # of the samples
# Of the largest answer: a GPU that rounds what it multiplies is the same model.
_ROUNDING = 1e-2


def answers_of(task: Task) -> list[float]:
    """Some of what the model puts out for made-up samples.

    Its parameters are then numbers that follow from their names and shapes alone.
    """
    params = {name: _drawn(name, p) for name, p in trainable_parameters(task.module).items()}
    batch = made_up_batch(task, _SAMPLES, _SEED)
    with torch.no_grad(), in_mode(task, training=False), seeded(0):
        outputs = task.predict(params, dict(batch)).flatten()
    step = max(1, len(outputs) // _MOST_NUMBERS)
    told: list[float] = torch.nan_to_num(outputs[::step][:_MOST_NUMBERS].double()).tolist()
    return told


def are_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether these are answers of the same model, on any hardware."""
    largest = max(map(abs, one), default=0.0)
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=0, abs_tol=_ROUNDING * largest) for a, b in zip(one, other, strict=True)
    )


def _drawn(name: str, like: Tensor) -> Tensor:
    """As large as parameters usually are, so that no layer puts out zeros or infinities."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    inputs = like[0].numel() if like.dim() > 1 and len(like) else 4
    return (drawn / math.sqrt(max(1, inputs))).to(like)

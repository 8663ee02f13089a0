"""Which samples a client trains on, and in which order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.train.optimizers import LocalTraining

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def count_steps(samples: IntArray, local: LocalTraining) -> IntArray:
    """Number of gradient steps that clients with so many samples take."""
    if local.steps is not None:
        return np.where(samples > 0, local.steps, 0)
    assert local.epochs is not None
    return local.epochs * -(-samples // local.batch_size)


def count_processed(samples: IntArray, steps: IntArray, batch_size: int | IntArray) -> IntArray:
    """How many samples clients compute gradients on in so many steps, epoch after epoch with a short last batch."""
    steps_per_epoch = np.maximum(-(-samples // batch_size), 1)
    epochs, further_steps = np.divmod(steps, steps_per_epoch)
    processed: IntArray = epochs * samples + np.minimum(further_steps * batch_size, samples)
    return processed


def count_steps_within(processed: FloatArray, samples: IntArray, batch_size: int) -> FloatArray:
    """How many whole steps clients take that compute gradients on at most so many samples."""
    epochs, rest = np.divmod(processed, np.maximum(samples, 1))
    steps: FloatArray = epochs * -(-samples // batch_size) + rest // batch_size
    return steps


def sample_order(samples: int, seed: int, round: int, client: int, epoch: int) -> IntArray:
    """A shuffle of ``0..samples-1`` that depends on nothing but the keys."""
    keys = streams.bits(seed, "batches", round, client, epoch, np.arange(samples))
    return np.argsort(keys, kind="stable")


def batch_indices(
    samples: int, local: LocalTraining, seed: int, round: int, client: int, steps: int | None = None
) -> list[IntArray]:
    """The samples of every local step: each epoch a new shuffle, cut into batches, the last one as short as it is."""
    batches: list[IntArray] = []
    if steps is None:
        steps = int(count_steps(np.array(samples), local))
    epoch = 0
    while len(batches) < steps:
        order = sample_order(samples, seed, round, client, epoch)
        batches += [order[i : i + local.batch_size] for i in range(0, samples, local.batch_size)]
        epoch += 1
    return batches[:steps]


def dropout_keys(seed: int, round: int | IntArray, clients: int | IntArray, steps: int | IntArray) -> IntArray:
    """The keys of what a model draws in these steps (counted from 1) of these clients."""
    return np.asarray(streams.bits(seed, "dropout", round, clients, steps)).view(np.int64)

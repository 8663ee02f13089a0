"""Clients have samples of few classes: each of just so many, whose samples their holders share equally.

Flower's PathologicalPartitioner, after Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study"
(2022), where it is called #C=k. Flower leaves out samples of a class that nobody was given; here every class has a
holder.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, MinSamples, check_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray

MAX_ATTEMPTS = 100


@PARTITIONERS.register("pathological")
def pathological(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    classes_per_client: Annotated[int, Field(ge=1)] = 2,
    assignment: Literal["random", "in_turn"] = "random",
    min_samples: MinSamples = 1,
    seed: Seed = 0,
) -> IntArray:
    """Each client has `classes_per_client` classes (fewer only where a class has fewer samples than holders).

    Which ones is drawn, or with ``assignment="in_turn"`` client k has the k-th class and those after it.
    """
    check_enough(len(labels), clients, min_samples)
    present, class_of_sample = np.unique(labels, return_inverse=True)
    classes = len(present)
    if classes_per_client > classes:
        raise BadInputError(
            f"classes_per_client is {classes_per_client}, but the samples have only {classes} different labels."
        )
    reached = clients * classes_per_client if assignment == "random" else clients + classes_per_client - 1
    if reached < classes:
        raise BadInputError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {classes} labels "
            f"(assignment is {assignment}); use more clients or a larger classes_per_client."
        )
    for attempt in range(MAX_ATTEMPTS):
        random = generator(seed, "partition/pathological", attempt)
        if assignment == "random":
            held = draw_classes(clients, classes, classes_per_client, random)
        else:
            held = (np.arange(classes) - np.arange(clients)[:, None]) % classes < classes_per_client
        client_of_sample = _share(class_of_sample, held, random)
        if np.bincount(client_of_sample, minlength=clients).min() >= min_samples:
            return client_of_sample
    raise BadInputError(
        f"In {MAX_ATTEMPTS} draws, some of {clients} clients always had fewer than {min_samples} samples of their "
        f"{classes_per_client} classes; use fewer clients or a smaller min_samples."
    )


def draw_classes(clients: int, classes: int, per_client: int, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Who holds which class ``[clients, classes]``: any `per_client` of them, and every class is held by somebody."""
    held = np.zeros((clients, classes), dtype=bool)
    chosen = np.argsort(random.random((clients, classes)), axis=1)[:, :per_client]
    np.put_along_axis(held, chosen, True, axis=1)
    for missing in np.flatnonzero(~held.any(axis=0)):
        # Somebody gives up a class that another one holds, too.
        givers, given = np.nonzero(held & (held.sum(axis=0) > 1))
        place = random.integers(len(givers))
        held[givers[place], given[place]] = False
        held[givers[place], missing] = True
    return held


def _share(class_of_sample: IntArray, held: npt.NDArray[np.bool_], random: np.random.Generator) -> IntArray:
    """Every class's samples in equal parts (or one more) among those who hold it."""
    client_of_sample = np.empty(len(class_of_sample), dtype=np.int64)
    for number in range(held.shape[1]):
        rows = random.permutation(np.flatnonzero(class_of_sample == number))
        holders = random.permutation(np.flatnonzero(held[:, number]))
        client_of_sample[rows] = holders[np.arange(len(rows)) % len(holders)]
    return client_of_sample

"""Samples without natural clients and parts, divided by their labels.

Parts are divided class by class, so that each has all classes in the same proportions. Then training samples go to
clients by FederatedScope's splitter, and the samples of other parts follow: of every class a client gets as large a
share for validation and for testing as it has for training.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedarena.core.streams import bits, generator
from fedarena.data.partitioners.balanced_dirichlet import balanced_dirichlet
from fedarena.data.splits import apportion
from fedarena.data.store.schema import PARTS, AnyArray, IntArray
from fedarena.data.store.writer import FederationWriter

_TRAIN = PARTS.index("train")


def stratified_parts(labels: IntArray, fractions: tuple[float, float, float], seed: int) -> IntArray:
    """The part of every sample, as its place in `PARTS`: of each class, these fractions."""
    part_of_sample = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        shuffled = rows[np.argsort(bits(seed, "split/classes", label, rows), kind="stable")]
        part_of_sample[shuffled] = np.repeat(np.arange(len(PARTS)), apportion(np.array([len(rows)]), fractions)[0])
    return part_of_sample


def clients_by_labels(
    labels: IntArray, part_of_sample: IntArray, *, clients: int, alpha: float, min_samples: int, seed: int
) -> IntArray:
    """The client of every sample; each has at least `min_samples` for training."""
    training = labels[part_of_sample == _TRAIN]
    trained_by = balanced_dirichlet(training, clients=clients, alpha=alpha, min_samples=min_samples, seed=seed)
    return following_training(labels, part_of_sample, trained_by, seed)


def following_training(labels: IntArray, part_of_sample: IntArray, trained_by: IntArray, seed: int) -> IntArray:
    """The client of every sample, of which `trained_by` says those of the training samples."""
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    training = np.flatnonzero(part_of_sample == _TRAIN)
    client_of_sample[training] = trained_by
    frequencies = np.zeros((int(trained_by.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(frequencies, (trained_by, labels[training]), 1)
    for part in range(len(PARTS)):
        rows = np.flatnonzero(part_of_sample == part)
        if part != _TRAIN and len(rows):
            random = generator(seed, "split/following clients", part)
            client_of_sample[rows] = _like_training(labels[rows], frequencies, random)
    return client_of_sample


def _like_training(labels: IntArray, frequencies: IntArray, random: np.random.Generator) -> IntArray:
    """Clients of samples in the proportions of `frequencies` ``[clients, classes]``, by largest remainders.

    Of a class without training samples, clients get as much as they have of all classes.
    """
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        rows = random.permutation(np.flatnonzero(labels == label))
        weights = frequencies[:, label] if frequencies[:, label].any() else frequencies.sum(axis=1)
        exact = weights * (len(rows) / weights.sum())
        sizes = np.floor(exact).astype(np.int64)
        largest_remainders = np.argsort(sizes - exact, kind="stable")
        sizes[largest_remainders[: len(rows) - int(sizes.sum())]] += 1
        client_of_sample[rows] = np.repeat(np.arange(len(weights)), sizes)
    return client_of_sample


def write_divided(
    writer: FederationWriter, columns: Mapping[str, AnyArray], client_of_sample: IntArray, part_of_sample: IntArray
) -> None:
    """Adds the clients with their samples, in the order in which these are, one client in memory at a time."""
    for client in range(int(client_of_sample.max()) + 1):
        rows = np.flatnonzero(client_of_sample == client)
        rows = rows[np.argsort(part_of_sample[rows], kind="stable")]
        counts = np.bincount(part_of_sample[rows], minlength=len(PARTS))
        samples = {name: values[rows] for name, values in columns.items()}
        writer.add_clients([f"client-{client:04d}"], counts=counts[None], columns=samples)

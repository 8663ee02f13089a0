"""Which labels clients have: in total, client by client, and how far apart they are.

Labels are read from a bounded number of clients, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedarena.core.streams import bits, generator
from fedarena.data.statistics.dealing import LabelledSamples
from fedarena.data.statistics.divergence import FloatArray, PairStatistics, describe_pairs, labels_by_chance, table_rows
from fedarena.data.store.federation import ClientSamples, Federation
from fedarena.data.store.labels import count_labels
from fedarena.data.store.schema import IntArray

MIX_CLIENTS = 50
# What is held in memory at a time: bytes of samples, and numbers in a table of clients and labels.
CHUNK_BYTES = 1 << 25
CHUNK_COUNTS = 1 << 22
# Where samples with several labels are dealt out at random: so often that so many clients get some, but not too often.
CLIENTS_TO_DEAL_TO, MOST_DEALS = 2_000, 50


@dataclass(frozen=True)
class LabelMix:
    """The labels of single clients, from the smallest to the largest that have any samples."""

    clients: IntArray
    ids: list[str]
    sizes: IntArray  # samples
    counts: IntArray  # [clients, classes]


@dataclass(frozen=True)
class LabelStatistics:
    """How labels are distributed, in total and over clients."""

    names: tuple[str, ...] | None
    counts: IntArray  # [classes], over the clients that were looked at, all parts
    clients: int  # how many were looked at; all unless there are very many
    samples: int  # which these clients have
    clients_with: IntArray  # [classes], how many of these clients have each label (Fig. 3 of FLAIR)
    mean_distance: float  # total variation distance of a client's labels to those of all clients, mean over clients
    mean_distance_by_chance: float  # the same, if every client had drawn its labels or samples from those of all
    pairs: PairStatistics | None  # None where there are not two clients with labels
    mix: LabelMix


def describe_labels(federation: Federation, sizes: IntArray, max_clients: int) -> LabelStatistics:
    """The distribution of labels over all clients, or over `max_clients` of them that are chosen at random."""
    clients = choose_clients(federation, "statistics/clients", max_clients)
    totals, clients_with = (np.zeros(federation.task.bins, dtype=np.int64) for _ in range(2))
    for _, counts in _label_counts(federation, clients, sizes):
        totals += counts.sum(axis=0)
        clients_with += np.count_nonzero(counts, axis=0)

    distances, labels_per_client = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    overall = totals / max(totals.sum(), 1)
    for _, counts in _label_counts(federation, clients, sizes):
        distances.append(_distances(counts, overall))
        labels_per_client.append(counts.sum(axis=1))
    all_distances = np.concatenate(distances)
    labelled = _labelled_samples(federation, clients, sizes)
    if labelled is None:
        numbers = np.concatenate(labels_per_client)
        by_chance = expected_distances(numbers[numbers > 0], overall)
    else:
        by_chance = _dealt_distances(labelled, overall)
    return LabelStatistics(
        names=federation.task.bin_names,
        counts=totals,
        clients=len(clients),
        samples=int(sizes[clients].sum()),
        clients_with=clients_with,
        mean_distance=float(all_distances.mean()) if len(all_distances) else 0.0,
        mean_distance_by_chance=float(by_chance.mean()) if len(by_chance) else 0.0,
        pairs=_pairs(federation, sizes, overall, labelled),
        mix=_label_mix(federation, sizes),
    )


def _distances(counts: IntArray, overall: FloatArray) -> FloatArray:
    """Total variation distances of the labels of clients that have any to those of all clients."""
    labels = counts.sum(axis=1)
    mixes = counts[labels > 0] / labels[labels > 0, None]
    distances: FloatArray = 0.5 * np.abs(mixes - overall).sum(axis=1)
    return distances


def _labelled_samples(federation: Federation, clients: IntArray, sizes: IntArray) -> LabelledSamples | None:
    """The samples of some clients; None where a sample does not have several labels."""
    if federation.task.kind != "multi_label":
        return None
    chunks = (samples for _, samples in label_chunks(federation, clients, sizes))
    return LabelledSamples(chunks, federation.task.label_column, int(sizes[clients].sum()), federation.task.bins)


def _dealt_distances(labelled: LabelledSamples, overall: FloatArray) -> FloatArray:
    """The distances of clients to whom samples are dealt out at random, more than once if they are few."""
    random = generator(0, "statistics/samples by chance")
    clients_at_once = max(CHUNK_COUNTS // len(overall), 1)
    times = min(MOST_DEALS, -(-CLIENTS_TO_DEAL_TO // max(len(labelled.counts), 1)))
    pieces = [
        labelled.counts[start : start + clients_at_once] for start in range(0, len(labelled.counts), clients_at_once)
    ]
    dealt = [_distances(labelled.deal(piece, random), overall) for _ in range(times) for piece in pieces]
    return np.concatenate([np.empty(0), *dealt])


def choose_clients(federation: Federation, purpose: str, limit: int) -> IntArray:
    """All clients, or `limit` of them at random, in ascending order: clients often come in an order that matters."""
    clients = federation.clients()
    if len(clients) <= limit:
        return clients
    return np.sort(random_order(len(clients), purpose)[:limit])


def random_order(size: int, purpose: str) -> IntArray:
    """The numbers below `size` in an order that only the purpose decides."""
    return np.argsort(bits(0, purpose, np.arange(size)), kind="stable")


def expected_distances(draws: IntArray, distribution: FloatArray) -> FloatArray:
    """The expected total variation distance between a distribution and that many draws from it.

    The mean absolute deviation of a binomial count X ~ B(n, p) is 2 v C(n, v) p^v (1 - p)^(n - v + 1) with
    v = floor(n p) + 1 (De Moivre, 1730); half the sum over labels, divided by n, is the distance.
    """
    p = distribution[(distribution > 0) & (distribution < 1)]
    if len(draws) == 0 or len(p) == 0:
        return np.zeros(len(draws))
    numbers, position = np.unique(draws, return_inverse=True)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, numbers[-1] + 1)))])
    expected = np.empty(len(numbers))
    rows_per_chunk = max(CHUNK_COUNTS // len(p), 1)
    for start in range(0, len(numbers), rows_per_chunk):
        n = numbers[start : start + rows_per_chunk, None]
        v = np.minimum(np.floor(n * p).astype(np.int64) + 1, n)
        log_deviation = (
            np.log(2 * v)
            + (log_factorial[n] - log_factorial[v] - log_factorial[n - v])
            + v * np.log(p)
            + (n - v + 1) * np.log1p(-p)
        )
        expected[start : start + rows_per_chunk] = 0.5 * (np.exp(log_deviation) / n).sum(axis=1)
    return np.take(expected, position)


def label_chunks(
    federation: Federation, clients: IntArray, sizes: IntArray
) -> Iterator[tuple[IntArray, ClientSamples]]:
    """Some of `clients` at a time, with the column of their labels."""
    column = federation.task.label_column
    cost = sizes[clients] * federation.columns[column].bytes_per_sample
    chunk_of_client = np.maximum(
        np.cumsum(cost) // CHUNK_BYTES, np.arange(len(clients)) * federation.task.bins // CHUNK_COUNTS
    )
    bounds = np.flatnonzero(np.diff(chunk_of_client)) + 1
    for chunk in np.split(clients, bounds):
        yield chunk, federation.samples(chunk, columns=[column])


def _pairs(
    federation: Federation, sizes: IntArray, overall: FloatArray, labelled: LabelledSamples | None
) -> PairStatistics | None:
    clients = choose_clients(federation, "statistics/pairs", table_rows(federation.task.bins))
    counts = np.concatenate([counts for _, counts in _label_counts(federation, clients, sizes)])
    has_labels = counts.any(axis=1)
    if np.count_nonzero(has_labels) < 2:
        return None
    counts = counts[has_labels]
    own = _labelled_samples(federation, clients, sizes)
    if labelled is None or own is None:
        return describe_pairs(counts, labels_by_chance(counts, overall))
    return describe_pairs(counts, lambda random: labelled.deal(own.counts[has_labels], random))


def _label_mix(federation: Federation, sizes: IntArray) -> LabelMix:
    by_size = np.argsort(sizes, kind="stable")
    by_size = by_size[np.count_nonzero(sizes == 0) :]
    chosen = np.unique(np.linspace(0, len(by_size) - 1, min(MIX_CLIENTS, len(by_size))).round().astype(np.int64))
    clients = by_size[chosen]
    counts = [counts for _, counts in _label_counts(federation, clients, sizes)]
    return LabelMix(
        clients=clients,
        ids=federation.client_ids(clients),
        sizes=sizes[clients],
        counts=np.concatenate([np.empty((0, federation.task.bins), dtype=np.int64), *counts]),
    )


def _label_counts(federation: Federation, clients: IntArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Some of `clients` at a time, and how often each of them has each label."""
    column = federation.task.label_column
    for chunk, samples in label_chunks(federation, clients, sizes):
        yield chunk, count_labels(federation.task, samples.columns[column], samples.offsets)

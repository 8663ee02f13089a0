"""What a federation looks like: how many samples clients have, which labels, and how much clients differ.

Sizes are those of all clients. Labels are read from a bounded number of clients, a few at a time, so
describing takes little memory and time however large the federation is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena.data.labels import count_labels
from fedarena.data.schema import AttributeType, ColumnSpec, Group, IntArray, Part
from fedarena.data.store import Federation
from fedarena.streams import bits

FloatArray = npt.NDArray[np.float64]

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
HISTOGRAM_BINS = 40
MIX_CLIENTS = 50
MOST_COMMON_VALUES = 10
# What is held in memory at a time: bytes of samples, and numbers in a table of clients and labels.
CHUNK_BYTES = 1 << 25
CHUNK_COUNTS = 1 << 22
CLIENTS_PER_CHUNK = 1 << 16


@dataclass(frozen=True)
class SizeStatistics:
    """The numbers of samples that clients have, all parts together."""

    mean: float
    std: float
    median: float
    min: int
    max: int
    skewness: float  # third standardized moment; 0 if all clients have the same size
    percentiles: dict[int, float]
    histogram_edges: IntArray  # [bins + 1], a bin has the sizes from its edge up to the next one, which is excluded
    histogram_counts: IntArray  # [bins]


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
    mean_distance: float  # total variation distance of a client's labels to those of all clients, mean over clients
    mean_distance_by_chance: float  # the same, if every client had drawn its labels from those of all clients
    mix: LabelMix


@dataclass(frozen=True)
class AttributeStatistics:
    """The values of one attribute over clients."""

    kind: AttributeType
    distinct: int
    most_common: list[tuple[str | float, int]]


@dataclass(frozen=True)
class FederationStatistics:
    """Everything `describe` finds out."""

    name: str
    task: str
    num_clients: int
    num_samples: int
    clients_by_group: dict[Group, int]
    samples_by_group_and_part: dict[Group, dict[Part, int]]
    columns: dict[str, ColumnSpec]
    sizes: SizeStatistics
    labels: LabelStatistics
    attributes: dict[str, AttributeStatistics]


def describe(federation: Federation, max_label_clients: int = 10_000) -> FederationStatistics:
    """Describes a federation; labels are read from at most `max_label_clients` clients, chosen at random."""
    sizes = np.concatenate([federation.counts(clients) for clients in _all_clients(federation)])
    return FederationStatistics(
        name=federation.name,
        task=federation.task.kind,
        num_clients=federation.num_clients,
        num_samples=federation.num_samples,
        clients_by_group=dict(federation.manifest.clients),
        samples_by_group_and_part={group: dict(parts) for group, parts in federation.manifest.samples.items()},
        columns=federation.columns,
        sizes=describe_sizes(sizes),
        labels=describe_labels(federation, sizes, max_label_clients),
        attributes=_describe_attributes(federation),
    )


def describe_sizes(sizes: IntArray) -> SizeStatistics:
    """Moments, percentiles and a histogram of the clients' numbers of samples."""
    mean, std = float(sizes.mean()), float(sizes.std())
    skewness = float(np.mean(((sizes - mean) / std) ** 3)) if std > 0 else 0.0
    edges = _histogram_edges(int(sizes.max()))
    return SizeStatistics(
        mean=mean,
        std=std,
        median=float(np.median(sizes)),
        min=int(sizes.min()),
        max=int(sizes.max()),
        skewness=skewness,
        percentiles=dict(zip(PERCENTILES, np.percentile(sizes, PERCENTILES).tolist(), strict=True)),
        histogram_edges=edges,
        histogram_counts=np.histogram(sizes, bins=edges)[0].astype(np.int64),
    )


def _histogram_edges(largest: int) -> IntArray:
    """Whole numbers whose distances grow, because a few clients often have most of the samples."""
    growing = np.geomspace(1, largest + 1, HISTOGRAM_BINS + 1)
    return np.unique(np.concatenate([[0, 1], np.ceil(growing)]).astype(np.int64))


def describe_labels(federation: Federation, sizes: IntArray, max_clients: int) -> LabelStatistics:
    """The distribution of labels over all clients, or over `max_clients` of them that are chosen at random."""
    clients = federation.clients()
    if len(clients) > max_clients:
        order = np.argsort(bits(0, "statistics/clients", clients), kind="stable")
        clients = np.sort(order[:max_clients])
    totals = np.zeros(federation.task.classes, dtype=np.int64)
    for _, counts in _label_counts(federation, clients, sizes):
        totals += counts.sum(axis=0)

    distances, labels_per_client = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    overall = totals / max(totals.sum(), 1)
    for _, counts in _label_counts(federation, clients, sizes):
        labels = counts.sum(axis=1)
        mixes = counts[labels > 0] / labels[labels > 0, None]
        distances.append(0.5 * np.abs(mixes - overall).sum(axis=1))
        labels_per_client.append(labels[labels > 0])
    all_distances = np.concatenate(distances)
    by_chance = expected_distances(np.concatenate(labels_per_client), overall)
    return LabelStatistics(
        names=federation.task.label_names,
        counts=totals,
        clients=len(clients),
        mean_distance=float(all_distances.mean()) if len(all_distances) else 0.0,
        mean_distance_by_chance=float(by_chance.mean()) if len(by_chance) else 0.0,
        mix=_label_mix(federation, sizes),
    )


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
        counts=np.concatenate([np.empty((0, federation.task.classes), dtype=np.int64), *counts]),
    )


def _label_counts(federation: Federation, clients: IntArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Some of `clients` at a time, and how often each of them has each label."""
    column = federation.task.label_column
    cost = sizes[clients] * federation.columns[column].bytes_per_sample
    chunk_of_client = np.maximum(
        np.cumsum(cost) // CHUNK_BYTES, np.arange(len(clients)) * federation.task.classes // CHUNK_COUNTS
    )
    bounds = np.flatnonzero(np.diff(chunk_of_client)) + 1
    for chunk in np.split(clients, bounds):
        samples = federation.samples(chunk, columns=[column])
        yield chunk, count_labels(federation.task, samples.columns[column], samples.offsets)


def _describe_attributes(federation: Federation) -> dict[str, AttributeStatistics]:
    counters: dict[str, Counter[str | float]] = {name: Counter() for name in federation.manifest.attributes}
    for clients in _all_clients(federation):
        for name, values in federation.attributes(clients).items():
            counters[name].update(values if isinstance(values, list) else values.tolist())
    return {
        name: AttributeStatistics(
            kind=federation.manifest.attributes[name],
            distinct=len(counter),
            most_common=counter.most_common(MOST_COMMON_VALUES),
        )
        for name, counter in counters.items()
    }


def _all_clients(federation: Federation) -> Iterator[IntArray]:
    for start in range(0, federation.num_clients, CLIENTS_PER_CHUNK):
        yield np.arange(start, min(start + CLIENTS_PER_CHUNK, federation.num_clients), dtype=np.int64)

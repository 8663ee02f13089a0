"""What a federation looks like: how many samples clients have, which labels, and how much clients differ.

Sizes are those of all clients. Labels and pictures are read from a bounded number of clients, a few at a
time, so describing takes little memory and time however large the federation is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from fedarena.data.statistics.divergence import FloatArray
from fedarena.data.statistics.label_statistics import LabelStatistics, describe_labels
from fedarena.data.statistics.pixels import PixelStatistics, describe_pixels
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AttributeType, ColumnSpec, Group, IntArray, Part

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
HISTOGRAM_BINS = 40
CURVE_POINTS = 100
MOST_COMMON_VALUES = 10
CLIENTS_PER_CHUNK = 1 << 16
SOME_CLIENTS = 10_000
MANY_CLIENTS, MANY_COUNTS = 100_000, 1 << 22  # a count is one of a label at a client


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
    histogram_lows: IntArray  # [bins], the smallest size that a client in the bin has; 0 where there is none
    histogram_highs: IntArray  # [bins], the largest
    curve_clients: FloatArray  # rising from 0 to 1: these shares of the clients, the largest ones first, …
    curve_samples: FloatArray  # … have these shares of all samples (Fig. 2 left of FLAIR)
    half_share: float  # the smallest share of the clients that has at least half of all samples


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
    clients_without_test: int  # so many cannot be tested: they have no sample for it
    samples_by_group_and_part: dict[Group, dict[Part, int]]
    columns: dict[str, ColumnSpec]
    sizes: SizeStatistics
    labels: LabelStatistics
    pixels: PixelStatistics | None  # None where samples are no pictures
    attributes: dict[str, AttributeStatistics]


def describe(federation: Federation, max_label_clients: int | None = None) -> FederationStatistics:
    """Describes a federation; labels are read from at most `max_label_clients` clients, chosen at random.

    That is everybody where clients and labels are not very many, and `SOME_CLIENTS` elsewhere, unless it is given.
    """
    if max_label_clients is None:
        few = federation.num_clients <= MANY_CLIENTS and federation.num_clients * federation.task.bins <= MANY_COUNTS
        max_label_clients = federation.num_clients if few else SOME_CLIENTS
    sizes = np.concatenate([federation.counts(clients) for clients in _all_clients(federation)])
    labels = describe_labels(federation, sizes, max_label_clients)
    return FederationStatistics(
        name=federation.name,
        task=federation.task.kind,
        num_clients=federation.num_clients,
        num_samples=federation.num_samples,
        clients_by_group=dict(federation.manifest.clients),
        clients_without_test=clients_without_test(federation),
        samples_by_group_and_part={group: dict(parts) for group, parts in federation.manifest.samples.items()},
        columns=federation.columns,
        sizes=describe_sizes(sizes),
        labels=labels,
        pixels=describe_pixels(federation, sizes, int(np.argmax(labels.counts))),
        attributes=_describe_attributes(federation),
    )


def clients_without_test(federation: Federation) -> int:
    """How many clients have no test sample."""
    return sum(int((federation.counts(clients, "test") == 0).sum()) for clients in _all_clients(federation))


def describe_sizes(sizes: IntArray) -> SizeStatistics:
    """Moments, percentiles, a histogram and the curve of skew of the clients' numbers of samples."""
    mean, std = float(sizes.mean()), float(sizes.std())
    skewness = float(np.mean(((sizes - mean) / std) ** 3)) if std > 0 else 0.0
    edges = _histogram_edges(int(sizes.max()))
    lows, highs = _ends_of_bins(np.sort(sizes), edges)
    held = np.concatenate([[0], np.cumsum(np.sort(sizes)[::-1])])  # by the largest 0, 1, 2, … clients
    # The curve is steepest where it begins: points are closer there.
    points = np.unique(
        np.concatenate([np.linspace(0, len(sizes), CURVE_POINTS), np.geomspace(1, len(sizes), CURVE_POINTS)]).round()
    ).astype(np.int64)
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
        histogram_lows=lows,
        histogram_highs=highs,
        curve_clients=points / len(sizes),
        curve_samples=held[points] / max(held[-1], 1),
        half_share=float(np.searchsorted(2 * held, held[-1])) / len(sizes),
    )


def _histogram_edges(largest: int) -> IntArray:
    """Whole numbers whose distances grow, because a few clients often have most of the samples."""
    growing = np.geomspace(1, largest + 1, HISTOGRAM_BINS + 1)
    return np.unique(np.concatenate([[0, 1], np.ceil(growing)]).astype(np.int64))


def _ends_of_bins(rising: IntArray, edges: IntArray) -> tuple[IntArray, IntArray]:
    """The smallest and the largest size in every bin, which are seldom its edges; 0 where a bin is empty."""
    begins = np.searchsorted(rising, edges[:-1])
    ends = np.append(begins[1:], len(rising))
    there = ends > begins
    lows = np.where(there, rising[np.minimum(begins, len(rising) - 1)], 0)
    return lows, np.where(there, rising[ends - 1], 0)


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


def as_json(value: Any) -> Any:
    """Statistics, or anything in them, as what JSON knows."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value

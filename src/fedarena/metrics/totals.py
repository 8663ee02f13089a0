"""Adding up the states of samples: for every client, and for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.metrics.classes import ClassScores, class_columns
from fedarena.metrics.metric import FloatArray, Metric
from fedarena.metrics.ranking import RankingMetric, rank
from fedarena.metrics.scores import LIMIT_BYTES, Scores

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

# What a task measures beside the states of its metrics.
COUNT = "count"  # predictions of every sample
SCORES, RIGHT = "ranking scores", "ranking right"  # for metrics that need all scores


@dataclass(frozen=True)
class MetricScores:
    """A metric of some clients and of all of them together."""

    metric: Metric
    values: FloatArray  # of every client; NaN where it has none
    total: float
    parts: FloatArray | None = None  # of the clients' states, ``[clients, parts]``, where they are kept
    of_classes: dict[str, FloatArray] = field(default_factory=dict)  # of every class, if it is told of classes


@dataclass(frozen=True)
class RankedSamples:
    """Scores of samples, for metrics that need all of them."""

    scores: Array  # ``[samples, classes]``
    right: npt.NDArray[np.bool_]
    owners: IntArray  # the client (its row) of each of them


@dataclass(frozen=True)
class MetricStates:
    """The sums of the states of some clients, of which all samples are in: a row per client."""

    positions: IntArray  # of the clients, among all
    counts: FloatArray
    states: dict[str, FloatArray]
    ranked: RankedSamples | None = None  # if there are metrics that need all scores


@dataclass
class _Block:
    """What is left of the states of some clients."""

    positions: IntArray
    counts: FloatArray
    kept: dict[str, FloatArray]  # states that are plain means or have parts
    values: dict[str, FloatArray] = field(default_factory=dict)  # of metrics whose states are too large to be kept
    sums: dict[str, FloatArray] = field(default_factory=dict)  # their states, added up, by the names of the states


class Totals:
    """Collects the states of clients, a block of them at a time; blocks may come in any order and from anywhere."""

    def __init__(self, metrics: Sequence[Metric], limit_bytes: int = LIMIT_BYTES):
        self.metrics = tuple(metrics)
        self._blocks: list[_Block] = []
        self._scores = Scores(limit_bytes)
        # How many predictions and clients have each class, which adds up exactly in any order.
        self._tells_classes = bool(class_columns(self.metrics))
        self._class_samples: IntArray | None = None
        self._class_clients: IntArray | None = None

    def add(self, clients: MetricStates) -> None:
        """Adds clients that are not among those before."""
        if not clients.counts.any():
            return
        block = _Block(clients.positions, clients.counts, {})
        ranked = [metric for metric in self.metrics if isinstance(metric, RankingMetric)]
        for metric in self.metrics:
            if isinstance(metric, RankingMetric):
                continue
            state = metric.state_in(clients.states)
            if metric.is_mean or metric.parts:
                block.kept[metric.name] = state
            else:
                some = clients.counts > 0
                block.values[metric.name] = np.full(len(state), np.nan)
                block.values[metric.name][some] = value_of(metric, state[some], clients.counts[some])
                if metric.state_name not in block.sums:
                    block.sums[metric.state_name] = state.sum(0)
        if ranked:
            assert clients.ranked is not None
            block.values |= _rank_each(ranked, clients.ranked, len(clients.positions))
            self._scores.add(clients.ranked.scores, clients.ranked.right)
        if self._tells_classes:
            self._count_classes(*self._occurrences(clients))
        self._blocks.append(block)

    def _occurrences(self, clients: MetricStates) -> tuple[IntArray, IntArray]:
        """How many of the clients' predictions have each class, and how many of the clients."""
        if clients.ranked is not None:
            right, owners = clients.ranked.right, clients.ranked.owners
            rows, labels = np.nonzero(right)
            own_labels = np.unique(owners[rows] * right.shape[1] + labels) % right.shape[1]
            return right.sum(0), np.bincount(own_labels, minlength=right.shape[1])
        metric = next(metric for metric in self.metrics if metric.class_columns)
        found = metric.occurrences(metric.state_in(clients.states))
        return found.sum(0).astype(np.int64), (found > 0).sum(0)

    def _count_classes(self, samples: IntArray, clients: IntArray) -> None:
        self._class_samples = samples if self._class_samples is None else self._class_samples + samples
        self._class_clients = clients if self._class_clients is None else self._class_clients + clients

    def merge(self, other: Totals) -> None:
        """Adds the clients of others, such as another process; those must not be used any more."""
        self._blocks += other._blocks
        self._scores.merge(other._scores)
        if other._class_samples is not None and other._class_clients is not None:
            self._count_classes(other._class_samples, other._class_clients)

    def finish(self, clients: int) -> tuple[IntArray, dict[str, MetricScores]]:
        """The number of predictions of each of so many clients, and every metric of those who have any."""
        blocks = sorted(self._blocks, key=lambda block: int(block.positions[0]) if len(block.positions) else -1)
        counts = np.zeros(clients)
        for block in blocks:
            counts[block.positions] = block.counts
        scored = counts > 0
        ways = {metric.all_classes_together for metric in self.metrics if isinstance(metric, RankingMetric)}
        ranks = {together: rank(self._scores, together) for together in ways}
        found: dict[str, MetricScores] = {}
        for metric in self.metrics:
            if metric.is_mean or metric.parts:
                found[metric.name] = self._from_states(metric, blocks, counts, scored)
                continue
            values = np.full(clients, np.nan)
            for block in blocks:
                values[block.positions] = block.values[metric.name]
            of_classes = {}
            if isinstance(metric, RankingMetric):
                own = ranks[metric.all_classes_together]
                total = metric.of(own)
                if metric.class_columns and blocks:
                    of_classes = metric.of_ranked_classes(own)
            else:
                sums = np.sum([block.sums[metric.state_name] for block in blocks], axis=0) if blocks else np.zeros(1)
                total = float(value_of(metric, sums, counts.sum())) if scored.any() else float("nan")
                if metric.class_columns and blocks:
                    of_classes = metric.of_classes(sums)
            found[metric.name] = MetricScores(metric, values[scored], total, of_classes=of_classes)
        return counts.astype(np.int64), found

    def classes(self, found: Mapping[str, MetricScores]) -> ClassScores | None:
        """Scores of every class, as far as what `finish` found tells any."""
        if self._class_samples is None or self._class_clients is None:
            return None
        values = {name: column for scores in found.values() for name, column in scores.of_classes.items()}
        return ClassScores(self._class_samples, self._class_clients, values)

    def _from_states(
        self, metric: Metric, blocks: Sequence[_Block], counts: FloatArray, scored: npt.NDArray[np.bool_]
    ) -> MetricScores:
        shape = blocks[0].kept[metric.name].shape[1:] if blocks else ()
        states = np.zeros((len(counts), *shape))
        for block in blocks:
            states[block.positions] = block.kept[metric.name]
        states, counts = states[scored], counts[scored]
        if not len(states):
            return MetricScores(metric, np.empty(0), float("nan"))
        values = value_of(metric, states, counts)
        parts = states.reshape(len(states), -1) if metric.parts else None
        return MetricScores(metric, values, pooled(metric, states, counts), parts)


def value_of(metric: Metric, states: FloatArray, counts: FloatArray) -> FloatArray:
    """The metric of every one of these sums of states; one of another form would be spread over clients unnoticed."""
    values = metric.value(states, counts)
    if np.shape(values) != np.shape(counts):
        raise BadInputError(
            f"The metric {metric.name} must give a value for every count: of states of shape {list(np.shape(states))} "
            f"and counts of shape {list(np.shape(counts))}, its `value` made the shape {list(np.shape(values))}; "
            "take the numbers of a state from its last axes (state[..., 0])"
        )
    return values


def pooled(metric: Metric, states: FloatArray, counts: FloatArray) -> float:
    """The metric of all of these clients together."""
    # Every number of the state is added up by itself, as a plain vector: the order of additions is part of the bits.
    columns = np.ascontiguousarray(states.reshape(len(states), -1).T)
    total = np.array([column.sum() for column in columns]).reshape(states.shape[1:])
    return float(value_of(metric, total, counts.sum()))


def from_parts(metric: Metric, parts: FloatArray) -> FloatArray:
    """States of clients as they were before they were kept, of ``[clients, parts]``."""
    return parts[:, 0] if len(metric.parts) == 1 else parts


class SampleSums:
    """Adds up the states of some clients' samples, which come in batches; samples of a client follow each other."""

    def __init__(self, owners: IntArray, clients: int):
        self._owners, self._clients = owners, clients  # the client (its row) of every sample
        self._done = 0
        self._pieces: defaultdict[str, list[Array]] = defaultdict(list)
        self._sums: dict[str, FloatArray] = {}

    def add(self, measured: Mapping[str, Array]) -> None:
        """Adds the next samples."""
        for name, values in measured.items():
            if values.ndim == 1 or name in (SCORES, RIGHT):
                self._pieces[name].append(values)
            else:
                self._add_large(name, values)
        self._done += len(measured[COUNT])

    def _add_large(self, name: str, states: Array) -> None:
        """Adds up at once what would take much memory until all of it is there."""
        if name not in self._sums:
            self._sums[name] = np.zeros((self._clients, *states.shape[1:]))
        owners = self._owners[self._done : self._done + len(states)]
        begins = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        self._sums[name][owners[begins]] += np.add.reduceat(states, begins, axis=0, dtype=np.float64)

    def finish(self, positions: IntArray) -> MetricStates:
        """What it came to; `positions` are those of the clients among all."""
        joined = {name: np.concatenate(pieces) for name, pieces in self._pieces.items()}
        ranked = None
        if SCORES in joined:
            ranked = RankedSamples(joined.pop(SCORES), joined.pop(RIGHT), self._owners)
        sums: dict[str, FloatArray] = {}
        for name, values in joined.items():
            sums[name] = np.bincount(self._owners, values, minlength=self._clients).astype(np.float64, copy=False)
        counts = sums.pop(COUNT, np.zeros(self._clients))
        return MetricStates(positions, counts, sums | self._sums, ranked)


def _rank_each(metrics: Sequence[RankingMetric], ranked: RankedSamples, clients: int) -> dict[str, FloatArray]:
    """Ranking metrics of every client by itself."""
    values = {metric.name: np.full(clients, np.nan) for metric in metrics}
    order = np.argsort(ranked.owners, kind="stable")
    bounds = np.searchsorted(ranked.owners[order], np.arange(clients + 1))
    for client in range(clients):
        rows = order[bounds[client] : bounds[client + 1]]
        if not len(rows):
            continue
        own = Scores()
        own.add(ranked.scores[rows], ranked.right[rows])
        ranks = {together: rank(own, together) for together in {metric.all_classes_together for metric in metrics}}
        for metric in metrics:
            values[metric.name][client] = metric.of(ranks[metric.all_classes_together])
    return values

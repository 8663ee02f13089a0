"""Labels that clients would have by chance where a sample has any number of them.

Labels of a sample go together: none comes twice, and a street shows a structure and the outdoors. So chance deals out
whole samples. If every label were drawn by itself, clients would differ more than chance makes them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedarena.data.store.federation import ClientSamples
from fedarena.data.store.schema import AnyArray, IntArray

POOL_NUMBERS = 1 << 25  # in the table of samples and labels that are dealt out
CHUNK_NUMBERS = 1 << 24  # in what is drawn of it at a time


class LabelledSamples:
    """The samples of some clients that have a label."""

    def __init__(self, chunks: Iterable[ClientSamples], column: str, samples: int, labels: int):
        """If the chunks have very many `samples`, only every second of them is dealt out, or every third, …."""
        step = max(-(-samples * labels // POOL_NUMBERS), 1)
        counts, pool, seen = [np.empty(0, dtype=np.int64)], [np.empty((0, labels), dtype=np.uint8)], 0
        for chunk in chunks:
            values = chunk.columns[column] != 0
            has_labels = values.any(axis=1)
            before = np.append(0, np.cumsum(has_labels))
            counts.append(before[chunk.offsets[1:]] - before[chunk.offsets[:-1]])
            pool.append(values[np.flatnonzero(has_labels)[-seen % step :: step]].astype(np.uint8))
            seen += int(before[-1])
        self.counts: IntArray = np.concatenate(counts)  # of every client
        self._pool: AnyArray = np.concatenate(pool)

    def deal(self, counts: IntArray, random: np.random.Generator) -> IntArray:
        """How often clients with so many samples have each label if they draw them: ``[clients, labels]``."""
        labels = self._pool.shape[1]
        dealt = np.zeros((len(counts), labels), dtype=np.int64)
        many = counts > len(self._pool)
        for client in np.flatnonzero(many).tolist():
            times = random.multinomial(counts[client], np.full(len(self._pool), 1 / len(self._pool)))
            dealt[client] = times @ self._pool
        few = np.flatnonzero(~many & (counts > 0))
        ends = np.cumsum(counts[few])
        for chosen in np.split(few, np.flatnonzero(np.diff(ends * labels // CHUNK_NUMBERS)) + 1):
            if len(chosen):
                rows = random.integers(len(self._pool), size=int(counts[chosen].sum()))
                begins = np.cumsum(counts[chosen]) - counts[chosen]
                dealt[chosen] = np.add.reduceat(self._pool[rows], begins, axis=0, dtype=np.int64)
        return dealt

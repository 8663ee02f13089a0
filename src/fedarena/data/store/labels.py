"""Counting labels, for every kind of task."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedarena.data.store.schema import NO_CHARACTER, UNLABELLED, AnyArray, IntArray, TaskSpec

# Labels are widened to 64 bits to be counted; doing so block by block keeps that copy small.
BLOCK_VALUES = 1 << 20
_OF_TOKENS = ("next_token", "translation")  # kinds of tasks in which every token is predicted from those before it


def count_labels(task: TaskSpec, values: AnyArray, offsets: IntArray) -> IntArray:
    """How often each label occurs at each client: ``[clients, bins]``.

    `values` is the column `task.label_column`; client i has its rows ``offsets[i]:offsets[i + 1]``. In a
    next-token task or a translation every token but the first of a sample is a label, and padding is not; in a
    transcript, every character is one. Numbers to predict are counted by bins of their range. Of a graph, the labels of
    its nodes are counted.
    """
    num_clients = len(offsets) - 1
    counts = np.zeros(num_clients * task.bins, dtype=np.int64)
    client_of_row = np.repeat(np.arange(num_clients), np.diff(offsets))
    rows_per_block = max(BLOCK_VALUES // max(int(np.prod(values.shape[1:])), 1), 1)
    for start in range(0, len(values), rows_per_block):
        block = values[start : start + rows_per_block]
        first_bin = client_of_row[start : start + rows_per_block] * task.bins
        counts += np.bincount(_bins(task, block, first_bin), minlength=len(counts))
    by_client = counts.reshape(num_clients, task.bins)
    if task.kind in _OF_TOKENS and task.padding is not None:
        by_client[:, task.padding] = 0
    if task.kind == "transcription":
        by_client[:, NO_CHARACTER] = 0
    return by_client


def _bins(task: TaskSpec, values: AnyArray, first_bin: IntArray) -> IntArray:
    """For every label of every row the bin of its client and label."""
    if task.kind == "multi_label":
        rows, labels = np.nonzero(values)
        return first_bin[rows] + labels
    if task.kind == "node_classification":
        rows, nodes = np.nonzero(values != UNLABELLED)
        return first_bin[rows] + values[rows, nodes]
    if task.predicts_numbers:
        return (first_bin[:, None] + bin_numbers(task, values.reshape(len(values), -1))).ravel()
    labels = values[:, 1:] if task.kind in _OF_TOKENS else values.reshape(len(values), -1)
    return (first_bin[:, None] + labels.astype(np.int64)).ravel()


def bin_numbers(task: TaskSpec, values: AnyArray) -> IntArray:
    """The bin of every number; what is beyond the range counts for its ends."""
    if task.value_range is None:
        return np.zeros(values.shape, dtype=np.int64)
    low, high = task.value_range
    share = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    return np.floor(np.clip(share, 0, 1) * task.bins).astype(np.int64).clip(max=task.bins - 1)


def has_label(task: TaskSpec, values: AnyArray, label: int) -> npt.NDArray[np.bool_]:
    """Which samples have a label (graphs: some node of them), or a number in a bin; of several, the first one."""
    if task.kind == "multi_label":
        return np.asarray(values[:, label] != 0)
    if task.kind == "node_classification":
        return np.asarray((values == label).any(axis=1))
    if task.predicts_numbers:
        values = bin_numbers(task, values.reshape(len(values), -1))[:, 0]
    return np.asarray(values == label)

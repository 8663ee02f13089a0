"""The score of knowing nothing: always answering with the most frequent label."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.data import Federation
from fedarena.train.engine import IntArray, Part

_CLIENTS_AT_ONCE = 1024


def most_frequent_label(federation: Federation, clients: IntArray, part: Part) -> dict[str, Any]:
    """Accuracy on these clients of always answering with the training clients' most frequent label."""
    task = federation.task
    counts = federation.label_counts
    counts[list(task.never_labels)] = 0
    answer = int(np.argmax(counts))
    right = total = 0
    for start in range(0, len(clients), _CLIENTS_AT_ONCE):
        block = federation.samples(clients[start : start + _CLIENTS_AT_ONCE], part, columns=[task.label_column])
        labels = block.columns[task.label_column]
        if task.kind == "next_token":
            labels = labels[:, 1:]
            labels = labels[labels != task.padding] if task.padding is not None else labels
        right += int((labels == answer).sum())
        total += labels.size
    name = task.label_names[answer] if task.label_names else str(answer)
    return {"accuracy": right / max(total, 1), "label": name, "rule": f"always the most frequent label, {name!r}"}

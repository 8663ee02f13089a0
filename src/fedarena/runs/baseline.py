"""The score of knowing nothing: always the same answer, as good as one can know it from the training samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.own import is_own
from fedarena.core.words import counted
from fedarena.data import Federation
from fedarena.metrics.classification import Accuracy
from fedarena.metrics.totals import SampleSums, Totals
from fedarena.models import Task
from fedarena.train.engine import IntArray, Part
from fedarena.train.evaluation import to_array
from fedarena.train.tensors import column_tensor

_CLIENTS_AT_ONCE = 1024
_ROWS_AT_ONCE = 4096


def baseline_of(
    task: Task, federation: Federation, clients: IntArray, part: Part
) -> tuple[dict[str, Any] | None, list[str]]:
    """What the task's leading metric is on these clients for the best constant answer; None where there is none.

    With a sentence if it has no value at all, whatever the answers are.
    """
    rule, kind = task.baseline_rule, type(task)
    if is_own(kind.batch) or is_own(kind.targets):  # which may make anything of labels
        return None, []
    if rule is None and (is_own(kind) or task.predicts not in ("classes", "labels")):
        return None, []
    found = None
    if task.predicts == "tokens":
        label = _most_frequent(federation)
        if isinstance(task.lead, Accuracy) and task.lead.among is None:
            found = _share_of_tokens(federation, clients, part, label)
    else:
        found = _score(task, _constant_answer(task, federation), federation, clients, part)
    if found is not None and math.isnan(found):
        if is_own(type(task.lead)):  # which may be undefined for constant answers alone, as a correlation is
            return None, []
        return None, [_without_value(task, int(federation.counts(clients, part).sum()), part)]
    if rule is None or found is None or math.isinf(found):
        return None, []
    told: dict[str, Any] = {task.lead.name: found, "metric": task.lead.name, "rule": rule}
    if task.predicts in ("classes", "tokens"):
        name = _label_name(federation, _most_frequent(federation))
        told |= {"label": name, "rule": f"{rule}, {name!r}"}
    return told, []


def _without_value(task: Task, samples: int, part: Part) -> str:
    return (
        f"{task.lead.info.label[0].upper()}{task.lead.info.label[1:]}, which the run is judged by, has no value on the "
        f"{counted(samples, f'{part} sample')}, whatever a model answers: their labels are too much alike; choose "
        "another task.lead, or divide the data otherwise"
    )


def _most_frequent(federation: Federation) -> int:
    counts = federation.label_counts
    counts[list(federation.task.never_labels)] = 0
    return int(np.argmax(counts))


def _label_name(federation: Federation, label: int) -> str:
    names = federation.task.label_names
    return names[label] if names else str(label)


def _constant_answer(task: Task, federation: Federation) -> Tensor:
    """What a model would put out for every sample: logits of how frequent labels are, or mean numbers."""
    if task.predicts == "numbers":
        return torch.from_numpy(_mean_target(federation))
    counts = torch.from_numpy(federation.label_counts).double()
    if task.predicts == "classes":
        return (counts / counts.sum()).log()
    training = federation.clients("train")
    samples = int(federation.counts(training, "train").sum())
    share = counts / max(samples, 1)
    return torch.logit(share[1:] if task.spec.kind == "classification" else share)


def _mean_target(federation: Federation) -> npt.NDArray[np.float64]:
    """The mean of the training samples' numbers."""
    column, clients = federation.task.label_column, federation.clients("train")
    total, samples = np.zeros(federation.columns[column].shape or (1,)), 0
    for start in range(0, len(clients), _CLIENTS_AT_ONCE):
        block = federation.samples(clients[start : start + _CLIENTS_AT_ONCE], "train", columns=[column])
        values = block.columns[column]
        total += values.reshape(len(values), -1).sum(0, dtype=np.float64)
        samples += len(values)
    return total / max(samples, 1)


def _score(task: Task, answer: Tensor, federation: Federation, clients: IntArray, part: Part) -> float | None:
    """The leading metric of always the same answer; None if it depends on samples, and not on answers alone."""
    column = federation.task.label_column
    dtype = next(task.module.parameters()).dtype
    totals = Totals([task.lead])
    for start in range(0, len(clients), _CLIENTS_AT_ONCE):
        block = federation.samples(clients[start : start + _CLIENTS_AT_ONCE], part, columns=[column])
        labels = column_tensor(block.columns[column])
        sums = SampleSums(np.repeat(np.arange(len(block.offsets) - 1), np.diff(block.offsets)), len(block.offsets) - 1)
        for first in range(0, len(labels), _ROWS_AT_ONCE):
            batch = {"y": task.targets(labels[first : first + _ROWS_AT_ONCE]).cpu()}
            # One class for every label, of which a graph has many; labels and numbers are answered all together.
            predictions = batch["y"].shape if task.predicts == "classes" else batch["y"].shape[:1]
            outputs = answer.to(dtype).expand(*predictions, *answer.shape)
            try:
                with torch.no_grad():
                    measured = task.assess(outputs, batch, [task.lead])
            except KeyError as error:
                if not any(name in error.args for name in task.inputs):
                    raise
                return None
            sums.add({name: to_array(name, values) for name, values in measured.items()})
        totals.add(sums.finish(np.arange(start, start + len(block.offsets) - 1)))
    return float(totals.finish(len(clients))[1][task.lead.name].total)


def _share_of_tokens(federation: Federation, clients: IntArray, part: Part, answer: int) -> float:
    """How often a token is the next one."""
    task = federation.task
    right = total = 0
    for start in range(0, len(clients), _CLIENTS_AT_ONCE):
        block = federation.samples(clients[start : start + _CLIENTS_AT_ONCE], part, columns=[task.label_column])
        labels = block.columns[task.label_column][:, 1:]
        labels = labels[labels != task.padding] if task.padding is not None else labels
        right += int((labels == answer).sum())
        total += labels.size
    return right / max(total, 1)

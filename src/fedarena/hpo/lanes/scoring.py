"""Scores of many trials' models on the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from fedarena.core.errors import BadInputError
from fedarena.hpo.lanes.products import SharedSamples, shared_product
from fedarena.hpo.lanes.programs import Bound, Programs
from fedarena.metrics import Metric
from fedarena.metrics.classification import CLASS_CONFUSIONS, BalancedAccuracy, are_labels
from fedarena.metrics.ranking import RankingMetric
from fedarena.metrics.totals import COUNT, value_of
from fedarena.models import Task, Tensors
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import TRACING

FloatArray = npt.NDArray[np.float64]


def check_measurable(task: Task) -> None:
    """Refuses metrics that need the scores of all samples at once."""
    for metric in task.metrics:
        if isinstance(metric, RankingMetric):
            raise BadInputError(
                f"The metric {metric.name} needs the scores of all samples, and is not measured of trials in lanes; "
                "choose others (task.metrics), such as accuracy and macro_f1"
            )


class PartScores:
    """Scores on the samples of a part, ``columns``, of the models in `params` (a row each), which stay in place."""

    def __init__(
        self,
        task: Task,
        part: str,
        columns: Tensors,
        metrics: Sequence[Metric],
        params: Tensors,
        programs: Programs,
        samples_at_once: int,
    ):
        self.part, self.metrics = part, tuple(metrics)
        self._task = task
        self._columns, self._params = columns, params
        self.rows = len(next(iter(columns.values())))
        lanes = len(next(iter(params.values())))
        one = {name: p[:1] for name, p in params.items()}
        few = {name: values[:1] for name, values in columns.items()}
        with TRACING, torch.no_grad():  # the model serves one thread at a time
            self._task.module.eval()
            form = self._measure(one, few)
        self.sums: Tensors = {name: t.new_zeros(lanes, *t.shape[1:]) for name, t in form.items()}
        self._bound: list[tuple[Bound, Tensors]] = []
        name = ("score", id(task), *(metric.name for metric in self.metrics))
        for start in range(0, self.rows, samples_at_once):
            chunk = {key: values[start : start + samples_at_once] for key, values in columns.items()}
            bound = programs.bind(name, self._add, self.sums, params, chunk)
            self._bound.append((bound, chunk))

    def compute(self) -> None:
        """Puts the sums of the samples' states into `sums`."""
        for t in self.sums.values():
            t.zero_()
        for bound, chunk in self._bound:
            bound(chunk)

    def values(self) -> dict[str, FloatArray]:
        """Every metric of every model, of sums that were computed."""
        sums = {name: t.cpu().numpy() for name, t in self.sums.items()}
        with np.errstate(invalid="ignore", over="ignore"):
            return {
                f"{self.part}_{metric.name}": value_of(metric, metric.state_in(sums), sums[COUNT])
                for metric in self.metrics
            }

    def _add(self, sums: Tensors, params: Tensors, columns: Tensors) -> Tensors:
        self._task.module.eval()
        more = self._measure(params, columns)
        return {name: t + more[name] for name, t in sums.items()}

    def _measure(self, params: Tensors, columns: Tensors) -> Tensors:
        batch = self._task.batch(columns)

        def measure(params: Tensors) -> Tensors:
            task = self._task
            outputs = task.predict(params, batch)
            if type(task).assess is not Task.assess:  # a task that has states of its own
                found = task.assess(outputs, batch, self.metrics)
                return {name: _sum(states, outputs) for name, states in found.items()}
            seen, answers = task.seen(outputs, batch), task.answers(outputs)
            by_state = {metric.state_name: metric for metric in self.metrics}  # which some metrics share
            sums = {name: _sum_of_states(metric, answers, seen) for name, metric in by_state.items()}
            return {**sums, COUNT: _sum(seen[COUNT], outputs)}

        on_gpu = next(iter(params.values())).device.type == "cuda"
        with LayersAsProducts() if on_gpu else nullcontext(), SharedSamples():
            measured: Tensors = vmap(measure)(params)
        return measured


def _sum_of_states(metric: Metric, answers: Tensor, seen: Any) -> Tensor:
    """The sum of all samples' states."""
    # Of classes of samples alone: where not all that is predicted counts, the metric itself knows what does.
    of_classes = metric.state_name == CLASS_CONFUSIONS or type(metric) is BalancedAccuracy
    if of_classes and not are_labels(answers, seen) and "scored" not in seen:
        return _confusions(answers, seen["y"])
    return _sum(metric.state(answers, seen), answers)


def _sum(states: Tensor, outputs: Tensor) -> Tensor:
    """Over samples. Numbers of samples, as they are scored at once, are exact in every precision."""
    if states.is_floating_point():
        return states.sum(0, dtype=torch.float64)
    return states.to(outputs.dtype).sum(0).double()


def _confusions(scores: Tensor, right: Tensor) -> Tensor:
    """Hits, false alarms and misses of every class: the sum of what `ClassConfusions.state` gives, as a product."""
    classes = torch.arange(scores.shape[-1], device=scores.device).unsqueeze(-1)
    is_predicted, is_right = (chosen == classes for chosen in (scores.argmax(-1), right))  # [classes, samples]
    together = shared_product(is_predicted.to(scores.dtype), is_right.to(scores.dtype).mT)  # [predicted, right]
    hits = together.diagonal(dim1=-2, dim2=-1)
    return torch.stack([hits, together.sum(-1) - hits, together.sum(-2) - hits]).double()

"""What a task is: a model with its loss and its metrics, as functions of (parameters, batch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry, nearest
from fedarena.metrics.metric import METRICS, Loss, Metric, Predicts, WeightedLoss, make_metric
from fedarena.metrics.ranking import RankingMetric, ranking_scores
from fedarena.metrics.totals import COUNT, RIGHT, SCORES
from fedarena.models.augmentation import SAMPLE_KEYS, Augmentation, sample_keys
from fedarena.models.calling import call_with, scored_as_trained
from fedarena.models.dropout import dropout_key
from fedarena.models.sealed_batch import opened
from fedarena.models.spec import DataSpec

Tensors = dict[str, Tensor]


class Task:
    """A model with its loss and metrics. A task of one's own overrides what it does differently, often `losses` alone.

    A batch has the model's input ``x`` (or several, by name) and ``y``, what is right. Where it has a ``"mask"`` of its
    samples, only those count. Where it has a ``"key"`` (an int64 scalar), it is trained on: what the model drops out
    and how ``x`` is augmented depends on that alone.

    `measure` gives a state per sample for every metric, so that any grouping (per client, over all) is a plain sum.
    `metrics` are names of metrics to measure beside the loss, and `lead` is the one that reports lead with.
    """

    predicts: ClassVar[Predicts]
    kinds: ClassVar[tuple[str, ...]]  # of federations that it is for
    usual_metrics: ClassVar[tuple[str, ...]]  # where none are named; the first one leads
    # What a model that knows nothing answers, as far as there is such a thing; see `fedarena.runs.baseline`.
    baseline_rule: ClassVar[str | None] = None
    augmentation: Augmentation | None = None  # what ``x`` goes through before the model sees it

    def __init__(
        self, module: nn.Module, spec: DataSpec, *, metrics: tuple[str, ...] | None = None, lead: str | None = None
    ):
        if spec.kind not in self.kinds:
            raise BadInputError(f"The task {type(self).__name__} is not for {spec}; leave it out, or write task=auto")
        self.module, self.spec = module, spec
        self.inputs = tuple(part.name for part in spec.inputs) or ("x",)
        self._codes = {part.name: part.values for part in spec.inputs if part.values is not None}
        if spec.is_text:
            self._codes["x"] = spec.vocabulary
        named = [make_metric(name, spec.classes) for name in (metrics or self.usual_metrics)]
        counts = spec.class_counts
        for metric in named:
            metric.know_classes(counts if counts and len(counts) == spec.classes else None)
            metric.know_tokens(spec.token_names)
        self.metrics: tuple[Metric, ...] = (WeightedLoss() if self.has_weights else Loss(), *named)
        self.lead = self._lead(lead)

    def _lead(self, wanted: str | None) -> Metric:
        by_name = {metric.name: metric for metric in self.metrics}
        if len(by_name) < len(self.metrics):
            raise BadInputError(f"task.metrics names a metric twice: {', '.join(m.name for m in self.metrics[1:])}")
        for metric in self.metrics:
            if self.predicts not in metric.predicts:
                fitting = [name for name in METRICS.names() if self.predicts in make_metric(name).predicts]
                raise BadInputError(
                    f"The metric {metric.name!r} is not for a task that predicts {self.predicts}; "
                    f"possible: {', '.join(fitting)}"
                )
        if wanted is None:
            return self.metrics[1] if len(self.metrics) > 1 else self.metrics[0]
        if wanted not in by_name:
            raise BadInputError(f"task.lead is {wanted!r}, which is not measured; {nearest(wanted, by_name)}")
        return by_name[wanted]

    @classmethod
    def model_spec(cls, spec: DataSpec) -> DataSpec:
        """The form of the data as a model for this task must see it."""
        return spec

    @property
    def has_weights(self) -> bool:
        """Whether some samples weigh more in the loss than others; see `weights`."""
        return type(self).weights is not Task.weights

    @property
    def largest_batch(self) -> int | None:
        """The most samples that are computed at once, where a sample is very large."""
        return None

    def example(self, samples: int) -> Tensors:
        """Columns of so many meaningless samples, to try a model out."""
        if self.spec.inputs:
            x = {part.name: self._nothing(samples, part.shape, part.values is not None) for part in self.spec.inputs}
        else:
            x = {"x": self._nothing(samples, self.spec.input_shape, self.spec.is_text)}
        return {**x, "y": self.example_targets(samples)}

    def _nothing(self, samples: int, shape: Sequence[int], is_code: bool) -> Tensor:
        return torch.zeros(samples, *shape, dtype=torch.long if is_code else None)

    def example_targets(self, samples: int) -> Tensor:
        """What is right for meaningless samples."""
        return torch.zeros(samples, dtype=torch.long)

    def drawn_example(self, samples: int, random: torch.Generator) -> Tensors:
        """The columns of so many samples with values that are drawn."""
        return self.meaningless(self.example(samples), random)

    def meaningless(self, batch: Tensors, random: torch.Generator | None = None) -> Tensors:
        """The batch of an example with values that are drawn from `random`, and the last class as target."""
        drawn = dict(batch)
        for name in self.inputs:
            x = batch[name]
            if name in self._codes:
                drawn[name] = torch.randint(self._codes[name], x.shape, generator=random).to(x.device)
            else:
                drawn[name] = torch.rand(x.shape, generator=random).to(x)
        if not batch["y"].is_floating_point():
            drawn["y"] = torch.full_like(batch["y"], self.spec.classes - 1)
        return drawn

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The columns of a federation as the inputs and targets of the model."""
        inputs = {
            name: columns[name].long() if name in self._codes else self._floats(columns[name]) for name in self.inputs
        }
        return {**inputs, "y": self.targets(columns["y"])}

    def _floats(self, values: Tensor) -> Tensor:
        """Numbers as the model computes; bytes become 0..1, and waveforms of 16 bits -1..1."""
        if values.dtype == torch.uint8:
            values = values if self._dtype == torch.get_default_dtype() else values.to(self._dtype)
            return values * (1 / 255)  # which makes floats of them in the same operation
        if values.dtype == torch.int16 and self.spec.is_audio:
            return values.to(self._dtype) * (1 / 32_768)
        return values.to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def targets(self, y: Tensor) -> Tensor:
        """What is right, as the loss needs it."""
        return y.long()

    def predict(self, params: Tensors, batch: Tensors) -> Tensor:
        """What the model puts out for every prediction, scores or numbers: ``[samples, …, classes]``.

        Without any `params` they are those of the module.
        """
        x = self.model_inputs(batch)
        with dropout_key(batch.get("key")), scored_as_trained(self.module):
            outputs: Tensor = call_with(self.module, params, x) if params else self.module(*x)
        return outputs

    def model_inputs(self, batch: Tensors) -> tuple[Tensor, ...]:
        """What the model is called with: the inputs, ``x`` augmented."""
        if self.augmentation is None:
            return tuple(batch[name] for name in self.inputs)
        x = batch["x"]
        if SAMPLE_KEYS in batch:
            return (self.augmentation.training(x, batch[SAMPLE_KEYS]),)
        if "key" in batch:
            return (self.augmentation.training(x, sample_keys(batch["key"], len(x))),)
        return (self.augmentation.evaluation(x),)

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """Raises if the model puts out something else than the task needs."""

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """The loss of every prediction."""
        raise NotImplementedError

    def weights(self, batch: Tensors) -> Tensor:
        """How much every sample weighs in the loss, if `has_weights`."""
        raise NotImplementedError

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """The mean of one value per prediction over the predictions that count."""
        if "mask" not in batch:
            return values.mean()
        return (values * batch["mask"]).sum() / batch["mask"].sum().clamp(min=1)

    def loss(self, params: Tensors, batch: Tensors) -> Tensor:
        """Mean loss of the model with these parameters on this batch."""
        batch = opened(batch)
        losses = self.losses(self.predict(params, batch), batch)
        if not self.has_weights:
            return self.mean(losses, batch)
        weights = self.weights(batch)
        if "mask" in batch:
            losses, weights = losses * batch["mask"], weights * batch["mask"]
        return losses.sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)

    def measure(self, params: Tensors, batch: Tensors, metrics: Sequence[Metric] | None = None) -> Tensors:
        """Per-sample states of every metric (or of those given), and under ``"count"`` the number of predictions."""
        return self.assess(self.predict(params, batch), batch, metrics)

    def assess(self, outputs: Tensor, batch: Tensors, metrics: Sequence[Metric] | None = None) -> Tensors:
        """The same of what a model put out."""
        seen, answers = self.seen(outputs, batch), self.answers(outputs)
        found = {COUNT: seen[COUNT]}
        for metric in self.metrics if metrics is None else metrics:
            if isinstance(metric, RankingMetric):
                if SCORES not in found:
                    found[SCORES], found[RIGHT] = ranking_scores(answers, seen)
            elif metric.state_name not in found:  # which some metrics share
                found[metric.state_name] = metric.state(answers, seen)
        return found

    def answers(self, outputs: Tensor) -> Tensor:
        """What the model's outputs are taken for when they are measured."""
        return outputs

    def seen(self, outputs: Tensor, batch: Tensors) -> Tensors:
        """The batch as metrics see it: with every sample's loss and number of predictions."""
        y = batch["y"]
        count = torch.ones_like(y if y.dim() == 1 else y.select(-1, 0), dtype=torch.long)
        seen = {**batch, "loss": self.losses(outputs, batch), COUNT: count}
        if self.has_weights:
            seen["weight"] = self.weights(batch)
        return seen


TASKS: Registry[Callable[..., Task]] = Registry("task", base=Task)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Of every prediction. Torch's own function also looks for labels to ignore, which takes small models long."""
    return -F.log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


def check_scores(outputs: Tensor, targets: Tensor, classes: int) -> None:
    """More scores than classes would be trained and measured without a word."""
    needed = [*targets.shape, classes]
    if list(outputs.shape) != needed:
        raise ValueError(
            f"its outputs have the shape {list(outputs.shape)}, but {needed} is needed, a score for each of the "
            f"{classes} classes"
        )


def check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Subtracting would otherwise spread one number over many without a word."""
    if outputs.shape != targets.shape:
        raise ValueError(f"its outputs have the shape {list(outputs.shape)}, but {list(targets.shape)} is needed")

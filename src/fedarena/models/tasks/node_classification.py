"""One label per node of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.metrics.metric import Metric
from fedarena.metrics.ranking import RankingMetric
from fedarena.models.sealed_batch import opened
from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import TASKS, Tensors
from fedarena.models.tasks.classification import Classification

_UNLABELLED = -1  # in ``y``: a node without a label, or of another part
_NUMBERS_AT_ONCE = 1 << 26  # in the features and adjacency matrices of the graphs of a batch


@TASKS.register("node_classification")
class NodeClassification(Classification):
    """One label per node of a graph, cross-entropy. A sample is a whole graph, and its predictions are its nodes.

    Only the nodes that have a label in ``y`` count, in the loss and in metrics; the others are there to be neighbours.
    """

    kinds: ClassVar[tuple[str, ...]] = ("node_classification",)

    def __init__(
        self,
        module: nn.Module,
        spec: DataSpec,
        *,
        class_weights: tuple[float, ...] | None = None,
        label_smoothing: float = 0.0,
        metrics: tuple[str, ...] | None = None,
        lead: str | None = None,
    ):
        super().__init__(
            module, spec, class_weights=class_weights, label_smoothing=label_smoothing, metrics=metrics, lead=lead
        )
        for metric in self.metrics:
            if isinstance(metric, RankingMetric):
                raise BadInputError(
                    f"The metric {metric.name!r} ranks samples, which are whole graphs here; metrics of nodes are "
                    "accuracy, balanced_accuracy, macro_f1 and micro_f1"
                )

    @property
    def _nodes(self) -> int:
        assert self.spec.graph_shape is not None  # the store has no others of this kind
        return self.spec.graph_shape[0]

    @property
    def largest_batch(self) -> int:
        """So many graphs that a batch takes some hundred megabytes."""
        assert self.spec.graph_shape is not None
        nodes, features = self.spec.graph_shape
        return max(1, _NUMBERS_AT_ONCE // (nodes * (nodes + features)))

    def example_targets(self, samples: int) -> Tensor:
        """The first label for every node."""
        return torch.zeros(samples, self._nodes, dtype=torch.long)

    def loss(self, params: Tensors, batch: Tensors) -> Tensor:
        """Mean loss over the nodes that have a label."""
        batch = opened(batch)
        counting = batch["y"] != _UNLABELLED
        if "mask" in batch:
            counting = counting & (batch["mask"] > 0).unsqueeze(-1)
        labelled = _labelled(batch)
        losses = self.losses(self.predict(params, batch), labelled)
        weights = self.weights(labelled) if self.has_weights else torch.ones_like(losses)
        total = torch.where(counting, weights, 0).sum()
        return torch.where(counting, losses, 0).sum() / total.clamp(min=torch.finfo(losses.dtype).tiny)

    def assess(self, outputs: Tensor, batch: Tensors, metrics: Sequence[Metric] | None = None) -> Tensors:
        """States of every graph: the sums over its nodes, each of which metrics see as a sample."""
        graphs, nodes = batch["y"].shape
        each = super().assess(outputs.flatten(0, 1), {"y": _labelled(batch)["y"].flatten()}, metrics)
        counting = batch["y"] != _UNLABELLED

        def over_nodes(states: Tensor) -> Tensor:
            states = states.view(graphs, nodes, *states.shape[1:])
            return torch.where(counting.view(graphs, nodes, *[1] * (states.dim() - 2)), states, 0).sum(1)

        return {name: over_nodes(states) for name, states in each.items()}


def _labelled(batch: Tensors) -> Tensors:
    """The batch with some label for nodes that have none, which must not count."""
    return {**batch, "y": batch["y"].clamp(min=0)}

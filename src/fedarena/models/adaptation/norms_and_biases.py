"""Biases, normalization layers and the last layer.

Ben Zaken et al., "BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked Language-models", ACL
2022, train biases alone. In networks of pictures biases are in the normalization layers, whose scales come with them.
"""

from __future__ import annotations

from fedarena.models.adaptation.base import ADAPTATIONS, Adaptation, freeze_all_but, head_of
from fedarena.models.tasks import Task


@ADAPTATIONS.register("norms_and_biases")
class NormsAndBiases(Adaptation):
    """All parameters that are vectors (biases, and scales of normalization layers) are trained, and the last layer."""

    def adapt(self, task: Task) -> None:
        """Freezes matrices and kernels."""
        vectors = [name for name, p in task.module.named_parameters() if p.ndim <= 1]
        freeze_all_but(task.module, [*vectors, *head_of(task.module)])

"""The last layer alone is trained, on what the rest of the model makes of a sample (linear probing)."""

from __future__ import annotations

from fedarena.models.adaptation.base import ADAPTATIONS, Adaptation, freeze_all_but, head_of
from fedarena.models.tasks import Task


@ADAPTATIONS.register("head_only")
class HeadOnly(Adaptation):
    """The last layer alone is trained."""

    def adapt(self, task: Task) -> None:
        """Freezes everything else."""
        freeze_all_but(task.module, head_of(task.module))

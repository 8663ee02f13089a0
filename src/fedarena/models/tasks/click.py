"""Whether somebody clicks on what is shown."""

from __future__ import annotations

from typing import ClassVar

from fedarena.models.tasks.base import TASKS
from fedarena.models.tasks.multi_label import Binary


@TASKS.register("click")
class Click(Binary):
    """Whether somebody clicks, of which the model gives one score: binary cross-entropy.

    Clicks are rare, so that always saying no is mostly right; what counts is how well scores tell clicks from the rest.
    """

    usual_metrics: ClassVar[tuple[str, ...]] = ("auc", "average_precision")
    baseline_rule: ClassVar[str | None] = None  # one score for all tells nothing apart

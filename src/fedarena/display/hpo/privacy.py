"""The best configurations under privacy budgets, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.hpo.analysis.privacy import BestUnderBudget
from fedarena.hpo.scores import info_of

_TOLD = ("test_accuracy", "test_loss")  # the first that there is


def budget_rows(found: Sequence[BestUnderBudget], objective: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: a budget, the best configuration under it, the objective, and what it comes to on test samples.

    Numbers are means over seeds, with the standard deviation where there are several.
    """
    shown = [objective, next((one for one in _TOLD if one in found[0].metrics), objective)]
    shown = list(dict.fromkeys(shown))
    heads = ["ε", *found[0].configuration, *(score.replace("_", " ") for score in shown)]
    rows = []
    for one in found:
        settings = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in one.configuration.values()]
        scores = []
        for score in shown:
            mean, spread = one.metrics[score]
            text = info_of(score).text
            scores.append(text(mean) if spread is None else f"{text(mean)} ± {text(spread)}")
        rows.append([f"{one.epsilon:g}", *settings, *scores])
    return heads, rows

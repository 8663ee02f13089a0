"""How fast the runs were executed."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.display.drawing.html import Html
from fedarena.display.report.figures.speed import speed_figure
from fedarena.display.report.sections.elements import Plot
from fedarena.storage.run_data import RunData


def speed(runs: Sequence[RunData], plot: Plot) -> Html:
    """How fast the runs were executed."""
    return plot(
        speed_figure(runs),
        "Real time: it depends on the machine and its load, and is the only thing here that is not reproducible. "
        "No result depends on it.",
    )

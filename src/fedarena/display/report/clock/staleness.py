"""How old the updates were that methods used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.marks import add_line
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.report.methods import Method, jobs_of, methods_of
from fedarena.metrics import staleness_counts
from fedarena.storage.run_data import RunData

MAX_STALENESS_BINS: Final = 30
_SHOWN_STALENESS: Final = 0.98  # of the updates; a few very old ones would make the others invisible


def staleness_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How many versions old the updates were that methods used, for methods that use old ones; None if none does."""
    look = styles(methods_of(runs))
    found: list[tuple[Method, NDArray[np.int64]]] = []
    for method in methods_of(runs):
        total = _added([staleness_counts(jobs.staleness, jobs.used) for jobs in jobs_of(method)])
        if len(total) > 1:
            found.append((method, total))
    if not found:
        return None
    figure = empty_figure("Staleness", "versions that the server was ahead", "share of updates", height=400)
    last = max(_covering(total, _SHOWN_STALENESS) for _, total in found)
    width = -(-(last + 1) // MAX_STALENESS_BINS)
    bins = -(-(last + 1) // width)
    ranges = [f"{low}" if width == 1 else f"{low} to {low + width - 1}" for low in range(0, bins * width, width)]
    for method, total in found:
        ages = np.arange(len(total))
        beyond = len(total) > bins * width  # the oldest are together in the last bin
        shares = np.bincount(np.minimum(ages // width, bins - 1), total, minlength=bins) / total.sum()
        add_line(
            figure,
            (np.arange(bins) * width + (width - 1) / 2).astype(np.float64),
            shares,
            f"{figure_text(method.label)} (mean {(ages * total).sum() / total.sum():.1f})",
            look[method.label],
            mode="lines+markers",
            cliponaxis=False,
            customdata=[*ranges[:-1], f"{(bins - 1) * width} or more" if beyond else ranges[-1]],
            hovertemplate="%{customdata} versions: %{y:.1%}",
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def _covering(histogram: NDArray[np.int64], share: float) -> int:
    """The smallest value up to which lies at least that share."""
    return int(np.searchsorted(np.cumsum(histogram), share * histogram.sum()))


def _added(histograms: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    total = np.zeros(max(map(len, histograms), default=0), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total

"""Pictures of a comparison of optimizers, after FedHPO-Bench's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line, evenly, logarithmic_marks, shortened
from fedarena.display.drawing.style import DASHES, INK, PAPER, SERIES_LIGHT, Style, empty_figure, figure_text
from fedarena.display.hpo.looks import looks_of
from fedarena.display.report.methods import FloatArray
from fedarena.hpo.analysis.importance import Importance
from fedarena.hpo.analysis.landscape import Landscape
from fedarena.hpo.analysis.ranks import budget_shares
from fedarena.hpo.analysis.regret import GridValues, ecdf
from fedarena.hpo.analysis.sample_rates import RateOutcome
from fedarena.hpo.comparison import OptimizerComparison

_MOST_POINTS: Final = 400  # of a distribution
_SMALLEST_REGRET: Final = 1e-4  # that a log axis shows; the best itself is at 0
_FULLEST: Final = 0.55  # of the colour: text in the fullest cell must be legible, light or dark
_CELL: Final = 34  # pixels of a row
_SHARES_OF_A_BUDGET: Final = [0.001, 0.01, 0.1, 1.0]


def ranks_figure(
    found: OptimizerComparison, labels: Sequence[str], title: str, problems: Sequence[str] | None = None
) -> go.Figure:
    """Mean rank over time among some optimizers (Figure 4, and 12 to 23 for some problems)."""
    shares = budget_shares()
    ranked = found.mean_ranks(labels, problems, shares)
    looks = looks_of(found.optimizers)
    figure = empty_figure(title, "share of the budget", "mean rank, 1 is best", height=440)
    for label, line in zip(labels, ranked, strict=True):
        add_line(figure, shares, line, figure_text(shortened(label)), looks[label], hovertemplate="%{y:.2f}")
        figure.data[-1].line.shape = "hv"
    figure.update_yaxes(range=[len(labels) + 0.2, 0.8], tickmode="linear", tick0=1, dtick=1)
    _share_axis(figure, _first_share(found, labels))
    return figure


def regret_figure(found: OptimizerComparison, problem: str) -> go.Figure:
    """Mean normalized regret of the incumbents over time, on one problem."""
    shares = budget_shares()
    looks = looks_of(found.optimizers)
    figure = empty_figure(
        figure_text(f"{problem}: regret of the best so far"), "share of the budget", "normalized regret", height=440
    )
    seen = []
    for label in found.labels:
        regrets = found.regrets(problem, label, shares)
        if not len(regrets):
            continue
        shown = np.maximum(regrets, _SMALLEST_REGRET)
        seen.append(shown)
        add_line(
            figure,
            shares,
            shown,
            figure_text(shortened(label)),
            looks[label],
            customdata=regrets,
            hovertemplate="%{customdata:.3~g}",
        )
        figure.data[-1].line.shape = "hv"
    if seen:
        figure.update_yaxes(type="log", **logarithmic_marks(np.concatenate(seen)))
    _share_axis(figure, _first_share(found, found.labels, [problem]))
    return figure


def ecdf_figure(grids: Mapping[str, GridValues]) -> go.Figure:
    """The distribution of normalized regret over all configurations of each problem (Figures 3, 9 and 11)."""
    figure = empty_figure(
        "How many configurations are good", "normalized regret", "share of configurations", height=420
    )
    for number, (name, grid) in enumerate(grids.items()):
        regrets, shares = ecdf(grid.regret_of(grid.values))
        kept = evenly(len(regrets), _MOST_POINTS)
        style = Style(SERIES_LIGHT[number % len(SERIES_LIGHT)], DASHES[number // len(SERIES_LIGHT) % len(DASHES)])
        add_line(figure, regrets[kept], shares[kept], figure_text(shortened(name)), style, hovertemplate="%{y:.1%}")
        figure.data[-1].line.shape = "hv"
    figure.update_xaxes(range=[-0.01, 1.01])
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    return figure


def importance_figure(problem: str, shares: Importance, most_pairs: int = 3) -> go.Figure:
    """Shares of the variance that belong to hyperparameters, and the largest ones that belong to pairs."""
    pairs = {" × ".join(names): share for names, share in list(shares.pairs.items())[:most_pairs]}
    rows = [*shares.single.items(), *pairs.items()][::-1]
    figure = empty_figure(
        figure_text(f"{problem}: what matters"), "share of the variance of ranks", "", height=110 + 46 * len(rows)
    )
    colours = [SERIES_LIGHT[0] if name in shares.single else SERIES_LIGHT[5] for name, _ in rows]
    for place, ((name, share), colour) in enumerate(zip(rows, colours, strict=True)):
        figure.add_bar(
            x=[share],
            y=[place],
            width=0.38,
            orientation="h",
            marker={"color": colour},
            name=figure_text(name),
            showlegend=False,
            hovertemplate=f"{figure_text(name)} %{{x:.1%}}<extra></extra>",
        )
        # Above its bar at the left, a name of any length has room on a phone.
        text = f"{figure_text(shortened(name))} <b>{figure_text(f'{share:.0%}')}</b>"
        figure.add_annotation(text=text, x=0, y=place + 0.2, xanchor="left", yanchor="bottom", showarrow=False)
    figure.update_xaxes(range=[0, max(0.1, *(share for _, share in rows)) * 1.05], tickformat=".0%")
    figure.update_yaxes(visible=False, range=[-0.5, len(rows) - 0.3])
    return figure


def landscape_figure(found: Landscape, metric: str, maximize: bool = False) -> go.Figure:
    """Values over the grid of two hyperparameters (Figures 8 and 10); the fuller the colour, the better."""
    values = np.where(np.isfinite(found.values), -found.values if maximize else found.values, np.nan)
    # Ranks have colours: losses of the worst configurations would leave all others alike.
    order = np.full(values.shape, np.nan)
    known = np.isfinite(found.values)
    places = np.unique(found.values[known], return_inverse=True)[1]
    order[known] = 1 - places / max(1, places.max(initial=1))
    figure = empty_figure(
        figure_text(f"{found.problem}: {_metric_text(metric)}"),
        figure_text(found.x),
        figure_text(found.y),
        height=130 + _CELL * len(found.y_values),
    )
    columns = len(found.x_values)
    texts = [[_cell_text(value, columns) if np.isfinite(value) else "×" for value in row] for row in values]
    hovers = [
        [
            figure_text(f"{found.x}={_setting_text(x)}, {found.y}={_setting_text(y)}: {_whole_text(value)}")
            for x, value in zip(found.x_values, row, strict=True)
        ]
        for y, row in zip(found.y_values, values, strict=True)
    ]
    figure.add_heatmap(
        z=order,
        x=np.arange(columns),
        y=np.arange(len(found.y_values)),
        text=texts,
        customdata=hovers,
        texttemplate="%{text}",
        textfont={"size": 12, "color": INK},
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        colorscale=[[0, PAPER], [1, SERIES_LIGHT[0]]],
        zmin=0,
        zmax=1 / _FULLEST,
        xgap=2,
        ygap=2,
        showscale=False,
        showlegend=False,
    )
    ticks = {"tickmode": "array", "showgrid": False, "ticks": ""}
    figure.update_xaxes(tickvals=list(range(columns)), ticktext=[_setting_text(one) for one in found.x_values], **ticks)
    figure.update_yaxes(
        tickvals=list(range(len(found.y_values))), ticktext=[_setting_text(one) for one in found.y_values], **ticks
    )
    return figure


def sample_rates_figure(
    outcomes: Sequence[RateOutcome], shares: Sequence[float] | FloatArray, condition: str
) -> go.Figure:
    """The best over time with every client sample rate under one condition of the system (Figure 7)."""
    figure = empty_figure(figure_text(condition), "share of the budget", "best value so far", height=400)
    chosen = [one for one in outcomes if one.condition == condition]
    for number, one in enumerate(chosen):
        style = Style(SERIES_LIGHT[number % len(SERIES_LIGHT)], "solid")
        known = np.isfinite(one.best)
        x, y = np.asarray(shares)[known], one.best[known]
        add_line(figure, x, y, f"rate {one.client_sample_rate:g}", style, hovertemplate="%{y:.4~g}")
        figure.data[-1].line.shape = "hv"
    _share_axis(figure, float(np.min(shares)))
    return figure


def _first_share(found: OptimizerComparison, labels: Sequence[str], problems: Sequence[str] | None = None) -> float:
    """When the first of these optimizers knows anything; before that there is nothing to see."""
    firsts = [
        one.simulated_s[0] / one.budget_s
        for (problem, label), made in found.searches.items()
        if label in labels and (problems is None or problem in problems)
        for one in made
        if len(one)
    ]
    return max(min(firsts, default=1e-3) / 1.3, float(budget_shares()[0]))


def _share_axis(figure: go.Figure, first: float) -> None:
    ticks = [share for share in (*_SHARES_OF_A_BUDGET, 0.003, 0.03, 0.3) if share >= first]
    figure.update_xaxes(
        type="log",
        range=[np.log10(min(first, 0.5)), 0.0],
        tickvals=sorted(ticks),
        ticktext=[f"{share:.3g}" for share in sorted(ticks)],
    )


def _metric_text(metric: str) -> str:
    return metric.replace("_", " ")


def _setting_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cell_text(value: float, columns: int) -> str:
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.2g}"
    return text.removeprefix("0") if columns > 7 and text.startswith("0.") else text


def _whole_text(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "diverged"

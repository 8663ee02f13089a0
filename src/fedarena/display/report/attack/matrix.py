"""Attacks beside defences: what every defence is worth under every attack, in one picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.distinct import distinct_runs
from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.metrics import as_title
from fedarena.display.drawing.stack import Panel, add_axes, add_heading, stack
from fedarena.display.drawing.style import INK, PAPER, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.report.attack.judged import attack_of, is_attacked
from fedarena.display.report.attack.variants import described
from fedarena.display.report.methods import FloatArray, Method, column, evaluation_curve
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

SUCCESS: Final = "attack_success"
UNDISTURBED: Final = "no attack"
_NOT_THE_DEFENCE: Final = ("name", "label", "seed", "track", "attack", "callbacks", "keep")
_DIVERGED: Final = "×"
_ROW: Final = 46  # pixels of an attack: its name, and the cells below it
_NAME: Final = 0.44  # of these, for the name
_CHARACTER_PIXELS: Final = 6.6
_FULLEST: Final = 0.55  # of the colour: text in the fullest cell must be legible, light or dark
_LEAST_CONTRAST: Final = 0.2  # of a metric's span, from the palest to the fullest cell
_MOST_TEXT: Final = 22  # characters of a defence's name


@dataclass(frozen=True)
class Cell:
    """What a defence came to under an attack by a share of the clients, over seeds; no score if all diverged."""

    attack: str
    defence: str
    share: float
    score: Spread | None


@dataclass(frozen=True)
class Matrix:
    """All cells, and the names of rows, columns and panels in the order in which runs were given."""

    cells: Mapping[tuple[float, str, str], Cell]
    shares: Sequence[float]
    attacks: Sequence[str]
    defences: Sequence[str]


def robustness_matrix(runs: Sequence[RunData], score: str) -> Matrix | None:
    """Attacks by defences by share of corrupted clients; None where there is no such matrix in the runs.

    A defence is everything in which runs differ beside the attack. Runs without an attack are a row of their own, for
    every share whose defences they have.
    """
    runs = [run for run in distinct_runs(runs) if knows(run, score)]
    cells: dict[tuple[float, str, str], Cell] = {}
    for share in sorted({_share(run) for run in runs if is_attacked(run)}):
        for cell in _panel([run for run in runs if is_attacked(run) and _share(run) == share], runs, share, score):
            cells[share, cell.attack, cell.defence] = cell
    shares = sorted({share for share, _, _ in cells})
    attacks = list(dict.fromkeys(attack for _, attack, _ in cells))
    defences = list(dict.fromkeys(defence for _, _, defence in cells))
    rows = [attack for attack in attacks if attack != UNDISTURBED]
    several = len(defences) > 1 and (len(rows) > 1 or len(shares) > 1)
    if not several or 2 * len(cells) < len(shares) * len(attacks) * len(defences):
        return None
    return Matrix(cells, shares, attacks, defences)


def robustness_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure | None:
    """A metric under every attack (rows) with every defence (columns), a panel for each share of corrupted clients."""
    metric = metric or leading_metric(runs)
    found = robustness_matrix(runs_with(runs, metric), metric.name)
    if found is None:
        return None
    span = None if metric.low is None or metric.high is None else metric.high - metric.low
    return _figure(found, f"{as_title(metric)} by attack and defence", span)


def success_matrix_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The success of attacks in the same form, of those that have one."""
    found = robustness_matrix(runs, SUCCESS)
    return None if found is None else _figure(found, "Attack success by attack and defence", 1.0)


def _panel(attacked: Sequence[RunData], runs: Sequence[RunData], share: float, score: str) -> Iterator[Cell]:
    """The cells of one share. What differs between shares alone, such as how many a defence expects, names nothing."""
    defences = {_key(run): _defence_settings(run) for run in attacked}
    names = dict(zip(defences, described(list(defences.values()), "aggregator"), strict=True))
    attacks = described([_attack_settings(run) for run in attacked], "attack")
    groups: dict[tuple[str, str], list[RunData]] = {}
    for run in runs:
        if not is_attacked(run) and _key(run) in names:
            groups.setdefault((UNDISTURBED, names[_key(run)]), []).append(run)
    for run, attack in zip(attacked, attacks, strict=True):
        groups.setdefault((attack, names[_key(run)]), []).append(run)
    for (attack, defence), found in groups.items():
        counted = Method("", tuple(found)).counted
        broken = all(run.status == "diverged" for run in found)
        finals = [] if broken else [float(evaluation_curve(run)[score][-1]) for run in counted]
        yield Cell(attack, defence, share, Spread.of(finals))


def knows(run: RunData, name: str) -> bool:
    """Whether a column of the rounds has a value."""
    return name in run.rounds.column_names and bool(np.isfinite(column(run.rounds, name)).any())


def _share(run: RunData) -> float:
    return float((run.config.get("attack") or {}).get("share") or 0.0)


def _defence_settings(run: RunData) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in _NOT_THE_DEFENCE}


def _attack_settings(run: RunData) -> dict[str, Any]:
    attack = {key: value for key, value in run.config["attack"].items() if key != "share"}
    return {"attack": attack | {"name": attack_of(run)}}


def _key(run: RunData) -> str:
    return json.dumps(_defence_settings(run), sort_keys=True, default=str)


def _figure(found: Matrix, title: str, span: float | None) -> go.Figure:
    """The picture; where the metric has a `span`, differences that are a small part of it have pale colours."""
    rows, columns = len(found.attacks), len(found.defences)
    names = [_short(defence) for defence in found.defences]
    figure = empty_figure(title, "", "")
    below = 16 + round(_CHARACTER_PIXELS * max(map(len, names)))  # turned names of the defences
    panels = [Panel(str(share), _ROW * rows, 26 if number == 0 else 52) for number, share in enumerate(found.shares)]
    places = stack(figure, panels, below)
    scores = [cell.score.mean for cell in found.cells.values() if cell.score is not None] or [0.0]
    low, high = min(scores), max(scores)
    high = max(high, low + (1e-9 if span is None else _LEAST_CONTRAST * span))
    # Names of attacks are above their cells and not beside them: that leaves cells their width on a phone.
    edges = [*(edge for row in range(rows) for edge in (row, row + _NAME)), rows]
    for number, share in enumerate(found.shares, start=1):
        axis = "" if number == 1 else str(number)
        values, texts, hovers = _contents(found, share)
        figure.add_heatmap(
            z=values,
            x=np.arange(columns),
            y=edges,
            text=texts,
            customdata=hovers,
            texttemplate="%{text}",
            textfont={"size": 12, "color": INK},
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=[[0, PAPER], [1, SERIES_LIGHT[0]]],
            zmin=low,
            zmax=low + (high - low) / _FULLEST,
            xgap=2,
            showscale=False,
            showlegend=False,
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
        )
        last = number == len(found.shares)
        add_axes(
            figure,
            number,
            places[str(share)],
            {
                "tickvals": list(range(columns)),
                "ticktext": [figure_text(name) for name in names] if last else [],
                "tickangle": -90,
                "showline": False,
                "ticks": "",
                "showticklabels": last,
                "range": [-0.5, columns - 0.5],
            },
            {"visible": False, "range": [rows, 0]},
        )
        add_heading(figure, f"{share:.0%} of the clients corrupted", [], places[str(share)][1])
        for row, attack in enumerate(found.attacks):
            figure.add_annotation(
                text=figure_text(shortened(attack)),
                x=0,
                xref="paper",
                xanchor="left",
                y=row + _NAME / 2,
                yref=f"y{axis}",
                showarrow=False,
                font={"size": 12, "color": INK if attack != UNDISTURBED else QUIET_INK},
            )
    figure.update_layout(showlegend=False, margin={"l": 4, "r": 4})
    return figure


def _contents(found: Matrix, share: float) -> tuple[FloatArray, list[list[str]], list[list[str]]]:
    """Values, texts and hover texts of a panel, with an empty line above every attack for its name."""
    rows, columns = len(found.attacks), len(found.defences)
    values = np.full((2 * rows, columns), np.nan)
    texts, hovers = ([[""] * columns for _ in range(2 * rows)] for _ in range(2))
    for row, attack in enumerate(found.attacks):
        for place, defence in enumerate(found.defences):
            cell = found.cells.get((share, attack, defence))
            if cell is None:
                continue
            text = _DIVERGED if cell.score is None else _number(cell.score.mean, columns)
            values[2 * row + 1, place] = np.nan if cell.score is None else cell.score.mean
            texts[2 * row + 1][place] = text
            whole = "diverged" if cell.score is None else f"{cell.score.mean:.4g}"
            hovers[2 * row + 1][place] = figure_text(f"{attack}, {defence}: {whole}")
    return values, texts, hovers


def _number(value: float, columns: int) -> str:
    """As many digits as a cell has room for on a phone: ".81" where cells are many, "0.81" where they are few."""
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
    return text.removeprefix("0") if columns > 9 and text.startswith("0.") else text


def _short(defence: str) -> str:
    return defence if len(defence) <= _MOST_TEXT else f"{defence[: _MOST_TEXT // 2]}…{defence[1 - _MOST_TEXT // 2 :]}"

"""What several sections are made of: tables, names of methods in their colours, explanations of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from fedarena.display.drawing.html import Html, join, swatch_colour, tag
from fedarena.display.drawing.style import styles
from fedarena.display.report.methods import methods_of
from fedarena.storage.run_data import RunData

Plot = Callable[[go.Figure, str], Html]
Cell = str


def table(heads: Sequence[Cell], body: Sequence[Sequence[Cell]], name: str) -> Html:
    """A table whose first column names the rows; it scrolls inside its own box on narrow screens."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in heads))
    rows = join(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in body)
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", rows), class_=name),
        class_="scroll",
        tabindex="0",
    )


def explanations(columns: Mapping[str, str]) -> Html:
    """What the columns of a table mean, to be unfolded."""
    legend = join(join([tag("dt", title), tag("dd", meaning)]) for title, meaning in columns.items())
    return tag("details", tag("summary", "What the columns mean"), tag("dl", legend, class_="legend"))


def swatches(runs: Sequence[RunData]) -> dict[str, Html]:
    """The labels of methods with their colours."""
    methods = methods_of(runs)
    look = styles(methods)
    return {
        method.label: join(
            [
                tag("span", class_="swatch", **swatch_colour(look[method.label].colour)),
                tag("span", method.label, class_="label"),
            ]
        )
        for method in methods
    }


def in_pairs(figures: Sequence[Html]) -> Html:
    """Two beside each other where there is room; what is empty leaves no gap."""
    there = [figure for figure in figures if figure]
    rows = [there[place : place + 2] for place in range(0, len(there), 2)]
    return join(tag("div", *row, class_="pair") if len(row) > 1 else row[0] for row in rows)


def if_any(plot: Plot, figure: go.Figure | None, caption: str) -> Html:
    """A figure with its caption, or nothing where there is no figure."""
    return Html("") if figure is None else plot(figure, caption.strip())

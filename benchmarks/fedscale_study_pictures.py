"""The pictures of the page about FedScale's experiments."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.panels import add_panel, places
from fedarena.display.drawing.style import DASHES, SERIES_LIGHT, empty_figure

PARTS = {"download": "download", "train": "training", "upload": "upload"}


def _beside_each_other(title: str, headings: Sequence[str], x: Sequence[str], y: Sequence[str]) -> go.Figure:
    figure = empty_figure(title, "", "", height=440)
    for number, (place, heading) in enumerate(zip(places(len(headings), 0.09), headings, strict=True), 1):
        axis = "" if number == 1 else str(number)
        add_panel(figure, axis, place, (0, 0.92), heading)
        figure.update_layout({f"xaxis{axis}_title_text": x[number - 1], f"yaxis{axis}_title_text": y[number - 1]})
    return figure


def curves_picture(suites: Mapping[str, Any], methods: Sequence[str]) -> go.Figure:
    """Fig. 11a and b: accuracy over rounds, mean over seeds."""
    title = "Accuracy over rounds, mean over seeds"
    sides = len(suites)
    figure = _beside_each_other(title, list(suites), ["round"] * sides, ["accuracy"] + [""] * (sides - 1))
    for number, suite in enumerate(suites.values(), 1):
        for colour, method in zip((SERIES_LIGHT[4], *SERIES_LIGHT), methods, strict=False):
            curves = [run["curve"] for run in suite["runs"] if run["label"] == method]
            figure.add_scatter(
                x=[point[0] for point in curves[0]],
                y=[statistics.fmean(points) for points in zip(*([p[2] for p in c] for c in curves), strict=True)],
                name=method,
                mode="lines",
                line={"color": colour, "dash": "dash" if method == "IID" else "solid"},
                showlegend=number == 1,
                xaxis=f"x{number}",
                yaxis=f"y{number}",
            )
    return figure


def clients_picture(federations: Mapping[str, Any], size_edges: Sequence[int]) -> go.Figure:
    """Fig. 3: how clients' sizes and the distances of pairs are distributed; as sums, in which one reads shares."""
    figure = _beside_each_other(
        "Clients differ in how much they have, and in what",
        ["samples of a client", "Jensen–Shannon distance of two clients' labels"],
        ["at most so many samples (logarithmic)", "at most this distance"],
        ["share of the clients", "share of the pairs"],
    )
    for number, (name, found) in enumerate(federations.items()):
        colours = len(SERIES_LIGHT)
        style = {"color": SERIES_LIGHT[number % colours], "dash": DASHES[number // colours]}
        shares = np.cumsum([0, *found["sizes"]]) / found["clients"]
        figure.add_scatter(x=list(size_edges), y=shares, name=name, legendgroup=name, mode="lines", line=style)
        if found["distances"] is not None:
            pairs = np.cumsum([0, *found["distances"]])
            more = {"legendgroup": name, "showlegend": False, "xaxis": "x2", "yaxis": "y2"}
            bins = np.linspace(0, 1, len(pairs))
            figure.add_scatter(x=bins, y=pairs / pairs[-1], name=name, mode="lines", line=style, **more)
    figure.update_layout(xaxis_type="log", height=520, margin_t=135)
    return figure


def timeline_picture(timeline: Mapping[str, Any]) -> go.Figure:
    """Fig. 15: where the time of some participants of a round goes."""
    figure = empty_figure("Five participants of a round", "seconds", "", height=320)
    names = [f"client {number}" for number, _ in enumerate(timeline["participants"], 1)]
    for colour, (part, name) in zip(SERIES_LIGHT, PARTS.items(), strict=False):
        seconds = [participant[part] for participant in timeline["participants"]]
        figure.add_bar(x=seconds, y=names, name=name, orientation="h", marker_color=colour)
    figure.update_layout(barmode="stack", yaxis_autorange="reversed", legend_traceorder="normal")
    return figure

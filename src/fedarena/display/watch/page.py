"""The page itself, which a script fills with what the server tells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedarena.display.drawing.html import Html, embed, join, script_safe, tag
from fedarena.display.drawing.style import (
    DARK_COLOURS,
    PLOT_SETTINGS,
    QUIET_INK,
    SERIES_LIGHT,
    band_colour,
    empty_figure,
)
from fedarena.display.report.clock.failures import OUTCOME_COLOURS

_PLOTS = {
    "score-rounds": ("Score over rounds", "round"),
    "score-hours": ("Score over virtual time", "virtual hours"),
    "phones": ("Phones at work", "virtual hours"),
    "failures": ("Failed jobs by reason", "round"),
    "epsilon": ("Privacy spent", "round"),
    "attack-success": ("Attack success", "round"),
}
_CAPTIONS = {
    "score-rounds": "The metric that runs are judged by; bands are from the 10th to the 90th percentile of clients.",
    "score-hours": "The same over the clock of the simulated world, not over real time.",
    "phones": "How many phones worked on jobs at a time; jobs that have not ended yet are not counted.",
    "failures": "Jobs a round that were not used, by why: a mean over the chosen runs; numbers above are totals.",
    "epsilon": "ε so far, of runs with differential privacy; (sim.): only if the cohort were as large as its noise.",
    "attack-success": "Share of the test samples with a backdoor's trigger that get its label.",
}


def page(folders: Sequence[Path]) -> Html:
    """The page about the runs below some folders."""
    title = ", ".join(folder.name or str(folder) for folder in folders)
    header = tag(
        "header",
        tag("p", "FedArena watch", class_="kicker"),
        tag("h1", title),
        tag("p", tag("span", "connecting", id="connection", class_="connection"), tag("span", id="counts")),
    )
    runs = tag(
        "section",
        tag("h2", "Runs"),
        tag(
            "div",
            tag("input", type="search", id="filter", placeholder="Filter runs", aria_label="Filter runs"),
            tag("span", class_="quiet", id="listed"),
            class_="tools",
        ),
        tag("div", id="list"),
        id="runs",
    )
    learning = tag(
        "section", tag("h2", "Learning"), tag("div", id="keys", class_="keys"), _pair("score-rounds", "score-hours")
    )
    guarded = tag("section", tag("h2", "Privacy and attacks"), _pair("epsilon", "attack-success"), id="guarded-section")
    phones = tag("section", tag("h2", "Phones"), _pair("phones", "failures"), id="phones-section")
    body = tag("main", header, tag("div", id="notices"), runs, learning, guarded, phones)
    return join(
        [
            Html("<!doctype html>\n"),
            tag(
                "html",
                tag(
                    "head",
                    tag("meta", charset="utf-8"),
                    tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                    tag("meta", name="color-scheme", content="light dark"),
                    tag("title", f"{title} · FedArena watch"),
                    Html('<link rel="stylesheet" href="report.css"><link rel="stylesheet" href="watch.css">'),
                    Html('<link rel="icon" href="data:,">'),
                ),
                tag(
                    "body",
                    body,
                    tag("noscript", tag("p", "This page needs JavaScript.")),
                    embed("script", script_safe(json.dumps(_settings())), type="application/json", id="settings"),
                    Html('<script src="plotly.js"></script><script src="watch.js"></script>'),
                ),
                lang="en",
            ),
            Html("\n"),
        ]
    )


def _pair(*names: str) -> Html:
    figures = (
        tag(
            "figure",
            tag("h3", _PLOTS[name][0], id=f"{name}-title"),
            tag("div", class_="keys", id=f"{name}-keys"),
            tag("div", class_="plot", id=name, role="img", aria_label=_PLOTS[name][0]),
            tag("p", class_="empty", id=f"{name}-empty"),
            tag("figcaption", _CAPTIONS[name]),
            id=f"{name}-figure",
        )
        for name in names
    )
    return tag("div", *figures, class_="pair")


def _settings() -> dict[str, Any]:
    layouts = {}
    for name, (_, x) in _PLOTS.items():
        figure = empty_figure("", x, "", height=320)
        figure.update_layout(title=None, showlegend=False, margin_t=12, margin_b=44)
        layouts[name] = json.loads(figure.to_json())["layout"]
    return {
        "dark": DARK_COLOURS,
        "plot": PLOT_SETTINGS,
        "layouts": layouts,
        "series": SERIES_LIGHT,
        "bands": [band_colour(colour) for colour in SERIES_LIGHT],
        "reasons": OUTCOME_COLOURS,
        "other": QUIET_INK,
    }


@cache
def asset(name: str) -> str:
    """A file of the page; the report's style is the page's, too."""
    package = "fedarena.display.report" if name == "report.css" else "fedarena.display.watch"
    return files(package).joinpath(name).read_text(encoding="utf-8")

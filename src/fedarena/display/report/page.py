"""The report: one HTML file that opens offline, with figures, tables and settings of the runs it compares."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fedarena.analysis.distinct import distinct_runs
from fedarena.analysis.leading_metric import leading_metric, leading_metrics
from fedarena.core.files import write_text
from fedarena.display.drawing.html import Html, embed, join, script_safe, swatch_colour, tag
from fedarena.display.drawing.style import DARK_COLOURS, PLOT_SETTINGS
from fedarena.display.report.attack.judged import has_attack_or_defence
from fedarena.display.report.attack.section import attacks
from fedarena.display.report.classes.section import classes
from fedarena.display.report.classes.table import tells_classes
from fedarena.display.report.clock.section import time_and_devices
from fedarena.display.report.methods import has_clock
from fedarena.display.report.policy.section import policies
from fedarena.display.report.policy.told import has_policy
from fedarena.display.report.privacy.section import privacy
from fedarena.display.report.privacy.spent import is_private, tells_privacy
from fedarena.display.report.sections.clients import clients
from fedarena.display.report.sections.costs import costs
from fedarena.display.report.sections.differences import differences
from fedarena.display.report.sections.groups import attributes_to_show, groups_of_clients
from fedarena.display.report.sections.headline import default_title, facts, headline
from fedarena.display.report.sections.learning import learning
from fedarena.display.report.sections.notices import left_out, notices
from fedarena.display.report.sections.results import results
from fedarena.display.report.sections.settings import environment, reproduction, settings
from fedarena.display.report.sections.speed import speed
from fedarena.display.report.tables.differences import differences_of
from fedarena.display.report.tables.reach import in_order
from fedarena.storage.run_data import RunData


def write_report(
    runs: Sequence[RunData], path: Path | str, title: str | None = None, levels: Sequence[float] | None = None
) -> Path:
    """Writes the comparison of `runs` (or the report of one run) as a self-contained page; returns `path`.

    `levels` are values of the metric that the runs lead with, to tell the cost of reaching; without any, round ones
    are chosen.
    """
    path, distinct = Path(path), distinct_runs(runs)
    levels = None if levels is None else in_order(levels, leading_metric(distinct))
    page = _page(distinct, title or default_title(distinct), left_out(runs), levels)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


class Plots:
    """Places figures on the page and keeps their JSON for the end of it."""

    def __init__(self) -> None:
        self.data: list[Html] = []

    def __call__(self, figure: go.Figure, caption: str) -> Html:
        """The place of a figure on the page, with title, legend and caption."""
        title = html.unescape(str(figure.layout.title.text))
        legend = _legend(figure)
        # On the page, title and legend are HTML: they wrap on a phone and a screen reader finds them.
        figure.update_layout(title=None, showlegend=False, margin_t=16)
        return tag("figure", tag("h3", title), legend, self.place(figure, title), tag("figcaption", caption))

    def place(self, figure: go.Figure, title: str) -> Html:
        """The place of a figure as it is, with a title for those who cannot see it."""
        name = f"figure-{len(self.data) + 1}"
        content = script_safe(str(figure.to_json()))
        self.data.append(embed("script", content, type="application/json", id=name))
        return tag(
            "div",
            class_="plot",
            data_figure=name,
            style=f"height: {figure.layout.height}px",
            role="img",
            aria_label=title,
        )


def _legend(figure: go.Figure) -> Html:
    """A button for every trace with a legend entry; it hides and shows the entry's whole group."""
    buttons = []
    for trace in figure.data:
        if trace.showlegend is not False:
            if trace.type == "bar":
                key = tag("span", class_="block", **swatch_colour(trace.marker.color))
            else:
                key = tag("span", class_=f"line {trace.line.dash}", **swatch_colour(trace.line.color))
            text = html.unescape(trace.name)
            buttons.append(tag("button", key, text, type="button", aria_pressed="true", data_group=trace.name))
    return tag("div", *buttons, class_="keys")


def _page(runs: Sequence[RunData], title: str, notes: Html, levels: Sequence[float] | None) -> Html:
    plots = Plots()
    compared = [found for metric in leading_metrics(runs) for found in differences_of(runs, metric)]
    shown: dict[str, Html] = {
        "Results": results(runs, levels),
        **({"Is the difference real?": differences(runs, compared, plots)} if compared else {}),
        "Learning": learning(runs, plots),
        **({"Hyperparameters of clients": policies(runs, plots)} if any(map(has_policy, runs)) else {}),
        **({_privacy_title(runs): privacy(runs, plots)} if any(map(tells_privacy, runs)) else {}),
        **({"Attacks and defences": attacks(runs, plots)} if any(map(has_attack_or_defence, runs)) else {}),
        **({"Time and phones": time_and_devices(runs, plots)} if any(map(has_clock, runs)) else {}),
        "Clients": clients(runs, plots),
        **({"Groups of clients": groups_of_clients(runs, plots)} if attributes_to_show(runs) else {}),
        **({"Classes": classes(runs, plots)} if any(map(tells_classes, runs)) else {}),
        "Cost": costs(runs, plots, levels),
        "Speed": speed(runs, plots),
        "Settings": settings(runs),
        "Environment": environment(runs),
        "Reproduce": reproduction(runs),
    }
    header = [tag("p", headline(runs, compared), class_="headline"), tag("p", facts(runs), class_="facts")]
    return document(title, "FedArena report", header, [notices(runs), notes], shown, plots)


def _privacy_title(runs: Sequence[RunData]) -> str:
    """Updates may be clipped for another reason than privacy."""
    return "Privacy" if is_private(runs) else "Clipping and noise"


def document(
    title: str,
    kicker: str,
    header: Sequence[Html],
    notices: Sequence[Html],
    sections: Mapping[str, Html],
    plots: Plots,
) -> Html:
    """A self-contained page: what is in its header below the title, notices, and sections by their names."""
    anchors = {name: name.lower().replace(" ", "-").removesuffix("?") for name in sections}
    navigation = join(tag("a", name, href=f"#{anchor}") for name, anchor in anchors.items())
    head = tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), *header)
    body = join(tag("section", tag("h2", name), section, id=anchors[name]) for name, section in sections.items())
    main = tag("main", head, *notices, tag("nav", navigation, aria_label="Sections"), body)
    return self_contained(title, [main, no_script("The plots need JavaScript; the tables do not.")], plots)


def no_script(sentence: str) -> Html:
    """What those see whose browser runs no scripts."""
    return tag("noscript", tag("p", sentence))


def self_contained(title: str, body: Sequence[Html], plots: Plots) -> Html:
    """A page that needs nothing else, with its plots in the reader's colour scheme."""
    scripts = [_plotlyjs(), _asset("report.js")]
    settings = script_safe(json.dumps({"dark": DARK_COLOURS, "plot": PLOT_SETTINGS}))
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_security_policy(scripts)),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            embed("style", _asset("report.css")),
        ),
        tag("body", *body, embed("script", settings, type="application/json", id="settings-of-plots"), *plots.data),
        lang="en",
    )
    # The scripts are most of the page; each element around them would copy them once more.
    end = "</body></html>"
    return Html(f"<!doctype html>\n{page.removesuffix(end)}{''.join(map(_script, scripts))}{end}\n")


def _security_policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded from anywhere and no script runs but ours, whatever text the runs bring along."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _plotlyjs() -> str:
    return str(get_plotlyjs())


@cache
def _script(content: str) -> Html:
    return embed("script", content)


@cache
def _asset(name: str) -> str:
    return files("fedarena.display.report").joinpath(name).read_text(encoding="utf-8")

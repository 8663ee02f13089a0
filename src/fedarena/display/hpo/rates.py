"""The page about client sample rates against rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedarena.core.files import write_text
from fedarena.display.drawing.html import tag
from fedarena.display.drawing.units import ABSENT, count, listing
from fedarena.display.hpo.figures import sample_rates_figure
from fedarena.display.report.methods import FloatArray
from fedarena.display.report.page import Plots, document
from fedarena.display.report.sections.elements import in_pairs, table
from fedarena.hpo.analysis.sample_rates import RateOutcome, best_rates

_CAPTION = "Means over repetitions, from when all of them know something; every rate has the same simulated seconds."


def write_rates(
    problem: str, outcomes: Sequence[RateOutcome], shares: Sequence[float] | FloatArray, path: Path
) -> Path:
    """Writes a study of sample rates as a self-contained page; returns `path`."""
    plots = Plots()
    conditions = list(dict.fromkeys(one.condition for one in outcomes))
    figures = [plots(sample_rates_figure(outcomes, shares, condition), _CAPTION) for condition in conditions]
    sections = {"Over time": in_pairs(figures), "In the end": table(*rate_rows(outcomes), "rates")}
    rates = len({one.client_sample_rate for one in outcomes})
    facts = f"{problem} · {count(rates, 'client sample rate')} · {listing(conditions)}"
    header = [tag("p", rates_headline(outcomes), class_="headline"), tag("p", facts, class_="facts")]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document("Sample rate against rounds", "FedArena study", header, [], sections, plots))
    return path


def rates_headline(outcomes: Sequence[RateOutcome]) -> str:
    """Which rate is best under which condition, in a sentence."""
    best = [f"{rate:g} ({condition})" for condition, rate in best_rates(outcomes).items()]
    return f"In the same time, the best results come with a client sample rate of {listing(best)}."


def rate_rows(outcomes: Sequence[RateOutcome]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of final values: a row for every rate, a column for every condition."""
    conditions = list(dict.fromkeys(one.condition for one in outcomes))
    final = {(one.client_sample_rate, one.condition): one.final for one in outcomes}
    rates = sorted({rate for rate, _ in final})
    body = [[f"{rate:g}", *(_text(final.get((rate, one))) for one in conditions)] for rate in rates]
    return ["client sample rate", *conditions], body


def _text(value: float | None) -> str:
    return ABSENT if value is None or value == float("inf") else f"{value:.4f}"

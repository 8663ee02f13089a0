"""Tables of a comparison of optimizers: on a page, and on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from fedarena.core.console import plain
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.style import Style
from fedarena.display.drawing.units import ABSENT, SECONDS, listing, quantity
from fedarena.display.hpo.looks import named
from fedarena.display.report.sections.elements import table
from fedarena.hpo.analysis.finals import FinalResult
from fedarena.hpo.analysis.published import PublishedValue, published_results, published_test
from fedarena.hpo.analysis.signs import SignTest
from fedarena.hpo.comparison import OptimizerComparison

_MOST_COLUMNS: Final = 3  # of problems that a terminal has room for
NOTHING_FOUND: Final = "nothing"  # where no search evaluated anything within its budget


def value_text(found: OptimizerComparison, problem: str, one: FinalResult | None) -> str:
    """A final result as the metric itself, such as "0.6145 ± 0.0242"."""
    if one is None or math.isnan(one.mean):
        return ABSENT
    if not math.isfinite(one.mean):
        return NOTHING_FOUND
    mean = -one.mean if found.problems[problem].maximize else one.mean
    return _spread(mean, one.std)


def best_labels(found: OptimizerComparison, problem: str) -> set[str]:
    """Whose mean is the best of a problem."""
    means = {label: one.mean for label, one in found.finals[problem].items() if math.isfinite(one.mean)}
    return {label for label, mean in means.items() if mean == min(means.values())}


def finals_on_page(found: OptimizerComparison, looks: Mapping[str, Style]) -> Html:
    """Final results, a row for every optimizer; the paper's beside them."""
    problems = list(found.problems)
    published = {name: published_results(name, found.problems[name].mode) for name in problems}
    heads = ["optimizer", "mean rank"]
    for name in problems:
        heads += [name, f"{name}, paper's"] if published[name] else [name]
    ranks = dict(zip(found.labels, found.mean_ranks(shares=[1.0])[:, 0], strict=True))
    body = []
    for label in _by_rank(found, ranks):
        row: list[str] = [named(label, looks), _rank_text(ranks[label])]
        for name in problems:
            row.append(value_text(found, name, found.finals[name].get(label)))
            if published[name]:
                row.append(_published_text(published[name].get(label)))
        body.append(row)
    return table(heads, body, "finals")


def signs_on_page(tests: Sequence[SignTest]) -> Html:
    """Wins, ties, losses and p, with the paper's beside them."""
    heads = ["surpasses?", "won/tied/lost", "p", "paper's won/tied/lost", "paper's p"]
    body = []
    for one in tests:
        other = published_test(one.first, one.second)
        theirs = [ABSENT, ABSENT]
        if other is not None:
            theirs = [f"{other.wins}/{other.ties}/{other.losses}", f"{other.p_value:.4f}"]
        body.append([f"{one.first} vs. {one.second}", one.counts, f"{one.p_value:.4f}", *theirs])
    return table(heads, body, "signs")


def costs_on_page(found: OptimizerComparison, looks: Mapping[str, Style]) -> Html:
    """What optimizers made of their budgets, and what they took themselves."""
    rows = found.table()
    heads = ["optimizer", "courses begun", "evaluations", "own real time", "real time per evaluation"]
    body = []
    for label in found.labels:
        mine = rows[rows["optimizer"] == label]
        if not len(mine):
            continue
        evaluations, overhead = mine["evaluations"].mean(), mine["overhead_seconds"].mean()
        each = quantity(overhead / evaluations, SECONDS) if evaluations else ABSENT
        body.append(
            [
                named(label, looks),
                f"{mine['courses'].mean():,.1f}",
                f"{evaluations:,.1f}",
                quantity(overhead, SECONDS),
                each,
            ]
        )
    return table(heads, body, "costs")


def best_configurations_on_page(found: OptimizerComparison) -> Html:
    """The best that anybody found on every problem, with what it scores on test samples."""
    lists = []
    for name in found.problems:
        best = found.best_configuration(name)
        if best is None:
            continue
        labels, configuration = best
        settings = " ".join(f"{key}={_setting_text(value)}" for key, value in configuration.items())
        lists.append(tag("li", tag("strong", name), f", found by {listing(labels)}: ", tag("code", settings)))
    return tag("ul", *lists) if lists else Html("")


def test_scores_on_page(found: OptimizerComparison, looks: Mapping[str, Style]) -> Html:
    """Means over repetitions of what incumbents score on test samples, which no search looked at."""
    scores = {
        name: list(dict.fromkeys(score for one in finals.values() for score in one.test_metrics))
        for name, finals in found.finals.items()
    }
    if not any(scores.values()):
        return Html("")
    heads = [f"{name}, {score.replace('_', ' ')}" for name, known in scores.items() for score in known]
    body = []
    for label in found.labels:
        row: list[str] = [named(label, looks)]
        for name, known in scores.items():
            one = found.finals[name].get(label)
            values = [math.nan if one is None else one.test_metrics.get(score, math.nan) for score in known]
            row += [ABSENT if math.isnan(value) else f"{value:.4f}" for value in values]
        body.append(row)
    return table(["optimizer", *heads], body, "test-scores")


def failures_on_page(found: OptimizerComparison) -> list[Html]:
    """What went wrong, if anything did."""
    if not found.failures:
        return []
    items = join(tag("li", f"{name}: {sentence}") for name, sentence in found.failures.items())
    return [tag("div", tag("p", "Some searches failed and are left out:"), tag("ul", items), class_="notice broken")]


def finals_on_terminal(found: OptimizerComparison) -> Table:
    """Final results, a row for every optimizer with the best mean rank first; of many problems what they come to."""
    few = len(found.problems) <= _MOST_COLUMNS
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("optimizer", style="bold", no_wrap=True)
    shown.add_column("mean rank", justify="right", no_wrap=True)
    heads = [plain(f"{name}, {one.objective.replace('_', ' ')}") for name, one in found.problems.items()]
    for head in heads if few else ("best on", "mean regret"):
        shown.add_column(head, justify="right")
    shown.add_column("own real time", justify="right", no_wrap=True)
    ranks = dict(zip(found.labels, found.mean_ranks(shares=[1.0])[:, 0], strict=True))
    for label in _by_rank(found, ranks):
        cells = _cells(found, label) if few else _summary(found, label)
        shown.add_row(plain(label), _rank_text(ranks[label]), *cells, _overhead_text(found, label))
    return shown


def _cells(found: OptimizerComparison, label: str) -> list[Text]:
    """What an optimizer ended with on every problem."""
    return [plain(value_text(found, name, found.finals[name].get(label))) for name in found.problems]


def _summary(found: OptimizerComparison, label: str) -> list[str]:
    """On how many problems an optimizer ended best, and its mean regret over all of them."""
    best = sum(label in best_labels(found, name) for name in found.problems)
    regrets = [found.regrets(name, label, [1.0]) for name in found.problems if label in found.finals[name]]
    return [str(best), f"{sum(float(one[0]) for one in regrets) / len(regrets):.4f}" if regrets else ABSENT]


def _overhead_text(found: OptimizerComparison, label: str) -> str:
    took = [one.overhead_s for (_, other), made in found.searches.items() if other == label for one in made]
    return quantity(sum(took) / len(took), SECONDS) if took else ABSENT


def signs_on_terminal(tests: Sequence[SignTest]) -> Table:
    """Sign tests, with the paper's beside them."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("surpasses?", style="bold", no_wrap=True)
    for head in ("won/tied/lost", "p", "paper's", "paper's p"):
        shown.add_column(head, justify="right", no_wrap=True)
    for one in tests:
        other = published_test(one.first, one.second)
        theirs = ("", "") if other is None else (f"{other.wins}/{other.ties}/{other.losses}", f"{other.p_value:.4f}")
        shown.add_row(f"{one.first} vs. {one.second}", one.counts, f"{one.p_value:.4f}", *theirs)
    return shown


def _by_rank(found: OptimizerComparison, ranks: Mapping[str, float]) -> list[str]:
    """The best mean rank first; those without one last."""
    return sorted(found.labels, key=lambda label: (math.isnan(ranks[label]), ranks[label]))


def _rank_text(rank: float) -> str:
    return ABSENT if math.isnan(rank) else f"{rank:.2f}"


def _published_text(one: PublishedValue | None) -> str:
    return ABSENT if one is None else _spread(one.mean, one.std)


def _spread(mean: float, std: float | None) -> str:
    digits = 4 if abs(mean) < 100 else 1
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _setting_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

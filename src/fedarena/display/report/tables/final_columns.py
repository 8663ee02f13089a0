"""The columns of the table of results: titles, what they mean, how they are written, which end is good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from fedarena.analysis.comparison import told_best
from fedarena.display.drawing.metrics import difference_text, level_text, or_better, score_text
from fedarena.display.drawing.units import ABSENT, BYTES, FLOPS, JOULES, SECONDS, quantity, significant
from fedarena.display.report.tables.final_row import FinalRow, Spread, comparable
from fedarena.metrics.info import LOSS, MetricInfo
from fedarena.runs.round_text import epsilon_text

OTHER: Final = "other"  # the key of columns of metrics that are neither the leading one nor the loss


@dataclass(frozen=True)
class Column:
    """One column of the final table: key, title, explanation, the text of a row's cell, which end is good."""

    key: str
    title: str
    explanation: str
    text: Callable[[FinalRow], str]
    value: Callable[[FinalRow], Spread | None] | None = None
    better: Literal["higher", "lower"] | None = None
    shown_if_known: bool = False  # not shown where no row has a value

    def best(self, rows: Sequence[FinalRow]) -> frozenset[str]:
        """Labels of the rows that are told to be better than another, and than which no other is told to be better.

        That is decided over seeds, among rows whose scores mean the same; with a single seed, no row is.
        """
        if self.value is None or self.better is None:
            return frozenset()
        alike: dict[str, dict[str, dict[int, float]]] = {}  # by conditions and label
        for row in comparable(rows):
            found = self.value(row)
            if found is not None and len(found.values) == len(row.seeds):
                by_seed = dict(zip(row.seeds, found.values, strict=True))
                alike.setdefault(row.conditions, {})[row.label] = by_seed
        winners = (told_best(scores, self.better == "higher") for scores in alike.values())
        return frozenset[str]().union(*winners)


def final_columns(
    metric: MetricInfo, others: Sequence[MetricInfo], levels: Sequence[float] = (), timed: bool = False
) -> list[Column]:
    """All columns, those included that have nothing to say about some rows."""
    label = metric.label
    return [
        Column("seeds", "seeds", "number of runs that count here", lambda row: str(len(row.seeds))),
        Column("status", "status", "how the method's runs ended", lambda row: row.status),
        _score(
            metric, "score", label, "over all samples: a client weighs as much as it has samples", lambda row: row.score
        ),
        Column(
            "over_baseline",
            "vs baseline",
            f"{label} minus that of the baseline",
            lambda row: difference_text(metric, _mean(row.score), _mean(row.over_baseline)),
            lambda row: row.over_baseline,
            shown_if_known=True,
        ),
        _score(
            metric,
            "by_client",
            "by client",
            "mean over clients: every client weighs the same",
            lambda row: row.score_by_client,
        ),
        _score(metric, "p10", "p10", f"a tenth of the clients have a lower {label}", lambda row: row.score_p10),
        _score(metric, "p90", "p90", f"a tenth of the clients have a higher {label}", lambda row: row.score_p90),
        _score(
            metric,
            "worst_decile",
            "worst decile",
            f"mean {label} of the worst tenth of the clients",
            lambda row: row.score_worst_decile,
        ),
        *_personal_columns(metric),
        *(
            _score(other, LOSS.name if other.name == LOSS.name else OTHER, other.label, "over all samples", value)
            for other in others
            for value in [partial(_value_of, name=other.name)]
        ),
        Column(
            "epsilon",
            "ε",
            "privacy spent; sim.: only if the cohort were as large as its noise is made for",
            lambda row: ABSENT if row.epsilon is None else _epsilon(row.epsilon.mean, row.epsilon_is_simulated),
            lambda row: row.epsilon,
            shown_if_known=True,
        ),
        Column(
            "attack_success",
            "attack success",
            "share of the test samples with a backdoor's trigger that get its label",
            lambda row: _percent(_mean(row.attack_success)),
            lambda row: row.attack_success,
            "lower",
            shown_if_known=True,
        ),
        *(_reaching(metric, level, timed) for level in levels),
        _clock(
            "virtual_time",
            "virtual time",
            "what the phones and the server would have needed",
            lambda row: row.hours,
            _duration,
        ),
        _clock("failed", "failed", "share of the clients' jobs that were not used", lambda row: row.failed, _percent),
        _clock("wasted", "wasted", "share of the phones' time that went into those", lambda row: row.wasted, _percent),
        _clock(
            "energy",
            "energy",
            "of the phones until then",
            lambda row: row.joules,
            lambda mean: quantity(mean, JOULES),
        ),
        Column(
            "traffic",
            "traffic",
            "bytes down and up until then, as the jobs were planned",
            lambda row: quantity(_mean(row.bytes), BYTES),
        ),
        Column(
            "real_traffic",
            "really sent",
            "bytes down and up until then where uploads depend on what clients learned",
            lambda row: quantity(_mean(row.real_bytes), BYTES),
            lambda row: row.real_bytes,
            shown_if_known=True,
        ),
        Column(
            "compute",
            "compute",
            "floating-point operations on clients until then",
            lambda row: quantity(_mean(row.flops), FLOPS),
        ),
        Column(
            "time",
            "real time",
            "of this machine, for training and evaluation of a run; no result depends on it",
            lambda row: quantity(_mean(row.wall_seconds), SECONDS),
        ),
        Column(
            "clients_per_second",
            "clients/s (real)",
            "clients trained per second of real time",
            lambda row: significant(_mean(row.clients_per_second)),
        ),
    ]


def _reaching(metric: MetricInfo, level: float, timed: bool) -> Column:
    """What it took to reach a level: virtual time, or rounds where no time passes."""
    first = f"until the first evaluation {or_better(metric)} that {metric.label}"
    return Column(
        "time_to",
        f"virtual time to {level_text(level)}" if timed else f"rounds to {level_text(level)}",
        f"virtual time {first}" if timed else f"rounds {first}",
        lambda row: (_duration if timed else _rounds)(_mean(row.costs_to_levels.get(level))),
        lambda row: row.costs_to_levels.get(level),
        "lower",
    )


def _personal_columns(metric: MetricInfo) -> list[Column]:
    own = f"{metric.label} over all samples, every client with its own model"
    return [
        _score(metric, "personal", "personal", own, lambda row: row.personal_score, shown_if_known=True),
        _score(
            metric,
            "personal_by_client",
            "personal by client",
            "the same, mean over clients",
            lambda row: row.personal_score_by_client,
            shown_if_known=True,
        ),
        _score(
            metric,
            "personal_worst_decile",
            "personal worst decile",
            "the same, worst tenth of the clients",
            lambda row: row.personal_score_worst_decile,
            shown_if_known=True,
        ),
    ]


def _score(
    metric: MetricInfo,
    key: str,
    title: str,
    explanation: str,
    value: Callable[[FinalRow], Spread | None],
    shown_if_known: bool = False,
) -> Column:
    def text(row: FinalRow) -> str:
        found = value(row)
        return ABSENT if found is None else score_text(metric, found.mean, found.std)

    better: Literal["higher", "lower"] = "higher" if metric.higher_is_better else "lower"
    return Column(key, title, explanation, text, value, better, shown_if_known)


def _clock(
    key: str,
    title: str,
    explanation: str,
    value: Callable[[FinalRow], Spread | None],
    text: Callable[[float | None], str],
) -> Column:
    return Column(key, title, explanation, lambda row: text(_mean(value(row))), value, shown_if_known=True)


def _value_of(row: FinalRow, name: str) -> Spread | None:
    return row.metrics.get(name)


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


def _epsilon(spent: float, is_simulated: bool) -> str:
    return epsilon_text(spent) + (" sim." if is_simulated else "")


def _rounds(number: float | None) -> str:
    return ABSENT if number is None else f"{number:,.1f}".removesuffix(".0")


def _duration(hours: float | None) -> str:
    return ABSENT if hours is None else quantity(3600 * hours, SECONDS)

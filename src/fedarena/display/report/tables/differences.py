"""Is the difference real? What the pairs of methods in a report come to, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedarena.analysis.comparison import FEWEST_CLIENTS, Comparison, MethodScores, Pair, compare_methods
from fedarena.analysis.distinct import seed_of
from fedarena.analysis.leading_metric import runs_with
from fedarena.analysis.paired import SIGNIFICANT
from fedarena.display.drawing.metrics import decimals_of
from fedarena.display.drawing.units import ABSENT, count, listing
from fedarena.display.report.methods import Method, conditions, last_evaluation, methods_of, scores_by_client
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class Differences:
    """The comparison of all finished methods that were evaluated under the same conditions."""

    metric: MetricInfo
    found: Comparison
    where: str  # what sets these methods apart from others in the report; empty where there are no others


def differences_of(runs: Sequence[RunData], metric: MetricInfo) -> list[Differences]:
    """A comparison for all conditions under which there are two methods or more."""
    groups: dict[str, list[Method]] = {}
    for method in methods_of(runs_with(runs, metric)):
        if all(run.status == "finished" for run in method.counted) and _final_scores(method, metric):
            groups.setdefault(conditions(method.runs[0]), []).append(method)
    several = [group for group in groups.values() if len(group) > 1]
    return [
        Differences(
            metric,
            compare_methods([_scores(method, metric) for method in group], metric.higher_is_better),
            listing([method.label for method in group]) if len(groups) > 1 else "",
        )
        for group in several
    ]


def _scores(method: Method, metric: MetricInfo) -> MethodScores:
    return MethodScores(
        label=method.label,
        by_seed=_final_scores(method, metric),
        by_client={seed_of(run): scores_by_client(run, metric) for run in method.counted},
    )


def _final_scores(method: Method, metric: MetricInfo) -> dict[int, float]:
    """By seed; without those that are no number."""
    finals = {seed_of(run): (last_evaluation(run) or {}).get(metric.name) for run in method.counted}
    return {seed: float(score) for seed, score in finals.items() if score is not None and math.isfinite(score)}


def runner_up(compared: Sequence[Differences], metric: MetricInfo, best: str) -> Pair | None:
    """The best method beside the next one; None where it is not compared with any."""
    for found in compared:
        if found.metric.name == metric.name and found.found.labels[0] == best:
            return found.found.pair(best, found.found.labels[1])
    return None


def verdict(pair: Pair, higher_is_better: bool) -> str:
    """What can be concluded about two methods, in a few words."""
    if pair.seeds is None:
        return "no seed in common"
    if pair.seeds.p_value is None:
        if not pair.differs_over_clients:
            return "one seed: cannot be told"
        return "one seed: these two models differ; the methods may not"
    winner = pair.better_over_seeds(higher_is_better)
    if winner is None:
        return "not told apart over seeds" + ("; the models differ over clients" if pair.differs_over_clients else "")
    if pair.clients is None or not pair.differs_over_clients:
        return f"{winner} is better over seeds; not shown for clients"
    better_at, worse_at = pair.clients.higher, pair.clients.lower  # the winner, at so many clients
    if (winner == pair.first) != higher_is_better:
        better_at, worse_at = worse_at, better_at
    if better_at > worse_at:
        return f"{winner} is better, over seeds and clients"
    return f"{winner} is better on average, {'worse' if 2 * worse_at > pair.clients.clients else 'not better'} for most"


def conclusions(differences: Differences) -> Iterator[str]:
    """Sentences that say plainly what the seeds and clients of these runs allow to conclude, and what they do not."""
    found, metric = differences.found, differences.metric
    if found.seeds < 2:
        yield (
            "Every pair of methods has one seed in common: whether they differ by more than luck cannot be told, "
            "because nothing shows how much another seed changes. Run several, such as seeds: [0, 1, 2] in a suite."
            if found.seeds
            else "The methods have no seed in common, so they cannot be compared in pairs."
        )
    else:
        yield _over_seeds(differences)
    over = [pair for pair in found.pairs if pair.clients is not None]
    if not over:
        return
    if found.clients < FEWEST_CLIENTS:
        smallest = min(pair.clients.smallest_p_value for pair in over if pair.clients is not None)
        yield (
            f"With {count(found.clients, 'client')}, tests over clients cannot tell anything: even if all agree, "
            f"p is {smallest:.2g}. Look at the clients one by one."
        )
        return
    apart = sum(pair.differs_over_clients for pair in over)
    what = "models" if found.seeds < 2 else "methods"
    yield (
        f"Over {count(found.clients, 'client')}, the {metric.label} of {_share(apart, len(over))} differs by more than "
        f"chance (Wilcoxon's signed-rank test, p < {SIGNIFICANT:g} after Holm's correction)"
        + (f": that is about these trained {what}, not about the methods." if found.seeds < 2 else ".")
    )


def short_lines(differences: Differences) -> list[str]:
    """The same for a screen, in a line or two."""
    found = differences.found
    prefix = f"{differences.where}: " if differences.where else ""
    if found.seeds < 2:
        return [f"{prefix}One seed: whether methods differ by more than luck cannot be told; run several seeds"]
    return [prefix + _over_seeds(differences).removesuffix(".")]


def _over_seeds(differences: Differences) -> str:
    """Who is told from whom, over seeds; who is better follows from the seeds that two methods have in common."""
    found = differences.found
    winners = [pair.better_over_seeds(differences.metric.higher_is_better) for pair in found.pairs]
    apart = [pair for pair in found.pairs if pair.differs_over_seeds]
    tested = f"over {count(found.seeds, 'seed')} (paired t-test, p < {SIGNIFICANT:g} after Holm's correction)"
    if not apart:
        return f"No two methods are told apart {tested}: differences are too small, or seeds too few."
    wins = {label: winners.count(label) for label in found.labels}
    if sorted(wins.values()) == list(range(len(wins))):  # all pairs differ, and agree on one order
        everything = "The two methods differ" if len(apart) == 1 else "All pairs of methods differ"
        order = " > ".join(sorted(wins, key=lambda label: -wins[label]))
        return f"{everything} by more than the noise between seeds, {tested}: {order}."
    best, *others = found.labels
    winner_beside = {
        pair.second: winner for pair, winner in zip(found.pairs, winners, strict=True) if pair.first == best
    }
    groups = {
        "better than": [label for label in others if winner_beside.get(label) == best],
        "worse than": [label for label in others if winner_beside.get(label) == label],
        "not told from": [label for label in others if winner_beside.get(label) is None],
    }
    sentence = " and ".join(f"{words} {listing(labels)}" for words, labels in groups.items() if labels)
    return f"{best} is {sentence}, {tested}: {_share(len(apart), len(found.pairs))} differ."


def _share(number: int, total: int) -> str:
    return f"{number} of {count(total, 'pair')}"


def difference_text(metric: MetricInfo, value: float) -> str:
    """A difference of a metric, with its sign and one decimal more than the metric is shown with."""
    return f"{value:+.{metric.decimals_for(value, min(decimals_of(metric) + 1, 4))}f}".replace("-", "−")


def interval_text(metric: MetricInfo, interval: tuple[float, float] | None) -> str:
    """The ends of an interval."""
    if interval is None:
        return ABSENT
    return f"{difference_text(metric, interval[0])} to {difference_text(metric, interval[1])}"


def p_value_text(value: float | None) -> str:
    """A p-value as papers write it."""
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"

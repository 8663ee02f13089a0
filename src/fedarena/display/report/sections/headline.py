"""The head of the page: its title, the result in a sentence, and the frame of the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow.compute as pc

from fedarena.analysis.comparison import Pair
from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.metrics import score_text
from fedarena.display.drawing.units import ABSENT, SECONDS, count, listing, quantity
from fedarena.display.report.compare_settings import differing_keys
from fedarena.display.report.methods import Method, baselines, has_clock, methods_of
from fedarena.display.report.privacy.spent import spent_by
from fedarena.display.report.tables.differences import Differences, difference_text, interval_text, runner_up
from fedarena.display.report.tables.final import FinalTable, final_table
from fedarena.metrics.info import MetricInfo
from fedarena.runs.round_text import delta_text, epsilon_text
from fedarena.storage.run_data import RunData


def default_title(runs: Sequence[RunData]) -> str:
    """What the report is about: the run's name, or the methods and their federation."""
    if len(runs) == 1:
        return runs[0].name
    labels = [method.label for method in methods_of(runs)]
    subject = listing(labels) if len(labels) <= 4 else f"{len(labels)} methods"
    return f"{subject} on {listing(_federations(runs))}"


def headline(runs: Sequence[RunData], compared: Sequence[Differences] = ()) -> str:
    """The result in a sentence for every metric that runs lead with, and how sure it is, computed from the tables."""
    sentences = [_sentence(runs, metric, compared) for metric in leading_metrics(runs)]
    return " ".join(sentence for sentence in sentences if sentence) or "No run has a finite evaluation yet."


def _sentence(runs: Sequence[RunData], metric: MetricInfo, compared: Sequence[Differences]) -> str:
    table = final_table(runs, metric)
    best = table.winner
    if best is None:
        return ""
    seeds = f" over {count(len(best.seeds), 'seed')}" if len(best.seeds) > 1 else ""
    winner = next(method for method in methods_of(runs) if method.label == best.label)
    sentence = (
        f"{best.label} reached {table.column('score').text(best)} {metric.label}{seeds} "
        f"on the {winner.runs[0].evaluated_part} data of {count(best.eval_clients or 0, 'client')} "
        f"after {count(best.round or 0, 'round')}"
        + ("" if best.hours is None else f" and {quantity(3600 * best.hours.mean, SECONDS)} of virtual time")
        + _spent(winner)
    )
    for score, rule in baselines(winner.runs, metric).items():
        sentence += f"; the baseline ({rule}) gives {score_text(metric, score)}"
    return f"{sentence}.{_how_sure(metric, runner_up(compared, metric, best.label))}{_personal_sentence(table)}"


def _spent(method: Method) -> str:
    """At which privacy; where it is only simulated, that is said at once."""
    spent = spent_by(method)
    if not spent:
        return ""
    most = max(spent, key=lambda one: one.epsilon)
    delta = "" if most.delta is None else f", δ = {delta_text(most.delta)}"
    simulated = ", which is only simulated" if most.is_simulated else ""
    return f", spending ε = {epsilon_text(most.epsilon)}{delta}{simulated}"


def _how_sure(metric: MetricInfo, pair: Pair | None) -> str:
    """Whether the best method is really better than the next."""
    if pair is None or pair.seeds is None:
        return ""
    if pair.seeds.p_value is None:
        return f" With one seed, nothing tells whether that is more than luck beside {pair.second}, the next."
    if not pair.differs_over_seeds:
        return f" It is not told from {pair.second}, the next, over {count(pair.seeds.seeds, 'seed')}."
    difference = (
        f"{difference_text(metric, pair.seeds.mean)} (95 % interval {interval_text(metric, pair.seeds.interval)})"
    )
    if pair.better_over_seeds(metric.higher_is_better) == pair.second:
        return (
            f" But with the {count(pair.seeds.seeds, 'seed')} that both have, {pair.second}, the next, is better, by "
            f"more than the noise between them: {difference}."
        )
    return f" The difference from {pair.second}, the next, is larger than the noise between seeds: {difference}."


def _personal_sentence(table: FinalTable) -> str:
    best = table.best_by(lambda row: row.personal_score)
    if best is None:
        return ""
    return f" With a model for every client, {best.label} reached {table.column('personal').text(best)}."


def facts(runs: Sequence[RunData]) -> str:
    """The frame of the comparison in a few words: how many methods and runs, which federation, how long."""
    federations = _federations(runs)
    noun = "federation" if len(federations) == 1 else "federations"
    varied = len(federations) == 1 and differing_keys([{"federation": run.config.get("federation")} for run in runs])
    federated = [run for run in runs if run.config.get("training") != "centralized"]
    parts = [
        count(len(methods_of(runs)), "method"),
        count(len(runs), "run"),
        f"{noun} {listing(federations)}" + (" in several settings" if varied else ""),
        _length(runs),
        f"{_clients_a_round(federated)} a round" if federated else "trained at the server",
    ]
    if timed := [run for run in runs if has_clock(run)]:
        parts += [_named_parts(timed, "fleet"), _named_parts(timed, "protocol")]
    return " · ".join(parts)


def _federations(runs: Sequence[RunData]) -> list[str]:
    return list(dict.fromkeys(run.federation_name for run in runs))


def _named_parts(runs: Sequence[RunData], kind: str) -> str:
    """The parts of one kind that runs have: "fleet fedscale", "protocols deadline and buffered"."""
    names = list(dict.fromkeys(str((run.config.get(kind) or {}).get("name", ABSENT)) for run in runs))
    return f"{kind if len(names) == 1 else f'{kind}s'} {listing(names)}"


def _clients_a_round(runs: Sequence[RunData]) -> str:
    """How many clients' updates a round uses; on phones, on average, because they may be fewer than were wanted."""
    return _range([_used_clients(run) if has_clock(run) else int(run.config["cohort"]) for run in runs], "client")


def _used_clients(run: RunData) -> int:
    used: int = pc.sum(run.rounds["clients"]).as_py() or 0
    rounds: int = max(1, run.rounds.num_rows - 1)
    return round(used / rounds)


def _length(runs: Sequence[RunData]) -> str:
    """How long runs are: the virtual time after which all of them ended, or "60 rounds", or "30 to 60 rounds"."""
    hours = [float((run.config.get("clock") or {}).get("hours") or math.inf) for run in runs]
    by_clock = all(_rounds_done(run) < int(run.config["rounds"]) for run in runs)
    if by_clock and math.isfinite(hours[0]) and len(set(hours)) == 1:
        return f"{quantity(3600 * hours[0], SECONDS)} of virtual time"
    return _range([int(run.config["rounds"]) for run in runs], "round")


def _rounds_done(run: RunData) -> int:
    return int(run.summary.get("rounds_done") or 0)


def _range(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    return count(high, noun) if low == high else f"{low:,} to {count(high, noun)}"

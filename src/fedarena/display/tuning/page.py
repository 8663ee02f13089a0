"""The report of a search: one HTML file with the best settings, how they were found, and all trials."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fedarena.core.files import write_text
from fedarena.core.words import counted
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import ABSENT, SECONDS, listing, quantity
from fedarena.display.report.compare_settings import as_text, as_yaml
from fedarena.display.report.page import Plots, document
from fedarena.display.report.sections.elements import if_any, in_pairs, table
from fedarena.display.reporting import REPORT_FILE
from fedarena.display.tuning.figures import (
    curves_figure,
    history_figure,
    importance_figure,
    parallel_figure,
    pareto_figure,
    slice_figure,
)
from fedarena.hpo.space import Hyperparameter
from fedarena.hpo.tune.outcome import BEST_FILE, PARETO_FOLDER, TrialRecord, TunedStudy

_MOST_ROWS: Final = 500
_STATES: Final = {"complete": "complete", "pruned": "pruned", "failed": "failed", "unfinished": "not finished"}


def write_tuning_report(tuned: TunedStudy) -> Path:
    """Writes the report of a search as a self-contained page into the folder of the study."""
    path = tuned.path / REPORT_FILE
    plots = Plots()
    several = len(tuned.objectives) > 1
    sections = {
        "Best settings": _best(tuned),
        **({"Pareto front": _pareto(tuned, plots)} if several else {}),
        "History": _history(tuned, plots),
        "Hyperparameters": _hyperparameters(tuned, plots),
        "Trials": _trials(tuned),
        "Settings": _settings(tuned),
    }
    header = [tag("p", headline(tuned), class_="headline"), tag("p", _facts(tuned), class_="facts")]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(tuned.name, "FedArena search", header, _notices(tuned), sections, plots))
    return path


def headline(tuned: TunedStudy) -> str:
    """What the search came to in a sentence."""
    best = tuned.best_trial
    info = tuned.plan.first.info
    values = [value for trial in tuned.complete if trial.values is not None for value in trial.values[:1]]
    ordered = sorted(values, reverse=not info.higher_is_better)
    worst = ordered[0]
    middle = ordered[len(ordered) // 2]
    if len(tuned.objectives) > 1:
        return (
            f"{counted(len(tuned.pareto), 'trial')} of {len(tuned.trials)} are beaten by no other one in "
            f"{listing([one.info.label for one in tuned.objectives])}."
        )
    return (
        f"Trial {best.number} is the best of {len(tuned.trials)}: {info.label} {info.text(tuned.best_value)} on "
        f"{tuned.plan.options.part} samples; half of the complete trials came to {info.text(middle)} or worse, the "
        f"worst to {info.text(worst)}."
    )


def state_counts(tuned: TunedStudy) -> str:
    """How trials ended: "40 complete, 8 pruned and 2 failed"."""
    counts = Counter(trial.state for trial in tuned.trials)
    return listing([f"{counts[state]} {words}" for state, words in _STATES.items() if counts[state]])  # type: ignore[index]


def range_text(one: Hyperparameter) -> str:
    """What was searched of a hyperparameter."""
    if one.kind == "choice":
        return ", ".join(as_text(value) for value in one.choices)
    return f"{one.low:g} to {one.high:g}" + (", log scale" if one.log else "")


def value_text(value: Any) -> str:
    """A value of a hyperparameter as tables have it."""
    return f"{value:.4g}" if isinstance(value, float) else as_text(value)


def _facts(tuned: TunedStudy) -> str:
    options, seeds = tuned.plan.options, tuned.plan.seeds
    parts = [
        f"{counted(len(tuned.trials), 'trial')}: {state_counts(tuned)}",
        f"sampler {options.sampler}",
        f"pruner {options.pruner}",
        counted(len(seeds), "seed") + " per trial",
    ]
    return " · ".join(parts)


def _notices(tuned: TunedStudy) -> list[Html]:
    notes = []
    if tuned.plan.held_out:
        share = tuned.plan.held_out["federation.validation_fraction"]
        notes.append(
            f"The federation has no validation samples of its own: {share:.0%} of all samples, taken from those for "
            "training, were held out to judge trials by. The best settings keep that division."
        )
    if tuned.plan.options.part == "test":
        notes.append(
            "Trials were judged by test samples, so the score of the best one is better than it will be on new data."
        )
    if tuned.plan.options.part == "train":
        notes.append("Trials were judged by training samples: settings that overfit look best.")
    return [tag("div", tag("p", note), class_="notice") for note in notes]


def _best(tuned: TunedStudy) -> Html:
    best = tuned.best_trial
    body = [
        [tag("code", one.name), value_text(best.configuration.get(one.name, ABSENT)), range_text(one)]
        for one in tuned.plan.space
    ]
    values = best.values or ()
    scores = [
        [objective.info.label, objective.info.text(value)]
        for objective, value in zip(tuned.objectives, values, strict=True)
    ]
    which = f" It is the best by {tuned.plan.first.info.label}." if len(tuned.objectives) > 1 else ""
    return join(
        [
            tag("p", f"Trial {best.number}, in {', '.join(best.runs)}.{which}"),
            table(["setting", "best", "searched"], body, "settings"),
            table(["judged by", "value"], scores, "settings"),
            tag("p", "The complete settings are in a file, which runs them and evaluates as the configuration says:"),
            tag("pre", f"fedarena run {tuned.path / BEST_FILE}"),
        ]
    )


def _pareto(tuned: TunedStudy, plots: Plots) -> Html:
    pairs = list(itertools.combinations(range(len(tuned.objectives)), 2))
    caption = "Trials of the front are beaten by no other one in every objective."
    figures = [plots(pareto_figure(tuned, x, y), caption) for x, y in pairs]
    names = list(tuned.plan.space.names)
    body = [
        [
            str(trial.number),
            *(one.info.text(value) for one, value in zip(tuned.objectives, trial.values or (), strict=True)),
            *(_cell(trial, name) for name in names),
        ]
        for trial in tuned.pareto
    ]
    heads = ["trial", *(one.info.label for one in tuned.objectives), *names]
    note = f"The settings of each are in {tuned.path / PARETO_FOLDER}."
    return join([in_pairs(figures), table(heads, body, "trials"), tag("p", note, class_="note")])


def _history(tuned: TunedStudy, plots: Plots) -> Html:
    curves = curves_figure(tuned)
    return in_pairs(
        [
            plots(history_figure(tuned), "Every trial in the order in which they began, and the best one so far."),
            if_any(plots, curves, "Trials at every evaluation; pruned ones end early."),
        ]
    )


def _hyperparameters(tuned: TunedStudy, plots: Plots) -> Html:
    importances = tuned.importances() if len(tuned.plan.space) > 1 else {}
    first = tuned.plan.first.info.label
    figures = []
    if importances:
        caption = f"By fANOVA (Optuna's), of {first} over the complete trials; few trials make rough estimates."
        figures.append(plots(importance_figure(importances), caption))
    caption = "A line is a complete trial; lines pass by hyperparameters that did not apply."
    figures.append(if_any(plots, parallel_figure(tuned), caption))
    slices = [
        if_any(plots, slice_figure(tuned, one), f"Complete trials; searched: {range_text(one)}.")
        for one in tuned.plan.space
    ]
    return join([in_pairs(figures), in_pairs(slices)])


def _trials(tuned: TunedStudy) -> Html:
    names = list(tuned.plan.space.names)
    info = [one.info for one in tuned.objectives]
    limits = [f"keeps {' and '.join(map(str, tuned.plan.constraints))}"] if tuned.plan.constraints else []
    heads = ["trial", "ended", *(one.label for one in info), *names, *limits, "rounds", "real time", "about it"]
    body = []
    for trial in tuned.trials[:_MOST_ROWS]:
        values = trial.values or (None,) * len(info)
        keeps = [] if not limits else [ABSENT if trial.values is None else "yes" if trial.feasible else "no"]
        body.append(
            [
                str(trial.number),
                _STATES[trial.state],
                *(one.text(value) for one, value in zip(info, values, strict=True)),
                *(_cell(trial, name) for name in names),
                *keeps,
                ABSENT if trial.rounds is None else str(trial.rounds),
                quantity(trial.seconds, SECONDS),
                trial.sentence or "",
            ]
        )
    more = len(tuned.trials) - _MOST_ROWS
    note = f"{counted(more, 'more trial')} are in the journal." if more > 0 else "Trials are run folders of their own."
    return join([table(heads, body, "trials"), tag("p", note, class_="note")])


def _cell(trial: TrialRecord, name: str) -> str:
    return value_text(trial.configuration[name]) if name in trial.configuration else ABSENT


def _settings(tuned: TunedStudy) -> Html:
    plan = tuned.plan
    shown = {"settings": plan.settings, "search": plan.space.described(), "tune": plan.options.model_dump()}
    return join(tag("details", tag("summary", name), tag("pre", as_yaml(given))) for name, given in shown.items())

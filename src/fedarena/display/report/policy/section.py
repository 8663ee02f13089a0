"""The section about policies: which hyperparameters clients were given, and which turned out best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import ABSENT, listing, significant
from fedarena.display.report.methods import Method, methods_of
from fedarena.display.report.policy.figures import entropy_figure, probabilities_figure, setting_figure
from fedarena.display.report.policy.told import (
    best_settings,
    has_policy,
    policy_name,
    settings_searched,
    settings_text,
    tables_of,
)
from fedarena.display.report.sections.elements import Plot, explanations, if_any, in_pairs, swatches, table
from fedarena.storage.run_data import RunData

_MOST_PICTURES: Final = 6  # of probabilities; each is about one run
_COLUMNS: Final = {
    "policy": "what decided with which hyperparameters every client trained",
    "decided on": "the settings that differed from client to client",
    "found best": "the likeliest settings in the end, of every seed",
    "entropy": "how undecided the policy was in the end, in nats; 0: it had chosen",
}


def policies(runs: Sequence[RunData], plot: Plot) -> Html:
    """Everything about the runs whose hyperparameters differed from client to client."""
    deciding = [run for run in runs if has_policy(run)]
    methods = methods_of(deciding)
    pictures = [
        if_any(plot, probabilities_figure(method, arms), _about(method))
        for method in methods
        for arms in tables_of(method.runs[0])
    ]
    names = list(dict.fromkeys(name for run in deciding for name in settings_searched(run)))
    return join(
        [
            _table(deciding, methods),
            in_pairs(pictures[:_MOST_PICTURES]),
            in_pairs(
                [
                    if_any(plot, entropy_figure(deciding), "It falls as a policy makes up its mind."),
                    *(if_any(plot, setting_figure(deciding, name), _MEANS) for name in names[:_MOST_PICTURES]),
                ]
            ),
        ]
    )


_MEANS: Final = "Mean over the jobs of a round; of learning rates, the mean of their logarithms."


def _about(method: Method) -> str:
    if policy_name(method.runs[0]) == "personalized_fedex":
        told = "Every client has probabilities of its own; shown is which share of a round's clients had each arm. "
    else:
        told = "How likely every arm is to be given to a client. "
    return told + (f"Seed {method.runs[0].config['seed']}." if len(method.runs) > 1 else "")


def _table(runs: Sequence[RunData], methods: Sequence[Method]) -> Html:
    marks = swatches(runs)
    heads = ["method", *(tag("abbr", title, title=meaning) for title, meaning in _COLUMNS.items())]
    body = [[marks[method.label], *_cells(method)] for method in methods]
    return tag("div", table(heads, body, "policy"), explanations(_COLUMNS), class_="above")


def _cells(method: Method) -> list[str]:
    first = method.runs[0]
    best = dict.fromkeys(settings_text(found) for run in method.runs if (found := best_settings(run)))
    entropies = [(run.summary.get("policy") or {}).get("entropy") for run in method.runs]
    known = [value for value in entropies if value is not None]
    return [
        policy_name(first),
        listing(settings_searched(first)) or ABSENT,
        "; ".join(best) or ABSENT,
        significant(sum(known) / len(known)) if known else ABSENT,
    ]

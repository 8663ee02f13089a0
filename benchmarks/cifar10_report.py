"""Writes the documentation's page about pfl-research's benchmark from what ``benchmarks/cifar10.py`` measured.

    python benchmarks/cifar10_report.py

Everything is computed from docs/benchmarks/cifar10.json and from nothing else.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from scipy import stats

from fedarena.display.drawing.style import SERIES_LIGHT, empty_figure
from targets import Measurement, conclude, show_targets

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = DOCS / "benchmarks" / "cifar10.json"
LABELS = {
    "alike": "clients alike",
    "dirichlet": "Dirichlet 0.1",
    "alike-private": "clients alike, ε = 2",
    "dirichlet-private": "Dirichlet 0.1, ε = 2",
}
LEAST_TIMES = 30.0  # as fast as pfl, on a GPU
OURS = "fedarena"
FIRST_ROUNDS = 10

Run = dict[str, Any]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's t); a single value tells nothing of it."""
    if len(values) < 2:
        return values[0], math.nan
    wide = float(stats.t.ppf(0.975, len(values) - 1))
    return statistics.fmean(values), wide * statistics.stdev(values) / math.sqrt(len(values))


def accuracy_after(run: Run, rounds: int) -> float | None:
    """Of the model after so many rounds, if it was evaluated then; pfl does so a round later."""
    if run["rounds"] == rounds:
        return float(run["accuracy"])
    evaluated = rounds + 1 if run["tool"] == "pfl" else rounds
    return next((float(accuracy) for round, _, accuracy in run["curve"] if round == evaluated), None)


def accuracies(runs: list[Run], tool: str, case: str, rounds: int) -> list[float]:
    """Of all seeds, each once."""
    found = {}
    for run in runs:
        if (run["tool"], run["case"]) == (tool, case) and (accuracy := accuracy_after(run, rounds)) is not None:
            found[run["seed"]] = accuracy
    return list(found.values())


def whole_seconds(run: Run, rounds: int) -> float:
    """Of all rounds; of a run that ended sooner, as if the others took as long as its second half."""
    done = run["rounds"]
    if done == rounds:
        return float(run["whole_seconds"])
    (first, begin), (last, end) = ((run["curve"][place][0], run["curve"][place][1]) for place in (-1 - _half(run), -1))
    return float(run["whole_seconds"] + (rounds - done) * (end - begin) / (last - first))


def _half(run: Run) -> int:
    return max(1, len(run["curve"]) // 2)


def alone(runs: list[Run], tool: str, case: str, noted: bool = False) -> list[Run]:
    """The runs that had the machine to themselves; those with something special about them are of another kind."""
    own = [run for run in runs if (run["tool"], run["case"]) == (tool, case) and run["alone"]]
    return [run for run in own if bool(run.get("note")) == noted]


def seconds_of(runs: list[Run], tool: str, case: str, rounds: int) -> list[float]:
    """Of the runs that had the machine to themselves."""
    return [whole_seconds(run, rounds) for run in alone(runs, tool, case)]


def longer_at_first(runs: list[Run], case: str) -> float | None:
    """How many seconds later a run in which nothing was compiled yet had its first rounds."""
    found = []
    for noted in (True, False):
        times = [{round: seconds for round, seconds, _ in run["curve"]} for run in alone(runs, OURS, case, noted)]
        found.append([reached[FIRST_ROUNDS] for reached in times if FIRST_ROUNDS in reached])
    return statistics.median(found[0]) - statistics.median(found[1]) if all(found) else None


def compared_after(runs: list[Run], case: str) -> int | None:
    """The most rounds after which both tools have accuracies of as many seeds as they ever have together."""
    curves = [run["curve"] for run in runs if (run["tool"], run["case"]) == (OURS, case)]
    candidates = {round for curve in curves for round, _, _ in curve if round}
    counts = {n: min(len(accuracies(runs, tool, case, n)) for tool in (OURS, "pfl")) for n in candidates}
    most = max(counts.values(), default=0)
    return max(n for n, count in counts.items() if count == most) if most else None


def table(measured: dict[str, Any]) -> str:
    """A row for every case that was measured."""
    runs, rounds = measured["runs"], measured["rounds"]
    heading = ["", "compared after", "accuracy", "pfl's", f"accuracy, {rounds:,} rounds", "seconds", "pfl's", "times"]
    lines = [heading, ["---", *("---:" for _ in heading[1:])]]
    for case, label in LABELS.items():
        after = compared_after(runs, case)
        both = [_told(accuracies(runs, tool, case, after)) if after else "–" for tool in ("fedarena", "pfl")]
        at_last = _told(accuracies(runs, "fedarena", case, rounds))
        own, peers = (seconds_of(runs, tool, case, rounds) for tool in ("fedarena", "pfl"))
        if not any(run["case"] == case for run in runs):
            continue
        times = f"{statistics.median(peers) / statistics.median(own):.1f}x" if own and peers else "–"
        seconds = [f"{statistics.median(found):,.1f}" if found else "–" for found in (own, peers)]
        lines.append([label, f"{after:,} rounds" if after else "–", *both, at_last, *seconds, times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _told(values: list[float]) -> str:
    if not values:
        return "–"
    mean, wide = interval(values)
    return f"{100 * mean:.1f} %" + (f" ± {100 * wide:.1f} ({len(values)} seeds)" if len(values) > 1 else " (1 seed)")


def draw(measured: dict[str, Any]) -> go.Figure:
    """Accuracy over the seconds since a run began, one run of each tool that had the machine to itself."""
    figure = empty_figure("CIFAR-10, clients alike: accuracy over time", "seconds (logarithmic)", "accuracy")
    for (tool, label), colour in zip((("fedarena", "FedArena"), ("pfl", "pfl-research")), SERIES_LIGHT, strict=False):
        run = max(alone(measured["runs"], tool, "alike"), key=lambda run: run["rounds"])
        _, seconds, accuracy = zip(*run["curve"], strict=True)
        name = f"{label}, {run['rounds']:,} rounds"
        figure.add_scatter(x=seconds, y=accuracy, name=name, mode="lines", line_color=colour)
    figure.update_xaxes(type="log")
    return figure


def page(measured: dict[str, Any]) -> str:
    """The page, as Markdown."""
    environment = measured["environment"]
    runs, rounds = measured["runs"], measured["rounds"]
    longer = longer_at_first(runs, "alike")
    at_first = " What is compiled, Python's bytecode and ours, was on disk, as it is from the second run on" + (
        "." if longer is None else f"; the first, which compiles the step, takes {longer:.0f} s more."
    )
    ended = sorted({run["rounds"] for case in LABELS for run in alone(runs, "pfl", case)})
    shortened = [f"{n:,}" for n in ended if n < rounds]
    computed = (
        f" pfl was run for {' or '.join(shortened)} rounds; the time of the others is that of the second half of these."
        if shortened
        else ""
    )
    apart = f" {measured['apart']}" if measured.get("apart") else ""  # what was not measured in one go
    return f"""# pfl-research's benchmark on CIFAR-10

<!-- Written by benchmarks/cifar10_report.py from docs/benchmarks/cifar10.json; do not edit. -->

1,000 clients with 50 photos each, cohorts of 50, one pass in batches of 10 at a learning rate of 0.1, {rounds:,}
rounds, all 10,000 test photos every ten rounds: the suite [`pfl-cifar10`](suites.md). Clients are alike, or prefer few
classes (Dirichlet 0.1); with privacy, updates are clipped to 0.4 and get the noise of cohorts of 1,000 out of a million
clients. The time is that of whole processes, one at a time on one {environment["hardware"]["gpus"][0]}: from the start
of Python to its end, with evaluation and everything that is recorded on the way.{at_first}{computed} Accuracies are
means over seeds with 95 % intervals (Student's t); where both are compared, pfl's are of a round later, which is when
it evaluates. Both tools have the same clients with the same photos.{apart}

{table(measured)}

![Accuracy over time](images/cifar10.svg)

Measured on {environment["started"][:10]} with `python benchmarks/cifar10.py --folder FOLDER engine.precision=tf32` and
its options `--only` and `--at-once` (accuracies of several seeds beside each other), torch
{environment["versions"]["torch"]}; pfl 0.6.0 in one process, with TF32 in its convolutions, as torch has it by default.
All numbers, with the curves: [cifar10.json](benchmarks/cifar10.json).
"""


def targets_of(measured: dict[str, Any]) -> list[Measurement]:
    """What should be reached, as far as it was measured."""
    runs, rounds, found = measured["runs"], measured["rounds"], []
    for case, label in LABELS.items():
        own, peers = (seconds_of(runs, tool, case, rounds) for tool in ("fedarena", "pfl"))
        if own and peers:
            ratio = statistics.median(own) / statistics.median(peers)
            found.append(Measurement(f"{label}: time over pfl's", ratio, 1 / LEAST_TIMES, ""))
        if (after := compared_after(runs, case)) is None:
            continue
        (mean, wide), (peer_mean, peer_wide) = (
            interval(accuracies(runs, tool, case, after)) for tool in ("fedarena", "pfl")
        )
        if wide + peer_wide > 0:
            what = f"{label}: accuracies apart after {after:,} rounds, over the widths of both intervals"
            found.append(Measurement(what, abs(mean - peer_mean) / (wide + peer_wide), 1.0, ""))
    return found


def main() -> int:
    """Writes the page and the picture, and says what was reached."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    (DOCS / "cifar10.md").write_text(page(measured), encoding="utf-8")
    draw(measured).write_image(DOCS / "images" / "cifar10.svg", width=900, height=420)
    found = targets_of(measured)
    show_targets("pfl's benchmark on CIFAR-10", found, "Whole processes, one at a time.")
    return conclude(found, {}, measured["environment"], None)


if __name__ == "__main__":
    sys.exit(main())

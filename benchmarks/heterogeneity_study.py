"""The study of heterogeneity with one command: suites, correlations, the comparison of methods.

    python benchmarks/heterogeneity_study.py                                  # small: minutes
    python benchmarks/heterogeneity_study.py rounds=3000 seeds=[0,1,2]        # as many rounds and seeds as the paper

Settings go to all suites. What is finished already is kept, so a second call only evaluates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.analysis.correlation import as_plain, default_target, final_score, hours_to, study_correlations
from fedarena.analysis.leading_metric import leading_metric
from fedarena.display import write_picture
from fedarena.display.correlation import coefficient_text, overview_figure, write_correlations
from fedarena.storage.run_data import RunData, load_runs
from store import environment

# And whose metrics each is about.
SUITES = {"flhetbench-devices": "DevMC", "flhetbench-states": "StatMC", "flhetbench-pairs": "InterMC"}
METHODS = "flhetbench-methods"
START = "flhetbench-start"
# All methods begin with a model that knows other pictures; those of the paper know ImageNet.
PRETRAINING = (
    *("federation=shapes", "training=centralized", "model=mlp", "model.hidden=[64,64]"),
    *("rounds=30", "local.lr=0.1", "local.batch_size=32", "evaluation.every=10"),
)
# How the paper tells heterogeneity: one metric of the pair of fleets.
SEVERITY = "InterMC-R"


def fedarena(*arguments: str) -> None:
    """Runs a command; what it says goes to the screen."""
    subprocess.run([sys.executable, "-m", "fedarena", *arguments], check=True)


def run_suites(runs: Path, settings: Sequence[str]) -> None:
    if not (runs / START / "summary.json").exists():
        fedarena("run", "--runs", str(runs), f"name={START}", *PRETRAINING)
    for suite in SUITES:
        fedarena("suite", suite, "--runs", str(runs), *settings)
    fedarena("suite", METHODS, "--runs", str(runs), f"weights={runs / START}", *settings)


def compare_methods(runs: Sequence[RunData]) -> dict[str, Any]:
    """For every pair of fleets its severity, and for every method the accuracy and the hours to a target."""
    named = [(*split_name(run.name), run) for run in runs if run.status == "finished"]
    plain = [run for _, method, strategy, run in named if (method, strategy) == ("fedavg", "readiness")]
    metric = leading_metric(plain)
    target = default_target(plain, metric)
    measured = study_correlations(
        [run for _, method, strategy, run in named if (method, strategy) == ("fedavg", "deadline")]
    )
    severities: dict[str, list[float]] = {}
    for point in measured.groups[0].points:
        severities.setdefault(split_name(point.runs[0])[0], []).append(point.metrics[SEVERITY])
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for pair, method, strategy, run in named:
        cell = cells.setdefault(method, {}).setdefault(pair, {"accuracies": [], "hours": []})
        if strategy != "readiness":
            cell["accuracies"].append(final_score(run, metric))
        if strategy != "deadline":
            cell["hours"].append(hours_to(run, metric, target))
    methods = {
        method: {
            pair: {
                "accuracy": _mean(cell["accuracies"]),
                "hours": _mean(cell["hours"]),
                "reached": None not in cell["hours"] if cell["hours"] else None,  # None: nobody waits for all clients
            }
            for pair, cell in by_pair.items()
        }
        for method, by_pair in cells.items()
    }
    return {
        "target_accuracy": target,
        SEVERITY: {pair: float(np.mean(values)) for pair, values in severities.items()},
        "methods": methods,
    }


def split_name(name: str) -> tuple[str, str, str]:
    """Pair, method and strategy of a run called like ``mild-fedavg.deadline-seed0``."""
    pair, _, rest = name.partition("-")
    method, _, strategy = rest.rpartition("-")[0].rpartition(".")
    return pair, method, strategy


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over seeds; None where one of them has none."""
    return float(np.mean(values)) if values and None not in values else None  # type: ignore[arg-type]


def methods_table(comparison: dict[str, Any]) -> str:
    """The comparison in Markdown: accuracy / hours, or a dash."""
    severities = comparison[SEVERITY]
    head = ["method", *(f"{pair} ({SEVERITY} {value:.2f})" for pair, value in severities.items())]
    rows = [
        [method, *(_cell(cells.get(pair, {})) for pair in severities)]
        for method, cells in comparison["methods"].items()
    ]
    return _markdown(head, rows)


def _cell(cell: dict[str, Any]) -> str:
    accuracy, hours = cell.get("accuracy"), cell.get("hours")
    time = f"{hours:.3g} h" if hours is not None else "not reached" if cell.get("reached") is False else "–"
    return f"{'–' if accuracy is None else f'{accuracy:.3f}'} / {time}"


def correlations_table(study: Any) -> str:
    """The coefficients in Markdown, of metrics that vary."""
    rows = [
        [group.name, found.metric, group.outcome, coefficient_text(found.pearson), coefficient_text(found.spearman)]
        for group in study.groups
        for found in group.correlations
        if found.pearson is not None
    ]
    return _markdown(["suite", "metric", "with", "Pearson r", "Spearman ρ"], rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of all suites")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder that holds run folders")
    parser.add_argument("--output", type=Path, help="a JSON file with all numbers")
    parser.add_argument("--picture", type=Path, help="a picture of the correlations that the suites are about")
    given = parser.parse_args()
    begin = time.perf_counter()
    is_complete = not any((given.runs / name).exists() for name in (START, *SUITES, METHODS))
    run_suites(given.runs, given.settings)
    folders = [given.runs / suite for suite in SUITES]
    study = study_correlations(load_runs(folders))
    page = write_correlations(study, given.runs / "heterogeneity.html")  # as `fedarena correlate` does
    comparison = compare_methods(load_runs([given.runs / METHODS]))
    minutes = (time.perf_counter() - begin) / 60
    print(f"\n{correlations_table(study)}\n\nAccuracy / hours to {comparison['target_accuracy']:g}:\n")
    print(f"{methods_table(comparison)}\n\nPage: {page}")
    print(f"{minutes:.1f} minutes" + ("" if is_complete else ", without the runs that were there already"))
    if given.picture is not None:
        shown = [
            (g, found) for g in study.groups for found in g.correlations if found.metric.startswith(SUITES[g.name])
        ]
        shown.sort(key=lambda pair: pair[0].outcome)
        write_picture(overview_figure("Metrics against accuracy, and against time", shown), given.picture)
    if given.output is not None:
        found = {"settings": given.settings, "minutes": minutes if is_complete else None, "environment": environment()}
        found |= {"correlations": as_plain(study), "comparison": comparison}
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

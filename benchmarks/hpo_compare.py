"""Hyperparameter search: how long does a comparison of optimizers take, and a question to a problem?

    python benchmarks/hpo_compare.py [--output result.json] [--problem lr@31] [--table FILE] [--jobs 2]

Compares the paper's ten optimizers with five repetitions on a table, from an empty folder, in processes that are
started for it; and asks the table, and a surrogate of it, for random configurations at random rounds. The exit code is
1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.hpo import Fidelity, Problem
from fedarena.hpo.comparison import compare
from fedarena.hpo.opening import open_problem
from fedarena.runs.environment import describe_environment
from targets import Measurement, conclude, show_targets

_SECONDS = 600.0
_TABLE_MICROSECONDS = 50.0
_SURROGATE_MILLISECONDS = 2.0


def query_seconds(problem: Problem, questions: int) -> float:
    """Median seconds of a question."""
    generator = np.random.default_rng(0)
    rate = problem.full.client_sample_rate
    took = []
    for _ in range(questions):
        configuration = problem.space.sample(generator)
        fidelity = Fidelity(int(generator.integers(problem.min_rounds, problem.max_rounds + 1)), rate)
        began = time.perf_counter()
        problem.query(configuration, fidelity)
        took.append(time.perf_counter() - began)
    return float(np.median(took))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="lr@31")
    parser.add_argument("--table", type=Path, help="a table of your own")
    parser.add_argument("--optimizers", default="all")
    parser.add_argument("--budget", type=float, help="simulated seconds (the problem's)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--no-surrogate", action="store_true", help="fitting one takes about a minute")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    options: dict[str, Any] = {} if given.table is None else {"table": str(given.table)}
    problem = open_problem(given.problem, "tabular", options)
    name = f"a question to the table of {given.problem}"
    targets = [Measurement(name, 1e6 * query_seconds(problem, given.questions), _TABLE_MICROSECONDS, "µs")]
    if not given.no_surrogate:
        fitted = open_problem(given.problem, "surrogate", options)
        milliseconds = 1e3 * query_seconds(fitted, given.questions)
        targets.append(Measurement("a question to its surrogate", milliseconds, _SURROGATE_MILLISECONDS, "ms"))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = compare(
            given.problem,
            given.optimizers,
            budget_s=given.budget,
            repetitions=given.repetitions,
            folder=folder,
            jobs=given.jobs,
            **options,
        )
        seconds = time.perf_counter() - began
        rows = found.table()
    optimizers = len(found.optimizers)
    what = f"{optimizers} optimizers x {given.repetitions} repetitions on {given.problem}, {given.jobs} at a time"
    targets.append(Measurement(what, seconds, _SECONDS, "s"))
    overhead = dict(zip(rows["optimizer"], rows["overhead_seconds"], strict=True))
    slowest = max(overhead, key=lambda label: overhead[label])
    remark = f"Of the optimizers themselves, {slowest} takes longest, {overhead[slowest]:.1f} s a search"
    show_targets("Comparing optimizers", targets, remark)
    facts = {"overhead_seconds": overhead, "failures": dict(found.failures)}
    return conclude(targets, facts, describe_environment(), given.output) or int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())

"""Running a suite without a screen."""

from __future__ import annotations

from pathlib import Path

from fedarena.runs.observer import Observer
from fedarena.runs.suite import Suite
from fedarena.runs.suite_plan import begin_suite, plan_suite
from fedarena.runs.suite_running import run_one_by_one


def run_suite(suite: Suite, runs_folder: Path, observer: Observer) -> list[str]:
    """Runs what is left of a suite; a sentence for every run that failed."""
    return run_one_by_one(begin_suite(plan_suite(suite, runs_folder), observer), observer, lambda label: None)

"""The page about pfl's benchmark says what was measured: whole runs, runs that ended sooner, and some seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cifar10 as benchmark
import cifar10_report as report


def run(tool: str, seed: int, rounds: int, second_each: float, alone: bool = True, **more: Any) -> dict[str, Any]:
    later = 1 if tool == "pfl" else 0  # when it evaluates
    curve = [[n + later, 5 + second_each * (n + later), 0.1 + n / 10_000] for n in range(0, rounds, 10)]
    whole = 6 + second_each * rounds
    about = {"tool": tool, "case": "alike", "seed": seed, "rounds": rounds, "alone": alone, "note": None}
    return {**about, "whole_seconds": whole, "accuracy": 0.1 + rounds / 10_000, "curve": curve, **more}


def test_the_time_of_a_run_that_ended_sooner_goes_on_as_it_was() -> None:
    assert report.whole_seconds(run("pfl", 0, 1500, 0.5), 1500) == 756
    assert report.whole_seconds(run("pfl", 0, 40, 0.5), 1500) == pytest.approx(756)


def test_accuracies_are_compared_after_the_rounds_that_most_seeds_have() -> None:
    runs = [run("fedarena", 0, 1500, 0.01), *(run("fedarena", seed, 200, 0.01, alone=False) for seed in (1, 2))]
    runs += [run("pfl", seed, rounds, 0.5, alone=False) for seed, rounds in ((0, 101), (1, 121), (2, 91))]
    assert report.compared_after(runs, "alike") == 90  # seed 2 was evaluated after 91 rounds at last
    assert report.accuracies(runs, "pfl", "alike", 90) == pytest.approx([0.109] * 3)
    assert report.compared_after(runs, "dirichlet") is None


def test_what_was_reached_is_said_of_what_was_measured_alone() -> None:
    noted = run("fedarena", 0, 20, 0.01, note="nothing is compiled yet")
    noted["curve"] = [[round, seconds + 9, accuracy] for round, seconds, accuracy in noted["curve"]]
    runs = [run("fedarena", 0, 1500, 0.01), run("fedarena", 1, 1500, 9.0, alone=False), run("pfl", 0, 40, 0.5), noted]
    measured = {"rounds": 1500, "runs": runs}
    (time,) = (found for found in report.targets_of(measured) if "time" in found.what)
    assert time.measured == pytest.approx(21 / 756)
    assert report.longer_at_first(runs, "alike") == pytest.approx(9)
    assert "36.0x" in report.table(measured)


def test_settings_may_follow_seeds_and_cases() -> None:
    lists = ["--seeds", "1,2", "engine.precision=tf32", "--cases", "alike,dirichlet", "--tools", "pfl"]
    found = benchmark.arguments_of(["--folder", "F", *lists, "engine.lanes=64"])
    assert (found.seeds, found.cases, found.tools) == ([1, 2], ["alike", "dirichlet"], ["pfl"])
    assert found.settings == ["engine.precision=tf32", "engine.lanes=64"]


@pytest.mark.parametrize("words", ["--cases alike,somewhere", "--seeds 1,x", "--tools"])
def test_what_is_not_known_is_refused(words: str) -> None:
    with pytest.raises(SystemExit) as refused:
        benchmark.arguments_of(["--folder", "F", *words.split()])
    assert refused.value.code == 2

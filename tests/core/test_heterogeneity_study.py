"""The study of heterogeneity: runs are told apart by their names, and the table of methods says what they did."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedarena.metrics.info import ACCURACY
from fedarena.runs.suite import read_suite

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "heterogeneity_study", raising=False)
    return importlib.import_module("heterogeneity_study")


def test_grids_are_those_of_the_paper() -> None:
    fleets = {
        name: {tuple(sorted(fleet_dials(config.fleet).items())) for config in read_suite(name, {}).runs.values()}
        for name in ("flhetbench-devices", "flhetbench-states", "flhetbench-pairs", "flhetbench-methods")
    }
    assert {name: len(found) for name, found in fleets.items()} == {
        "flhetbench-devices": 21,
        "flhetbench-states": 21,
        "flhetbench-pairs": 16,
        "flhetbench-methods": 3,
    }
    for name in ("flhetbench-devices", "flhetbench-states", "flhetbench-pairs"):
        protocols = [config.protocol["name"] for config in read_suite(name, {}).runs.values()]
        assert protocols.count("deadline") == protocols.count("readiness") == len(fleets[name])


def fleet_dials(fleet: dict[str, Any]) -> dict[str, Any]:
    dials = ("clusters", "sigma", "start_rank", "alpha")
    return {f"{part}.{dial}": repr(fleet[part].get(dial)) for part in ("devices", "availability") for dial in dials}


def test_names_of_runs_are_taken_apart(study: ModuleType) -> None:
    found = [study.split_name(name) for name in read_suite("flhetbench-methods", {}).runs]
    assert {pair for pair, _, _ in found} == {"mild", "moderate", "severe"}
    assert {"fedavg", "staleness-aware", "biasprompt+", "fedbuff"} <= {method for _, method, _ in found}
    assert {strategy for _, _, strategy in found} == {"deadline", "readiness", "buffered"}
    assert study.split_name("severe-staleness-aware.deadline-seed12") == ("severe", "staleness-aware", "deadline")


def test_the_table_has_accuracy_and_hours(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {
        "mild-fedavg.deadline-seed0": 0.8,
        "mild-fedavg.deadline-seed1": 0.9,
        "mild-fedavg.readiness-seed0": 10.0,
        "mild-fedavg.readiness-seed1": 20.0,
        "severe-fedavg.deadline-seed0": 0.5,
        "severe-fedavg.readiness-seed0": None,
        "mild-fedbuff.buffered-seed0": 0.7,
        "mild-late.deadline-seed0": 0.6,
    }
    runs = [SimpleNamespace(name=name, status="finished") for name in outcomes]
    runs.append(SimpleNamespace(name="severe-fedbuff.buffered-seed0", status="diverged"))
    points = [
        SimpleNamespace(runs=(name,), metrics={"InterMC-R": value})
        for name, value in (("mild-fedavg.deadline-seed0", 0.8), ("severe-fedavg.deadline-seed0", 0.5))
    ]
    monkeypatch.setattr(study, "leading_metric", lambda chosen: ACCURACY)
    monkeypatch.setattr(study, "default_target", lambda chosen, metric: 0.75)
    monkeypatch.setattr(
        study, "study_correlations", lambda chosen: SimpleNamespace(groups=[SimpleNamespace(points=points)])
    )
    monkeypatch.setattr(study, "final_score", lambda run, metric: outcomes[run.name])
    monkeypatch.setattr(study, "hours_to", lambda run, level, metric: outcomes[run.name])
    table = study.methods_table(study.compare_methods(runs)).splitlines()
    assert table == [
        "| method | mild (InterMC-R 0.80) | severe (InterMC-R 0.50) |",
        "| --- | --- | --- |",
        "| fedavg | 0.850 / 15 h | 0.500 / not reached |",
        "| fedbuff | 0.700 / 0.7 h | – / – |",
        "| late | 0.600 / – | – / – |",
    ]

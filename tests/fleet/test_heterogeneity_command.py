"""The command that measures a fleet: tables, picture, JSON, and sentences about what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.display import heterogeneity_figure
from fedarena.fleet import load_fleet
from fedarena.fleet.heterogeneity import METRICS, HeterogeneityOptions, in_order, measure_heterogeneity

FAST = ["--rounds", "30", "--trips", "40", "--repetitions", "2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str):
    return CliRunner().invoke(main, ["heterogeneity", *arguments])


def test_numbers_are_those_of_python(folder: Path) -> None:
    result = invoke("flash", "seed=3", "--clients", "40", *FAST, "--json", "out/numbers.json")
    assert result.exit_code == 0, result.output
    found = json.loads((folder / "out" / "numbers.json").read_text())
    options = HeterogeneityOptions(rounds=30, trips=40, repetitions=2)
    phones = in_order(load_fleet({"name": "flash", "seed": 3}, 40))
    expected = measure_heterogeneity(phones, np.arange(40), options).as_dict()
    assert {key: found[key] for key in expected} == expected
    assert all(name in result.output for name in METRICS)
    assert (folder / "flash-heterogeneity.html").stat().st_size > 0


def test_a_saved_fleet_and_every_constant(folder: Path) -> None:
    load_fleet("flash", 30).save("saved")
    constants = {
        "deadline-seconds": 60.0, "rounds": 20, "trips": 30, "cohort": 5, "break-seconds": 10.0, "model-bytes": 1000,
        "samples": 2.0, "flops-per-sample": 5.0, "ready-share": 0.5, "cost-draws": 3, "repetitions": 2,
        "confidence": 0.9, "seed": 4,
    }  # fmt: skip
    words = [word for name, value in constants.items() for word in (f"--{name}", str(value))]
    words += ["--deadline-cost-step-seconds", "20", "--readiness-costs-seconds", "drawn", "--exclusive-deadline"]
    words += ["--any-seconds", "--random-numbers", "keyed", "--json", "n.json", "-o", "picture.html"]
    result = invoke("saved", "--like", "code", *words)
    assert result.exit_code == 0, result.output
    options = json.loads((folder / "n.json").read_text())["options"]
    assert {name: options[name.replace("-", "_")] for name in constants} == constants
    assert options["deadline_cost_step_seconds"] == 20
    assert options["readiness_costs_seconds"] is None
    assert (options["inclusive_deadline"], options["whole_seconds"], options["random_numbers"]) == (
        False,
        False,
        "keyed",
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["flash", "--clients", "5"], "cohort is 20, but there are only 5 clients"),
        (["flash", "--deadline-seconds", "0"], "deadline_seconds must be positive"),
        (["flash", "--readiness-costs-seconds", "1,x"], "--readiness-costs-seconds must be a number or 'drawn'"),
        (["flash", "--deadline-cost-step-seconds", "1,2"], "must be one number, not '1,2'"),
        (["flash", "-o", "a.txt"], "A picture cannot be written as 'a.txt'"),
        (["flash", "--json", "."], "which is a folder; name a file"),
        (["flash", "-o", "folder.html"], "which is a folder; name a file"),
        (["flsh"], "flash"),
    ],
)
def test_wrong_input(arguments: list[str], sentence: str) -> None:
    Path("folder.html").mkdir()
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_what_never_ends_and_too_few_rounds_are_said() -> None:
    result = invoke("uniform", "share=0", "--clients", "30", "--rounds", "3", "--trips", "10")
    assert result.exit_code == 0, result.output
    assert result.output.count("never ") >= 2
    assert "too few rounds" in result.output


def test_the_picture_shows_the_metrics_and_everybody() -> None:
    options = HeterogeneityOptions(rounds=30, trips=40, repetitions=2)
    found = measure_heterogeneity(in_order(load_fleet("flash", 50)), np.arange(50), options)
    traces = heterogeneity_figure("a<b", found).data
    for name, trace in zip(
        ("DevMC-R", "StatMC-R", "InterMC-R", "DevMC-T", "StatMC-T", "InterMC-T"), traces, strict=False
    ):
        assert trace.hovertemplate.startswith(f"{name}: ")
        assert trace.x[0] == found.metrics[name].mean
        assert trace.error_x.array[0] == pytest.approx(found.metrics[name].high - found.metrics[name].mean)
    curve = next(trace for trace in traces if trace.name == "StatMC-R: availability")
    np.testing.assert_array_equal(curve.y, np.sort(found.participation["StatMC-R"])[::-1])
    ideal = measure_heterogeneity(in_order(load_fleet("ideal", 50)), np.arange(50), options)
    assert any(trace.text and "devices take no time" in trace.text for trace in heterogeneity_figure("i", ideal).data)
    assert math.isclose(ideal.metrics["DevMC-T"].mean, 1.0)

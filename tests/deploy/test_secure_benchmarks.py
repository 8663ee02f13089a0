"""The benchmarks of secure aggregation and of simulated against real, at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_what_secure_sums_cost(run_benchmark, tmp_path):
    output = tmp_path / "result.json"
    small = ("--parameters", "50", "--groups", "4", "--seeds", "1")
    found = run_benchmark(BENCHMARKS / "secure_aggregation.py", *small, "--output", str(output))
    assert found.returncode == 0, found.stderr
    content = json.loads(output.read_text())
    assert [(one["leaving"], one["is_right"]) for one in content["sums"]] == [(0, True), (1, True)]
    runs = {run["variant"]: run for run in content["runs"]}
    assert runs["secure, 64 bits"]["virtual_minutes"] > runs["plain"]["virtual_minutes"]


@pytest.mark.slow
def test_what_is_predicted_is_compared(run_benchmark, tmp_path):
    output = tmp_path / "result.json"
    small = ("--clients", "3", "--rounds", "4", "--report", str(tmp_path / "report.html"))
    found = run_benchmark(BENCHMARKS / "deploy_prediction.py", *small, "--output", str(output))
    assert found.returncode == 0, found.stderr
    prediction = json.loads(output.read_text())["prediction"]
    assert prediction["rounds"] == 2
    assert prediction["real_seconds"] > 0
    assert (tmp_path / "report.html").exists()

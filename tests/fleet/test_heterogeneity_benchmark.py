"""The benchmark of heterogeneity metrics runs at a small size. How fast it was is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "heterogeneity.py"


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path, run_benchmark) -> None:
    output = tmp_path / "result.json"
    sizes = ["--clients=600", "--rounds=20", "--trips=40", "--repetitions=1"]
    # The script itself stops where a plain loop and the fast path differ.
    finished = run_benchmark(SCRIPT, *sizes, "--output", str(output))
    assert finished.stderr == ""
    content = json.loads(output.read_text())
    assert [(row["target"], row["unit"]) for row in content["targets"]] == [(0.1, "x"), (30, "s"), (2, "GB")]
    facts = content["facts"]
    share = facts["flash"]["fast_seconds"] / facts["flash"]["plain_seconds"]
    assert content["targets"][0]["measured"] == pytest.approx(share)
    assert facts["flash"]["searching_seconds"] > 0
    assert facts["many"]["clients"] == 600
    assert finished.returncode == (0 if all(row["ok"] for row in content["targets"]) else 1)

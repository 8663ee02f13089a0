"""The benchmark of what privacy costs a round, at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transforms.py"


@pytest.mark.slow
def test_ways_are_measured_side_by_side(run_benchmark, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    small = ("--rounds", "1", "--cohort", "20", "--models", "MLP")
    found = run_benchmark(SCRIPT, *small, "--output", str(output))
    assert found.returncode in (0, 1)  # times are not what is tested
    content = json.loads(output.read_text())
    assert set(content["facts"]["MLP"]["median_seconds"]) == {"without", "flat", "per layer", "adaptive"}
    assert all(len(seconds) == 1 for seconds in content["facts"]["MLP"]["seconds"].values())
    assert [row["target"] for row in content["targets"]] == [1.1, 1.1, 1.1]

"""The benchmark of runs on a network, at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "deploy.py"


@pytest.mark.slow
def test_the_benchmark_measures_rounds_updates_and_a_crowd(tmp_path):
    output = tmp_path / "deploy.json"
    command = [sys.executable, str(SCRIPT), "--small", "--parts", "rounds", "updates", "crowd", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text())
    assert found["rounds"]["seconds"] > 0
    assert found["updates"]["updates"] == 4
    assert found["crowd"]["next_seconds"]["p99"] > 0

"""The benchmark of the store runs at a small size and reports every target. What it measures is not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "store.py"


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    arguments = ["--clients", "3000", "--samples", "20000", "--output", str(output)]
    finished = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)
    assert finished.returncode in (0, 1), finished.stderr
    content = json.loads(output.read_text())
    assert finished.returncode == (0 if all(row["ok"] for row in content["targets"]) else 1)
    assert [row["target"] for row in content["targets"]] == [0.1, 300, 0.2, 2]
    assert (content["facts"]["clients"], content["facts"]["samples"]) == (3000, 20000)
    assert content["facts"]["gathered_samples"] > 1000
    assert "pyarrow" in content["environment"]
    assert "3,000 clients" in finished.stdout

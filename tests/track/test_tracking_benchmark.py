"""The benchmark of trackers runs at a small size and reports what it did. How fast it was is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tracking.py"


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path, run_benchmark) -> None:
    output = tmp_path / "result.json"
    kinds, settings = ("watch",), ("federation=digits", "rounds=2")
    arguments = ("--output", str(output), "--repetitions=1", "--only", *kinds, "--set", *settings)
    finished = run_benchmark(SCRIPT, *arguments)
    content = json.loads(output.read_text())
    rows, facts = content["targets"], content["facts"]
    assert [row["what"] for row in rows] == ["the quickstart with watch"]
    assert all(row["measured"] > 0 and row["target"] == 1.03 for row in rows)
    assert {kind: len(turns) for kind, turns in facts["seconds"].items()} == {"plain": 1, "watch": 1}
    assert finished.returncode == (0 if all(row["ok"] for row in rows) else 1)

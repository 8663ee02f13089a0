"""The benchmark of reading pictures runs at a small size and reports what it did. How fast it was is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "flair_reading.py"


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path, run_benchmark) -> None:
    output = tmp_path / "result.json"
    arguments = ["--cohort", "5", "--pixels", "24", "--repetitions", "2", "--output", str(output)]
    finished = run_benchmark(SCRIPT, *arguments)
    assert finished.stderr == ""
    content = json.loads(output.read_text())
    (target,), facts = content["targets"], content["facts"]
    assert (target["what"], target["target"], target["unit"]) == (
        "reading 5 users beside Pillow alone",
        1.2,
        "times",
    )
    assert finished.returncode == (0 if target["ok"] else 1)
    assert facts["users"] == 5
    assert facts["pictures"] >= 5
    assert facts["decoded_megabytes"] == pytest.approx(facts["pictures"] * 3 * 24 * 24 / 1e6)
    assert all(seconds > 0 for seconds in facts["seconds"].values())

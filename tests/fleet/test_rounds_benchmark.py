"""The benchmark of phones at scale runs at a small size. How fast it was is not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    sizes = {"phones": 3000, "few": 1500, "rounds": 4, "participants": 50, "repetitions": 1}
    arguments = ["--output", str(output), *(f"--{name}={size}" for name, size in sizes.items())]
    command = [sys.executable, str(SCRIPTS / "fleet.py"), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.stderr == ""
    content = json.loads(output.read_text())
    rows, facts = content["targets"], content["facts"]
    assert len(rows) == 6 + 2 * 3
    assert finished.returncode == (0 if all(row["ok"] for row in rows) else 1)
    for protocol in ("synchronous", "deadline", "buffered"):
        measured = facts["rounds"][protocol]
        assert set(measured["seconds"]) == {"1500", "3000"}
        assert measured["used"] > 50
        assert measured["virtual_hours"] > 0
    assert facts["rounds"]["synchronous"]["invited"] == 130
    assert facts["crowd"]["participants"] == 50
    assert facts["crowd"]["invited"] == 65

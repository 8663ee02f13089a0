"""The benchmark of pictures and recordings measures what it says. How fast they are read is not for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedarena.data.registry import CACHE_VARIABLE
from fedarena.data.store.decoded import LIMIT_VARIABLE

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "media.py"


@pytest.mark.slow
def test_everything_is_measured(run_benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CACHE_VARIABLE, LIMIT_VARIABLE):  # which the benchmark changes
        monkeypatch.setenv(variable, str(tmp_path) if variable == CACHE_VARIABLE else "0")
    sizes = ["--pictures", "60", "--recordings", "110", "--samples", "130", "--repetitions", "1"]
    finished = run_benchmark(SCRIPT, *sizes, "--output", str(tmp_path / "found.json"))
    assert finished.returncode in (0, 1)  # of so few samples, most of the time goes into opening files
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name: facts["samples"] for name, facts in found["facts"].items()} == {
        "pictures": 60,
        "many_pictures": 130,
        "recordings": 110,
        "many_recordings": 130,
    }
    assert found["facts"]["many_pictures"]["clients"] == 3
    assert [target["unit"] for target in found["targets"]] == ["times", "times", "MB", "times", "times", "MB"]

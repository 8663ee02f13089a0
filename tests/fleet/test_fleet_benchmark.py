"""The benchmark of phones at scale runs at a small size and reports what it did. How fast it was is not for tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
PHONES = 3_000
PROTOCOLS = ("synchronous", "deadline", "buffered")
BUILD_TARGETS = {
    "build": (60, "s"),
    "peak resident memory of building and saving": (2, "GB"),
    "open": (1, "s"),
    "match every client by size and speed": (2, "s"),
    "sort a week of intervals in the order of time": (60, "s"),
    "peak resident memory of sorting": (2, "GB"),
}


@pytest.mark.slow
def test_small_benchmark(tmp_path: Path, run_benchmark) -> None:
    output = tmp_path / "result.json"
    sizes = {"phones": PHONES, "few": 1500, "rounds": 4, "participants": 50, "repetitions": 1}
    arguments = ["--output", str(output), *(f"--{name}={size}" for name, size in sizes.items())]
    finished = run_benchmark(SCRIPTS / "fleet.py", *arguments)
    assert finished.stderr == ""
    content = json.loads(output.read_text())
    rows, facts = content["targets"], content["facts"]
    building, rounds = rows[: len(BUILD_TARGETS)], rows[len(BUILD_TARGETS) :]
    assert {row["what"]: (row["target"], row["unit"]) for row in building} == BUILD_TARGETS
    assert [(row["target"], row["unit"]) for row in rounds] == [(10, "s"), (2, "x")] * len(PROTOCOLS)
    assert all(row["measured"] > 0 for row in rows)
    assert [row["ok"] for row in rows] == [row["measured"] < row["target"] for row in rows]
    assert re.findall(r"\b(yes|no)\b", finished.stdout) == ["yes" if row["ok"] else "no" for row in rows]
    assert finished.returncode == (0 if all(row["ok"] for row in rows) else 1)
    assert facts["phones"] == PHONES
    assert facts["intervals"] / PHONES == pytest.approx(20.8, rel=0.1)
    assert facts["intervals_per_week"] == pytest.approx(37, rel=0.1)
    # Three numbers of four bytes for every interval, eight of eight bytes for every phone.
    assert facts["stored_megabytes"] == pytest.approx((12 * facts["intervals"] + 64 * PHONES) / 1e6, rel=0.05)
    assert facts["sort_kept_gigabytes"] == pytest.approx((12 * 37 + 16) * PHONES / 1e9, rel=0.01)
    for protocol in PROTOCOLS:
        measured = facts["rounds"][protocol]
        assert set(measured["seconds"]) == {"1500", "3000"}
        assert measured["used"] > 50
        assert measured["virtual_hours"] > 0
    assert facts["rounds"]["synchronous"]["invited"] == 130
    assert facts["crowd"]["participants"] == 50
    assert facts["crowd"]["invited"] == 65
    assert {"processor", "cores", "python", "numpy", "pyarrow"} <= content["environment"].keys()


def test_a_week_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import fleet_build

    rows, starts, ends = fleet_build.week_in_order_of_time(10)
    assert np.bincount(rows).tolist() == [37] * 10
    assert (np.diff(starts) >= 0).all()
    assert (ends > starts).all()
    assert ends.max() < fleet_build.WEEK_SECONDS

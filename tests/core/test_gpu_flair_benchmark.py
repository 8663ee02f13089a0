"""The benchmark of FLAIR's rounds on a GPU, as far as it can be tested without one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_flair  # noqa: E402
import gpu_flair_report as report  # noqa: E402

ABOUT = {"date": "2026-01-02", "command": "python x.py", "gpu": "G", "versions": {"torch": "2"}, "precision": "tf32"}
FLAIR = {
    "users": 200,
    "samples": 2558,
    "samples_per_second": {"ours": 5000.0, "pfl": 500.0, "central": 8000.0},
    "times_pfl": 10.0,
    "of_central": 0.625,
    "peak_bytes": 3 << 30,
    "first_round_seconds": 9.4,
    "engine": {"lanes": 8},
}
FEDSCALE = {
    "rounds": {"10": {"minutes": 0.021, "samples_per_second": 5e3}, "100": {"minutes": 0.2, "samples_per_second": 5e3}},
    "fedscale_minutes": {"10": 0.03, "100": 0.16, "1000": 1.14},
    "peak_bytes": 3 << 30,
}
ROUND = {"minutes": 1.0, "samples_per_second": 9e3}
DECODING = {
    "facts": {
        "users_of_a_cohort": 200,
        "pictures_of_cohorts": [1200, 1500],
        "decoding_threads": 16,
        "median_share_waiting": 0.071,
        "share_waiting_first_round": 0.5,
    },
    "targets": [{"measured": 0.12}],
}


def test_the_page_is_what_was_measured() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    between = page.split(report.BEGIN)[1].split(report.END)[0].strip()
    found = report.measured("gpu_flair.json")
    decoding = report.measured("gpu_flair_decoding.json")
    assert between == ("" if found is None else report.section(found, report.measured_of_fedscale(), decoding))


def test_what_the_page_says_of_numbers() -> None:
    before = {"minutes": 0.1, "samples_per_second": 8e3, "command": "python y.py", "date": "2025-12-31"}
    rounded = {**ABOUT, "precision": "bf16", "fedscale": {**FEDSCALE, "rounds": {"10": before, "1000": ROUND}}}
    of_both = [{**ABOUT, "fedscale": FEDSCALE}, rounded]
    lines = report.section({**ABOUT, "flair": FLAIR}, of_both, DECODING).splitlines()
    assert any("| 500 | FedArena is 10.0 times as fast" in line for line in lines)
    assert any("| 8,000 | FedArena reaches 62% of it |" in line for line in lines)
    assert any("3.0 GiB of the GPU's memory; the first round takes 9 s" in line for line in lines)
    assert "| 100 | 0.20 | 0.10 (extrapolated from 1,000) | 0.16 |" in lines
    assert "| 1,000 | 2.00 (extrapolated from 100) | 1.00 | 1.14 |" in lines
    assert any(line.startswith("In bf16 that is 9,000 samples a second, in 3.0 GiB (`python x.py`") for line in lines)
    assert any(line.endswith("Rounds of 10 are of a version before (`python y.py`, 2025-12-31).") for line in lines)
    assert "the GPU waits 7% of a round (median; at most 12%; 50% of the first one)" in lines[-1]
    alone = {**FLAIR, "samples_per_second": {"ours": 5000.0}}
    assert "pfl" not in report.section({**ABOUT, "flair": alone}, [], None)
    beside = {**FEDSCALE, "central_samples_per_second": 2500.0, "of_central": 2.0}
    alone = report.section({**ABOUT, "fedscale": beside}, of_both[:1], None).splitlines()
    assert "| 100 | 0.20 | 0.16 |" in alone
    assert "in the same run, 2,500, of which that is 200%" in alone[-1]


def test_users_have_the_pictures_that_are_asked_for() -> None:
    work = gpu_flair.fedscale(3)
    assert work.processed == 3 * 20 * 32
    work = gpu_flair.Work(work.model, work.kind, work.classes, np.array([2, 1, 3]), work.local)
    data = gpu_flair.RandomPictures(work)
    block = data.samples(np.array([2, 0]), "train")
    assert block.offsets.tolist() == [0, 3, 5]
    assert np.array_equal(block.columns["x"], data.columns["x"][[3, 4, 5, 0, 1]])
    assert np.array_equal(block.columns["y"], data.columns["y"][[3, 4, 5, 0, 1]])

"""The page about FedScale's experiments says what was measured, and its sentences follow from the numbers."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fedscale_clients as clients
import fedscale_study as study
import fedscale_study_report as report
import fedscale_study_verdicts as verdicts
from fedarena.runs.config import parse_overrides
from fedarena.runs.run import start_run
from fedarena.runs.suite import SUITE_FILE, builtin_suites, read_suite
from fedarena.storage.run_data import load_runs
from fedscale_study_pictures import clients_picture, curves_picture, timeline_picture

MEASURED = json.loads(report.MEASURED.read_text(encoding="utf-8"))


def run(label: str, seed: int, score: float, curve: list[list[float]] | None = None) -> dict[str, Any]:
    return {"label": label, "seed": seed, "score": score, "scores": {"accuracy": score}, "curve": curve or []}


def suite(higher: bool = True, **scores: list[float]) -> dict[str, Any]:
    runs = [run(label, seed, score) for label, values in scores.items() for seed, score in enumerate(values)]
    return {"metric": "accuracy", "higher_is_better": higher, "runs": runs}


def test_the_page_is_what_its_numbers_come_to() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(MEASURED)


def test_all_experiments_are_on_the_page() -> None:
    assert set(MEASURED["suites"]) == set(study.EXPERIMENTS)
    assert set(map(int, MEASURED["scale"])) == set(study.PARTICIPANTS) == set(report.PAPER_TABLE_6)
    text = report.PAGE.read_text(encoding="utf-8")
    for name in builtin_suites():
        assert not name.startswith("fedscale-") or f"`{name}`" in text, name


@pytest.mark.parametrize("name", study.EXPERIMENTS)
def test_commands_of_experiments_are_suites_that_can_be_read(name: str) -> None:
    command = shlex.split(MEASURED["suites"][name]["command"])
    assert command[:2] == ["fedarena", "suite"]
    found = read_suite(command[2], parse_overrides(command[3:]))
    assert len(found.runs) == len(MEASURED["suites"][name]["runs"])
    assert " ".join(command) in report.PAGE.read_text(encoding="utf-8")


def test_commands_of_the_papers_size_can_be_read() -> None:
    lines = re.findall(r"^fedarena suite .*$", report.TEMPLATE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        _, _, name, *settings = shlex.split(line)
        assert read_suite(name, parse_overrides(settings)).runs


def test_how_often_a_method_is_ahead_depends_on_what_is_better() -> None:
    scores = {"FedAvg": [0.5, 0.6, 0.7], "FedYogi": [0.6, 0.5, 0.9], "FedProx": [0.1, 0.1, 0.1]}
    assert verdicts.seeds_ahead(suite(**scores), "FedYogi", "FedAvg") == (2, 3)
    assert verdicts.seeds_ahead(suite(higher=False, **scores), "FedYogi", "FedAvg") == (1, 3)
    assert verdicts.best_federated(suite(**scores)) == "FedYogi"
    assert verdicts.best_federated(suite(higher=False, **scores)) == "FedProx"
    assert verdicts.clear_gap(suite(**scores), "FedYogi", "FedAvg") == 0
    assert verdicts.clear_gap(suite(**scores), "FedProx", "FedAvg") == pytest.approx(-0.5)
    assert report.score_text(suite(**scores), "FedAvg") == "60.0 ± 10.0"


def test_a_level_is_reached_where_the_curve_gets_there_first() -> None:
    curve = [[0, 0.0, 0.1, 0.0], [3, 1.5, 0.8, 2.0], [6, 3.0, 0.7, 4.0], [9, 4.5, 0.9, 6.0]]
    one = {
        "metric": "accuracy",
        "higher_is_better": True,
        "runs": [run("A", 0, 0.9, curve), run("B", 0, 0.9, curve[:1])],
    }
    assert [report.reached(one["runs"][0], level, True, 1) for level in (0.1, 0.75, 0.85)] == [0.0, 1.5, 4.5]
    assert report.reached(one["runs"][0], 0.05, False, 3) is None
    assert report.reached(one["runs"][0], 0.1, False, 3) == 0.0
    assert report.reached_text(one, "A", 0.85, 3) == "6"
    assert report.reached_text(one, "B", 0.85, 3) == "not reached"
    assert report.mean_reached(one, "B", 0.85, 3) is None


def test_sentences_change_with_the_numbers() -> None:
    seconds = {"as it is": 100.0, "transfers": 60.0, "training": 90.0, "both": 50.0}
    assert "weaker here: transfers" in verdicts.on_timeline(seconds)
    assert "is the paper's point" in verdicts.on_timeline({**seconds, "transfers": 75.0, "training": 75.0})
    scale = {str(n): {"seconds": n / 100, "peak_gigabytes": 1 + n / 1e4} for n in (10, 1_000, 10_000)}
    assert "10,000 participants take 10.0 times as long as 1,000, and 1.00 GB more than 10" in verdicts.on_scale(scale)


@pytest.mark.slow
def test_runs_become_numbers(tmp_path: Path) -> None:
    settings = {"rounds": 2, "local.steps": 1, "cohort": 2, "seeds": [0], "engine": "reference"}
    settings |= {"federation.partition.clients": 20, "clock.hours": 5.0, "evaluation.every": 1}
    planned = read_suite("fedscale-selection", settings).runs
    chosen = ["uniform-seed0", "Oort-seed0"]
    for name in reversed(chosen):
        start_run(planned[name], tmp_path)
    (tmp_path / SUITE_FILE).write_text(json.dumps({"runs": dict.fromkeys(chosen)}))
    runs = study.in_order(load_runs([tmp_path]), tmp_path)
    found = study.what_came_out(runs)
    assert [row["label"] for row in found["runs"]] == ["uniform", "Oort"]
    assert [point[0] for point in found["runs"][0]["curve"]] == [0, 1, 2]
    assert found["runs"][0]["curve"][-1][1] == pytest.approx(found["runs"][0]["hours"], abs=1e-4)  # since it began
    assert found["runs"][0]["gigabytes"] == pytest.approx(found["runs"][0]["curve"][-1][3], abs=1e-5)
    assert found["runs"][0]["gigabytes"] > 0
    assert set(study.spread(runs)) == {"uniform", "Oort"}
    told = study.timeline(runs)["round_seconds"]
    assert told["as it is"] > max(told["transfers twice as fast"], told["training twice as fast"])
    assert told["both twice as fast"] == pytest.approx(told["as it is"] / 2)


def test_fedscales_map_of_speech_has_words_and_owners(tmp_path: Path) -> None:
    import gzip
    import pickle

    owners = {
        f"{word}_{owner}_nohash_{n}.wav": owner
        for owner in range(4)
        for n, word in enumerate(("bed", "cat")[: owner + 1])
    }
    path = tmp_path / "map.pkl.gz"
    path.write_bytes(gzip.compress(pickle.dumps(owners)))
    found = clients.speech_map(path)
    assert (found["clients"], found["samples"]) == (4, 7)
    assert 0 < found["distance"] < 1


def test_pictures_show_what_was_measured() -> None:
    curves = curves_picture({"a": MEASURED["suites"]["image"]}, report.METHODS)
    assert [trace.name for trace in curves.data] == list(report.METHODS)
    sizes = clients_picture(MEASURED["federations"], MEASURED["size_edges"])
    assert len({trace.name for trace in sizes.data}) == len(MEASURED["federations"])
    assert len(timeline_picture(MEASURED["timeline"]).data[0].x) == study.TIMELINE
    for name in re.findall(r"images/(fedscale-[\w-]+\.svg)", report.PAGE.read_text(encoding="utf-8")):
        assert (report.DOCS / "images" / name).exists()

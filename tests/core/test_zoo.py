"""The zoo says what was measured, its commands can be run, and no dataset of the catalogue is left out."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import real_pieces
import zoo
import zoo_report as report
from fedarena.data.registry import FEDERATIONS
from fedarena.runs.config import parse_overrides, resolve_settings

MEASURED = json.loads(report.MEASURED.read_text(encoding="utf-8"))
COMMON, SEEDS, ROWS = zoo.read_rows()
# What has no dataset of its own: a folder of stores, and samples that are on devices.
WITHOUT_A_DATASET = {"store", "devices"}


def test_the_page_is_what_its_numbers_come_to() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(MEASURED)


def test_every_dataset_has_a_row() -> None:
    assert {row.federation for row in ROWS} == set(FEDERATIONS.names()) - WITHOUT_A_DATASET


def test_rows_are_called_differently_and_all_that_can_be_run_was() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert set(MEASURED["rows"]) == {row.key for row in ROWS if not row.missing}
    assert all(len(found["scores"]) == len(SEEDS) for found in MEASURED["rows"].values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_commands_can_be_resolved(row: zoo.Row) -> None:
    line = report.command(row, COMMON)
    assert line in report.PAGE.read_text(encoding="utf-8")
    program, verb, *words = shlex.split(line)
    assert (program, verb) == ("fedarena", "run")
    config = resolve_settings(None, parse_overrides(words))
    assert (config.federation["name"], config.rounds) == (row.federation, COMMON["rounds"])


def test_a_result_is_a_mean_over_seeds(tmp_path: Path) -> None:
    rows = tmp_path / "zoo.yaml"
    rows.write_text(
        "common: {fleet: fedscale, protocol: ideal, rounds: 3, cohort: 2, local.steps: 1, local.batch_size: 4}\n"
        "seeds: [0, 1]\n"
        "rows:\n"
        "  - {federation: digits, of: a few, settings: {model: mlp}}\n"
        "  - {federation: svhn, missing: true, settings: {model: cnn}}\n"
    )
    found = {"metric": "accuracy", "scores": [0.5, 0.7], "untrained": [0.1, 0.1], "baseline": 0.12}
    found |= {"hours": 1.25, "clients": 30, "parameters": 1234, "seconds": 2.0}
    text = report.page({"rows": {"digits mlp": found}, "environment": {"cores": 2}}, rows)
    assert "| `digits` (a few) | `mlp` | 1,234 | accuracy | 60.0 ± 14.1 % | 12.0 % | 1.25 | 30 |" in text
    assert re.search(r"\| `svhn` \| `cnn` \| `train_32x32.mat`, `test_32x32.mat` \|", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:protocol=ideal")
def test_rows_are_run_and_kept(tmp_path: Path) -> None:
    row = zoo.Row("digits", {"model": "logistic_regression", "engine": "reference"})
    common = {"fleet": "fedscale", "protocol": "ideal", "rounds": 1, "cohort": 2, "local.steps": 1}
    found = zoo.run_row(row, common, [0, 1], tmp_path, tmp_path)
    assert (found["metric"], found["clients"], len(found["scores"])) == ("accuracy", 30, 2)
    assert found["hours"] > 0
    assert zoo.run_row(row, common, [0, 1], tmp_path, tmp_path) == found


def test_pieces_that_are_written_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(source: Path, place: Path) -> None:
        written.append(source.name)
        (place / "a.txt").write_text("a")

    monkeypatch.setitem(real_pieces.WRITERS, "letters", ("letters/a.npz", write))
    assert not real_pieces.is_there("letters", tmp_path)
    for _ in range(2):
        folder = real_pieces.folder_of("letters", tmp_path, tmp_path / "work")
    assert written == ["a.npz"]
    assert (folder / "a.txt").exists()
    assert real_pieces.folder_of("plain", tmp_path, tmp_path / "work") == tmp_path / "plain"

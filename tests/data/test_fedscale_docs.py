"""The table of FedScale's datasets in the documentation says what is true of the catalogue and of Table 5."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from generated_files import SOURCES

from fedarena.data import load_federation
from fedarena.data.registry import FEDERATIONS
from fedarena.data.statistics.table5 import FEDSCALE_TABLE_5
from fedarena.models import MODELS, default_model
from fedarena.models.tasks import AUTOMATIC_TASK, TASKS, task_class
from fedarena.runs.opening import data_spec

PAGE = Path(__file__).parents[2] / "docs" / "fedscale_datasets.md"
HEADING = "| dataset | federation |"
UNITS = {"K": 1_000, "M": 1_000_000}


def rows() -> dict[str, list[str]]:
    """The cells of every row of the table, by federation."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (begin,) = [place for place, line in enumerate(lines) if line.startswith(HEADING)]
    found = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return found
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found[cells[1].strip("`")] = cells
    return found


def test_every_dataset_of_table_5_has_a_row() -> None:
    assert list(rows()) == list(FEDSCALE_TABLE_5) == list(SOURCES)
    assert set(rows()) <= set(FEDERATIONS.names())


@pytest.mark.parametrize("name", FEDSCALE_TABLE_5)
def test_rows_have_the_papers_numbers_and_names_of_models(name: str) -> None:
    cells = rows()[name]
    clients, samples = cells[7].split(", ")
    published = FEDSCALE_TABLE_5[name]
    assert int(clients.replace(",", "")) == published.clients
    assert round(float(samples[:-1]) * UNITS[samples[-1]]) == published.samples
    for model in re.findall(r"`(\w+)`", cells[6]):
        assert model in MODELS.names()
    for task in re.findall(r"`task=(\w+)`", cells[6]):
        assert task in TASKS.names()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FEDSCALE_TABLE_5)
def test_rows_have_the_task_the_metric_and_the_model_that_are_chosen(name: str, tmp_path: Path) -> None:
    write, _ = SOURCES[name]
    federation = load_federation(name, {"folder": str(tmp_path / "raw"), **write(tmp_path / "raw")})
    spec = data_spec(federation)
    _, _, _, _, task, metric, model, *_ = rows()[name]
    assert task.replace("-", " ") == federation.task.kind.replace("_", " ")
    assert metric == task_class(AUTOMATIC_TASK, spec).usual_metrics[0]
    assert re.findall(r"`(\w+)`", model)[0] == default_model(spec)

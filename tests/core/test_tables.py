"""The columns of a run's tables are defined once; what is written, read and documented follows from that."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from small_runs import StopAfter, config, interrupt

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.display.report.methods import evaluation_curve
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import Feedback
from fedarena.simulate.selectors import Uniform
from fedarena.storage.job_table import JobTable
from fedarena.storage.recorder import Recorder
from fedarena.storage.tables import COLUMNS, DERIVED, TABLES, batch_of_columns, batch_of_rows, table_schemas

DOCS = Path(__file__).parents[2] / "docs" / "runs.md"
ON_PHONES = {
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4], "share": 0.6, "slot_seconds": 300},
    "protocol": "synchronous",
    "engine": "reference",
    "rounds": 8,
}


@pytest.mark.parametrize("table", TABLES)
def test_the_documentation_says_what_columns_mean(table: str) -> None:
    page = DOCS.read_text(encoding="utf-8")
    for column in COLUMNS[table]:
        assert f"\n| `{column.name}` | {column.meaning} |\n" in page


def test_columns_of_metrics_follow_from_the_metrics() -> None:
    schemas = table_schemas(("loss", "anything", "personal_loss", "personal_anything"))
    assert {"anything", "anything_by_client", "training_set_anything"} <= set(schemas["rounds"].names)
    assert "training_set_personal_loss" not in schemas["rounds"].names
    assert {"personal_clients", "personal_samples", "personal_anything_p10"} <= set(schemas["rounds"].names)
    assert schemas["clients"].names[-2:] == ["personal_samples", "personal_predictions"]
    assert table_schemas(())["clients"].names == [column.name for column in COLUMNS["clients"]]


def test_what_does_not_fit_is_not_written() -> None:
    schemas = table_schemas(())
    row = {"round": 3, "train_seconds": 1.5}
    assert batch_of_rows("timings", schemas["timings"], [row]).to_pylist() == [
        {"round": 3, "train_seconds": 1.5, "evaluate_seconds": None, "clients_per_second": None}
    ]
    with pytest.raises(ValueError, match="The table of timings has no column evaluation_seconds"):
        batch_of_rows("timings", schemas["timings"], [row | {"evaluation_seconds": 2.0}])
    columns = {"round": [1], "client": ["a"], "samples": [3]}
    with pytest.raises(ValueError, match="The table of clients needs predictions"):
        batch_of_columns("clients", schemas["clients"], columns)
    with pytest.raises(ValueError, match="The table of clients has no column accuracy"):
        batch_of_columns("clients", schemas["clients"], columns | {"predictions": [3], "accuracy": [0.5]})
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, TypeError)):
        batch_of_columns("clients", schemas["clients"], columns | {"predictions": ["three"]})


def test_a_round_with_a_column_that_nobody_defined_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder.record

    def with_more(self: Recorder, outcome: Any, ids: Any) -> None:
        record(self, replace(outcome, row=outcome.row | {"happiness": 1.0}), ids)

    monkeypatch.setattr(Recorder, "record", with_more)
    with pytest.raises(ValueError, match="The table of rounds has no column happiness"):
        start_run(config(rounds=1), tmp_path)


def test_the_array_form_of_jobs_has_names_and_numbers_of_the_table(tmp_path: Path) -> None:
    run = start_run(config(**ON_PHONES), tmp_path)
    jobs, rows = JobTable.from_table(run.jobs), run.jobs.to_pylist()
    defined = {column.name for column in COLUMNS["jobs"]}
    assert {field.name for field in fields(JobTable)} - {"outcome_names"} <= defined
    assert 0 < jobs.used.sum() < len(jobs) == len(rows)
    for place, row in enumerate(rows):
        assert jobs.outcome_names[jobs.outcome[place]] == row["outcome"]
        assert jobs.used[place] == (row["outcome"] == "used")
        assert jobs.bytes[place] == row["bytes_down"] + row["bytes_up"]
        for field in fields(JobTable):
            if not field.name.startswith("outcome"):
                expected = np.nan if row[field.name] is None else row[field.name]
                np.testing.assert_equal(getattr(jobs, field.name)[place], expected)


class Remembers(Uniform):
    """Keeps all it is told."""

    heard: ClassVar[list[list[tuple[int, Feedback]]]] = []

    def prepare(self, clients, samples, cohort, seed):
        self.heard.append([])

    def observe(self, round, feedback):
        self.heard[-1].append((round, feedback))


def test_a_resumed_selector_hears_again_what_it_heard_before(tmp_path: Path) -> None:
    Remembers.heard.clear()
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**ON_PHONES, selector=Remembers), tmp_path, StopAfter(5, interrupt))
    resume_run(tmp_path / "small")
    before, after = (heard for heard in Remembers.heard if heard)
    assert [round for round, _ in before] == [1, 2, 3, 4, 5]
    assert [round for round, _ in after] == list(range(1, 9))
    assert any(not feedback.used.all() for _, feedback in before)
    for (_, told), (_, again) in zip(before, after, strict=False):
        for field in fields(Feedback):
            np.testing.assert_array_equal(getattr(told, field.name), getattr(again, field.name))
            assert getattr(told, field.name).dtype == getattr(again, field.name).dtype


@pytest.mark.parametrize("name", [*sorted(DERIVED), "accuracy_std"])
def test_a_metric_cannot_be_called_what_tables_of_results_call_something_else(name: str) -> None:
    with pytest.raises(BadInputError, match=f"A metric cannot be called '{name}'.* give your metric another name"):
        table_schemas(("accuracy", name))
    table_schemas(("accuracy", f"{name}_of_mine"))


def test_names_that_are_refused_are_all_that_results_add_to_the_tables_of_a_run(tmp_path: Path) -> None:
    """A column that is added there one day must not be that of somebody's metric either."""
    settings = {"federation": "digits", "model": "logistic_regression", "rounds": 1, "fleet": "uniform"}
    runs = [
        fedarena.run(
            settings | {"attack": {"name": "sign_flip", "share": share}, "aggregator": aggregator},
            runs_folder=tmp_path,
            progress=False,
        )
        for share in (0.0, 0.2)
        for aggregator in ("mean", "median")
    ]
    run, tables = runs[0], fedarena.compare(runs)
    names = {*evaluation_curve(run), *tables.table().column_names, *tables.robustness().column_names}
    recorded = {*run.rounds.column_names, *(f"{name}_std" for name in run.rounds.column_names)}
    assert names - recorded - {f"{name}_std" for name in DERIVED} == DERIVED

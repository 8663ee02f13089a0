"""LEAF's metrics files: written from runs, read, added up and drawn."""

from __future__ import annotations

import csv
import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fedarena.analysis.leaf_metrics import (
    STATISTICAL,
    SYSTEMS,
    accuracies_of_run,
    accuracy_curve,
    accuracy_rows,
    cost_rows,
    costs_of_run,
    read_leaf_metrics,
    spent_until,
    summed_costs,
    write_leaf_metrics,
)
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.display.drawing.units import BYTES, FLOPS
from fedarena.display.leaf.costs import computations, leaf_budget_figure, traffic
from fedarena.display.leaf.page import (
    leaf_accuracy_figure,
    leaf_box_figure,
    leaf_looks,
    leaf_percentile_figure,
    write_leaf_page,
)
from fedarena.display.leaf.sources import join_tables, load_leaf_results
from fedarena.runs.config import resolve_settings
from fedarena.runs.run import start_run
from fedarena.storage.run_data import RunData
from fedarena.storage.run_files import RunFiles

BASELINES = Path(__file__).parents[3] / "shared" / "data" / "leaf_baseline_metrics"
STAT_HEADER = "client_id,round_number,hierarchy,num_samples,accuracy\n"
SYS_HEADER = "client_id,round_number,hierarchy,num_samples,bytes_written,bytes_read,local_computations\n"
STAT = STAT_HEADER + "ann,0,,10,0.5\nbob,0,,30,0.1\nann,4,,10,0.7\nbob,4,,30,0.3\n"
SYS = SYS_HEADER + "ann,0,,10,100,200,5000\nbob,0,,30,100,200,15000\nann,1,,10,100,200,5000\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A run in which some phones leave before they are done."""
    settings = {
        "name": "a",
        "federation": "digits",
        "model": "logistic_regression",
        "rounds": 4,
        "cohort": 5,
        "evaluation": {"every": 2},
        "fleet": {"name": "uniform", "seconds_per_sample": [0.1, 3.0], "share": 0.4, "slot_seconds": 300},
        "clock": {"start_hour": 7.0, "crash_rate": 0.3},
    }
    return start_run(resolve_settings(settings, {}), tmp_path_factory.mktemp("runs"))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_accuracies_over_clients(tmp_path: Path) -> None:
    curve = accuracy_curve(read_leaf_metrics(written(tmp_path / "stat.csv", STAT)))
    assert curve.rounds.tolist() == [0, 4]
    np.testing.assert_allclose(curve.weighted, [0.2, 0.4])
    np.testing.assert_allclose(curve.mean, [0.3, 0.5])
    np.testing.assert_allclose(curve.percentiles[10], [0.14, 0.34])
    np.testing.assert_allclose(curve.percentiles[90], [0.46, 0.66])


def test_costs_are_summed(tmp_path: Path) -> None:
    rounds, costs = summed_costs(read_leaf_metrics(written(tmp_path / "sys.csv", SYS)))
    assert rounds.tolist() == [0, 1]
    assert {key: values.tolist() for key, values in costs.items()} == {
        "bytes_written": [200, 300],
        "bytes_read": [400, 600],
        "local_computations": [20000, 25000],
    }


def test_samples_for_training_do_not_count_as_test(tmp_path: Path) -> None:
    """The released code writes both, and the loss."""
    text = "client_id,round_number,hierarchy,num_samples,set,accuracy,loss\n"
    text += 'ann,0,"a,b",10,train,1.0,0.1\nann,0,"a,b",10,test,0.5,2.5\n'
    assert accuracy_curve(read_leaf_metrics(written(tmp_path / "a.csv", text))).mean.tolist() == [0.5]
    only_training = text.rpartition("ann")[0]
    assert accuracy_curve(read_leaf_metrics(written(tmp_path / "b.csv", only_training))).mean.tolist() == [1.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (STAT.replace("accuracy", "acc"), "line 1: there is no column accuracy; LEAF's files have client_id"),
        (SYS.replace("bytes_read,", ""), "line 1: there is no column bytes_read"),
        (STAT.replace("hierarchy", "accuracy"), "line 1: two columns have the same name"),
        (STAT.replace("0.1", "a tenth"), "line 3: accuracy is 'a tenth', not a number between 0 and 1"),
        (STAT.replace("0.1", "nan"), "line 3: accuracy is 'nan', not a number between 0 and 1"),
        (STAT.replace("0.1", "10"), "line 3: accuracy is '10', not a number between 0 and 1"),
        (STAT.replace("bob,4,,30", "bob,4,,"), "line 5: num_samples is '', not a number of 0 or more"),
        (STAT.replace("bob,0,,30", "bob,0,30"), "line 3: 4 cells for 5 columns"),
        (STAT.replace("ann,4", '"ann,4'), "line 5: unexpected end of data"),
        (SYS.replace("15000", "-1"), "line 3: local_computations is '-1', not a number of 0 or more"),
        (STAT_HEADER, "has no rows, only the names of its columns"),
        ("", "is empty"),
    ],
)
def test_files_that_are_not_as_they_should_be(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path / "stat.csv", text)
    with pytest.raises(BadInputError) as refusal:
        read_leaf_metrics(path)
    assert f"{path}" in str(refusal.value)
    assert sentence in str(refusal.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "stat_metrics_k_10.csv.gz"
    path.write_bytes(gzip.compress(STAT.encode()))
    assert read_leaf_metrics(path).name == "k_10"
    path.write_bytes(gzip.compress(STAT.encode())[:-9])
    with pytest.raises(BadInputError, match="cannot be uncompressed"):
        read_leaf_metrics(path)
    path.write_bytes(STAT.encode() + b"\xff,0,,1,1\n")
    with pytest.raises(BadInputError, match="line 6: this is not UTF-8"):
        read_leaf_metrics(path)
    with pytest.raises(BadInputError, match="There is no file"):
        read_leaf_metrics(tmp_path / "nowhere.csv")


def test_a_run_as_leafs_files(run: RunData, tmp_path: Path) -> None:
    """What is read back adds up to what the run says of itself."""
    assert write_leaf_metrics(run, tmp_path, "baseline") == [tmp_path / STATISTICAL, tmp_path / SYSTEMS]
    assert (tmp_path / STATISTICAL).read_text().startswith(STAT_HEADER)
    assert (tmp_path / SYSTEMS).read_text().startswith(SYS_HEADER)
    rounds = run.rounds.to_pandas()
    evaluated = rounds.dropna(subset=["accuracy"])
    curve = accuracy_curve(read_leaf_metrics(tmp_path / STATISTICAL))
    assert curve.rounds.tolist() == evaluated["round"].tolist()
    np.testing.assert_allclose(curve.weighted, evaluated["accuracy"])
    np.testing.assert_allclose(curve.mean, evaluated["accuracy_by_client"])
    np.testing.assert_allclose(curve.percentiles[10], evaluated["accuracy_p10"])
    assert rounds["failed"].sum() > 0
    _, costs = summed_costs(read_leaf_metrics(tmp_path / SYSTEMS))
    assert costs["bytes_written"][-1] == rounds["bytes_up"].sum()
    assert costs["bytes_read"][-1] == rounds["bytes_down"].sum()
    np.testing.assert_allclose(costs["local_computations"][-1], rounds["flops"].sum(), rtol=1e-6)
    jobs = pd.read_csv(tmp_path / SYSTEMS)
    is_done = run.jobs.to_pandas()["trained_seconds"].notna()
    per_sample = (jobs["local_computations"] / jobs["num_samples"])[is_done]
    np.testing.assert_allclose(per_sample, per_sample.iloc[0], rtol=1e-6)
    assert (~is_done).any()
    stopped = (jobs["local_computations"] / jobs["num_samples"])[~is_done]  # as far as they came
    assert (stopped < per_sample.iloc[0]).all()


def test_bytes_are_those_that_were_sent(run: RunData) -> None:
    """Where that depends on what was learned, which plans cannot know."""
    planned = run.jobs["bytes_up"].to_pylist()
    really = [None if place % 2 else planned[place] - 7 for place in range(len(planned))]
    place = run.jobs.column_names.index("real_bytes_up")
    sparse = replace(run, jobs=run.jobs.set_column(place, "real_bytes_up", pa.array(really, pa.int64())))
    expected = [size if real is None else real for size, real in zip(planned, really, strict=True)]
    assert [row["bytes_written"] for row in cost_rows(sparse)] == expected
    assert [row["bytes_written"] for row in cost_rows(replace(run, jobs=run.jobs.drop(["real_bytes_up"])))] == planned


def test_the_columns_of_the_released_code(run: RunData, tmp_path: Path) -> None:
    write_leaf_metrics(run, tmp_path, "released")
    with open(tmp_path / STATISTICAL, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client_id", "round_number", "hierarchy", "num_samples", "set", "accuracy", "loss"]
    assert {row["set"] for row in rows} == {"test"}
    with open(tmp_path / SYSTEMS, newline="") as file:
        assert {row["set"] for row in csv.DictReader(file)} == {"train"}


HOSTILE = ["=1+1", "+1 2", "-x", "@sum", "\tx", "'=1+1", "''=1+1", "\n=1", "-5", "+3.5", "a=b", "'x", ""]


def test_ids_are_no_formulas(run: RunData, tmp_path: Path) -> None:
    ids = [HOSTILE[row % len(HOSTILE)] for row in range(len(run.clients))]
    column = run.clients.column_names.index("client")
    hostile = replace(run, clients=run.clients.set_column(column, "client", pa.array(ids)))
    write_leaf_metrics(hostile, tmp_path, "released")
    as_pandas = pd.read_csv(tmp_path / STATISTICAL, dtype=str, keep_default_na=False)["client_id"].tolist()
    with open(tmp_path / STATISTICAL, newline="") as file:
        assert [row["client_id"] for row in csv.DictReader(file)] == as_pandas
    assert len(set(as_pandas)) == len(set(ids))
    for original, read in zip(ids, as_pandas, strict=True):
        if original in ("-5", "+3.5", "a=b", "'x", ""):
            assert read == original
        else:
            assert read == f"'{original}"
    assert accuracy_curve(read_leaf_metrics(tmp_path / STATISTICAL)).rounds.tolist() == [0, 2, 4]


def test_hierarchies_are_attributes(run: RunData) -> None:
    clients = run.clients["client"].unique()
    known = pa.table({"client": clients, "age": np.arange(len(clients)), "play": ["Lear, King"] * len(clients)})
    with_attributes = RunData(**{**vars(run), "attributes": known})
    assert accuracy_rows(run)[0]["hierarchy"] == ""
    assert accuracy_rows(with_attributes)[0]["hierarchy"] == "Lear, King"
    assert accuracy_rows(with_attributes, "age")[1]["hierarchy"] == "1"
    with pytest.raises(BadInputError, match=r"have no attribute 'plays'; did you mean 'play'\?"):
        accuracy_rows(with_attributes, "plays")


def test_accuracies_are_means_over_predictions(run: RunData) -> None:
    """Of which a sample of text has many; runs of before say only how many samples there were."""
    place = run.clients.column_names.index("predictions")
    samples = run.clients["samples"].to_pylist()
    many = run.clients.set_column(place, "predictions", pa.array([7 * number for number in samples]))
    for clients, expected in ((many, [7 * number for number in samples]), (run.clients.drop(["predictions"]), samples)):
        assert [row["num_samples"] for row in accuracy_rows(RunData(**{**vars(run), "clients": clients}))] == expected


def test_traffic_goes_both_ways(tmp_path: Path) -> None:
    sums = traffic({"a": summed_costs(read_leaf_metrics(written(tmp_path / "sys.csv", SYS)))})
    assert sums["a"][1].tolist() == [600, 900]


def test_what_was_spent_when_models_were_evaluated(run: RunData) -> None:
    """The untrained model cost nothing, also where LEAF begins to count rounds at 0."""
    found = spent_until(np.array([0.0, 1, 4, 9]), np.array([0.0, 1, 4, 5]), np.array([2.0, 3, 5, 8]))
    assert found.tolist() == [0, 3, 5, 8]
    rounds = run.rounds.to_pandas().fillna({"bytes_up": 0, "bytes_down": 0, "flops": 0})
    is_evaluated = rounds["accuracy"].notna()
    assert not is_evaluated.all()
    curves, systems = {"a": accuracy_curve(accuracies_of_run(run))}, {"a": summed_costs(costs_of_run(run))}
    expected = {
        BYTES: (traffic(systems), (rounds["bytes_up"] + rounds["bytes_down"]).cumsum()[is_evaluated]),
        FLOPS: (computations(systems), rounds["flops"].cumsum()[is_evaluated]),
    }
    for scale, (sums, total) in expected.items():
        (line,) = leaf_budget_figure("title", scale, curves, sums, leaf_looks(["a"])).data
        np.testing.assert_allclose(line.x / line.x[-1], total / total.iloc[-1], rtol=1e-6)
        np.testing.assert_allclose(line.y, rounds["accuracy"][is_evaluated])


def test_pictures_show_the_numbers(tmp_path: Path) -> None:
    curves = {"a": accuracy_curve(read_leaf_metrics(written(tmp_path / "stat.csv", STAT)))}
    weighted, mean = leaf_accuracy_figure(curves, leaf_looks("a")).data
    np.testing.assert_allclose(weighted.y, [0.2, 0.4])
    np.testing.assert_allclose(mean.y, [0.3, 0.5])
    low, high, middle = leaf_percentile_figure(curves, leaf_looks("a")).data
    np.testing.assert_allclose([low.y[0], middle.y[0], high.y[0]], [0.14, 0.3, 0.46])
    box = leaf_box_figure(curves, leaf_looks("a")).data[0]
    found = [box.lowerfence[0], box.q1[0], box.median[0], box.q3[0], box.upperfence[0]]
    np.testing.assert_allclose(found, [0.34, 0.4, 0.5, 0.6, 0.66])


def test_the_page_tells_files_of_one_name_apart(run: RunData, tmp_path: Path) -> None:
    tables = [accuracies_of_run(run), accuracies_of_run(run), costs_of_run(run)]
    page = write_leaf_page(join_tables(tables), tmp_path / "page.html").read_text()
    assert "a (2)" in page
    assert "a (3)" not in page
    assert "2 files of accuracies and 1 file of bytes and computations" in page


def test_the_commands(run: RunData, tmp_path: Path) -> None:
    def call(*arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == code, result.output
        return result.output

    assert f"stat_metrics.csv with {len(run.clients)} rows" in call("leaf-metrics", run.path, tmp_path / "out")
    call("leaf-plot", run.path, tmp_path / "out" / STATISTICAL, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()
    for folder in (tmp_path / "out", run.path.parent):
        call("leaf-plot", folder, "-o", tmp_path / f"{folder.name}.html")
        assert "1 file of accuracies and 1 file of bytes" in (tmp_path / f"{folder.name}.html").read_text()
    for name in ("begun/a", "begun/b"):
        shutil.copytree(run.path, tmp_path / name)
        RunFiles.open(tmp_path / name).reopen()  # as if it had been killed in its first round
        (tmp_path / name / "checkpoint" / "state.json").unlink()
    assert "b has no finished round yet" in call("leaf-plot", tmp_path / "begun" / "b", code=2)
    assert "a has no finished round yet" in call("leaf-plot", tmp_path / "begun", code=2)
    shutil.copytree(run.path, tmp_path / "begun" / "a", dirs_exist_ok=True)
    said = call("leaf-plot", tmp_path / "begun", "-o", tmp_path / "begun.html")
    assert "Left out: The run" in said
    assert "b has no finished round yet" in said
    (tmp_path / "empty").mkdir()
    refusal = call("leaf-plot", tmp_path / "empty", code=2)
    assert "empty holds neither metrics files (*_metrics*.csv" in refusal
    assert "end the name with .html" in call("leaf-plot", run.path, "-o", tmp_path / "page.png", code=2)
    assert "is a file; name a folder" in call("leaf-metrics", run.path, tmp_path / "page.html", code=2)


@pytest.mark.skipif(not BASELINES.is_dir(), reason="LEAF's own files are not here")
def test_leafs_own_files(tmp_path: Path) -> None:
    """Their numbers are those that LEAF's notebook would compute with pandas."""
    paths = sorted(BASELINES.glob("*.csv*"))
    tables = [read_leaf_metrics(path) for path in paths]
    assert [table.is_statistical for table in tables] == [path.name.startswith("stat") for path in paths]
    for path, table in zip(paths, tables, strict=True):
        frame = pd.read_csv(path)
        if not table.is_statistical:
            _, costs = summed_costs(table)
            assert costs["bytes_read"][-1] == frame["bytes_read"].sum()
            continue
        curve, by_round = accuracy_curve(table), frame.groupby("round_number")["accuracy"]
        np.testing.assert_allclose(curve.mean, by_round.mean())
        np.testing.assert_allclose(curve.percentiles[90], by_round.quantile(0.9))
        weighted = (frame["accuracy"] * frame["num_samples"]).groupby(frame["round_number"]).sum()
        np.testing.assert_allclose(curve.weighted, weighted / frame.groupby("round_number")["num_samples"].sum())
    results = load_leaf_results([BASELINES], pytest.fail)
    names = ["k_10", "k_100", "k_30", "minibatch_c_35_mb_1", "minibatch_c_3_mb_1"]
    assert [(result.name, result.costs is not None) for result in results] == [
        (name, "35" not in name) for name in names
    ]
    page = write_leaf_page(results, tmp_path / "page.html").read_text()
    assert "5 files of accuracies and 4 files of bytes and computations" in page

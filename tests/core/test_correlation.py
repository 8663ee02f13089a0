"""Metrics of fleets against what came out of runs: groups, constants, targets, the page and the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import forge
from typer.testing import CliRunner

from fedarena.analysis.correlation import (
    Point,
    Study,
    correlate_points,
    default_target,
    final_score,
    hours_to,
    metric_options,
    over_seeds,
    reasons,
    study_correlations,
)
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.display.correlation import correlation_figure, headline, outcome_text, overview_figure, write_correlations
from fedarena.fleet import load_fleet
from fedarena.fleet.heterogeneity import PAPER_OPTIONS, measure_heterogeneity
from fedarena.metrics.info import ACCURACY, MetricInfo
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import start_run
from fedarena.storage.run_data import RunData, load_run, load_runs

BASE: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 20}},
    "model": "logistic_regression",
    "rounds": 12,
    "cohort": 5,
    "local": {"epochs": 1, "lr": 0.5},
    "evaluation": {"every": 2},
    "fleet": {"name": "uniform", "seconds_per_sample": 0.0, "upload_bits_per_second": 1e9},
    "clock": {"overhead_seconds": 10, "model_bytes": 1_000_000, "leaving": "pause"},
}
# A download takes 8 seconds at the mean of the first range, and up to 80 in the others.
RANGES = ([0.8e6, 1.2e6], [0.2e6, 1.8e6], [0.1e6, 0.9e6])
PROTOCOLS: dict[str, dict[str, Any]] = {
    "deadline": {"protocol": {"name": "deadline", "seconds": 12.0}},
    "readiness": {"protocol": {"name": "readiness", "share": 0.8}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three fleets, two protocols, and a run that is of no use."""
    folder = tmp_path_factory.mktemp("runs") / "speeds"
    for number, speeds in enumerate(RANGES):
        for name, protocol in PROTOCOLS.items():
            settings = {"name": f"{name}-{number}", "fleet.download_bits_per_second": speeds, **protocol}
            start_run(resolve(merge(BASE, settings)), folder)
    start_run(resolve(merge(BASE, {"name": "synchronous", "protocol": "synchronous", "rounds": 1})), folder)
    return folder


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return study_correlations(load_runs([folder]))


@pytest.mark.slow
def test_groups_have_the_metrics_that_belong_to_their_protocol(study: Study) -> None:
    found = {(group.name, group.method, group.protocol): list(group.points[0].metrics) for group in study.groups}
    assert found == {
        ("speeds", "fedavg", "deadline"): ["DevMC-R", "StatMC-R", "InterMC-R"],
        ("speeds", "fedavg", "readiness"): ["DevMC-T", "StatMC-T", "InterMC-T"],
    }
    assert [group.outcome for group in study.groups] == ["accuracy", "hours"]
    assert len(study.notes) == 1
    assert "its protocol is synchronous, not deadline or readiness" in study.notes[0]


def test_constants_are_those_of_the_runs(study: Study, folder: Path) -> None:
    deadline, readiness = study.groups
    samples = load_runs([folder / "deadline-0"])[0].jobs["samples"].to_numpy()
    for group in study.groups:
        assert group.options.cohort == 5
        assert group.options.break_seconds == 10
        assert group.options.model_bytes == 1_000_000
        assert group.options.rounds == 12
        assert group.options.trips == 60
        assert samples.min() <= group.options.samples <= samples.max()
    assert (deadline.options.deadline_seconds, deadline.options.ready_share) == (12, 1)
    assert (readiness.options.deadline_seconds, readiness.options.ready_share) == (120, 0.8)


def test_a_method_that_trains_two_models_takes_twice_as_long() -> None:
    plain, double = (
        metric_options(prepare(resolve(merge(BASE, {"algorithm": name})), Observer()).simulation, 1)
        for name in ("fedavg", "ditto")
    )
    assert double.samples == pytest.approx(2 * plain.samples)
    assert double.flops_per_sample == pytest.approx(plain.flops_per_sample)


def test_clients_upload_what_a_run_has_them_upload() -> None:
    settings = {"transforms": ["sign"], "fleet.upload_bits_per_second": 1e5}
    simulation = prepare(resolve(merge(BASE, settings)), Observer()).simulation
    assert simulation.fleet is not None
    options, clients = metric_options(simulation, 1), simulation.training_clients
    jobs = simulation.world(None).phones.plan(clients, clients, np.zeros(len(clients)), 0)
    seconds = jobs.download_seconds + jobs.compute_seconds + jobs.upload_seconds
    found = measure_heterogeneity(simulation.fleet, clients, replace(options, trips=20, rounds=2))
    np.testing.assert_allclose(found.cost_seconds, seconds)


def test_a_model_of_twice_the_precision_is_twice_as_large(tmp_path: Path) -> None:
    speeds = {"download_bits_per_second": [1e3, 1e4], "upload_bits_per_second": 1e9, "seconds_per_sample": 0.0}
    changes = {"rounds": 2, "fleet": {"name": "uniform", **speeds}, "clock.model_bytes": None}
    for dtype in ("float32", "float64"):
        settings = {**changes, **PROTOCOLS["deadline"], "engine": {"name": "reference", "dtype": dtype}}
        start_run(resolve(merge(BASE, {**settings, "name": dtype})), tmp_path / "runs")
    (group,) = study_correlations(load_runs([tmp_path / "runs"])).groups
    single, double = (point.metrics["DevMC-R"] for point in group.points)
    assert double < single


def test_metrics_are_those_of_the_fleet_as_the_clients_see_it(study: Study) -> None:
    fleet = load_fleet({**BASE["fleet"], "download_bits_per_second": RANGES[1]}, 20)
    clients = np.arange(20)
    expected = measure_heterogeneity(fleet.match(clients, None, seed=0), clients, study.groups[0].options)
    point = next(point for point in study.groups[0].points if point.runs == ("deadline-1",))
    assert point.metrics == {name: expected.metrics[name].mean for name in ("DevMC-R", "StatMC-R", "InterMC-R")}


def test_slow_phones_make_low_metrics_and_long_runs(study: Study) -> None:
    deadline, readiness = study.groups
    rates = {point.runs[0]: point.metrics["DevMC-R"] for point in deadline.points}
    assert rates["deadline-0"] > rates["deadline-1"] > rates["deadline-2"]
    time = next(found for found in readiness.correlations if found.metric == "DevMC-T")
    assert time.pearson is not None
    assert time.pearson.value > 0.9
    constant = next(found for found in readiness.correlations if found.metric == "StatMC-T")
    assert constant.pearson is None
    assert constant.spearman is None


def test_hours_lead_to_a_target_that_all_reach(study: Study, folder: Path) -> None:
    runs = load_runs([folder / f"readiness-{number}" for number in range(3)])
    target = default_target(runs, ACCURACY)
    best = min(max(score for score in run.rounds["accuracy"].to_pylist() if score is not None) for run in runs)
    assert 0.1 < target <= best
    assert study.groups[1].target == target
    for run, point in zip(runs, study.groups[1].points, strict=True):
        rows = [row for row in run.rounds.to_pylist() if row["accuracy"] is not None and row["accuracy"] >= target]
        assert point.outcome == hours_to(run, ACCURACY, target) == pytest.approx(rows[0]["end_seconds"] / 3600)


def test_the_final_accuracy_is_that_of_the_last_tenth_of_the_rounds(make_rounds) -> None:
    run = make_rounds({0: 0.1, 50: 0.5, 92: 0.6, 96: 0.7, 100: 0.8})
    assert final_score(run, ACCURACY) == pytest.approx(0.7)
    assert final_score(make_rounds({0: 0.1, 50: 0.5, 100: None}), ACCURACY) == pytest.approx(0.5)
    assert final_score(make_rounds({0: None}), ACCURACY) is None


def test_an_error_falls_to_its_target(make_rounds) -> None:
    error = MetricInfo("mse", "MSE", higher_is_better=False, low=0.0)
    runs = [make_rounds({0: 5000, 1: 4000, 2: low, 3: low + 7}, error) for low in (2900, 3100)]
    target = default_target(runs, error)
    assert target == 3300, "a round number before nine tenths of the way from 5000 to 3100"
    assert [hours_to(run, error, target) for run in runs] == [2, 2]
    assert hours_to(runs[0], error, 2800) is None
    for run in runs:
        run.summary["baseline"] = {"mse": 3500.0, "metric": "mse", "rule": "always the mean"}
    assert default_target(runs, error) == 3140, "of the way from what is known beforehand"
    assert final_score(runs[0], error) == 2907
    small = [make_rounds({0: 0.04, 1: 0.013}, error)]
    assert default_target(small, error) == 0.016
    assert default_target([make_rounds({0: 3.0, 1: 3.5}, error)], error) == 3, "nothing was learned"


def test_groups_lead_with_one_metric(folder: Path) -> None:
    runs = load_runs([folder])
    for run in runs[::2]:
        run.summary["primary_metric"] = "loss"
    found = {(group.protocol, group.outcome): group for group in study_correlations(runs).groups}
    assert {outcome for _, outcome in found} >= {"accuracy", "loss"}
    assert "test loss" in {outcome_text(group) for group in found.values()}


@pytest.fixture
def make_rounds(folder: Path):
    """A run with these scores by round, a round an hour."""
    import pyarrow as pa

    def make(scores: dict[int, float | None], metric: MetricInfo = ACCURACY) -> RunData:
        run = load_runs([folder / "deadline-0"])[0]
        columns = {
            "round": pa.array(list(scores), pa.int32()),
            "end_seconds": pa.array([3600.0 * round for round in scores], pa.float64()),
            metric.name: pa.array(list(scores.values()), pa.float64()),
        }
        return replace(run, rounds=pa.table(columns), summary={**run.summary, "baseline": None})

    return make


def test_who_never_reaches_the_target_is_left_out(folder: Path) -> None:
    study = study_correlations(load_runs([folder]), target=1.0)
    assert [group.protocol for group in study.groups] == ["deadline"]
    assert sum("never reached accuracy 1" in note for note in study.notes) == 3


def test_a_fleet_that_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "deadline-0", tmp_path / "changed")
    path = tmp_path / "changed" / "fleet.json"
    forge(path.parent, path.name, json.dumps(json.loads(path.read_text()) | {"fingerprint": "another"}).encode())
    with pytest.raises(BadInputError, match=r"The fleet 'uniform' is not the one that the run .* was made with"):
        study_correlations(load_runs([tmp_path / "changed"]))


def test_nothing_to_correlate_is_said(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"nothing to correlate: no finished run .* its protocol is synchronous"):
        study_correlations(load_runs([folder / "synchronous"]))


def test_folders_of_the_same_name_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / folder.name)
    groups = study_correlations(load_runs([folder, tmp_path / folder.name])).groups
    assert len(groups) == 4
    assert len({group.name for group in groups}) == 2
    assert all(group.name.endswith(f"/{folder.name}") for group in groups)


def test_a_copy_of_a_run_counts_once(folder: Path, tmp_path: Path) -> None:
    for name in ("deadline-0", "deadline-1"):
        shutil.copytree(folder / name, tmp_path / "runs" / name)
    start_run(resolve(merge(load_run(folder / "deadline-0").config, {"name": "other", "seed": 1})), tmp_path / "runs")
    (once,) = study_correlations(load_runs([tmp_path / "runs"])).groups
    shutil.copytree(folder / "deadline-0", tmp_path / "runs" / "deadline-0-copy")
    told: list[tuple[int, int]] = []
    study = study_correlations(load_runs([tmp_path / "runs"]), progress=lambda *done: told.append(done))
    (twice,) = study.groups
    assert [(point.runs, point.outcome) for point in twice.points] == [
        (point.runs, point.outcome) for point in once.points
    ]
    (note,) = study.notes
    assert note.startswith(f"deadline-0 ({tmp_path / 'runs' / 'deadline-0-copy'}) is left out: there is another run of")
    assert told[-1] == (3, 3)


def test_what_cannot_be_told_is_explained(study: Study) -> None:
    readiness = study.groups[1]
    assert reasons(readiness) == [
        "The same for all of these fleets: StatMC-T",
        "With 3 fleets there are no intervals; it takes 8 at least",
    ]
    assert reasons(replace(readiness, points=readiness.points[:1])) == [
        "There is no coefficient of fewer than 3 fleets"
    ]
    same = [replace(point, outcome=1.0) for point in readiness.points]
    assert reasons(replace(readiness, points=same)) == ["No coefficients: the hours of all fleets are the same"]


def test_coefficients_are_of_all_points() -> None:
    points = [
        Point(str(x), (str(x),), {}, {"StatMC-R": float(x), "DevMC-R": 1.0}, outcome)
        for x, outcome in enumerate([3, 2, 0, 1])
    ]
    state, device = correlate_points(points)
    assert state.pearson is not None
    assert state.pearson.value == pytest.approx(np.corrcoef([0, 1, 2, 3], [3, 2, 0, 1])[0, 1])
    assert state.spearman is not None
    assert state.spearman.value == pytest.approx(-0.8)
    assert device.pearson is None


def test_seeds_of_a_fleet_are_one_point() -> None:
    runs = [("a", "a0", 1.0, 10.0), ("b", "b0", 4.0, 30.0), ("a", "a1", 2.0, 20.0)]
    points = [Point(label, (name,), {"k": label}, {"DevMC-T": x}, y) for label, name, x, y in runs]
    first, second = over_seeds(points)
    assert (first.runs, first.metrics, first.outcome) == (("a0", "a1"), {"DevMC-T": 1.5}, 15.0)
    assert second == points[1]


def test_the_page_shows_every_metric_that_varies(study: Study, tmp_path: Path) -> None:
    page = write_correlations(study, tmp_path / "page.html").read_text()
    for metric in ("DevMC-R", "InterMC-R", "DevMC-T"):
        assert f"<h3>{metric}: r = " in page
    assert "<h3>StatMC-T" not in page
    assert "its protocol is synchronous" in page
    assert headline(study) in page.replace("&#x27;", "'")
    group = study.groups[1]
    figure = correlation_figure(group, group.correlations[0])
    drawn = [trace for trace in figure.data if trace.mode == "markers"]
    assert sorted(np.concatenate([trace.x for trace in drawn])) == sorted(group.correlations[0].x)
    assert len(drawn) == len(RANGES)  # a colour for every value of the setting that differs


def test_an_overview_has_a_panel_for_every_correlation(study: Study) -> None:
    shown = [(group, found) for group in study.groups for found in group.correlations if found.pearson is not None]
    figure = overview_figure("All", shown)
    titles = [note.text for note in figure.layout.annotations]
    assert len(titles) == len(shown) == 4
    assert titles[0].startswith("DevMC-R: r = ")
    for number, (_, found) in enumerate(shown, start=1):
        axis = "x" if number == 1 else f"x{number}"
        drawn = [trace.x for trace in figure.data if trace.mode == "markers" and trace.xaxis == axis]
        assert sorted(np.concatenate(drawn)) == sorted(found.x)
    first, fourth = figure.layout.yaxis.domain, figure.layout.yaxis4.domain
    assert first[0] > fourth[1]  # three beside each other, the fourth below


def test_the_command_prints_and_writes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["correlate", str(folder), "-o", "found.html", "--target", "0.3"])
    assert result.exit_code == 0, result.output
    assert "DevMC-T" in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert [group["target"] for group in found["groups"]] == [None, 0.3]
    assert found["groups"][0]["correlations"]["StatMC-R"]["pearson"] is None
    assert len(found["groups"][0]["points"]) == len(RANGES)
    assert found["groups"][0]["options"]["confidence"] == PAPER_OPTIONS.confidence
    assert (tmp_path / "found.html").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["-o", "page.txt"], "end the name with .html"), (["nowhere"], "There is no run folder")],
)
def test_wrong_arguments_exit_with_2(folder: Path, arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["correlate", str(folder / "deadline-0"), *arguments])
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())

"""Runs as they lie on disk: labels that tell them apart, and folders of versions that had no clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import fedarena
from fedarena.analysis.distinct import left_out_lines
from fedarena.core.errors import BadInputError
from fedarena.display.terminal import caution_lines
from fedarena.storage.run_data import find_runs, label_runs, load_run, load_runs

NEW_COLUMNS = (
    *("invited", "failed", "end_seconds", "wasted_seconds", "wasted_bytes", "joules", "staleness", "succeeded"),
)


def labels(make_run, *changes):
    return [run.label for run in label_runs([make_run(config=change) for change in changes])]


def test_a_parts_options_are_not_told_where_its_name_is(make_run):
    assert labels(
        make_run,
        {"protocol": {"name": "synchronous", "over_commit": 1.3}, "clock": {"start_hour": 8}},
        {"protocol": {"name": "buffered", "buffer_size": 10}, "clock": {"start_hour": 8}},
    ) == ["fedavg synchronous", "fedavg buffered"]


def test_options_are_told_among_runs_of_the_same_part(make_run):
    assert labels(
        make_run,
        {"protocol": {"name": "synchronous", "over_commit": 1.3}},
        {"protocol": {"name": "synchronous", "over_commit": 1.0}},
        {"protocol": {"name": "buffered", "over_commit": 9}},
        {"protocol": {"name": "buffered", "over_commit": 9}, "cohort": 30},
    ) == [
        "fedavg cohort=20 synchronous over_commit=1.3",
        "fedavg cohort=20 synchronous over_commit=1.0",
        "fedavg cohort=20 buffered",
        "fedavg cohort=30 buffered",
    ]


def test_options_of_inner_parts_count_where_all_outer_ones_are_alike(make_run):
    def data(name, partitioner, **options):
        return {"federation": {"name": name, "partitioner": {"name": partitioner, **options}}}

    assert labels(
        make_run,
        data("digits", "dirichlet", alpha=1),
        data("digits", "dirichlet", alpha=0.1),
        data("digits", "iid"),
        data("letters", "dirichlet", alpha=5),
    ) == ["fedavg digits dirichlet alpha=1", "fedavg digits dirichlet alpha=0.1", "fedavg digits iid", "fedavg letters"]


@pytest.fixture
def old_folder(make_run, tmp_path) -> Path:
    """A finished run as versions without a clock wrote it."""
    run = make_run()
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config))
    (folder / "environment.json").write_text(json.dumps(run.environment))
    (folder / "summary.json").write_text(json.dumps(run.summary))
    pq.write_table(run.rounds.drop_columns(list(NEW_COLUMNS)), folder / "rounds.parquet")
    pq.write_table(run.clients, folder / "clients.parquet")
    pq.write_table(run.timings, folder / "timings.parquet")
    return folder


def test_a_run_from_before_has_no_jobs_no_fleet_and_empty_columns(old_folder, make_run):
    run = load_run(old_folder)
    assert run.fleet is None
    assert run.jobs.num_rows == 0
    assert run.jobs.schema == make_run().jobs.schema
    assert all(run.rounds[name].null_count == run.rounds.num_rows for name in NEW_COLUMNS)
    assert run.rounds.select(make_run().rounds.column_names).equals(make_run().rounds)


def test_the_fleet_is_read_where_there_is_one(old_folder):
    (old_folder / "fleet.json").write_text(json.dumps({"name": "phones", "clients": 3}))
    assert load_run(old_folder).fleet == {"name": "phones", "clients": 3}


def test_runs_come_as_people_sort_them(tmp_path: Path) -> None:
    for name in ("epochs20-seed0", "epochs5-seed0", "epochs100-seed1", "epochs100-seed0", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    names = [path.name for path in find_runs([tmp_path])]
    assert names == ["a", "epochs5-seed0", "epochs20-seed0", "epochs100-seed0", "epochs100-seed1"]


def test_a_run_that_has_lost_its_settings_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    for number, name in enumerate(("whole", "lost")):
        fedarena.run(
            federation="digits",
            model="logistic_regression",
            rounds=1,
            seed=number,
            name=name,
            runs_folder=tmp_path / "suite",
            progress=False,
        )
    (tmp_path / "suite" / "lost" / "config.yaml").unlink()
    for place in (tmp_path, tmp_path / "suite"):
        with pytest.raises(BadInputError, match=r"suite/lost is not a run folder: it has no config.yaml"):
            load_runs([place])


def test_labels_that_runs_bring_along_are_kept(make_run):
    own = {"label": "FedExP", "algorithm": {"name": "mine:Extrapolating"}}
    assert labels(make_run, own, {"label": "FedBuff", "cohort": 40, "protocol": {"name": "buffered"}}, {}) == [
        "FedExP",
        "FedBuff",
        "fedavg",
    ]


def test_what_is_called_the_same_is_told_apart_by_what_differs(make_run):
    assert labels(make_run, {"label": "mine", "cohort": 10}, {"label": "mine", "cohort": 30}, {"cohort": 30}) == [
        "mine cohort=10",
        "mine cohort=30",
        "fedavg",
    ]


def test_an_own_class_is_called_by_its_name(make_run):
    assert labels(make_run, {"algorithm": {"name": "mine:FedExP"}}, {"algorithm": {"name": "fedprox"}}) == [
        "FedExP",
        "fedprox",
    ]
    assert labels(make_run, {"algorithm": {"name": "mine:FedExP"}}, {"algorithm": {"name": "yours:FedExP"}}) == [
        "FedExP mine:FedExP",
        "FedExP yours:FedExP",
    ]


UNLIKE = {
    "rounds": 7,
    "cohort": 3,
    "federation": {"name": "digits"},
    "model": {"name": "mlp"},
    "local": {"epochs": 2, "lr": 1.0},
}


def test_runs_that_differ_in_a_lot_are_called_by_their_names(make_run):
    runs = [make_run(name=f"small-seed{seed}", seed=seed, config=UNLIKE) for seed in (0, 1)]
    found = label_runs([*runs, make_run(name="large")])
    assert [run.label for run in found] == ["small", "small", "large"]


def test_names_that_do_not_tell_runs_apart_come_with_their_folder(make_run):
    one, other = make_run(name="a"), make_run(name="a", config=UNLIKE)
    found = label_runs([replace(one, path=Path("x/a")), replace(other, path=Path("y/a"))])
    assert [run.label for run in found] == ["x/a", "y/a"]
    assert len({run.label for run in label_runs([one, other])}) == 2, "rather long than the same"


def test_versions_of_an_own_source_are_different_methods(make_run) -> None:
    def made_by(version: str, name: str, seed: int):
        environment = {"seed": seed, "own_source": {"files": {}, "fingerprints": {"mine": version}, "unknown": []}}
        run = make_run(name=name, config={"seed": seed})
        return replace(run, environment=run.environment | environment, path=Path("runs") / name)

    first = [made_by("1", f"old-seed{seed}", seed) for seed in (0, 1)]
    assert {run.label for run in label_runs(first)} == {"fedavg"}
    found = label_runs([*first, made_by("2", "new-seed0", 0)])
    assert [run.label for run in found] == ["fedavg (old)", "fedavg (old)", "fedavg (new)"]
    assert left_out_lines(found) == []
    elsewhere = [replace(first[0], path=Path("a/x")), replace(made_by("2", "old-seed0", 0), path=Path("b/x"))]
    assert [run.label for run in label_runs(elsewhere)] == ["fedavg (a/old)", "fedavg (b/old)"]


def test_a_fork_is_another_method_than_a_run_from_scratch(make_run) -> None:
    def made(name: str, seed: int, parent: str | None = None, round: int = 6):
        run = make_run(name=name, config={"seed": seed})
        fork = {} if parent is None else {"forked_from": {"run": f"/runs/{parent}", "round": round}}
        return replace(run, environment=run.environment | {"seed": seed} | fork, path=Path("runs") / name)

    scratch, cooled = made("scratch", 0), [made(f"cooled-seed{seed}", seed, f"hot-seed{seed}") for seed in (0, 1)]
    for forks in (cooled[:1], cooled[1:], cooled):
        found = label_runs([scratch, *forks])
        assert [run.label for run in found] == ["fedavg (scratch)", *["fedavg (cooled)"] * len(forks)]
        assert left_out_lines(found) == []
    assert {run.label for run in label_runs(cooled)} == {"fedavg"}
    found = label_runs([*cooled, made("later-seed0", 0, "hot-seed0", 8), made("warm-seed0", 0, "warm-seed0")])
    assert [run.label for run in found] == [*["fedavg (cooled)"] * 2, "fedavg (later)", "fedavg (warm)"]


def test_the_terminal_tells_which_run_is_left_out(make_run) -> None:
    one = make_run(name="one")
    runs = label_runs([replace(one, path=Path("runs/one")), replace(one, name="again", path=Path("runs/again"))])
    line = "again (runs/again) is left out: there is another run of fedavg with seed 0."
    assert line in caution_lines(runs)

"""Trackers show what a run recorded, each round once, and cannot stop or change it."""

from __future__ import annotations

import importlib.util
import json
import random
import threading
import time
from pathlib import Path

import pytest
import yaml
from tracked_runs import SMALL, config, content, expected
from typer.testing import CliRunner

import fedarena
import warm_processes
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.display.running import run_with_report
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite import read_suite
from fedarena.storage import recorder
from fedarena.storage.run_data import label_runs, load_run
from fedarena.track import Tracker, export_run, live
from fedarena.track.session import Session
from suite_runs import run_suite

TENSORBOARD = {"name": "tensorboard", "folder": None}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without trackers."""
    return start_run(config(), tmp_path_factory.mktemp("plain")).path


class Listener(Observer):
    """Remembers warnings, and may stop the run."""

    def __init__(self, stop_after: int | None = None):
        self.warnings: list[str] = []
        self._stop_after = stop_after

    def warned(self, message: str) -> None:
        if "tracker" in message:
            self.warnings.append(message)

    def finished_round(self, outcome) -> None:
        if outcome.snapshot.round == self._stop_after:
            raise KeyboardInterrupt


class Notebook(Tracker):
    """A tracker of one's own: writes down what it is told."""

    def __init__(self, *, path: str):
        self._path = Path(path)

    def begin(self, run):
        self._add({"begin": run.name, "kept": dict(run.kept), "metric": run.metric, "tags": run.tags})

    def log(self, steps):
        for step in steps:
            self._add({"round": step.round, "hours": step.hours, "values": dict(step.values)})

    def kept(self):
        return {"id": "notebook-1"}

    def finish(self, ending):
        self._add({"finish": ending.status, "summary": dict(ending.summary), "report": str(ending.report)})

    def _add(self, line):
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def notes(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def own(path: Path) -> dict:
    return {"name": f"{__name__}:Notebook", "path": str(path)}


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_tracker_of_ones_own_is_told_every_round_once(tmp_path: Path, plain: Path) -> None:
    folder = run_with_report(config(track=own(tmp_path / "notes")), tmp_path / "runs", progress=False).path
    begin, *rounds, finish = notes(tmp_path / "notes")
    assert begin == {
        "begin": "small",
        "kept": {},
        "metric": "test/accuracy",
        "tags": {
            "federation": "digits",
            "model": "logistic_regression",
            "algorithm": "fedavg",
            "fleet": "uniform",
            "protocol": "synchronous",
            "seed": "0",
            "suite": "runs",
        },
    }
    assert [line["round"] for line in rounds] == list(range(13))
    for name, values in expected(folder).items():
        shown = {line["round"]: line["values"][name] for line in rounds if name in line["values"]}
        assert shown == values, name
    assert rounds[-1]["hours"] == pytest.approx(load_run(folder).summary["virtual_hours"])
    assert finish["finish"] == "finished"
    assert finish["summary"]["test/accuracy"] == load_run(folder).summary["final"]["accuracy"]
    assert finish["report"] == str(folder / "report.html")
    assert Path(finish["report"]).stat().st_size > 1_000_000
    assert content(folder) == content(plain)


def test_names_say_which_part_was_evaluated_and_whose_models(tmp_path: Path) -> None:
    settings = {"algorithm": "ditto", "evaluation.part": "train", "evaluation.training_set": True, "rounds": 3}
    start_run(config(track=own(tmp_path / "notes"), **settings), tmp_path)
    names = set().union(*(line["values"] for line in notes(tmp_path / "notes") if "values" in line))
    assert {"train/accuracy_p10", "personal/accuracy_p90", "training_set/loss", "training/loss"} <= names
    assert {name.partition("/")[0] for name in names} == {
        *("train", "personal", "training_set", "training", "systems", "timings")
    }


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_tensorboard(folder: Path, shown: dict[str, list[tuple[int, float]]]) -> None:
    for name, values in expected(folder).items():
        assert [step for step, _ in shown[name]] == list(values), name
        assert [value for _, value in shown[name]] == pytest.approx(list(values.values()), rel=1e-6), name


def test_tensorboard_has_the_values_of_the_table_and_the_settings(tmp_path: Path, plain: Path) -> None:
    folder = run_with_report(config(track="tensorboard"), tmp_path, progress=False).path
    shown = scalars(folder / "tensorboard")
    check_tensorboard(folder, shown)
    assert content(folder) == content(plain)
    evaluated, hours = (expected(folder)[name] for name in ("test/accuracy", "systems/hours"))
    over_time = [(round(3600 * hours[at]), pytest.approx(value)) for at, value in evaluated.items() if at]
    assert shown["over_virtual_seconds/test/accuracy"] == over_time
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hyperparameters = metadata.parse_session_start_info_plugin_data(start).hparams
    assert (
        hyperparameters["local.lr"].number_value == yaml.safe_load((folder / "config.yaml").read_text())["local"]["lr"]
    )
    assert hyperparameters["algorithm.name"].string_value == "fedavg"
    assert b"report.html" in events.Tensors("ending/text_summary")[0].tensor_proto.string_val[0]


# --- stopping and going on --------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_where_the_tracker_stands(tmp_path: Path, plain: Path) -> None:
    tracked = config(track=[own(tmp_path / "notes"), "tensorboard"])
    with pytest.raises(KeyboardInterrupt):
        start_run(tracked, tmp_path, Listener(stop_after=5))
    assert notes(tmp_path / "notes")[-1]["finish"] == "interrupted"
    folder = resume_run(tmp_path / "small").path
    lines = notes(tmp_path / "notes")
    assert [line["kept"] for line in lines if "begin" in line] == [{}, {"id": "notebook-1"}]
    assert [line["round"] for line in lines if "round" in line] == list(range(13))
    check_tensorboard(folder, scalars(folder / "tensorboard"))
    assert content(folder) == content(plain)


def start_or_resume(folder: Path) -> None:
    recorder._COMMIT_SHARE, live.PAUSE_SECONDS = 1.0, 0.01
    if (folder / "small").exists():
        resume_run(folder / "small")
    else:
        start_run(resolve(merge({}, SMALL | {"rounds": 40, "track": "tensorboard", "engine": "reference"})), folder)


def handed(folder: Path) -> int:
    path = folder / "small" / "tracking.json"
    return json.loads(path.read_text())["trackers"][0]["round"] if path.exists() else -1


@pytest.mark.slow
def test_killed_at_random_moments_every_step_is_there_once(tmp_path: Path) -> None:
    moments, kills = random.Random(0), 0
    while not (tmp_path / "small" / "summary.json").exists():
        process = warm_processes.CONTEXT.Process(target=start_or_resume, args=(tmp_path,))
        process.start()
        goal = handed(tmp_path) + moments.randint(3, 12)
        while process.is_alive() and (handed(tmp_path) < goal or kills == 3):
            time.sleep(0.002)
        if process.is_alive():
            process.kill()
            kills += 1
        process.join()
    assert kills > 0
    check_tensorboard(tmp_path / "small", scalars(tmp_path / "small" / "tensorboard"))


def test_what_was_written_but_not_noted_is_not_there_twice(tmp_path: Path, plain: Path, monkeypatch) -> None:
    folder = tmp_path / "events"
    settings = {"name": "tensorboard", "folder": str(folder)}
    remember = Session._remember

    def killed(session):
        if session.handed >= 0:
            raise KeyboardInterrupt
        remember(session)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_remember", killed)
        with pytest.raises(KeyboardInterrupt):
            export_run(plain, settings)
    assert export_run(plain, settings) == 13
    check_tensorboard(plain, scalars(next(folder.rglob("events*")).parent))
    assert export_run(plain, settings) == 0, "everything is there"
    check_tensorboard(plain, scalars(next(folder.rglob("events*")).parent))


# --- trackers that fail -----------------------------------------------------------------------------------------------


class Broken(Tracker):
    """Fails where it is told to."""

    def __init__(self, *, where: str):
        self._where = where

    def _fail(self, here: str) -> None:
        if here == self._where:
            raise SystemExit("the network is down") if here == "log" else OSError("the network is down")
        if self._where == "hang":
            threading.Event().wait(60)

    def begin(self, run):
        self._fail("begin")

    def log(self, steps):
        self._fail("log")

    def finish(self, ending):
        self._fail("finish")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["begin", "log", "finish", "hang"])
def test_a_broken_tracker_costs_one_warning(tmp_path: Path, plain: Path, monkeypatch, where: str) -> None:
    monkeypatch.setattr(live, "WAIT_SECONDS", 0.2)
    listener = Listener()
    tracked = config(track=[{"name": f"{__name__}:Broken", "where": where}, own(tmp_path / "notes")])
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.0)
    folder = start_run(tracked, tmp_path, listener).path
    assert load_run(folder).status == "finished"
    assert content(folder) == content(plain)
    (warning,) = listener.warnings
    assert ("did not answer within 0.2 seconds" if where == "hang" else "the network is down") in warning
    assert f"fedarena export {folder} --to" in warning
    assert warning in (folder / "log.txt").read_text()
    assert len(notes(tmp_path / "notes")) == 15, "the other one is not affected"


def test_from_the_command_line_a_broken_tracker_exits_with_0(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"rounds": 2, "track": {"name": f"{__name__}:Broken", "where": "begin"}}))
    result = CliRunner().invoke(main, ["run", str(path), "--runs", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.count("Warning: The tracker") == 1


def without_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_told_before_the_run(tmp_path: Path, monkeypatch, package: str) -> None:
    without_package(monkeypatch, package)
    command = ["run", "federation=digits", "name=small", f"track={package}", "--runs", str(tmp_path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert f"pip install 'fedarena[{package}]'" in " ".join(result.output.split())
    assert not (tmp_path / "small").exists()


def test_a_run_goes_on_where_the_package_is_missing(tmp_path: Path, plain: Path, monkeypatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(track="tensorboard"), tmp_path, Listener(stop_after=5))
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    listener = Listener()
    assert content(resume_run(tmp_path / "small", listener).path) == content(plain)
    assert len(listener.warnings) == 1


def test_wandb_does_not_ask_for_an_account_in_the_middle_of_a_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: True)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInputError, match=r"no account to log in to.*WANDB_MODE=offline"):
        start_run(config(track="wandb"), tmp_path)
    assert not (tmp_path / "small").exists()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    live.check_trackers(config(track="wandb").track)
    live.check_trackers(config(track={"name": "wandb", "mode": "offline"}).track)


def test_bad_settings_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no tracker called 'tensorbord'; did you mean 'tensorboard'"):
        config(track="tensorbord")
    with pytest.raises(BadInputError, match=r"track\[0\].projekt.*did you mean 'project'"):
        config(track=[{"name": "wandb", "projekt": "x"}])
    assert resolve(merge({"track": ["wandb"]}, {"track": {"name": "mlflow"}})).track[0]["name"] == "mlflow"
    assert resolve(merge({}, {"track": "wandb", "track.project": "mine"})).track[0]["project"] == "mine"
    with pytest.raises(BadInputError, match=r"track\[1\] is the same"):
        start_run(config(track=["tensorboard", "tensorboard"]), tmp_path)


# --- no part of what a run is -----------------------------------------------------------------------------------------


def test_a_suite_may_be_run_again_with_trackers(tmp_path: Path) -> None:
    path = tmp_path / "few.yaml"
    base = {key: value for key, value in SMALL.items() if key != "name"} | {"rounds": 2}
    path.write_text(yaml.safe_dump({"name": "few", "base": base, "seeds": [0]}))
    assert run_suite(read_suite(str(path), {}), tmp_path, Observer()) == []
    tracked = read_suite(str(path), {"track": own(tmp_path / "notes"), "seeds": [0, 1]})
    assert run_suite(tracked, tmp_path, Observer()) == []
    assert notes(tmp_path / "notes")[0]["begin"] == "seed1"
    runs = [load_run(tmp_path / "few" / name) for name in ("seed0", "seed1")]
    assert {run.label for run in label_runs(runs)} == {"fedavg"}
    fingerprints = {run.environment["settings_fingerprint"] for run in runs}
    assert len(fingerprints) == 2  # the seed and the name, of course
    untracked = start_run(config(rounds=2), tmp_path / "a").environment["settings_fingerprint"]
    shown = start_run(config(rounds=2, track=own(tmp_path / "more")), tmp_path / "b")
    assert shown.environment["settings_fingerprint"] == untracked


def test_two_of_one_kind_show_the_same_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    track = [own(tmp_path / "one"), own(tmp_path / "other")]
    start_run(config(rounds=2, track=track), tmp_path)
    assert not [str(warning.message) for warning in recwarn if "tracker" in str(warning.message)]
    assert notes(tmp_path / "one") == notes(tmp_path / "other")


def test_pieces_and_forks_have_their_own_tracks(tmp_path: Path) -> None:
    with fedarena.open(SMALL, runs_folder=tmp_path, track=own(tmp_path / "notes")) as run:
        run.advance(3)
        fork = run.fork({"local.lr": 0.01, "track": own(tmp_path / "fork")}, name="careful")
        run.advance(2)
    fork.advance(1)
    fork.close()
    assert [line["round"] for line in notes(tmp_path / "notes") if "round" in line] == list(range(6))
    assert [line["round"] for line in notes(tmp_path / "fork") if "round" in line] == list(range(5))
    assert notes(tmp_path / "fork")[0]["begin"] == "careful"


# --- runs that are on disk --------------------------------------------------------------------------------------------


def test_an_old_run_can_be_exported_from_the_command_line(tmp_path: Path, plain: Path) -> None:
    options = f"{{name: tensorboard, folder: {tmp_path / 'events'}}}"
    result = CliRunner().invoke(main, ["export", str(plain.parent), "--to", options])
    assert result.exit_code == 0, result.output
    assert "tensorboard, 13 rounds" in result.output
    (events,) = (tmp_path / "events").rglob("events*")
    check_tensorboard(plain, scalars(events.parent))
    again = CliRunner().invoke(main, ["export", str(plain), "--to", options])
    assert "nothing new" in again.output


@pytest.mark.parametrize("arguments", [[], ["model.safetensors", "--to", "tensorboard"]])
def test_exporting_wants_a_file_or_a_tracker(plain: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["export", str(plain), *arguments])
    assert result.exit_code == 2
    assert "Say what to export" in result.output


def test_a_tracker_whose_files_are_gone_gets_the_run_from_its_beginning(tmp_path: Path, plain: Path) -> None:
    settings = {"name": "tensorboard", "folder": str(tmp_path)}
    assert export_run(plain, settings) == 13
    for path in tmp_path.rglob("events*"):
        path.unlink()
    assert export_run(plain, settings) == 13


def test_runs_of_one_name_keep_their_events_in_a_folder_that_they_share(tmp_path: Path) -> None:
    """They lie in folders that are called the same, say those of two projects."""
    board = tmp_path / "board"
    settings = {"name": "tensorboard", "folder": str(board)}
    first = start_run(config(rounds=3, track=settings), tmp_path / "a" / "runs").path
    second = start_run(config(rounds=3, seed=1, track=settings), tmp_path / "b" / "runs").path
    places = [board / "runs" / name for name in (first.name, f"{first.name}-2")]
    check_tensorboard(first, scalars(places[0]))
    check_tensorboard(second, scalars(places[1]))
    assert export_run(first, settings) == export_run(second, settings) == 0, "everything is there"
    resume_run(second, rounds=6)
    check_tensorboard(second, scalars(places[1]))
    for path in places[1].iterdir():
        path.unlink()
    assert export_run(second, settings) == 7, "its own files are gone, and written again"
    check_tensorboard(first, scalars(places[0]))
    check_tensorboard(second, scalars(places[1]))
    assert sorted((board / "runs").iterdir()) == places


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    folder = start_run(config(rounds=2), tmp_path).path
    (folder / "tracking.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=r"tracking\.json is damaged"):
        export_run(folder, TENSORBOARD)


def test_two_processes_do_not_show_the_same_run_in_the_same_tracker(tmp_path: Path, plain: Path) -> None:
    settings = own(tmp_path / "notes")
    first = Session(plain, settings)
    first.begin()
    with pytest.raises(BadInputError, match="Another process is showing"):
        export_run(plain, settings)
    first.release()

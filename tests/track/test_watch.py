"""The live page's server: for this machine and whoever has the address, following commits, whatever is on disk."""

from __future__ import annotations

import http.client
import json
import math
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from tracked_runs import SMALL, config
from typer.testing import CliRunner

import fedarena
import warm_processes
from fedarena.cli import main
from fedarena.display.running import run_with_report
from fedarena.display.watch import feed as feeds
from fedarena.display.watch import index as indexes
from fedarena.display.watch import watched_run
from fedarena.display.watch.feed import Feed
from fedarena.display.watch.server import WatchServer, serve_in_background
from fedarena.display.watch.watched_run import key_of
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite import read_suite
from fedarena.storage import recorder
from suite_runs import run_suite


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with_report(config(), tmp_path_factory.mktemp("finished"), progress=False).path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(indexes, "_REST_SECONDS", 0.02)


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[WatchServer] = []

    def start(*folders: Path) -> WatchServer:
        servers.append(serve_in_background([*folders], 0))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


class Stream:
    """What a page is told."""

    def __init__(self, server: WatchServer, *runs: Path, after: str = "", **headers: str):
        keys = ",".join(map(key_of, runs))
        self._response = ask(server, f"/{server.token}/events?runs={keys}&after={after}", **headers)
        assert self._response.getheader("Content-Type").startswith("text/event-stream")
        self.last_id = ""
        self._told: list[int] = []  # rounds

    def next(self, *wanted: str) -> tuple[str, Any]:
        """The next event of these kinds."""
        kind = data = None
        patience = time.monotonic() + 120
        while time.monotonic() < patience:
            line = self._response.readline().decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "event":
                kind = value
            elif name == "data":
                data = json.loads(value)
            elif not line and kind is not None:
                if kind == "rounds":
                    self._told += [row["round"] for row in data["rows"]]
                if kind in wanted:
                    return kind, data
                kind = None
        raise AssertionError(f"nothing was told about {', '.join(wanted)}")

    def rounds(self, up_to: int) -> list[int]:
        """The rounds that were told since the last call until one is there."""
        while not self._told or self._told[-1] < up_to:
            self.next("rounds")
        told, self._told = self._told, []
        return told

    def until(self, name: str, **wanted: Any) -> dict[str, Any]:
        """What is said about a run once it is like this."""
        while True:
            for run in self.next("runs")[1]["runs"]:
                if run["name"] == name and all(run.get(key) == value for key, value in wanted.items()):
                    return run


# --- who gets in ------------------------------------------------------------------------------------------------------


def test_without_the_token_there_is_nothing(serve, finished: Path) -> None:
    server = serve(finished)
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    for path in ("/", "/events", "/watch.js", f"/{server.token[:-1]}/", f"/{'x' * len(server.token)}/events", "//"):
        assert ask(server, path).status == 404, path
    page = ask(server, f"/{server.token}/")
    assert page.status == 200
    policy = page.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    text = page.read().decode()
    assert re.findall(r"(?:src|href)=\"(?!data:)([^\"]+)\"", text) == [
        "report.css",
        "watch.css",
        "plotly.js",
        "watch.js",
    ]
    for name in ("report.css", "watch.css", "plotly.js", "watch.js"):
        assert ask(server, f"/{server.token}/{name}").status == 200, name
    other = serve(finished)
    assert other.token != server.token


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", ""])
def test_a_foreign_host_is_refused(serve, finished: Path, host: str) -> None:
    server = serve(finished)
    response = ask(server, f"/{server.token}/", Host=host.format(port=server.server_port))
    assert response.status == 403
    assert b"small" not in response.read()
    assert ask(server, f"/{server.token}/", Host=f"localhost:{server.server_port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(serve, finished: Path, method: str) -> None:
    server = serve(finished)
    assert ask(server, f"/{server.token}/events", method).status == 501


def test_only_reports_of_watched_runs_are_served(serve, finished: Path) -> None:
    server = serve(finished)
    stream = Stream(server)
    assert stream.until("small")["report"]
    report = ask(server, f"/{server.token}/report/{key_of(finished)}")
    assert report.status == 200
    assert report.getheader("Content-Security-Policy").startswith("sandbox")
    assert report.read() == (finished / "report.html").read_bytes()
    for path in ("report/000000000000", "report/", "report/../small/config.yaml", "../config.yaml", "config.yaml"):
        assert ask(server, f"/{server.token}/{path}").status == 404, path


# --- what is told -----------------------------------------------------------------------------------------------------


def test_events_follow_commits_and_go_on_after_the_last_one(serve, tmp_path: Path) -> None:
    server = serve(tmp_path)
    with fedarena.open(SMALL, runs_folder=tmp_path) as run:
        run.advance(2)
        stream = Stream(server, run.folder)
        shown = stream.until("small", round=2)
        assert (shown["status"], shown["rounds"], shown["metric"]["name"]) == ("running", 12, "accuracy")
        assert shown["seconds_left"] > 0
        assert stream.rounds(up_to=2) == [0, 1, 2]
        run.advance(1)
        assert stream.rounds(up_to=3) == [3]
        origin = f"{key_of(run.folder)}/{shown['run']}"
        assert stream.last_id == f"{origin}/3"
        run.advance(5)
        again = Stream(server, run.folder, **{"Last-Event-ID": stream.last_id})
        assert again.rounds(up_to=8) == [4, 5, 6, 7, 8]
        chosen_anew = Stream(server, run.folder, after=f"{origin}/6")
        assert chosen_anew.rounds(up_to=8) == [7, 8]
    assert stream.until("small", status="interrupted")["round"] == 8
    result = resume_run(run.folder)
    assert stream.until("small", status="finished")["score"] == result.summary["final"]["accuracy"]
    assert stream.rounds(up_to=12) == list(range(4, 13))


def test_rounds_are_those_of_the_tables(finished: Path) -> None:
    feed = Feed(finished, "accuracy")
    rows = feed.read()
    table = pq.read_table(finished / "rounds.parquet").to_pylist()
    for row, expected in zip(rows, table, strict=True):
        assert (row["round"], row["score"]) == (expected["round"], expected["accuracy"])
        assert (row["low"], row["high"]) == (expected["accuracy_p10"], expected["accuracy_p90"])
        assert row["hours"] == pytest.approx((expected["end_seconds"] - table[0]["end_seconds"]) / 3600)
        assert sum(row["failures"].values()) == (expected["failed"] or 0)
    assert len(rows) == 13
    assert [row["round"] for row in Feed(finished, "accuracy", (feed.run, 9)).read()] == [10, 11, 12]


def test_phones_at_work_are_counted_at_every_moment(tmp_path: Path) -> None:
    settings = {"protocol": {"name": "buffered", "buffer_size": 3}, "cohort": 6, "clock.crash_rate": 0.1}
    folder = start_run(config(**settings), tmp_path).path
    feed = Feed(folder, "accuracy")
    start = feed.read()[0]["hours"]
    told = feed.phones_at_work()
    jobs = pq.read_table(folder / "jobs.parquet").to_pylist()
    assert start == 0
    begin = pq.read_table(folder / "rounds.parquet")["end_seconds"][0].as_py()
    width = (told["hours"][1] - told["hours"][0]) * 3600
    for middle, phones in zip(told["hours"], told["phones"], strict=True):
        low, high = begin + 3600 * middle - width / 2, begin + 3600 * middle + width / 2
        overlaps = (min(high, job["end_seconds"]) - max(low, job["begin_seconds"]) for job in jobs)
        assert phones == pytest.approx(sum(overlap for overlap in overlaps if overlap > 0) / width, abs=1e-6)
    assert 2 < max(told["phones"]) <= 6 + 1e-9, "no more than may train at a time"


def test_of_very_many_rounds_neighbours_become_one(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Feed(finished, "accuracy").read()
    monkeypatch.setattr(feeds, "MOST_ROWS", 5)
    few = Feed(finished, "accuracy").read()
    assert len(few) == 5
    for name in ("invited", "failed", "clients"):
        assert sum(row[name] for row in few) == sum(row[name] or 0 for row in whole)
    scores = {row["round"]: row["score"] for row in whole}
    assert all(row["score"] == scores[row["round"]] for row in few)
    assert [row["round"] for row in few if row["score"] is not None] == [0, 3, 6, 9, 12]


def test_a_damaged_run_is_shown_as_such_and_the_others_go_on(serve, finished: Path, tmp_path: Path) -> None:
    for name in ("good", "bad manifest", "bad summary", "bad table", "no files"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "bad manifest" / "manifest.json").write_text("{")
    (tmp_path / "bad summary" / "summary.json").write_text("nonsense")
    (tmp_path / "bad table" / "rounds.parquet").write_bytes(b"nonsense")
    for path in (tmp_path / "no files").iterdir():
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    server = serve(tmp_path)
    stream = Stream(server, tmp_path / "bad table", tmp_path / "good")
    runs = {run["name"]: run for run in stream.next("runs")[1]["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "good": "finished",
        "bad table": "finished",  # nobody has looked at its tables yet
        "bad manifest": "damaged",
        "bad summary": "damaged",
        "no files": "damaged",
    }
    assert "manifest.json is damaged" in runs["bad manifest"]["message"]
    kind, problem = stream.next("problem", "rounds")
    assert kind == "problem"
    assert "rounds.parquet is damaged" in problem["message"]
    assert stream.rounds(up_to=12)[-1] == 12, "the other one is there"
    shutil.copy(finished / "summary.json", tmp_path / "bad summary" / "summary.json")
    (tmp_path / "bad summary" / "report.html").touch()
    assert stream.until("bad summary", status="finished")


def test_runs_come_and_go(serve, finished: Path, tmp_path: Path) -> None:
    server = serve(tmp_path / "runs")  # which is not there yet
    stream = Stream(server)
    assert stream.next("runs")[1] == {"runs": [], "gone": [], "suites": [], "complete": True}
    shutil.copytree(finished, tmp_path / "runs" / "one")
    assert stream.until("one")["status"] == "finished"
    shutil.rmtree(tmp_path / "runs" / "one")
    assert stream.next("runs")[1]["gone"] == [key_of(tmp_path / "runs" / "one")]


def test_another_run_in_the_same_folder_is_told_from_its_beginning(serve, tmp_path: Path) -> None:
    """Also to a page that was away meanwhile, and so has never seen that the new one had fewer rounds."""
    server = serve(tmp_path)
    with fedarena.open(SMALL, runs_folder=tmp_path) as run:
        run.advance(2)
        stream = Stream(server, run.folder)
        assert stream.rounds(up_to=2) == [0, 1, 2]
    stream.until("small", status="interrupted")
    shutil.rmtree(run.folder)
    with fedarena.open(SMALL, runs_folder=tmp_path, seed=7) as run:
        run.advance(3)
        scores = run.result().rounds["accuracy"].to_pylist()
        assert stream.until("small", status="running", round=3)["score"] == scores[-1]
        assert stream.rounds(up_to=3) == [0, 1, 2, 3]
        away = Stream(server, run.folder, after=f"{key_of(run.folder)}/{'0' * 32}/2")
        assert away.rounds(up_to=3) == [0, 1, 2, 3]


def test_suites_of_one_name_in_several_folders_are_not_one(serve, finished: Path, tmp_path: Path) -> None:
    for where, number in (("here", 2), ("there", 1)):
        suite = tmp_path / where / "few"
        for run in range(number):
            shutil.copytree(finished, suite / f"run{run}")
        (suite / "suite.json").write_text(json.dumps({"runs": {f"run{run}": 12 for run in range(3)}}))
    stream = Stream(serve(tmp_path / "here", tmp_path / "there"))
    suites = {one["name"]: one for one in stream.next("runs")[1]["suites"]}
    assert suites.keys() == {"few", str(tmp_path / "there" / "few")}
    assert [(one["runs"], one["ended"]) for one in suites.values()] == [(3, 2), (3, 1)]


def test_a_run_that_was_killed_is_not_called_running(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_run, "SILENT_SECONDS", 0.05)
    run = fedarena.open(SMALL, runs_folder=tmp_path).advance(2)
    stream = Stream(serve(tmp_path))
    assert stream.until("small")["status"] == "running"
    run._recorder.release()  # as when its process is killed
    assert stream.until("small", status="interrupted")["round"] == 2


def test_a_suite_tells_how_far_it_is(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_COMMIT_SHARE", math.inf)  # else a page may hear of round 2 only after round 3
    path = tmp_path / "few.yaml"
    base = {key: value for key, value in SMALL.items() if key != "name"} | {"rounds": 4}
    path.write_text(yaml.safe_dump({"name": "few", "base": base, "seeds": [0, 1]}))
    server = serve(tmp_path / "runs")
    stream = Stream(server)
    told: list[dict[str, Any]] = []

    class Looking(Observer):
        """Waits in the middle of the second run until the page knows of it."""

        def finished_round(self, outcome) -> None:
            if self.folder.name == "seed1" and outcome.snapshot.round == 2:
                while not told or not 0.5 < told[-1]["share"] < 1:
                    told.extend(stream.next("runs")[1]["suites"])

    assert run_suite(read_suite(str(path), {}), tmp_path / "runs", Looking()) == []
    assert (told[-1]["name"], told[-1]["runs"], told[-1]["ended"]) == ("few", 2, 1)
    assert told[-1]["seconds_left"] > 0
    while told[-1]["ended"] < 2:
        told.extend(stream.next("runs")[1]["suites"])
    assert told[-1] == {"name": "few", "runs": 2, "ended": 2, "share": 1.0, "seconds_left": None}


def test_nothing_is_read_while_nobody_looks(serve, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    look = indexes.RunIndex.look
    monkeypatch.setattr(indexes.RunIndex, "look", lambda index: (looks.append(time.monotonic()), look(index)))
    server = serve(finished)
    assert ask(server, f"/{server.token}/").status == 200
    assert looks == []
    Stream(server).next("runs")
    assert looks


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_where_the_page_is_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    command = [__import__("sys").executable, "-m", "fedarena", "watch", "--no-browser", "--port", "0"]
    process = warm_processes.WarmProcess(command, cwd=tmp_path)
    output = process._folder / "stdout"
    until = time.monotonic() + 60
    while not (output.exists() and "Ctrl-C" in output.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    (url,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\S+)", output.read_text())
    connection = http.client.HTTPConnection("127.0.0.1", int(url[0]), timeout=20)
    connection.request("GET", url[1])
    assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    ended = process.finish(60)
    assert ended.returncode == 0, ended.stderr
    assert "Stopped watching" in ended.stdout


def test_what_cannot_be_watched_is_one_sentence(tmp_path: Path, finished: Path) -> None:
    missing = CliRunner().invoke(main, ["watch", str(tmp_path / "nowhere"), "--no-browser"])
    assert missing.exit_code == 2
    assert "There is no run folder" in missing.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["watch", str(finished), "--no-browser", "--port", str(port)])
    assert result.exit_code == 2
    assert f"The port {port} cannot be used" in result.output


def test_a_watched_folder_is_left_as_it_is(serve, finished: Path, tmp_path: Path) -> None:
    start_run(config(rounds=1), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    stream = Stream(serve(tmp_path), tmp_path / "small")
    assert stream.rounds(up_to=1) == [0, 1]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

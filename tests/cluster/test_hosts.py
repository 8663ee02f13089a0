"""Processes on other machines, and folders that travel; what only a real cluster shows is in test_ray_whole_runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pretend_ray import Call, PretendRay, pretending
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.runs.hosts import hosting
from fedarena.runs.hosts.carrying import folders_there, mend
from fedarena.runs.hosts.host import Host
from fedarena.runs.hosts.hosting import Hosts, cores_of_a_run
from fedarena.runs.hosts.remote import HostLostError, RemoteProcess


@pytest.mark.parametrize(
    ("machines", "jobs", "cores"),
    [([16, 16], 2, 16), ([16, 16], 3, 8), ([16, 4], 3, 5), ([2], 8, 1), ([0, 8], 1, 8), ([], 1, 1)],
)
def test_cores_of_a_run(machines: list[int], jobs: int, cores: int) -> None:
    assert cores_of_a_run(machines, jobs) == cores


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    with pretending(PretendRay(room=2)), Hosts("auto", 2, tmp_path, on_gpu=False) as found:
        yield found


def test_a_process_elsewhere_is_as_one_here(hosts: Hosts) -> None:
    process, other = hosts.processes("echoing")
    assert process.settle()
    assert process.sees_folder
    process.tell({"say": "hello"})
    assert next(process.events()) == {"event": "ended", "failure": "hello"}
    process.end_tasks()
    assert process.wait() == process.poll() == 0
    assert other.settle()
    other.tell({"say": "hello", "wait": True})
    next(other.events())
    other.stop()
    assert list(other.events()) == []
    assert other.wait() == 143


def test_a_machine_that_is_gone(hosts: Hosts) -> None:
    process, _ = hosts.processes("echoing")
    assert process.settle()
    hosts.ray.fates = lambda call: "dies" if call.method == "listen" else None
    process.tell({"say": "hello"})
    with pytest.raises(HostLostError, match="is gone"):
        list(process.events())
    assert process.poll() is not None


def test_who_has_something_else_is_refused(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hosts._mine["versions"], "torch", "0.1")
    with pytest.raises(BadInputError, match=r"has torch .*, and this machine 0\.1; install the same version there"):
        hosts.processes("echoing")


def test_nobody_waits_for_ever(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(call: Call) -> Any:
        return "hangs"

    hosts.ray.fates = never
    monkeypatch.setattr(hosting, "_ROOM_SECONDS", -1.0)
    with pytest.raises(RunFailedError, match="had room for a run"):
        hosts.processes("echoing")


def test_runs_do_not_share_cores_as_long_as_there_are_some(hosts: Hosts) -> None:
    first, second = hosts.take_cores("a", [0, 1]), hosts.take_cores("a", [0, 1])
    assert {*first, *second} == {0, 1}
    hosts.give_cores_back("a", second)
    assert hosts.take_cores("a", [0, 1]) == second


class _Near(RemoteProcess):
    """A host in this process, which does not see our folders."""

    def __init__(self) -> None:
        self.sees_folder, self.node, self._near = False, "far away", Host()

    def call(self, method: str, *arguments: Any, seconds: float = 0.0) -> Any:
        return getattr(self._near, method)(*arguments)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.runs.hosts.carrying._PIECE_BYTES", 3)


def test_a_folder_travels_there_and_back(pieces: None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "a").write_bytes(b"0123456789")
    (folder / "checkpoint" / "empty").touch()
    with folders_there(_Near(), [folder, tmp_path / "refused"]) as (there, _):
        assert (there / "a").read_bytes() == b"0123456789"
        assert (there / "checkpoint" / "empty").exists()
        (there / "b").write_bytes(b"more")
        assert not (folder / "b").exists()
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        "a": b"0123456789",
        "b": b"more",
        "empty": b"",
    }
    assert not there.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_does_not_arrive_as_it_was_takes_no_place(pieces: None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a").write_bytes(b"before")
    near = _Near()
    travelling = folders_there(near, [folder])
    (there,) = travelling.__enter__()
    (there / "a").write_bytes(b"afterwards")
    near._near.read_piece = lambda path, start, length: b"x" * length  # type: ignore[method-assign]
    with pytest.raises(RunFailedError, match="a did not come from far away as it is there"):
        travelling.__exit__(None, None, None)
    assert (folder / "a").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_process_had_moved_aside_comes_back(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f".{name}.{'0' * 32}.before").mkdir()
    (tmp_path / "two").mkdir()
    mend(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--cluster", "auto"], "--cluster needs Ray, which is not installed here"),
        (["--cluster", "auto", "engine=ray"], "choose engine=cohort, or leave --cluster out"),
    ],
)
def test_what_is_refused(more: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "some.yaml").write_text("base: {federation: digits, rounds: 1}\n")
    call = CliRunner().invoke(main, ["suite", str(tmp_path / "some.yaml"), "--runs", str(tmp_path), *more])
    assert call.exit_code == 2
    assert sentence in " ".join(call.output.split())
    assert not (tmp_path / "some").exists()

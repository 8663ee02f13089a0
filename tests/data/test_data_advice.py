"""What the commands about data say to people who do something a little different from what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedarena.cli import federations, main
from fedarena.core.errors import BadInputError
from fedarena.data import load_federation
from fedarena.data.registry import CACHE_VARIABLE, cached_path


@pytest.fixture(autouse=True)
def cache(_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["data", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_options_may_be_named_as_in_a_run() -> None:
    assert "20 clients" in call("prepare", "synthetic", "federation.clients=20")
    assert "Nothing to do" in call("prepare", "synthetic", "clients=20")


def test_missing_files_can_be_fetched_whoever_asks(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"fedarena data prepare mnist_by_writer --download fetches train-images"):
        load_federation("mnist_by_writer")
    (tmp_path / "a file").touch()
    with pytest.raises(BadInputError, match="a file is a file; give the folder that it is in"):
        load_federation("mnist_by_writer", {"folder": str(tmp_path / "a file")})


def test_a_damaged_store_is_no_dead_end() -> None:
    call("prepare", "synthetic", "clients=20")
    path = cached_path("synthetic", {"clients": 20})
    (path / "federation.json").unlink()
    for command in ("prepare", "verify"):
        assert f"Remove the folder {path} to have it built again" in call(command, "synthetic", "clients=20", code=2)


def test_builds_that_are_not_finished_are_listed(cache: Path) -> None:
    work = cache / ".sent140-1234.work"
    work.mkdir(parents=True)
    (work / "rows").write_bytes(bytes(2_000_000))
    assert "1 build not finished, 2.00 MB in .*.work there" in call("list")


def test_long_work_is_heard_of_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(federations, "_SECONDS_BETWEEN_LINES", 0.0)
    with federations.progress_bar() as advance:
        advance(0.25, 1.0, "Reading comments")
        advance(5, None, "Fetching")
    assert capsys.readouterr().err.split("\n")[:2] == ["Reading comments 25%", "Fetching"]


def test_stopping_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(federations, "federation_options", stop)
    monkeypatch.setattr("fedarena.cli.data_prepare.federation_options", stop)
    assert "Stopped; nothing half-written was left" in call("prepare", "synthetic", code=130)

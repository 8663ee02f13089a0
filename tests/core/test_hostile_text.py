"""Names from files and from the command line reach the terminal as text: no control characters, markup or emojis."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.table import Table
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.cli.base import screen
from fedarena.core.console import Screen, as_markup, plain
from fedarena.core.outside_text import as_file_name, harmless, harmless_lines, quoted
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
from fedarena.fleet import load_fleet

# Clears the screen, rings, changes the title, turns the direction; a style, an emoji, and a line that looks like ours.
HOSTILE = "\x1b[2J\x07\x1b]0;owned\x07\u202e\x9b31m[red]x[/red]:smile:\r\nError: all is lost"


def is_clean(output: str) -> bool:
    return all(character in "\n" or harmless(character) == character for character in output)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(screen, "_width", 300)  # so that no name is broken
    return tmp_path


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    assert is_clean(result.output)
    return result.output


@pytest.fixture
def store() -> str:
    columns = {"x": ColumnSpec(dtype="float32", shape=(3,)), "y": ColumnSpec(dtype="int64")}
    task = TaskSpec(kind="classification", classes=2, label_names=(HOSTILE, f"{HOSTILE} 2"))
    random = np.random.default_rng(0)
    with FederationWriter(
        "mine", name=f"../{HOSTILE}", task=task, columns=columns, attributes={"city": "string"}
    ) as writer:
        for number in range(6):
            part = {"x": random.standard_normal((4, 3)).astype(np.float32), "y": np.array([0, 1, 0, 1])}
            writer.add_client(f"{HOSTILE}{number}", train=part, test=part, attributes={"city": HOSTILE})
    return "mine"


def test_a_hostile_federation(store: str, in_empty_folder: Path) -> None:
    output = call("describe", store)
    assert "\\x1b[2J" in output
    assert "[red]x[/red]:smile:" in output
    assert "😄" not in output
    assert not any(line.startswith("Error: all is lost") for line in output.splitlines())
    assert len(list(in_empty_folder.glob("*.html"))) == 1, "the picture is here, and not where the name leads to"
    call("data", "stats", store, "digits")
    call("data", "verify", store)
    settings = ("federation=store", "federation.path=mine", "rounds=2", "cohort=2", "name=first")
    call("run", *settings, "model=logistic_regression")
    call("report", "runs")
    call("data", "export", store, "exported")
    call("run", *settings[:-1], "model=lstm", code=2)
    diverging = ("local.lr=1e18", "local.weight_decay=1e18", "local.epochs=9", "model=logistic_regression")
    assert "at client '" in call("run", *settings[:-1], *diverging, code=1)


def test_a_hostile_fleet(in_empty_folder: Path) -> None:
    fleet = load_fleet({"name": "uniform", "seconds_per_sample": [0.1, 3.0]}, 5)
    object.__setattr__(fleet, "name", f"/../{HOSTILE}")
    fleet.save(Path("phones"))
    metrics = ["heterogeneity", "phones", "--rounds", "20", "--trips", "5", "--cohort", "2", "--repetitions", "1"]
    for command in (["fleet", "phones"], metrics):
        output = call(*command)
        assert "[red]x[/red]" in output
        assert "😄" not in output
    assert len(list(in_empty_folder.glob("*.html"))) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", f"{HOSTILE}=1"],
        ["run", f"name={HOSTILE}"],
        ["run", f"rounds={HOSTILE}"],
        ["run", HOSTILE],
        ["run", f"algorithm={HOSTILE}"],
        ["run", f"algorithm=os:{HOSTILE}"],
        ["run", f"federation.{HOSTILE}=1"],
        ["run", f"weights={HOSTILE}", "federation=digits"],
        ["suite", HOSTILE],
        ["describe", HOSTILE],
        ["fleet", HOSTILE],
        ["fleet", "uniform", f"{HOSTILE}=1"],
        ["list", HOSTILE],
        ["report", HOSTILE],
        ["resume", HOSTILE],
        ["leaf-plot", HOSTILE],
        ["leaf-metrics", HOSTILE, "out"],
        ["correlate", HOSTILE],
        ["data", "export", "digits", ".", HOSTILE],
        ["data", "prepare", HOSTILE],
        ["data", "stats", "digits", f"{HOSTILE}=1"],
        ["profile-device", HOSTILE],
        ["profile-device", "--serve", HOSTILE],
        ["profile-device", "--device", HOSTILE],
    ],
    ids=lambda arguments: " ".join(arguments[:2])[:20],
)
def test_hostile_arguments(arguments: list[str]) -> None:
    output = call(*arguments, code=2)
    assert len(output.strip().splitlines()) == 1
    assert output.startswith("Error: ")
    assert "😄" not in output


@pytest.mark.slow
def test_bytes_that_are_no_text() -> None:
    done = subprocess.run([sys.executable, "-m", "fedarena", "run", b"name=\xff"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"\\udcff" in done.stderr
    report = CliRunner().invoke(main, ["report", "\udcff"])
    assert (report.exit_code, "\\udcff" in report.output) == (2, True)


@pytest.mark.slow
def test_a_terminal_that_cannot_show_everything() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "fedarena", "run", "name=é/"], capture_output=True, check=False, env=environment
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)


def test_whatever_is_printed_is_harmless() -> None:
    terminal = Screen(file=io.StringIO(), width=200)
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(as_markup(HOSTILE))
    table.add_row(as_markup(HOSTILE))
    terminal.print(table)
    terminal.print(HOSTILE, markup=False)
    terminal.say(HOSTILE)
    with (
        terminal.status(plain(HOSTILE)),
        Progress(TextColumn("{task.description}", markup=False), console=terminal) as bar,
    ):
        bar.add_task(HOSTILE, total=1)
    output = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]x[/red]:smile:" in output
    assert is_clean(output)


def test_styles_still_work() -> None:
    terminal = Screen(file=io.StringIO(), force_terminal=True, color_system="standard")
    terminal.print(f"[bold red]Error:[/] {as_markup('[bold]')}", highlight=False)
    assert terminal.file.getvalue() == "\x1b[1;31mError:\x1b[0m [bold]\n"  # type: ignore[attr-defined]


@given(st.text())
def test_harmless_text_is_one_line_that_can_be_written(text: str) -> None:
    shown = harmless(text)
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert harmless(shown) == shown
    assert harmless_lines(text).count("\n") == text.count("\n")
    if text.isprintable():
        assert shown == text


@given(st.text())
def test_names_of_files_stay_in_their_folder(name: str) -> None:
    found = as_file_name(name)
    assert found not in ("", ".", "..")
    assert Path(found).name == found
    assert len(found) <= 80


def test_quoted_values_are_short() -> None:
    assert quoted("x" * 1000).endswith("…")
    assert len(quoted(list(range(1000)))) == 80
    assert quoted(10**5000) == "a number of very many digits"

"""What README and documentation show must work as it stands there."""

from __future__ import annotations

import json
import pickle
import re
import runpy
import shlex
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from own_files import write_own_files
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.runs.suite import builtin_suites, read_suite

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SUITES = ("quickstart", "examples/skew.yaml")
# Enough to see that a command works. What a page says of these itself only takes longer.
FAST = {"rounds": 1, "local.steps": 2, "evaluation.max_clients": 3}
FEWER = {"--clients": "2", "--repetitions": "1"}
# An engine that records nothing before the first step; the other one is for pages about code that it runs.
QUICK_TO_START = {"engine": "reference"}
ON_BOTH_ENGINES = ("own_method", "models", "transforms")


def blocks(page: Path, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [text for found, text in fenced if found == language]


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line.removeprefix(".venv/bin/"), comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == "fedarena"]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    write_traces(tmp_path)
    write_own_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_traces(folder: Path) -> None:
    """Files of the names and forms that the page about traces speaks of, with two phones."""
    speeds = {number: {"computation": 50.0 * number, "communication": 8000.0} for number in (1, 2)}
    behaviour = {"duration": 70_000, "active": [0], "inactive": [80_000], "finish_time": 86_400, "model": "a phone"}
    (folder / "client_device_capacity").write_bytes(pickle.dumps(speeds))
    (folder / "client_behave_trace").write_bytes(pickle.dumps({1: behaviour, 2: behaviour}))
    events = ["00:00:10\tbattery_charged_on", "00:00:20\twifi", "00:00:30\tscreen_lock", "23:59:00\tscreen_unlock"]
    messages = "\n".join(f"2020-01-31 {event}" for event in events)
    (folder / "state_traces.json").write_text(json.dumps({"1": {"messages": messages}}))


def shortened(command: list[str]) -> list[str]:
    fast = {"run": FAST, "suite": FAST | {"seeds": "[0]"}, "tune": FAST}.get(command[0], {})
    if fast and not any(word.startswith("engine") for word in command):
        fast = fast | QUICK_TO_START
    kept = [word for word in command if word.partition("=")[0] not in fast]
    for option, number in FEWER.items():
        if command[0] in ("deploy", "hpo") and option in kept:
            kept[kept.index(option) + 1] = number
    return [*kept, *(f"{k}={v}" for k, v in fast.items()), *(["--trials", "2"] if command[0] == "tune" else [])]


@pytest.fixture(scope="session")
def finished_suite(cache: Path) -> Callable[[str], Path]:
    """Gives the runs of a suite, which are made once for all pages and all test processes."""
    runs = cache.parent / "suites"
    runs.mkdir(exist_ok=True)

    def run(suite: str) -> Path:
        folder = runs / Path(suite).stem
        with FileLock(f"{folder}.lock"):
            if not (folder / "report.html").exists():
                result = CliRunner().invoke(main, [*shortened(["suite", suite]), "--runs", str(runs)])
                assert result.exit_code == 0, f"{suite}\n{result.output}"
        return folder

    return run


@pytest.mark.sampled(6)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page: Path, workshop: Path, finished_suite: Callable[[str], Path]) -> None:
    for suite in SUITES:
        # Processes for runs of a suite at once take long to start, and have tests of their own.
        if any(
            f"runs/{Path(suite).stem}" in " ".join(command) or {suite, "--jobs"} <= {*command}
            for command in commands(page)
        ):
            shutil.copytree(finished_suite(suite), f"runs/{Path(suite).stem}")
    runpy.run_path("examples/own_federation.py")["write_store"](workshop / "stores" / "sensors")
    for command in map(shortened, commands(page)):
        shown = " ".join(command)
        # file names and classes that stand for the reader's own
        if "FOLDER" in shown or "RUN" in command or "my_module" in shown or "FEDERATION" in command:
            continue
        if "engine=ray" in command or "--cluster" in command:  # for which there is `make test-ray`
            continue
        if command[0] == "tune" and "--jobs" in command:  # as above
            continue
        if command in [shortened(["suite", suite]) for suite in SUITES]:
            finished_suite(command[1])
            continue
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, f"{shown}\n{result.output}"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python(page: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {} if page.stem in ON_BOTH_ENGINES else QUICK_TO_START
    less = {name: value for name, value in FAST.items() if name != "rounds"}

    def quick_run(*args, **settings):
        return fedarena.api.run(*args, **engine | settings | FAST | {"progress": False})

    def quick_open(*args, **settings):
        return fedarena.api.open(*args, **engine | settings | less)

    def quick_suite(*args, base, **settings):
        return fedarena.api.suite(*args, base=engine | base | FAST, **settings)

    def quick_tune(*args, **settings):
        return fedarena.api.tune(*args, **engine | settings | FAST | {"trials": 2})

    for name, quick in (("run", quick_run), ("open", quick_open), ("suite", quick_suite), ("tune", quick_tune)):
        monkeypatch.setattr(fedarena, name, quick, raising=False)
    module = types.ModuleType(f"page_{page.stem}")  # so that classes of the page can be found by their name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update({"fedarena": fedarena, **example_arrays()})
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), vars(module))


def example_arrays() -> dict[str, np.ndarray]:
    x, y = np.zeros((4, 6), dtype=np.float32), np.zeros(4, dtype=np.int64)
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples(path: Path, workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_links_and_pictures_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", builtin_suites())
def test_builtin_suites_can_be_read(name: str) -> None:
    assert read_suite(name, {}).runs

"""What of somebody's own source a run is made of; editing it is noticed by suites and when a run goes on."""

from __future__ import annotations

import importlib
import json
import linecache
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import SMALL
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.own_source import own_source
from fedarena.runs.weights import read_weights

METHOD = """
from fedarena.algorithms import FedAvg
from own_helpers.shares import SHARE
import os.path, torch

class Part(FedAvg):
    def server_step(self, state, mean_update, round):
        from own_lazy import twist
        update = {name: twist(SHARE * u) for name, u in mean_update["params"].items()}
        return super().server_step(state, {**mean_update, "params": update}, round)

class Other(FedAvg):
    pass
"""
SUITE = """
name: few
base: {federation: {name: digits, partition: {name: dirichlet, clients: 20}}, model: logistic_regression, rounds: 2}
matrix: {method: {plain: {algorithm: fedavg}, own: {algorithm: "own_method:Part"}}}
"""
OWN = ("own_method", "own_helpers", "own_helpers.shares", "own_lazy")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with somebody's files, which are looked for in the current folder alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files that change within a second
    (tmp_path / "own_method.py").write_text(METHOD)
    (tmp_path / "own_helpers").mkdir()
    (tmp_path / "own_helpers" / "__init__.py").write_text("")
    (tmp_path / "own_helpers" / "shares.py").write_text("SHARE = 0.5\n")
    (tmp_path / "own_lazy.py").write_text("def twist(x): return x\n")
    (tmp_path / "suite.yaml").write_text(SUITE)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As if Python had just been started."""
    for name in OWN:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    forget()


def config(algorithm: str = "own_method:Part", **settings):
    return resolve(merge({}, SMALL | {"rounds": 4, "algorithm": algorithm, **settings}))


def suite(*arguments: str):
    return CliRunner().invoke(main, ["suite", "suite.yaml", *arguments])


def test_all_own_files_count_and_no_others(workplace: Path) -> None:
    found = own_source(config())
    assert set(found.files) == set(OWN)
    assert found.files["own_helpers.shares"] == workplace / "own_helpers" / "shares.py"
    assert own_source(config("fedavg")).fingerprints == {}


@pytest.mark.parametrize("file", ["own_method.py", "own_helpers/shares.py", "own_lazy.py", "own_helpers/__init__.py"])
def test_a_change_of_any_of_them_is_named(workplace: Path, file: str) -> None:
    before = own_source(config()).to_json()
    assert own_source(config()).changes_since(before) == []
    with open(workplace / file, "a") as more:
        more.write("NEW = 1\n")
    forget()
    assert own_source(config()).changes_since(before) == [str(workplace / file)]


def test_looking_imports_nothing(workplace: Path) -> None:
    (workplace / "own_lazy.py").write_text(
        "def twist(x):\n    from own_helpers.later import more\n    import own_helpers.nothing\n    return x\n"
    )
    (workplace / "own_helpers" / "later.py").write_text("raise SystemExit('imported')\n")
    found = own_source(config())
    assert "own_helpers.later" in found.files
    assert "own_helpers.nothing" not in found.files
    assert "own_helpers.later" not in sys.modules
    assert "own_lazy" not in sys.modules


def test_own_parts_of_every_kind_count(workplace: Path) -> None:
    (workplace / "own_lazy.py").write_text(
        "from fedarena.metrics.classification import Accuracy as Mine\n"
        "from fedarena.transforms import Transform\n"
        "class Through(Transform): pass\n"
        "def cut(labels, *, clients: int = 20):\n    return labels % clients\n"
    )
    for settings in (
        {"transforms": ["own_lazy:Through"]},
        {"federation": {"name": "digits", "partition": "own_lazy:cut"}},
        {"task": {"metrics": ["own_lazy:Mine"]}},
    ):
        assert "own_lazy" in own_source(config("fedavg", **settings)).files, settings


@pytest.mark.slow
def test_a_suite_never_keeps_stale_results_silently(workplace: Path) -> None:
    assert suite().exit_code == 0
    runs = workplace / "runs" / "few"
    before = {name: fedarena.load(runs / name).rounds for name in ("own-seed0", "plain-seed0")}
    edit(workplace / "own_helpers" / "shares.py", "0.5", "0.25")
    refused = suite()
    assert refused.exit_code == 2
    assert "1 of 2 runs is stale (own-seed0)" in refused.output
    assert "shares.py" in refused.output
    assert "--rerun-stale" in refused.output
    assert fedarena.load(runs / "own-seed0").rounds.equals(before["own-seed0"])
    looked = suite("--dry-run")
    assert looked.exit_code == 0
    assert "stale" in looked.output
    kept = suite("--keep-stale")
    assert kept.exit_code == 0
    assert "is stale" in kept.output
    assert fedarena.load(runs / "own-seed0").rounds.equals(before["own-seed0"])
    again = suite("--rerun-stale")
    assert again.exit_code == 0, again.output
    assert fedarena.load(runs / "own-seed0").rounds["loss"] != before["own-seed0"]["loss"]
    assert fedarena.load(runs / "plain-seed0").rounds.equals(before["plain-seed0"])
    assert fedarena.load(runs / ".stale" / "own-seed0-1").rounds.equals(before["own-seed0"])  # nothing is deleted
    assert suite().exit_code == 0  # and now all is as it should


def test_a_run_does_not_go_on_with_other_source(workplace: Path) -> None:
    fedarena.open(SMALL, algorithm="own_method:Part", rounds=4).advance(2).close()
    edit(workplace / "own_lazy.py", "return x", "return 2 * x")
    with pytest.raises(
        BadInputError, match=r"own_lazy\.py was changed after the run .* began, so the run cannot go on"
    ):
        fedarena.resume("runs/small", progress=False)
    edit(workplace / "own_lazy.py", "return 2 * x", "return x")
    assert fedarena.resume("runs/small", progress=False).status == "finished"


def test_a_file_that_is_not_what_python_imported_is_refused(workplace: Path) -> None:
    config()  # imports it
    path = workplace / "own_method.py"
    path.write_text(METHOD.replace("twist(SHARE * u)", "twist(SHARE + u)"))
    with pytest.raises(BadInputError, match=r"own_method\.py was changed after Python had imported it"):
        own_source(config())
    importlib.reload(sys.modules["own_method"])
    assert "own_method" in own_source(config()).files


@pytest.mark.parametrize(
    ("is_compiled", "before", "after"),
    [
        (True, "SHARES = 0.5", "SHARES = 0.25"),
        (True, "def f(x=1): 0", "def f(x=2): 0"),
        (False, "SHARES = 0.5", "SHARES = 0.25"),
        (False, "class A:\n    share = 1", "class A:\n    share = 2"),
    ],
    ids=["constant", "default", "constant, nothing compiled", "attribute, nothing compiled"],
)
def test_constants_that_are_not_what_python_imported_are_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool, before: str, after: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not is_compiled)
    path = workplace / "own_method.py"
    path.write_text(METHOD + before)
    config()  # imports it
    path.write_text(METHOD + after)
    with pytest.raises(BadInputError, match=r"own_method\.py was changed after Python had imported it"):
        own_source(config())
    path.write_text(f"{METHOD}{before}\ncounted = 0\ncounted += 1\n")  # which is no constant
    forget()
    config()
    path.touch()  # the same again, at another time
    assert "own_method" in own_source(config()).files


def test_what_python_kept_of_another_file_is_refused(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes what it kept for the file's by time and size, also where it is told to keep nothing new."""
    path = workplace / "own_method.py"
    times = []
    for before, keeps in (("FACTOR = 1.0\n", True), ("FACTOR = 9.0\n", False)):
        monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
        path.write_text(METHOD + before)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        forget()
        config()
        times.append(sys.modules["own_method"].FACTOR)
    assert times == [1.0, 1.0]
    with pytest.raises(BadInputError, match=r"own_method\.py was changed after Python had imported it"):
        own_source(config())
    path.touch()
    forget()
    assert "own_method" in own_source(config()).files


def test_what_was_imported_counts_and_not_what_the_file_became(workplace: Path) -> None:
    before = own_source(config()).to_json()
    (workplace / "own_helpers" / "shares.py").write_text("SHARE = 0.75\n")  # while a suite goes on, say
    assert own_source(config()).changes_since(before) == []
    forget()
    assert own_source(config()).changes_since(before) != []


def test_definitions_of_a_script_count_with_what_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprints(cell: str) -> dict[str, str]:
        """Of a class that was typed into a notebook."""
        name = f"<cell {hash(cell)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        script = sys.modules["__main__"]
        exec(compile(cell, name, "exec"), vars(script))
        for defined in ("Typed", "factor", "RATE"):
            monkeypatch.setitem(vars(script), defined, vars(script)[defined])
        return own_source(config("__main__:Typed")).fingerprints

    cell = """
from fedarena.algorithms import FedAvg
RATE = 0.5
UNUSED = 1
def factor(): return RATE
class Typed(FedAvg):
    def server_step(self, state, mean_update, round):
        return super().server_step(state, mean_update, round * factor())
    def other(self): return self.UNUSED
"""
    first = fingerprints(cell)
    assert set(first) == {"__main__:Typed", "__main__:factor"}
    assert fingerprints(cell.replace("UNUSED = 1", "UNUSED = 2")) == first
    assert fingerprints(cell.replace("round * ", "round + ")) != first
    assert fingerprints(cell.replace("RATE = 0.5", "RATE = 0.25")) != first
    monkeypatch.setattr(linecache, "getlines", lambda *_: [])
    fedarena_forgets = fingerprints(cell.replace("0.5", "0.125"))
    assert "__main__:Typed" not in fedarena_forgets
    assert own_source(config("__main__:Typed")).notes[0].startswith("The source of __main__:Typed cannot be found")


def test_the_commit_is_recorded(workplace: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *who, *arguments], cwd=workplace, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init")
    git("add", ".")
    git("commit", "-m", "mine")
    clean = fedarena.run(SMALL, algorithm="own_method:Part", rounds=1, name="clean", progress=False)
    edit(workplace / "own_lazy.py", "return x", "return 2 * x")
    dirty = fedarena.run(SMALL, algorithm="own_method:Part", rounds=1, name="dirty", progress=False)
    (repository,) = clean.environment["repositories"]
    assert repository == {
        "folder": str(workplace), "commit": git("rev-parse", "HEAD"), "dirty": False, "changed_files": []
    }  # fmt: skip
    (repository,) = json.loads((dirty.path / "environment.json").read_text())["repositories"]
    assert (repository["dirty"], repository["changed_files"]) == (True, ["own_lazy.py"])


def test_a_model_of_other_source_is_told(workplace: Path) -> None:
    (workplace / "own_lazy.py").write_text(
        "from torch import nn\n"
        "def twist(x): return x\n"
        "def net(spec):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, spec.classes))\n"
    )
    result = fedarena.run(SMALL, rounds=1, model="own_lazy:net", progress=False)
    result.model()
    edit(workplace / "own_lazy.py", "nn.Flatten(), ", "nn.Flatten(), nn.Identity(), ")
    with (
        pytest.warns(UserWarning, match=r"own_lazy\.py changed since the run .* began"),
        pytest.raises(BadInputError, match="are not those of its model any more"),
    ):
        result.model()


def test_weights_that_other_source_makes_are_told(workplace: Path) -> None:
    (workplace / "own_lazy.py").write_text(
        "from fedarena.algorithms import FedAvg\n"
        "def twist(x): return x\n"
        "class Scaled(FedAvg):\n"
        "    def evaluation_params(self, state):\n"
        "        return {name: 1.0 * p for name, p in state['params'].items()}\n"
    )
    result = fedarena.run(SMALL, rounds=1, algorithm="own_lazy:Scaled", progress=False)
    read_weights(result.path)
    edit(workplace / "own_lazy.py", "1.0 * p", "2.0 * p")
    with pytest.warns(UserWarning, match=r"own_lazy\.py changed since the run .* began: its weights are what"):
        read_weights(result.path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("W = torch.full((10,), 1.0)", "W = torch.full((10,), 2.0)"),
        ("W = {'a': [(torch.ones(2).numpy(),)]}", "W = {'a': [(torch.zeros(2).numpy(),)]}"),
        ("def f(): return 1\nW = {'a': f}", "def f(): return 2\nW = {'a': f}"),
        ("W = functools.partial(torch.mul, 1.0)", "W = functools.partial(torch.mul, 2.0)"),
        ("W = functools.partial(torch.mul, 1.0)", "W = functools.partial(torch.add, 1.0)"),
        ("MU = 1.0", "MU = 2.0"),
        ("DEFAULT = 1.0", "DEFAULT = 2.0"),
        ("def decorate(f): return lambda *a: f(*a)", "def decorate(f): return lambda *a: 2 * f(*a)"),
    ],
    ids=["tensor", "array", "function in a dict", "partial", "function of a partial", "body", "default", "decorator"],
)
def test_whatever_a_definition_uses_counts(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    found = []
    for changed in (before, before, after):
        cell = f"""
import functools, torch
from fedarena.algorithms import FedAvg
W, MU, DEFAULT, decorate = 1, 1.0, 1.0, lambda f: f
{changed}
class Typed(FedAvg):
    mu = MU
    @decorate
    def twist(self, x=DEFAULT): return W
"""
        # As a script is: its classes have all of their text.
        script = sys.modules["__main__"]
        name = f"<cell {hash(cell)}>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        monkeypatch.setattr(script, "__file__", name, raising=False)
        names = vars(script) | {}
        exec(compile(cell, name, "exec"), names)
        for defined in ("functools", "torch", "FedAvg", "W", "MU", "DEFAULT", "decorate", "Typed", "f"):
            if defined in names:
                monkeypatch.setitem(vars(script), defined, names[defined])
        source = own_source(config("__main__:Typed"))
        assert source.unknown == []
        found.append(source.fingerprints)
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_what_cannot_be_told_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "from fedarena.algorithms import FedAvg\nclass Typed(FedAvg):\n    def twist(self): return THING\n"
    name = "<cell with a thing>"
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
    script = vars(sys.modules["__main__"])
    names = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), names)
    monkeypatch.setitem(script, "Typed", names["Typed"])
    monkeypatch.setitem(script, "THING", iter([1]))
    assert own_source(config("__main__:Typed")).unknown == ["__main__:THING"]

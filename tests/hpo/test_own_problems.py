"""Problems with parts of somebody's own: what was trained before they changed does not answer for them."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_problem import CONFIGURATION, SETTINGS

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.fleet import load_fleet
from fedarena.hpo import Fidelity
from fedarena.hpo.problems.declared import find_declared
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.search import run_search
from fedarena.hpo.tables.making import make_table
from fedarena.hpo.tables.recipe import Recipe, make_recipe
from fedarena.hpo.tables.trainers import OneByOne

MODULE = "method_of_mine"
METHOD = """
from fedarena.algorithms import FedAvg


class Mine(FedAvg):
    def server_step(self, state, mean_update, round):
        scaled = {group: {name: SHARE * t for name, t in some.items()} for group, some in mean_update.items()}
        return super().server_step(state, scaled, round)
"""
OWN = SETTINGS | {"algorithm": {"name": f"{MODULE}:Mine"}, "rounds": 2}
GRID = {"local.weight_decay": [0.001], "local.lr": [0.1], "local.batch_size": [16]}


@pytest.fixture(autouse=True)
def _method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    write_method(tmp_path, "1.0")


def write_method(folder: Path, share: str) -> None:
    """A version of the method, as a process that starts now would import it."""
    (folder / f"{MODULE}.py").write_text(METHOD.replace("SHARE", share))
    importlib.invalidate_caches()
    sys.modules.pop(MODULE, None)


def raw(folder: Path, settings: dict[str, Any] = OWN) -> RawProblem:
    made = fedarena.hpo.problem(settings, "raw", runs_folder=folder)
    assert isinstance(made, RawProblem)
    return made


def own_recipe() -> Recipe:
    return make_recipe(find_declared(OWN), seeds=[0], rates=[1.0], rounds=2, grid=GRID)


def test_a_course_of_a_method_that_changed_is_trained_again(tmp_path: Path) -> None:
    first = raw(tmp_path / "runs").query(CONFIGURATION, Fidelity(2)).value
    write_method(tmp_path, "0.25 + 0.25")
    second = raw(tmp_path / "runs").query(CONFIGURATION, Fidelity(2)).value
    assert second == raw(tmp_path / "others").query(CONFIGURATION, Fidelity(2)).value != first


def test_a_course_from_other_weights_is_trained_again(tmp_path: Path) -> None:
    settings = SETTINGS | {"rounds": 2, "weights": str(tmp_path / "start.pt")}
    torch.save({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, tmp_path / "start.pt")
    first = raw(tmp_path / "runs", settings).query(CONFIGURATION, Fidelity(2)).value
    torch.save({"1.weight": torch.zeros(10, 64), "1.bias": torch.arange(10.0)}, tmp_path / "start.pt")
    second = raw(tmp_path / "runs", settings).query(CONFIGURATION, Fidelity(2)).value
    assert second == raw(tmp_path / "others", settings).query(CONFIGURATION, Fidelity(2)).value != first


def test_a_course_on_other_phones_is_another_one(tmp_path: Path) -> None:
    settings = SETTINGS | {"rounds": 2, "fleet": {"name": "file", "path": str(tmp_path / "phones")}}
    names = []
    for seconds in (0.1, 0.2):
        shutil.rmtree(tmp_path / "phones", ignore_errors=True)
        load_fleet({"name": "uniform", "seconds_per_sample": seconds}, 5).save(tmp_path / "phones")
        names.append(raw(tmp_path / "runs", settings).config(CONFIGURATION, 1.0, 0).name)
    assert names[0] != names[1]


def test_built_in_parts_leave_the_names_of_courses_as_they_were(tmp_path: Path) -> None:
    """What lies on disk of earlier versions is found again."""
    assert raw(tmp_path, SETTINGS).made_of == {}


def test_a_search_of_a_method_that_changed_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"budget_s": 1e-3, "file": tmp_path / "found.parquet"}
    run_search(raw(tmp_path / "runs"), "random", **options)
    write_method(tmp_path, "0.25 + 0.25")
    with pytest.raises(BadInputError, match=r"the source, weights or fleet that they are made of.* changed since"):
        run_search(raw(tmp_path / "runs"), "random", **options)


def test_a_method_that_is_one_of_several_choices_counts(tmp_path: Path) -> None:
    choices = {**SETTINGS["search"], "algorithm": ["fedavg", f"{MODULE}:Mine"]}
    assert list(raw(tmp_path, SETTINGS | {"search": choices}).made_of) == [f"the source of {MODULE}"]


def test_a_table_of_a_method_that_changed_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    table = make_table(own_recipe(), path, training="one_by_one")
    assert (make_table(own_recipe(), path).values == table.values).all()
    write_method(tmp_path, "0.25 + 0.25")
    with pytest.raises(BadInputError, match=f"is there already, and the source of {MODULE} changed since"):
        make_table(own_recipe(), path)
    with pytest.raises(BadInputError, match=f"was made before the source of {MODULE} changed; make another one"):
        fedarena.hpo.problem(OWN, table=path)
    (tmp_path / f"{MODULE}.py").unlink()
    sys.modules.pop(MODULE)
    assert fedarena.hpo.problem(OWN, table=path).query(CONFIGURATION).value > 0  # nobody can tell


def test_half_a_table_of_a_method_that_changed_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.parquet"
    monkeypatch.setattr(OneByOne, "train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make_table(own_recipe(), path, training="one_by_one")
    write_method(tmp_path, "0.25 + 0.25")
    with pytest.raises(BadInputError, match=f"parts that were trained before the source of {MODULE} changed"):
        make_table(own_recipe(), path, training="one_by_one")

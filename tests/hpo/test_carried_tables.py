"""Tables whose trials are trained on another machine, which has torch and numpy alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_problem import SETTINGS
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.hpo.lanes.trials import carry_trials
from fedarena.hpo.problems.declared import find_declared
from fedarena.hpo.tables.elsewhere import TableWork, TrainedCells, train_elsewhere
from fedarena.hpo.tables.elsewhere import main as elsewhere_main
from fedarena.hpo.tables.making import carry_table, make_table
from fedarena.hpo.tables.recipe import Recipe, make_recipe
from fedarena.hpo.tables.table import read_table

HIDDEN = ("pyarrow", "pydantic", "typer", "rich", "plotly", "sklearn", "pandas", "yaml", "safetensors", "scipy")
HIDDEN += ("filelock", "platformdirs", "networkx", "optuna", "ConfigSpace", "PIL")


def small_recipe(**options: Any) -> Recipe:
    """Two architectures, in which dropout differs, and a schedule."""
    settings = SETTINGS | {
        "model": {"name": "mlp", "hidden": [8]},
        "client_lr_schedule": {"name": "exponential", "decay": 0.9},
        "algorithm": {"name": "fedavgm", "beta": 0.5},
        "engine": "cohort",
    }
    settings["search"] = {
        "local.lr": [0.03, 0.3],
        "model.dropout": [0.0, 0.5],
        "algorithm.server_lr": [0.5, 1.0],
    }
    usual: dict[str, Any] = {"rounds": 4, "noted": (1, 2, 4), "rates": (0.4, 1.0), "seeds": (0, 7)}
    return make_recipe(find_declared(settings), **usual | options)


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("carried") / "work.npz"
    assert carry_table(small_recipe(), path) == 2 * 2 * 2 * 2 * 2
    return path


@pytest.fixture(scope="module")
def trained(carried: Path) -> Path:
    path = carried.with_name("trained.npz")
    train_elsewhere(carried, path, device="cpu", workers=1)
    return path


def test_the_table_is_the_one_that_is_made_here(trained: Path, tmp_path: Path) -> None:
    recipe = small_recipe()
    direct = make_table(recipe, tmp_path / "direct.parquet", training="lanes", device="cpu")
    make_table(recipe, tmp_path / "carried.parquet", trained=trained)
    found = read_table(tmp_path / "carried.parquet")
    assert np.array_equal(found.values, direct.values)
    assert len(np.unique(found.score("validation_loss")[:, :, -1])) > 12  # the settings did arrive there
    assert found.grid == direct.grid
    assert found.rates == direct.rates
    assert found.rounds == direct.rounds
    assert all((found.work[name] == direct.work[name]).all() for name in direct.work)
    for name in ("recipe_fingerprint", "problem_fingerprint", "federation_fingerprint", "settings", "trained"):
        assert found.about[name] == direct.about[name]
    where = found.about["trained_elsewhere"]
    assert where["versions"]["numpy"] == np.__version__
    assert where["precision"] == "full"
    assert "trained_elsewhere" not in direct.about


def test_what_was_cut_short_goes_on(carried: Path, trained: Path, tmp_path: Path) -> None:
    whole = TableWork.read(carried)
    done = TrainedCells.read(trained, whole.made_for)
    some = TrainedCells(done.made_for, {cell: done.values[cell] for cell in (0, 5)}, done.where)
    some.values[5] = some.values[5] + 1  # so that it is seen who trained it
    some.write(tmp_path / "some.npz")
    with pytest.raises(BadInputError, match=r"some.npz lacks 14 of 16 cells of the table; train the rest"):
        make_table(small_recipe(), tmp_path / "t.parquet", trained=tmp_path / "some.npz")
    told: list[tuple[int, int]] = []
    found = train_elsewhere(
        carried, tmp_path / "some.npz", device="cpu", workers=1, progress=lambda *now: told.append(now)
    )
    assert told[-1] == (14 * 2 * 4, 14 * 2 * 4)
    assert np.array_equal(found.values[5], done.values[5] + 1)
    assert all(np.array_equal(found.values[cell], done.values[cell]) for cell in range(16) if cell != 5)


def test_what_is_not_right_is_said(carried: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"trained.npz was trained for another table, or other samples"):
        make_table(small_recipe(rounds=5, noted=(1, 2, 5)), tmp_path / "t.parquet", trained=trained)
    with pytest.raises(BadInputError, match=r"There is no file .*nowhere.npz with trained trials"):
        make_table(small_recipe(), tmp_path / "t.parquet", trained=tmp_path / "nowhere.npz")
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(trained.read_bytes()[:-40])
    with pytest.raises(DamagedFileError, match=r"damaged.npz cannot be read, or is damaged"):
        make_table(small_recipe(), tmp_path / "t.parquet", trained=damaged)
    with pytest.raises(DamagedFileError, match=r"work.npz holds no trained trials, or is damaged"):
        make_table(small_recipe(), tmp_path / "t.parquet", trained=carried)
    weights = tmp_path / "first.safetensors"
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, weights)
    with pytest.raises(BadInputError, match=r"Trials with weights=.* cannot be carried to another machine"):
        carry_trials({**plain(), "weights": str(weights)}, [{"seed": 0}], rounds=1)
    assert not list(tmp_path.glob("t.parquet*"))


def plain() -> dict[str, Any]:
    return {name: value for name, value in SETTINGS.items() if name not in ("search", "engine")}


def test_commands_carry_train_and_take_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps(SETTINGS))
    options = ["--seeds", "0,1", "--rates", "1.0", "--rounds", "2", "--grid", "local.lr=[0.1]"]
    table = ["hpo", "table", str(tmp_path / "own.yaml"), *options]
    work, trained, output = tmp_path / "work.npz", tmp_path / "trained.npz", tmp_path / "own.parquet"
    said = CliRunner().invoke(main, [*table, "--carry", str(work)])
    assert said.exit_code == 0
    assert "8 trials" in said.output
    assert elsewhere_main([str(work), str(trained), "--device", "cpu"]) == 0
    assert "trained.npz (4 cells)" in capsys.readouterr().out
    said = CliRunner().invoke(main, [*table, "--trained", str(trained), "-o", str(output)])
    assert said.exit_code == 0, said.output
    assert read_table(output).present.all()
    assert elsewhere_main([str(trained), str(tmp_path / "x.npz")]) == 2
    assert "trained.npz holds no trials to train, or is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_torch_and_numpy_are_enough(carried: Path, trained: Path, tmp_path: Path) -> None:
    program = f"""
import runpy, sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition('.')[0] in {HIDDEN!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Hiding, sys.meta_path)
sys.argv = ['elsewhere', {str(carried)!r}, 'there.npz', '--device', 'cpu']
runpy.run_module('fedarena.hpo.tables.elsewhere', run_name='__main__')
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made_for = TableWork.read(carried).made_for
    there, here = TrainedCells.read(tmp_path / "there.npz", made_for), TrainedCells.read(trained, made_for)
    assert all(np.array_equal(there.values[cell], here.values[cell]) for cell in range(16))

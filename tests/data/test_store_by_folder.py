"""A store is used by its folder, wherever the name of a federation may stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.data import Federation, load_federation
from fedarena.runs.config import resolve, resolve_settings


@pytest.mark.parametrize("given", ["clinics", "./clinics", Path("clinics"), {"name": "clinics/../clinics"}])
def test_a_folder_is_the_store_in_it(store: Path, monkeypatch: pytest.MonkeyPatch, given: object) -> None:
    monkeypatch.chdir(store.parent)
    store.rename("clinics")
    assert resolve({"federation": given}).federation["name"] == "store"
    config = resolve_settings(None, {"federation": given, "cohort": 2})
    assert Path(config.federation["path"]).is_absolute()  # a run may be resumed from another folder
    assert Federation.open(config.federation["path"]).num_clients == 5


def test_run_and_describe_take_the_same_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    store.rename("clinics")
    for command in (["describe", "clinics"], ["run", "federation=clinics", "rounds=1", "cohort=2"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    assert load_federation("clinics").fingerprint == Federation.open("clinics").fingerprint
    result = fedarena.run(federation=Path("clinics"), rounds=1, cohort=2, progress=False)
    assert result.config["federation"] == {"name": "store", "path": str(Path("clinics").absolute())}


def test_a_federation_that_is_registered_comes_first(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    store.rename("digits")
    assert resolve({"federation": "digits"}).federation["name"] == "digits"
    assert resolve({"federation": "./digits"}).federation["name"] == "store"


def test_folders_without_a_store_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(BadInputError, match=r"/empty is not a federation: it has no federation\.json"):
        load_federation("empty")
    with pytest.raises(BadInputError, match=r"There is no federation at .*/some/where: a store is a folder"):
        load_federation("some/where")
    with pytest.raises(
        BadInputError, match="no federation called 'digit' and no folder of that name; did you mean 'digits'"
    ):
        load_federation("digit")
    with pytest.raises(BadInputError, match="Cannot import the federation 'no/module:Thing'"):
        load_federation("no/module:Thing")


@pytest.mark.parametrize("given", ["patients.csv", "./patients.csv"])
def test_a_file_is_no_federation_yet(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text("who,y\nann,1\n")
    with pytest.raises(BadInputError, match=r"patients\.csv is a file, and a federation is a folder; fedarena data"):
        load_federation(given)

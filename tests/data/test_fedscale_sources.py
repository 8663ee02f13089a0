"""Every dataset of FedScale's Table 5 from files in its form: built, the same again, verified, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from both_engines import agree
from generated_files import SOURCES
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.data import load_federation
from fedarena.data.registry import FEDERATIONS, CachedSource


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOURCES)
def test_both_engines_train_on_it(name: str, tmp_path: Path) -> None:
    write, settings = SOURCES[name]
    options = {"folder": str(tmp_path / "raw"), **write(tmp_path / "raw")}
    federation = load_federation(name, options)
    federation.verify()
    agree(federation, tmp_path, **settings)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SOURCES)
def test_it_is_divided_in_the_words_of_all(name: str, tmp_path: Path) -> None:
    write, _ = SOURCES[name]
    folder = tmp_path / "raw"
    options = {"folder": str(folder), **write(folder)}
    published = load_federation(name, options)
    assert len(published.clients("train")) >= 3
    assert len(published.samples(published.clients(), "test").columns[published.task.label_column]) > 0
    within = load_federation(name, {**options, "split": "within_client", "train_fraction": 0.6})
    assert len(within.clients("train")) == within.num_clients == published.num_clients
    few = load_federation(name, {**options, "fraction": 0.5, "sampling_seed": 3})
    assert few.num_clients < published.num_clients


def test_all_have_the_same_options() -> None:
    common = [
        "folder",
        "minimum_samples",
        "fraction",
        "sampling_seed",
        "split",
        "train_fraction",
        "validation_fraction",
    ]
    for name in SOURCES:
        source = FEDERATIONS.get(name)
        assert isinstance(source, CachedSource)
        assert {*common, "split_seed"} <= set(source.__signature__.parameters), name


def test_commands_show_table_5(tmp_path: Path) -> None:
    options = SOURCES["taxi"][0](tmp_path / "raw")
    settings = [f"folder={tmp_path / 'raw'}", *(f"{option}={value}" for option, value in options.items())]

    def said(*command: str) -> str:
        result = CliRunner().invoke(main, ["data", *command])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    assert "8 clients" in said("prepare", "taxi", *settings)
    counted = "Counted: 8 clients and 24 trips, where Table 5 of FedScale has 442 clients and about 1,700,000 trips"
    assert counted in said("verify", "taxi", *settings)
    numbers = tmp_path / "numbers.json"
    shown = said("stats", "taxi", *settings, "-o", str(tmp_path / "a.html"), "--json", str(numbers))
    assert "in FedScale's Table 5 442 clients, 1,700,000 trips, of all of the data" in shown
    assert json.loads(numbers.read_text())[0]["fedscale_table_5"]["clients"] == 442

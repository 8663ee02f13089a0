"""Every dataset of FedScale's Table 5 from files in its form: built, the same again, verified, and trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
from both_engines import agree
from generated_files import SOURCES

from fedarena.data import load_federation
from fedarena.data.registry import FEDERATIONS, CachedSource


@pytest.mark.sampled(6)
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

"""OpenML's tables: from small files of both forms, and from the published ones where they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.divided_by_labels import clients_by_labels, stratified_parts
from fedarena.data.sources.openml import FILES, TABLES
from fedarena.data.statistics.table7 import FEDHPO_TABLE_7

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "tabular" / "openml"
CAR_VALUES = [["vhigh", "high"], ["med", "low"], ["2", "3", "5more"], ["2", "4"], ["small", "big"], ["low", "high"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cars as OpenML serves them, and vehicles as they were first published."""
    cars = list(itertools.product(*CAR_VALUES))
    header = [f"@attribute {place} {{{','.join(values)}}}" for place, values in enumerate(CAR_VALUES)]
    rows = [",".join([*car, "unacc" if car[5] == "low" else "acc"]) for car in cars]
    text = "\n".join(["@relation car", *header, "@attribute class {unacc,acc}", "@data", *rows])
    (tmp_path / "dataset_40975_car.arff").write_text(text)
    lines = [
        " ".join([*(str(100 + (7 * row + place) % 13) for place in range(18)), "van" if row % 3 else "bus"])
        for row in range(120)
    ]
    (tmp_path / "vehicle_xaa-xai.dat").write_text(" \n".join(lines))
    return tmp_path


def load(folder: Path, task: int, **options: object) -> Federation:
    return load_federation("openml", {"folder": str(folder), "task": task, "verify": False, **options})


def samples(federation: Federation, part: str) -> dict[str, np.ndarray]:
    return federation.samples(federation.clients(), part).columns


def test_categories_are_inputs_of_0_and_1_whatever_they_look_like(folder: Path) -> None:
    federation = load(folder, 146821)
    names = federation.columns["x"].names
    assert names is not None
    assert {"2=2", "2=3", "2=5more", "3=2", "3=4"} <= set(names)
    x = samples(federation, "train")["x"]
    assert np.isin(x, (0, 1)).all()
    assert (x.sum(axis=1) == len(CAR_VALUES)).all()
    low = x[:, names.index("5=low")] == 1
    assert federation.task.label_names == ("acc", "unacc")
    assert (samples(federation, "train")["y"] == low).all()


def test_numbers_are_normalized_by_training_samples_alone_or_not_at_all(folder: Path) -> None:
    federation, raw = load(folder, 53), load(folder, 53, standardize=False)
    training = samples(federation, "train")["x"]
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(training.std(axis=0), 1, atol=1e-5)
    plain = samples(raw, "train")["x"].astype(np.float64)
    expected = (samples(raw, "test")["x"] - plain.mean(axis=0)) / plain.std(axis=0)
    np.testing.assert_allclose(samples(federation, "test")["x"], expected, atol=1e-5)
    assert plain.min() >= 100
    assert "training samples" in federation.notes[0]
    assert raw.notes[0] == "Numbers are not normalized."


def test_80_10_10_and_another_seed_divides_otherwise(folder: Path) -> None:
    first, again, other = load(folder, 53), load(folder, 53), load(folder, 53, seed=1)
    counts = [len(samples(first, part)["y"]) for part in ("train", "validation", "test")]
    assert counts == [96, 12, 12]
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.client_ids(first.clients()) == [f"client-{number:04d}" for number in range(5)]
    assert (samples(first, "train")["x"] != samples(other, "train")["x"]).any()


def test_what_is_missing_or_not_as_published_is_said(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"lacks the table of task 31, credit-g: german.data.txt or credit-g.arff"):
        load(folder, 31)
    with pytest.raises(BadInputError, match=r"one of german.data.txt.*openml.org/d/N"):
        load(folder / "nowhere", 31)
    with pytest.raises(DamagedFileError, match="is not the published vehicle"):
        load(folder, 53, verify=True)
    with pytest.raises(BadInputError, match="not enough for 50 clients"):
        load(folder, 53, clients=50)
    (folder / "vehicle_xaa-xai.dat").write_text("1 2 3 van\n")
    with pytest.raises(BadInputError, match="has 4 columns, but columns names 19"):
        load(folder, 53)


def test_what_can_be_fetched_is_what_is_there_in_neither_form(folder: Path) -> None:
    names = [file.name for file in FILES.to_fetch(str(folder))]
    assert names == ["credit-g.arff", "kc1.arff", "blood-transfusion-service-center.arff", "Australian.arff"]


def test_labels_of_a_client_are_mixed_alike_in_all_parts() -> None:
    labels = np.random.default_rng(0).integers(0, 3, size=3000)
    parts = stratified_parts(labels, (0.8, 0.1, 0.1), seed=3)
    for label in range(3):
        of_class = np.bincount(parts[labels == label], minlength=3)
        assert np.abs(of_class - of_class.sum() * np.array([0.8, 0.1, 0.1])).max() < 1
    clients = clients_by_labels(labels, parts, clients=4, alpha=0.5, min_samples=10, seed=3)
    tables = np.zeros((3, 4, 3))
    np.add.at(tables, (parts, clients, labels), 1)
    for part in (1, 2):
        expected = tables[0] / tables[0].sum(axis=0) * tables[part].sum(axis=0)
        assert np.abs(tables[part] - expected).max() < 1


def test_a_class_that_nobody_trains_on_is_spread_like_samples() -> None:
    labels = np.array([0] * 30 + [1] * 10)
    parts = np.array([0] * 30 + [2] * 10)
    clients = clients_by_labels(labels, parts, clients=2, alpha=1.0, min_samples=1, seed=0)
    training = np.bincount(clients[:30], minlength=2)
    np.testing.assert_allclose(np.bincount(clients[30:], minlength=2), training / 3, atol=1)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_tables_have_the_published_counts() -> None:
    inputs = {31: 61, 53: 18, 3917: 21, 10101: 4, 146818: 42, 146821: 21, 146822: 19}
    assert {task for source, task in FEDHPO_TABLE_7 if source == "openml"} == set(inputs) == set(TABLES)
    for task, width in inputs.items():
        federation = load_federation("openml", {"folder": str(PUBLISHED), "task": task})
        published = FEDHPO_TABLE_7["openml", task]
        assert (federation.num_samples, federation.task.classes) == (published.samples, published.classes)
        assert federation.columns["x"].shape == (width,)
        assert federation.num_clients == 5
        training = [len(federation.samples(np.array([client]), "train").columns["y"]) for client in range(5)]
        assert min(training) >= 10
    result = CliRunner().invoke(main, ["data", "verify", "openml", "task=53", f"folder={PUBLISHED}"])
    assert result.exit_code == 0, result.output
    assert "846 samples of 4 classes, as in Table 7 of FedHPO-Bench" in result.output.replace("\n", " ")

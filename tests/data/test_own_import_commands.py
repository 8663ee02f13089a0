"""The commands that make stores of own pictures and texts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.data import Federation


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for drawer in ("ann", "bob", "cyd"):
        for character in ("alpha", "beta"):
            (tmp_path / "drawings" / drawer / character).mkdir(parents=True)
            for copy in range(2):
                Image.fromarray(np.zeros((4, 5), np.uint8)).save(
                    tmp_path / "drawings" / drawer / character / f"{copy}.png"
                )
    with open(tmp_path / "said.csv", "w", newline="", encoding="utf-8") as file:
        rows = [(f"s{n % 3}", "well well well", "joy" if n % 2 else "anger") for n in range(12)]
        csv.writer(file).writerows([("speaker", "utterance", "emotion"), *rows])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["data", *words])
    return result.exit_code, result.output


def test_pictures(place: Path) -> None:
    code, shown = run("import-images", "drawings", "--pattern", "{client}/{label}")
    assert code == 0, shown
    assert "Imported: stores/drawings has drawings with 3 clients and 12 samples" in shown
    assert "fedarena run federation=stores/drawings" in shown
    assert Federation.open("stores/drawings").task.label_names == ("alpha", "beta")
    assert run("import-images", "drawings", "--pattern", "{client}/{label}")[0] == 0  # nothing to do
    again, shown = run("import-images", "drawings", "--pattern", "{client}/{label}", "size=3")
    assert again == 2
    assert "stores/drawings holds another federation" in shown
    again, shown = run("import-images", "drawings", "--pattern", "{client}/{label}", "size=3", "overwrite=true")
    assert again == 0, shown
    assert Federation.open("stores/drawings").columns["x"].shape == (1, 3, 3)


def test_options_are_keys_and_values(place: Path) -> None:
    options = ["size=[2,3]", "channels=rgb", "partition=id_groups", "partition.group_size=2", "name=groups"]
    code, shown = run("import-images", "drawings", "--pattern", "{client}/{label}", *options, "-o", "somewhere")
    assert code == 0, shown
    federation = Federation.open("somewhere")
    assert (federation.name, federation.num_clients, federation.columns["x"].shape) == ("groups", 2, (3, 2, 3))


def test_a_table_of_paths(place: Path) -> None:
    with open("table.csv", "w", newline="", encoding="utf-8") as file:
        rows = [(str(path), path.parts[1], path.parts[2]) for path in sorted(Path("drawings").rglob("*.png"))]
        csv.writer(file).writerows([("where", "who", "what"), *rows])
    code, shown = run("import-images", "table.csv", "--client", "who", "--label", "what", "--image", "where")
    assert code == 0, shown
    assert Federation.open("stores/table").num_samples == 12


def test_texts(place: Path) -> None:
    code, shown = run("import-text", "said.csv", "--client", "speaker", "--text", "utterance", "--label", "emotion")
    assert code == 0, shown
    assert Federation.open("stores/said").task.kind == "classification"
    words = ["--client", "speaker", "--text", "utterance", "--tokenizer", "bytes", "-o", "next", "length=8"]
    code, shown = run("import-text", "said.csv", *words)
    assert code == 0, shown
    assert Federation.open("next").columns["tokens"].shape == (9,)


def test_notes_are_shown(place: Path) -> None:
    words = ["--client", "speaker", "--text", "utterance", "--label", "emotion", "length=2"]
    code, shown = run("import-text", "said.csv", *words)
    assert code == 0, shown
    assert "Note: 100.0% of the training texts have more than 2 tokens" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["import-images", "nowhere"], "There is no file or folder nowhere"),
        (["import-images", "drawings"], "Say with pattern=…"),
        (["import-images", "drawings", "--pattern", "{client}/{label}", "sise=3"], "did you mean 'size'?"),
        (["import-images", "drawings", "--pattern", "{client}/{label}", "fit=tight"], "data import-images.fit"),
        (["import-images", "drawings", "--pattern", "{client}/{label}", "path=x"], "-o says where the store goes"),
        (["import-text", "said.csv", "--text", "utterance"], "has the clients"),
        (["import-text", "said.csv", "--text", "uterance", "--client", "speaker"], "did you mean 'utterance'?"),
        (["import-text", "said.csv", "--text", "utterance", "--client", "speaker", "length"], "is not a setting"),
    ],
)
def test_mistakes_end_with_a_sentence(place: Path, words: list[str], sentence: str) -> None:
    code, shown = run(*words)
    assert code == 2
    assert sentence in " ".join(shown.split())
    assert not Path("stores").exists() or not list(Path("stores").iterdir())


def test_height_and_width_need_no_brackets(place: Path) -> None:
    code, shown = run("import-images", "drawings", "--pattern", "{client}/{label}", "size=2,3")
    assert code == 0, shown
    assert Federation.open("stores/drawings").columns["x"].shape == (1, 2, 3)

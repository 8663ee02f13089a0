"""The command that imports tables, on made-up and on real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.data import Federation

REAL = Path(__file__).parents[3] / "shared" / "data"
HEADER = ("age", "sex", "cp", "trestbps", "chol", "num")
# As the files of four hospitals are given out: no header, and marks for what nobody measured.
HOSPITALS = {
    "processed.cleveland.data": "63,1,1,145,233,0\n67,1,4,160,286,2\n37,1,3,130,250,0\n41,0,2,130,204,0\n",
    "processed.hungarian.data": "28,1,2,130,132,0\n29,1,2,120,?,0\n30,0,1,?,237,0\n52,1,4,160,331,1\n",
    "processed.switzerland.data": "32,1,1,95,0,1\n34,1,4,115,0,1\n35,1,4,?,0,0\n36,1,4,110,0,1\n",
    "processed.va.data": "63,1,4,140,260,2\n44,1,4,130,209,0\n60,1,4,132,218,2\n55,1,4,142,228,1\n",
}


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name, text in HOSPITALS.items():
        Path(name).write_text(text)
    return list(HOSPITALS)


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["data", "import", *words])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split()) if code else result.output


def test_four_hospitals_in_two_commands(hospitals: list[str]) -> None:
    settings = ["--columns", ",".join(HEADER), "--label", "num"]
    refused = call(*hospitals, *settings, code=2)
    assert "'trestbps' holds numbers, but '?' in row 3 of processed.hungarian (client 'hungarian')" in refused
    refused = call(*hospitals, *settings, "--na", "?", code=2)
    assert (
        "'trestbps' has no value in row 3 of processed.hungarian (client 'hungarian'), nor in 1 other rows" in refused
    )
    assert not Path("stores").exists()
    marks = ["--na", "?", "--na", "chol=0", "--missing", "mean", "--missing", "chol=median", "--categorical", "cp"]
    text = call(*hospitals, *settings, *marks)
    assert text.splitlines() == [
        "Imported: stores/processed has processed with 4 clients, 16 samples and 8 inputs "
        "(classification of 3 classes)",
        "Note: Numbers are normalized by the mean and standard deviation of all training samples.",
        "Note: Missing values became the mean of training samples: trestbps (2).",
        "Note: Missing values became the median of training samples: chol (5).",
        "Note: sex is the same in all training samples: where it differs, it is not scaled.",
        "Next: fedarena run federation=stores/processed",
    ]
    federation = Federation.open("stores/processed")
    assert federation.client_ids(federation.clients()) == ["cleveland", "hungarian", "switzerland", "va"]
    ran = CliRunner().invoke(main, ["run", "federation=stores/processed", "cohort=4", "rounds=2"])
    assert ran.exit_code == 0, ran.output
    assert call(*hospitals, *settings, *marks) == text  # the same again is fine
    assert "stores/processed holds another federation" in call(*hospitals, *settings, *marks, "--indicators", code=2)
    assert "10 inputs" in call(*hospitals, *settings, *marks, "--indicators", "--overwrite")
    described = CliRunner().invoke(main, ["describe", "stores/processed"])
    assert "Note: Missing values became the mean of training samples: trestbps (2)." in described.output


def test_options_reach_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = 40
    table = {
        "who": [f"u{n % 4}" for n in range(rows)],
        "id": list(range(rows)),
        "x": np.linspace(0, 1, rows).round(3).tolist(),
        "country": ["NO" if n % 2 else "SE" for n in range(rows)],
        "tags": ["a;b" if n % 3 else "b" for n in range(rows)],
        "set": ["train" if n < 30 else "test" for n in range(rows)],
    }
    pd.DataFrame(table).to_csv("t.csv", index=False, sep="|")
    chosen = ["--client", "who", "--label", "tags", "--label-separator", ";", "--part", "set", "--drop", "id"]
    text = call("t.csv", *chosen, "--attributes", "country", "--normalize", "none", "-o", "out", "--name", "tagged")
    assert "out has tagged with 4 clients, 40 samples and 1 input (multi-label)" in text
    federation = Federation.open("out")
    assert federation.task.label_names == ("a", "b")
    assert federation.attributes([0, 1])["country"] == ["SE", "NO"]
    assert federation.counts(federation.clients(), "test").sum() == 10
    assert federation.samples(federation.clients()).columns["x"].max() == 1.0
    call("t.csv", "--partition", "dirichlet,clients=3,alpha=0.5", "--label", "country", "--features", "x", "-o", "made")
    assert Federation.open("made").num_clients == 3
    by_client = ["--split", "by_client", "--train-fraction", "0.5", "--split-seed", "3", "--order", "in_order"]
    call("t.csv", "--client", "who", "--label", "x", "--task", "regression", "--features", "id", *by_client, "-o", "r")
    federation = Federation.open("r")
    assert (federation.task.kind, federation.manifest.clients["test"]) == ("regression", 2)
    assert "twice for all columns" in call("t.csv", "--label", "x", "--missing", "mean", "--missing", "zero", code=2)
    assert "There is no file nowhere.csv" in call("nowhere.csv", "--client", "who", "--label", "x", code=2)


@pytest.mark.skipif(not (REAL / "tabular").is_dir(), reason="no real tables here")
@pytest.mark.parametrize(
    ("file", "options", "facts"),
    [
        ("german.data.txt", ["--client", "c4", "--label", "c21", "--columns", "21"], (10, 1000, 2, ("1", "2"))),
        ("vehicle_xaa-xai.dat", ["--label", "c19", "--columns", "19"], (5, 846, 4, ("bus", "opel", "saab", "van"))),
        ("transfusion.data", ["--label", "donated blood"], (5, 748, 2, ("0", "1"))),
        ("car.dat", ["--label", "Acceptability"], (5, 1728, 4, ("acc", "good", "unacc", "vgood"))),
        ("kc1.arff.txt", ["--label", "defects"], (5, 2109, 2, ("false", "true"))),
        ("segment.dat", ["--label", "Class"], (5, 2310, 7, tuple("1234567"))),
    ],
)
def test_real_tables(
    tmp_path: Path, file: str, options: list[str], facts: tuple[int, int, int, tuple[str, ...]]
) -> None:
    if "--columns" in options:
        options = [*options[:-1], ",".join(f"c{n}" for n in range(1, int(options[-1]) + 1))]
    if "--client" not in options:
        options = [*options, "--partition", "iid,clients=5"]
    call(str(REAL / "tabular" / "openml" / file), *options, "-o", str(tmp_path / "store"))
    federation = Federation.open(tmp_path / "store")
    task = federation.task
    assert (federation.num_clients, federation.num_samples, task.classes, task.label_names) == facts


@pytest.mark.skipif(not (REAL / "porto_taxi").is_dir(), reason="no real taxis here")
def test_real_taxis(tmp_path: Path) -> None:
    """Two columns are empty in most rows, one has coordinates of whole trips, and ids have nineteen digits."""
    file = str(REAL / "porto_taxi" / "train.1k.csv.gz")
    settings = ["--client", "TAXI_ID", "--label", "CALL_TYPE", "-o", str(tmp_path / "store")]
    assert "Column 'ORIGIN_CALL' has no value in row 1 (client '20000589'), nor in 731 other rows" in call(
        file, *settings, "--drop", "POLYLINE,TRIP_ID", code=2
    )
    chosen = ["--features", "ORIGIN_CALL,ORIGIN_STAND,TIMESTAMP", "--missing", "zero", "--indicators"]
    call(file, *settings, *chosen)
    federation = Federation.open(tmp_path / "store")
    assert (federation.num_clients, federation.num_samples) == (309, 999)
    assert federation.task.label_names == ("A", "B", "C")
    names = federation.columns["x"].names
    assert names == ("ORIGIN_CALL", "ORIGIN_CALL is missing", "ORIGIN_STAND", "ORIGIN_STAND is missing", "TIMESTAMP")
    assert federation.samples(federation.clients()).columns["x"][:, 1].sum() == 732

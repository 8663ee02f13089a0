"""Federations from tables: what becomes of columns, labels, missing values, and who is divided how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedarena
from fedarena import from_table
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation

CLINICS = pd.DataFrame(
    {
        "clinic": ["north"] * 4 + ["south"] * 4 + ["west"] * 2,
        "age": [30, 40, 50, 60, 20, 30, 40, 50, 70, 80],
        "blood": ["A", "B", "A", "0", "A", "A", "B", "B", "A", "AB"],
        "part": ["train", "train", "train", "test"] * 2 + ["test", "test"],
        "ill": ["no", "yes", "no", "yes", "no", "no", "yes", "yes", "no", "yes"],
    }
)
TRAIN_AGES = np.array([30, 40, 50, 20, 30, 40])


def columns(federation: Federation, client: str, part: str = "all") -> dict[str, np.ndarray]:
    place = federation.client_ids(federation.clients()).index(client)
    return federation.samples([place], part).columns


def test_numbers_categories_and_labels() -> None:
    federation = from_table(CLINICS, client="clinic", label="ill", part="part")
    assert federation.client_ids(federation.clients()) == ["north", "south", "west"]
    assert federation.columns["x"].names == ("age", "blood=A", "blood=B")  # no training sample has 0 or AB
    assert federation.task.label_names == ("no", "yes")
    ages = (np.array([30, 40, 50, 60]) - TRAIN_AGES.mean()) / TRAIN_AGES.std()
    north = columns(federation, "north")
    np.testing.assert_allclose(north["x"][:, 0], ages, rtol=1e-6)
    np.testing.assert_array_equal(north["x"][:, 1:], [[1, 0], [0, 1], [1, 0], [0, 0]])
    assert north["y"].tolist() == [0, 1, 0, 1]
    assert federation.notes == (
        "Numbers are normalized by the mean and standard deviation of all training samples.",
        "Of blood, no training sample has 0, AB: there its inputs are all 0.",
    )
    # Whoever has nothing to train on is only tested.
    assert federation.manifest.clients == {"train": 2, "validation": 0, "test": 1}


def test_normalization_by_client_and_none() -> None:
    own = from_table(CLINICS, client="clinic", label="ill", part="part", normalize="per_client", drop=["blood"])
    assert "each client's own training samples" in own.notes[0]
    for client, ages in (("north", TRAIN_AGES[:3]), ("south", TRAIN_AGES[3:])):
        all_ages = CLINICS[CLINICS["clinic"] == client]["age"]
        np.testing.assert_allclose(
            columns(own, client)["x"][:, 0], (all_ages - ages.mean()) / ages.std(), rtol=1e-6, atol=1e-7
        )
    of_all = (np.array([70, 80]) - TRAIN_AGES.mean()) / TRAIN_AGES.std()  # west has no training samples
    np.testing.assert_allclose(columns(own, "west")["x"][:, 0], of_all, rtol=1e-6)
    plain = from_table(CLINICS, client="clinic", label="ill", part="part", normalize="none", features=["age"])
    assert columns(plain, "south")["x"][:, 0].tolist() == [20, 30, 40, 50]
    assert plain.notes == ("Numbers are not normalized.",)


def test_a_column_that_never_differs_is_zero() -> None:
    table = CLINICS.assign(constant=0.1, age=1e9)
    x = from_table(table, client="clinic", label="ill", drop=["blood", "part"]).samples([0, 1, 2]).columns["x"]
    assert not x.any()


@pytest.mark.parametrize(
    ("values", "task", "names"),
    [
        ([-1, 1], "classification", ("-1", "1")),
        ([1.0, 2.0], "classification", ("1", "2")),
        (["b", "a"], "classification", ("a", "b")),
        ([True, False], "classification", ("false", "true")),
        ([[1], [-1]], "classification", ("-1", "1")),
        ([["b"], ["a"]], "classification", ("a", "b")),
        (["10", "9"], "classification", ("9", "10")),
        ([0.5, 1.5], "regression", None),
        ([["b", "a"], ["a"]], "multi_label", ("a", "b")),
        ([[10, 9], []], "multi_label", ("9", "10")),
    ],
)
def test_labels_are_whatever_they_are(values: list[Any], task: str, names: tuple[str, ...] | None) -> None:
    rows = [{"who": "ann", "x": float(n), "label": values[n % 2]} for n in range(6)]
    federation = from_table(rows, client="who", label="label", train_fraction=0.5)
    assert (federation.task.kind, federation.task.label_names) == (task, names)
    found = columns(federation, "ann")
    order = np.argsort(found["x"][:, 0])
    if task == "regression":
        assert found["y"][order].tolist() == [0.5, 1.5] * 3
        assert federation.task.value_range == (0.5, 1.5)
    elif task == "classification":
        assert [names[label] for label in found["y"][order]] == [name_of(value) for value in values * 3]
    else:
        on = [{names[place] for place in np.flatnonzero(row)} for row in found["y"][order]]
        assert on == [set(map(str, value)) for value in values * 3]


def name_of(value: Any) -> str:
    """The name of a class, as somebody would write it."""
    if isinstance(value, list):
        return name_of(value[0])
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_many_labels_in_one_text_and_in_columns() -> None:
    table = pd.DataFrame({"who": list("aabb"), "x": [1, 2, 3, 4], "tags": ["sea | sun", "", "sun", "snow|sea|sun"]})
    federation = from_table(
        table, client="who", label="tags", label_separator="|", train_fraction=1.0, normalize="none"
    )
    assert (federation.task.kind, federation.task.label_names) == ("multi_label", ("sea", "snow", "sun"))
    samples = federation.samples([0, 1]).columns
    assert samples["y"][np.argsort(samples["x"][:, 0])].tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1], [1, 1, 1]]
    marks = pd.DataFrame(
        {"who": list("aabb"), "x": [1, 2, 3, 4], "sea": [1, 0, 0, 1], "snow": [False, False, True, True]}
    )
    federation = from_table(marks, client="who", label=["sea", "snow"], train_fraction=1.0, normalize="none")
    assert (federation.task.kind, federation.task.label_names) == ("multi_label", ("sea", "snow"))
    samples = federation.samples([0, 1]).columns
    assert samples["y"][np.argsort(samples["x"][:, 0])].tolist() == [[1, 0], [0, 0], [0, 1], [1, 1]]
    numbers = from_table(marks.assign(sea=[0.5, 1, 2, 3]), client="who", label=["sea", "snow"], train_fraction=1.0)
    assert (numbers.task.kind, numbers.task.classes, numbers.columns["y"].shape) == ("regression", 2, (2,))


def test_many_whole_numbers_must_be_told() -> None:
    table = {"who": ["a", "b"] * 30, "x": list(range(60)), "y": list(range(60))}
    with pytest.raises(BadInputError, match="'y' has 60 different whole numbers; say whether"):
        from_table(table, client="who", label="y")
    assert from_table(table, client="who", label="y", task="regression").task.kind == "regression"
    assert from_table(table, client="who", label="y", task="classification").task.classes == 60


GAPS = pd.DataFrame(
    {
        "who": list("aaaabbbb"),
        "part": ["train", "train", "train", "test"] * 2,
        "n": [1.0, 2.0, np.nan, 9.0, 3.0, np.nan, 6.0, np.nan],
        "c": ["u", "v", "v", None, "v", "u", None, "u"],
        "y": [0, 1, 0, 1, 0, 1, 0, 1],
    }
)


@pytest.mark.parametrize(
    ("missing", "n", "c"),
    [
        ("zero", [1, 2, 0, 9, 3, 0, 6, 0], ["u", "v", "v", "", "v", "u", "", "u"]),
        ("mean", [1, 2, 3, 9, 3, 3, 6, 3], ["u", "v", "v", "v", "v", "u", "v", "u"]),
        ("median", [1, 2, 2.5, 9, 3, 2.5, 6, 2.5], ["u", "v", "v", "v", "v", "u", "v", "u"]),
        ({"n": "zero", "c": "mean"}, [1, 2, 0, 9, 3, 0, 6, 0], ["u", "v", "v", "v", "v", "u", "v", "u"]),
        ({"*": "mean", "n": "zero"}, [1, 2, 0, 9, 3, 0, 6, 0], ["u", "v", "v", "v", "v", "u", "v", "u"]),
    ],
)
def test_missing_values(missing: Any, n: list[float], c: list[str]) -> None:
    federation = from_table(GAPS, client="who", label="y", part="part", missing=missing, normalize="none")
    x = federation.samples([0, 1]).columns["x"]
    assert federation.columns["x"].names == ("n", "c=u", "c=v")
    assert x[:, 0].tolist() == n
    assert x[:, 1:].tolist() == [[float(word == "u"), float(word == "v")] for word in c]
    treated = missing if isinstance(missing, str) else missing["n"]
    said = "zero" if treated == "zero" else f"the {treated} of training samples"
    assert f"Missing values became {said}: n (3)." in federation.notes


def test_missing_values_by_client_drop_and_indicators() -> None:
    own = from_table(GAPS, client="who", label="y", part="part", missing="mean", normalize="per_client", drop=["c"])
    assert own.samples([0]).columns["x"][2, 0] == 0  # a client's own mean
    marked = from_table(GAPS, client="who", label="y", part="part", missing="mean", normalize="none", indicators=True)
    assert marked.columns["x"].names == ("n", "n is missing", "c=u", "c=v", "c is missing")
    x = marked.samples([0, 1]).columns["x"]
    assert x[:, 1].tolist() == [0, 0, 1, 0, 0, 1, 0, 1]
    assert x[:, 4].tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
    fewer = from_table(GAPS, client="who", label="y", part="part", missing={"n": "drop", "c": "zero"}, normalize="none")
    assert fewer.samples([0, 1]).columns["x"][:, 0].tolist() == [1, 2, 9, 3, 6]
    assert fewer.notes[0] == "Samples without n are left out (3)."


def test_marks_of_missing_values() -> None:
    table = pd.DataFrame({"who": list("abab"), "n": ["?", "1", "-9", "3"], "m": [0, -9, 2, 4], "y": [0, 1, 0, 1]})
    settings = {"client": "who", "label": "y", "normalize": "none", "train_fraction": 1.0}
    by_column = from_table(
        table, **settings, na_values={"*": ["?", -9], "m": [0]}, missing={"n": "median", "m": "zero"}
    )
    x = by_column.samples([0, 1]).columns["x"]
    assert sorted(x[:, 0].tolist()) == [1, 2, 2, 3]
    assert sorted(x[:, 1].tolist()) == [0, 0, 2, 4]
    assert "Missing values became zero: m (2)." in by_column.notes
    as_names = from_table(table, **settings, na_values="-9", missing="zero", categorical=["n"])
    assert as_names.columns["x"].names == ("n=1", "n=3", "n=?", "m")


def test_columns_that_say_who_is_divided_how() -> None:
    table = CLINICS.assign(group=["train"] * 4 + ["test"] * 4 + ["validation"] * 2)
    settings = {"client": "clinic", "label": "ill", "drop": ["blood"]}
    by_group = from_table(table, **settings, group="group", features=["age"])
    assert by_group.manifest.clients == {"train": 1, "validation": 1, "test": 1}
    assert [by_group.counts([0, 1, 2], part).tolist() for part in ("train", "validation", "test")] == [
        [4, 0, 0],
        [0, 0, 2],
        [0, 4, 0],
    ]
    both = from_table(table, **settings, group="group", part="part")
    assert both.manifest.clients == {"train": 1, "validation": 1, "test": 1}
    assert both.counts([0, 1, 2], "train").tolist() == [3, 3, 0]  # a test client may have something to adapt to
    called = from_table(
        table.replace({"part": {"train": "Training", "test": "EVAL"}}), **settings, part="part", features=["age"]
    )
    assert called.counts([0, 1, 2], "test").tolist() == [1, 1, 2]


def test_splits_are_those_of_other_federations() -> None:
    rows = {"who": [f"u{n % 10}" for n in range(200)], "x": list(range(200)), "y": [n % 2 for n in range(200)]}
    by_client = from_table(
        rows, client="who", label="y", split="by_client", train_fraction=0.6, validation_fraction=0.2
    )
    assert by_client.manifest.clients == {"train": 6, "validation": 2, "test": 2}
    in_order = from_table(rows, client="who", label="y", order="in_order", train_fraction=0.5, normalize="none")
    assert columns(in_order, "u3", "train")["x"][:, 0].tolist() == [3 + 10 * n for n in range(10)]
    seeds = [from_table(rows, client="who", label="y", split_seed=seed).fingerprint for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_clients_by_a_partitioner_and_attributes() -> None:
    rows = {"x": list(range(100)), "y": [n % 2 for n in range(100)]}
    federation = from_table(rows, label="y", partition={"name": "iid", "clients": 5})
    assert federation.num_clients == 5
    numbers = from_table(
        {**rows, "y": [n / 7 for n in range(100)]},
        label="y",
        partition={"name": "dirichlet", "clients": 4},
        task="regression",
    )
    assert (numbers.task.kind, numbers.num_samples) == ("regression", 100)
    table = CLINICS.assign(country=["N"] * 4 + ["S"] * 6, beds=[10] * 4 + [20] * 4 + [30] * 2, share=[0.5] * 10)
    federation = from_table(table, client="clinic", label="ill", part="part", attributes=["country", "beds", "share"])
    assert federation.manifest.attributes == {"country": "string", "beds": "int64", "share": "float64"}
    known = federation.attributes([0, 1, 2])
    assert known["country"] == ["N", "S", "S"]
    assert known["beds"].tolist() == [10, 20, 30]
    assert "country" not in "".join(federation.columns["x"].names or ())


def test_several_tables_are_a_client_each(tmp_path: Path) -> None:
    for clinic, rows in CLINICS.drop(columns="part").groupby("clinic"):
        rows.drop(columns="clinic").to_csv(tmp_path / f"hospital-{clinic}.csv", index=False)
    paths = sorted(tmp_path.iterdir())
    of_files = from_table(paths, label="ill")
    assert (of_files.name, of_files.client_ids([0, 1, 2])) == ("hospital", ["north", "south", "west"])
    of_folder = from_table(tmp_path, label="ill", name="hospital")
    assert of_folder.fingerprint == of_files.fingerprint
    frames = {clinic: rows.drop(columns=["clinic", "part"]) for clinic, rows in CLINICS.groupby("clinic")}
    assert from_table(frames, label="ill", name="hospital").fingerprint == of_files.fingerprint
    mixed = {"a": paths[0], "b": frames["south"], "c": pa.Table.from_pandas(frames["west"], preserve_index=False)}
    assert from_table(mixed, label="ill").client_ids([0, 1, 2]) == ["a", "b", "c"]
    together = from_table(list(map(str, paths)), label="ill", client="blood")
    assert together.client_ids(together.clients()) == ["A", "B", "0", "AB"]


def test_lists_of_numbers_are_inputs_and_the_index_may_be_the_client() -> None:
    rows = [{"who": "ab"[n % 2], "v[cm]": [n, n + 0.5, -n], "y": n % 2 == 0} for n in range(10)]
    federation = from_table(rows, client="who", label="y", normalize="none", train_fraction=1.0)
    assert federation.columns["x"].names == ("v[cm][0]", "v[cm][1]", "v[cm][2]")
    assert federation.samples([0]).columns["x"][0].tolist()[1] % 1 == 0.5
    arrays = {"who": list("abab"), "v": np.ones((4, 2, 2)), "w": torch.arange(4), "y": np.array([0, 1, 1, 0])}
    names = from_table(arrays, client="who", label="y").columns["x"].names
    assert names == ("v[0]", "v[1]", "v[2]", "v[3]", "w")
    frame = CLINICS.set_index("clinic")
    plain, indexed = (from_table(one, client="clinic", label="ill", part="part") for one in (CLINICS, frame))
    assert plain.fingerprint == indexed.fingerprint


def test_the_store_is_written_once(tmp_path: Path) -> None:
    settings = {"client": "clinic", "label": "ill", "part": "part"}
    first = from_table(CLINICS, **settings)
    before = (first.path / "federation.json").stat().st_mtime_ns
    assert from_table(CLINICS.copy(), **settings).path == first.path
    assert (first.path / "federation.json").stat().st_mtime_ns == before
    assert from_table(CLINICS.assign(age=1.5), **settings).path != first.path

    folder = tmp_path / "clinics"
    here = from_table(CLINICS, **settings, path=folder)
    inode = (folder / "federation.json").stat().st_ino
    assert here.fingerprint == first.fingerprint
    assert from_table(CLINICS, **settings, path=folder).path == folder  # nothing to do
    assert (folder / "federation.json").stat().st_ino == inode
    with pytest.raises(BadInputError, match="clinics holds another federation; choose another folder, or overwrite it"):
        from_table(CLINICS, **settings, normalize="none", path=folder)
    other = from_table(CLINICS, **settings, normalize="none", path=folder, overwrite=True)
    assert other.notes[0] == "Numbers are not normalized."
    assert [path.name for path in tmp_path.iterdir()] == ["clinics"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInputError, match="thesis exists and is no federation; choose another folder"):
        from_table(CLINICS, **settings, path=tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "years of work"


def test_a_damaged_store_of_the_same_table_is_not_said_to_be_imported(tmp_path: Path) -> None:
    settings = {"client": "clinic", "label": "ill", "part": "part", "path": tmp_path / "clinics"}
    samples = from_table(CLINICS, **settings).path / "samples.arrow"
    whole = samples.read_bytes()
    samples.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    with pytest.raises(DamagedFileError, match=r"samples.arrow is damaged: .* Overwrite it to have it built again"):
        from_table(CLINICS, **settings)
    from_table(CLINICS, **settings, overwrite=True).verify()
    assert samples.read_bytes() == whole


def test_five_lines_from_a_table_to_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    federation = from_table(CLINICS, client="clinic", label="ill", part="part", path="clinics")
    result = fedarena.run(federation=federation, rounds=2, cohort=2, progress=False)
    again = fedarena.run(federation="clinics", rounds=2, cohort=2, progress=False)
    assert result.rounds["accuracy"].to_pylist() == again.rounds["accuracy"].to_pylist()
    assert load_federation("clinics").fingerprint == federation.fingerprint


def test_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    table = CLINICS.assign(age=range(10))
    from_table(table, client="clinic", label="ill", progress=lambda fraction, text: told.append((fraction, text)))
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert {text for _, text in told} == {"Reading", "Looking at columns", "Writing"}


def test_numbers_with_commas_and_names_with_accents(tmp_path: Path) -> None:
    """As spreadsheets in much of Europe write tables."""
    text = "Hôpital;poids;taille;malade\nLyon;70,5;1,8;oui\nLyon;81;1,75;non\nNîmes;59,25;1,6;oui\nNîmes;62,5;2;non\n"
    (tmp_path / "t.csv").write_bytes(text.encode("cp1252"))
    federation = from_table(
        tmp_path / "t.csv", client="Hôpital", label="malade", decimal=",", encoding="cp1252", normalize="none"
    )
    assert federation.client_ids([0, 1]) == ["Lyon", "Nîmes"]
    assert federation.columns["x"].names == ("poids", "taille")
    assert sorted(federation.samples([0, 1]).columns["x"].ravel().tolist()) == pytest.approx(
        [1.6, 1.75, 1.8, 2, 59.25, 62.5, 70.5, 81]
    )


def test_a_column_that_may_be_an_id_is_noted() -> None:
    table = {"who": ["a", "b"] * 20, "id": list(range(40)), "x": [n / 7 for n in range(40)], "y": [0, 0, 1, 1] * 10}
    notes = from_table(table, client="who", label="y").notes
    assert "id has another whole number in every sample; if it only counts them, leave it out with drop." in notes
    assert len(notes) == 2


def test_records_that_lack_something(tmp_path: Path) -> None:
    lines = ['{"who": "a", "y": 0}', "", '{"who": "a", "n": 1, "y": 1}', '{"y": 0, "who": "b"}', '{"who": "b", "y": 1}']
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    federation = from_table(tmp_path / "t.jsonl", client="who", label="y", missing="zero", normalize="none")
    assert federation.num_samples == 4
    assert sorted(federation.samples([0, 1]).columns["x"][:, 0].tolist()) == [0, 0, 0, 1]


def test_embedded_categories_are_codes(tmp_path: Path) -> None:
    table = CLINICS.assign(ward=[1, 2, 2, 3, 1, 1, 2, 2, 9, 1])
    options = {"client": "clinic", "label": "ill", "part": "part", "categorical": ["ward"], "categories": "embedded"}
    federation = from_table(table, **options)
    assert {name: spec.names for name, spec in federation.columns.items()} == {
        "x": ("age",),
        "codes": ("blood", "ward"),
        "y": None,
    }
    assert federation.task.inputs == {"x": None, "codes": 6}  # none, A, B; none, 1, 2
    assert columns(federation, "north")["codes"].tolist() == [[1, 4], [2, 5], [1, 5], [0, 3]]
    assert columns(federation, "west")["codes"].tolist() == [[1, 3], [0, 4]]
    only_codes = from_table(table, **options, drop=["age"])
    assert only_codes.task.inputs == {"codes": 6}
    assert "x" not in only_codes.columns
    without = from_table(table, **{**options, "categorical": []}, drop=["blood", "ward"])
    assert without.task.inputs is None
    found = [
        fedarena.run(
            federation=given, rounds=3, cohort=2, progress=False, runs_folder=tmp_path, engine={"name": engine}
        )
        for given in (federation, only_codes)
        for engine in ("cohort", "reference")
    ]
    assert {result.config["model"]["name"] for result in found} == {"embedding_mlp"}
    losses = [float(result.rounds["loss"].to_pylist()[-1]) for result in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[2] == pytest.approx(losses[3], rel=1e-4)

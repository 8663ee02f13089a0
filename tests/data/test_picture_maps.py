"""Pictures that maps name: FedScale's FEMNIST, OpenImage, iNature, landmarks, and what can be wrong with maps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from picture_maps import HEADING, picture, put, write_maps, write_table
from PIL import Image
from publishers_files import load

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.by_client import rows as record_rows
from fedarena.data.many_users import buckets
from fedarena.data.store.schema import PARTS

SIZES = Path(__file__).parents[3] / "shared" / "data" / "fedscale_femnist_stats" / "femnist_train_client_sizes.json"


def write_femnist(folder: Path) -> int:
    def sample(name: str, number: int) -> str:
        put(folder / "data" / f"{number}.png", picture(number))
        return f"data/{number}.png"

    return write_maps(folder, sample)


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_every_client_has_the_pictures_of_the_map(tmp_path: Path) -> None:
    assert write_femnist(tmp_path / "femnist") == 21
    federation = load("fedscale_femnist", tmp_path)  # the tarball was unpacked into a folder of its own
    assert {group: len(federation.clients(group)) for group in ("train", "validation", "test")} == {
        "train": 4,
        "validation": 1,
        "test": 2,
    }
    clients = federation.clients()
    assert sorted(federation.client_ids(clients)) == sorted(
        ["train-0", "train-1", "train-2", "train-3", "val-0".replace("val", "validation"), "test-0", "test-1"]
    )
    (place,) = [at for at, name in zip(clients, federation.client_ids(clients), strict=True) if name == "test-1"]
    samples = federation.samples(np.array([place]), "test").columns
    expected = [pixels(tmp_path / "femnist" / "data" / f"{number}.png")[None] for number in (18, 19, 20)]
    np.testing.assert_array_equal(samples["x"], expected)
    assert samples["y"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_writers_with_as_many_pictures_as_fedscales(tmp_path: Path) -> None:
    """The real sizes of the 2,800 writers of FedScale's training map; the pictures are all the same."""
    if not SIZES.is_file():
        pytest.skip(f"needs {SIZES}")
    sizes = json.loads(SIZES.read_text())["size"]
    put(tmp_path / "a.png", picture(0, (4, 4)))
    rows = [(client, "a.png", "", 0) for client, size in enumerate(sizes) for _ in range(size)]
    write_table(tmp_path / "client_data_mapping" / "train.csv", [HEADING, *rows])
    federation = load("fedscale_femnist", tmp_path, size=4)
    assert (federation.num_clients, federation.num_samples) == (2800, 637_877)
    # One map is no division into groups: writers are divided here, each with all of their pictures in one part.
    counts = [federation.counts(federation.clients(), part) for part in PARTS]
    assert sorted(sum(counts).tolist()) == sorted(sizes)
    assert (np.count_nonzero(counts, axis=0) == 1).all()


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_femnist(tmp_path)
    monkeypatch.setattr(record_rows, "PIECE_ROWS", 2)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 100)
    whole = load("fedscale_femnist", tmp_path, sampling_seed=1)
    from fedarena.data.by_client import maps

    read, calls = maps.map_rows, []

    def killed(path: Path, group: str):
        calls.append(path)
        for number, row in enumerate(read(path, group)):
            if len(calls) == 1 and number == 7:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(maps, "map_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        load("fedscale_femnist", tmp_path)
    again = load("fedscale_femnist", tmp_path)
    assert again.manifest.files == whole.manifest.files
    assert not list(again.path.parent.glob(".fedscale_femnist-*.work"))


def test_splits_of_ones_own_and_large_clients_only(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    anew = load("fedscale_femnist", tmp_path, split="by_client", train_fraction=0.6, validation_fraction=0.2)
    assert [len(anew.clients(group)) for group in ("train", "validation", "test")] == [4, 2, 1]
    within = load("fedscale_femnist", tmp_path, split="within_client", train_fraction=0.7)
    assert len(within.clients("train")) == 7
    assert len(within.samples(within.clients(), "test").columns["y"]) == 7
    with pytest.raises(BadInputError, match="nobody has more than 3 samples"):
        load("fedscale_femnist", tmp_path, minimum_samples=4)


def test_open_images_as_fedscale_and_as_published(tmp_path: Path) -> None:
    def sample(name: str, number: int) -> str:
        kind = "JPEG" if number % 2 else "PNG"
        size = (256, 256) if number % 3 else (300, 200)
        put(tmp_path / "map" / name / f"{number}.jpg", picture(number, size, kind, channels=3))
        return f"{number}.jpg"

    write_maps(tmp_path / "map", sample, each=2)
    federation = load("openimage", tmp_path / "map")
    assert (federation.num_clients, federation.task.classes) == (7, 596)
    assert federation.columns["x"].encoding == "jpeg"
    samples = federation.samples(federation.clients("train"), "train").columns["x"]
    assert samples.shape == (8, 3, 256, 256)
    as_it_is = pixels(tmp_path / "map" / "train" / "1.jpg").transpose(2, 0, 1)
    assert any((one == as_it_is).all() for one in samples)

    published = tmp_path / "published"
    write_table(published / "class-descriptions-boxable.csv", [("/m/0", "Cat"), ("/m/1", "Dog")])
    heading = ("ImageID", "Subset", "AuthorProfileURL")
    images = [(f"{number:016x}", "train", f"https://flickr/{number % 3}") for number in range(9)]
    write_table(published / "train-images-boxable-with-rotation.csv", [heading, *images])
    labels = [(name, "verification", f"/m/{place % 2}", 1) for place, (name, *_) in enumerate(images[:-1])]
    wrong = [(name, "verification", "/m/0", 0) for name, *_ in images]
    write_table(
        published / "train-annotations-human-imagelabels-boxable.csv",
        [("ImageID", "Source", "LabelName", "Confidence"), *wrong, *labels],
    )
    for number, (name, *_) in enumerate(images):
        put(published / "train" / f"{name}.jpg", picture(number, (20, 10), "JPEG", channels=3))
    federation = load("openimage", published, size=8, compressed=None, split="within_client", train_fraction=0.5)
    assert (federation.num_clients, federation.num_samples) == (3, 8)  # nobody said what is on the last one
    assert federation.task.label_names == ("Cat", "Dog")
    (published / "train" / f"{images[2][0]}.jpg").unlink()
    with pytest.raises(BadInputError, match=r"with-rotation\.csv, line 4 names the photo '0000000000000002'"):
        load("openimage", published, size=8)


def test_inature_by_its_folders_and_landmarks_by_their_ids(tmp_path: Path) -> None:
    def photo(name: str, number: int) -> str:
        path = f"train_val2019/Birds/{number % 5}/{number}.jpg"
        put(tmp_path / "inature" / path, picture(number, (30, 20), "JPEG", channels=3))
        return path

    write_maps(tmp_path / "inature", photo, heading=(*HEADING[:2], "label_name", "ignored"))
    federation = load("inature", tmp_path / "inature", size=16)
    assert (federation.num_clients, federation.task.classes) == (7, 1010)
    assert sorted(np.unique(federation.samples(federation.clients(), "train").columns["y"])) == [0, 1, 2, 3, 4]

    root = tmp_path / "landmarks"
    rows = [(f"{user:04x}a", f"{number:016x}", number % 4) for number, user in enumerate([1, 1, 2, 2, 3])]
    write_table(root / "client_data_mapping" / "train.csv", [("user_id", "image_id", "class"), *rows])
    for number, (_, name, _) in enumerate(rows):
        put(root / "train" / "0" / "0" / "0" / f"{name}.jpg", picture(number, (30, 20), "JPEG", channels=3))
    federation = load("landmarks", root, size=16, classes=4)
    assert sorted(federation.client_ids(federation.clients())) == ["0001a", "0002a", "0003a"]
    with pytest.raises(BadInputError, match=r"train\.csv, line 4 has the label 2; .*federation\.classes says how many"):
        load("landmarks", root, size=16, classes=2)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda rows: rows.__setitem__(3, (0, "data/nothing.png", "", 1)),
            r"train\.csv, line 4 names 'data/nothing\.png'",
        ),
        (lambda rows: rows.__setitem__(3, (0, "../secret.png", "", 1)), r"train\.csv, line 4 .* is not inside of"),
        (
            lambda rows: rows.__setitem__(5, (0, "data/0.png", "", 62)),
            r"train\.csv, line 6 has the label 62; .*62 classes",
        ),
        (
            lambda rows: rows.__setitem__(5, (0, "data/0.png", "", -1)),
            r"line 6: label_id must be a whole number, not '-1'",
        ),
        (lambda rows: rows.__setitem__(5, (0, "data/0.png")), r"train\.csv, line 6 has 2 values; the heading has 4"),
        (
            lambda rows: rows.__setitem__(0, ("a", "b", "c", "d")),
            r"train\.csv, line 1 has no column client_id or user_id",
        ),
        (lambda rows: rows.__setitem__(2, ("", "data/0.png", "", 1)), r"train\.csv, line 3 has no client"),
        (lambda rows: rows.__setitem__(2, ("ann", "data/0.png", "", 1)), None),
    ],
)
def test_what_is_wrong_with_a_map_is_said_with_its_line(spoil, complaint: str | None, tmp_path: Path) -> None:
    write_femnist(tmp_path)
    path = tmp_path / "client_data_mapping" / "train.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    spoil(rows)
    write_table(path, rows)
    if complaint is None:  # one person in two groups
        write_table(tmp_path / "client_data_mapping" / "test.csv", [HEADING, ("ann", "data/1.png", "", 1)])
        complaint = r"'ann' is in two groups, in line 3 of .*train\.csv and line 2 of .*test\.csv"
    with pytest.raises(BadInputError, match=complaint):
        load("fedscale_femnist", tmp_path)


def test_a_broken_picture_and_a_missing_map(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds none of the files of FedScale's FEMNIST; .*femnist\.tar\.gz"):
        load("fedscale_femnist", tmp_path)
    write_femnist(tmp_path)
    (tmp_path / "data" / "4.png").write_bytes(picture(4)[:40])
    with pytest.raises(DamagedFileError, match=r"data/4\.png is not a picture that can be read"):
        load("fedscale_femnist", tmp_path)
    put(tmp_path / "data" / "4.png", picture(4))
    federation = load("fedscale_femnist", tmp_path)
    assert federation.num_samples == 21
    assert not list(federation.path.parent.glob(".*.tmp"))

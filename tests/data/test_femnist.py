"""FEMNIST from small archives with the names, folders and pictures of NIST's."""

from __future__ import annotations

import builtins
import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.raw import trees as raw_trees
from fedarena.data.registry import cache_folder
from fedarena.data.sources import femnist

# Who wrote what, in the order of the file names.
WRITTEN = {("hsf_0", "f0000_14"): "30Aza", ("hsf_0", "f0001_41"): "9", ("hsf_4", "f2100_03"): "ZZ7q"}
ORDER = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def drawing(number: int) -> np.ndarray:
    """Paper of 128 x 128 with a black rectangle somewhere; another for each number."""
    paper = np.full((128, 128), 255, dtype=np.uint8)
    paper[30 + number : 70 + 2 * number, 40 : 60 + 3 * number] = 0
    return paper


def png(grey: np.ndarray) -> bytes:
    """NIST's pictures have three equal colours."""
    file = io.BytesIO()
    Image.fromarray(grey).convert("RGB").save(file, "PNG")
    return file.getvalue()


def trees() -> dict[str, dict[str, bytes]]:
    """What is in by_class.zip and by_write.zip."""
    by_class: dict[str, bytes] = {}
    by_write: dict[str, bytes] = {}
    number = 0
    for (part, writer), characters in WRITTEN.items():
        for character in characters:
            content, code = png(drawing(number)), f"{ord(character):x}"
            field = "d" if character.isdigit() else "u" if character.isupper() else "l"
            name = f"{field}{writer[1:]}"
            by_write[f"by_write/{part}/{writer}/{name}/{name}_{number:05d}.png"] = content
            by_class[f"by_class/{code}/{part}/{part}_{number:05d}.png"] = content
            by_class[f"by_class/{code}/train_{code}/train_{code}_{number:05d}.png"] = content
            by_class[f"by_class/{code}/{part}.mit"] = b"1\n"
            number += 1
    by_class["by_class/41/hsf_7/hsf_7_00000.png"] = png(drawing(20))  # nobody's
    by_class["__MACOSX/by_class/30/hsf_0/._hsf_0_00000.png"] = b"no picture"
    by_write["by_write/hsf_4/f2101_03/"] = b""  # somebody without pictures
    return {"by_class": by_class, "by_write": by_write}


def save(folder: Path, key: str, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / f"{key}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in reversed(contents.items()):
            archive.writestr(name, content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "raw"
    place.mkdir()
    for key, contents in trees().items():
        save(place, key, contents)
    return place


def load(folder: Path, **options: object) -> Federation:
    return load_federation("femnist", {"folder": str(folder), "verify": False, "split": "by_client", **options})


def samples_of(federation: Federation, client: str) -> dict[str, np.ndarray]:
    (index,) = (i for i, name in enumerate(federation.client_ids(federation.clients())) if name == client)
    return federation.samples(np.array([index]), "all").columns


def shrunk(paper: np.ndarray) -> np.ndarray:
    """Lanczos's filter in floating point, first along rows, then along columns, as Pillow does."""
    scale = 128 / 28
    distance = (np.arange(128)[None] + 0.5 - (np.arange(28)[:, None] + 0.5) * scale) / scale
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    rows = np.clip(np.rint(paper @ weights.T), 0, 255)
    return np.clip(np.rint(weights @ rows), 0, 255)


def no_remains() -> bool:
    return not list(cache_folder().glob(".*.tmp"))


def test_everybody_has_what_they_wrote(folder: Path) -> None:
    federation = load(folder)
    assert federation.client_ids(federation.clients()) == ["f0000_14", "f0001_41", "f2100_03"]
    assert federation.attributes(federation.clients()) == {"hsf": ["hsf_0", "hsf_0", "hsf_4"]}
    assert "".join(federation.task.label_names or ()) == ORDER
    number = 0
    for (_, writer), characters in WRITTEN.items():
        samples = samples_of(federation, writer)
        # By name, the digits of a form come before its lower-case letters and these before its capitals.
        places = sorted(range(len(characters)), key=lambda i: (not characters[i].isdigit(), characters[i].isupper()))
        assert "".join(ORDER[label] for label in samples["y"]) == "".join(characters[place] for place in places)
        assert samples["x"].shape == (len(characters), 1, 28, 28)
        assert samples["x"].dtype == np.uint8
        for picture, place in zip(samples["x"][:, 0], places, strict=True):
            expected = 255 - shrunk(drawing(number + place))  # ink is high, paper 0
            assert np.abs(picture - expected).max() <= 1
        number += len(characters)


def test_unpacked_archives_are_the_same(folder: Path, tmp_path: Path) -> None:
    for unpacked in (("by_class",), ("by_class", "by_write")):
        place = tmp_path / f"unpacked-{len(unpacked)}"
        shutil.copytree(folder, place)
        for key in unpacked:
            with zipfile.ZipFile(place / f"{key}.zip") as archive:
                archive.extractall(place)
            (place / f"{key}.zip").unlink()
        one, other = load(folder), load(place)
        assert one.client_ids(one.clients()) == other.client_ids(other.clients())
        for name, column in one.samples(one.clients(), "all").columns.items():
            np.testing.assert_array_equal(column, other.samples(other.clients(), "all").columns[name])


def test_like_emnist(folder: Path) -> None:
    x = samples_of(load(folder, preprocessing="emnist"), "f0000_14")["x"][:, 0]
    for picture in x:
        assert picture.max() == 255
        rows, columns = (np.flatnonzero(picture.max(axis=axis) > 40) for axis in (1, 0))
        # The ink is in the middle, and the longer of its sides fills the picture up to the border.
        assert abs(rows[0] - (27 - rows[-1])) <= 1
        assert abs(columns[0] - (27 - columns[-1])) <= 1
        assert 1 <= min(rows[0], columns[0]) <= 3
        assert picture[[0, -1]].max() < 20
    # Its shape stays: drawing 1 is 41 high and 23 wide.
    height, width = ((x[1].max(axis=axis) > 127).sum() for axis in (1, 0))
    assert abs(height / width - 41 / 23) < 0.15


def test_emnist_does_not_care_where_the_ink_is() -> None:
    paper = drawing(0)
    moved = np.roll(paper, (20, 30), axis=(0, 1))
    prepare = femnist._shrink_like_emnist
    np.testing.assert_array_equal(prepare(Image.fromarray(paper)), prepare(Image.fromarray(moved)))
    assert prepare(Image.fromarray(np.full((128, 128), 255, np.uint8))).max() == 0  # an empty paper


def test_fewer_people(folder: Path) -> None:
    federation = load(folder, minimum_samples=2)
    assert federation.client_ids(federation.clients()) == ["f0000_14", "f2100_03"]
    with pytest.raises(BadInputError, match="minimum_samples is 6, but nobody has more than 5 samples"):
        load(folder, minimum_samples=6)
    parts = {tuple(load(folder, fraction=0.01, sampling_seed=seed).client_ids([0])) for seed in range(8)}
    assert len(parts) > 1
    assert load(folder, fraction=0.01).num_clients == 1


def test_splits(folder: Path) -> None:
    inside = load(folder, split="within_client", train_fraction=0.5, validation_fraction=0.25)
    (client,) = (i for i, name in enumerate(inside.client_ids(inside.clients())) if name == "f2100_03")
    assert [len(inside.samples(np.array([client]), part).columns["y"]) for part in ("train", "validation", "test")] == [
        2,
        1,
        1,
    ]
    apart = load(folder, train_fraction=0.67)
    assert (len(apart.clients("train")), len(apart.clients("test"))) == (2, 1)


def test_files_that_only_look_equal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all checksums were the same, contents would still tell pictures apart."""
    expected = load(folder).samples([0, 1, 2], "all").columns["y"]
    monkeypatch.setattr(raw_trees._Archive, "keys", lambda self, progress: np.zeros(len(self.names), np.int64))
    found = load(folder, split_seed=1)
    np.testing.assert_array_equal(found.samples([0, 1, 2], "all").columns["y"], expected)


def test_a_picture_of_two_classes_is_of_the_first(folder: Path) -> None:
    contents = trees()["by_class"]
    (name,) = (name for name in contents if name.startswith("by_class/39/hsf_0/"))
    save(folder, "by_class", {**contents, "by_class/6c/hsf_0/hsf_0_99999.png": contents[name]})
    assert samples_of(load(folder), "f0001_41")["y"].tolist() == [9]


def test_built_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder)
    monkeypatch.setattr(femnist, "open_tree", None)
    assert load(folder).path == first.path
    shutil.rmtree(folder)
    assert load(folder).path == first.path


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "by_class.zip").unlink()
    with pytest.raises(
        BadInputError, match=r"lacks by_class\.zip; it must hold by_class\.zip \(or the folder by_class\)"
    ):
        load(folder)
    with pytest.raises(BadInputError, match=r"There is no folder .*nowhere with the files of FEMNIST; .*nist\.gov"):
        load(tmp_path / "nowhere")


def test_other_files_than_the_published_ones(folder: Path) -> None:
    with pytest.raises(
        DamagedFileError, match=r"by_class\.zip is not the published by_class\.zip: its checksum differs"
    ):
        load(folder, verify=True)


def test_a_truncated_archive(folder: Path) -> None:
    path = folder / "by_write.zip"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DamagedFileError, match=r"by_write\.zip is not a complete \.zip"):
        load(folder)


def change_picture(folder: Path, content: bytes) -> None:
    """The last picture of both archives becomes another."""
    for key, contents in trees().items():
        last = max(name for name in contents if name.endswith("_00009.png") and "train" not in name)
        save(folder, key, {**contents, last: content})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"GIF89a", "is not a picture that can be read"),
        (png(drawing(0))[:-40], "is not a picture that can be read"),
        (png(drawing(0)[:100]), "must have 128 x 128 pixels, not 128 x 100"),
    ],
)
def test_a_damaged_picture(folder: Path, content: bytes, sentence: str) -> None:
    change_picture(folder, content)
    with pytest.raises(BadInputError, match=rf"l2100_03_00009\.png in .*by_write\.zip {sentence}"):
        load(folder)
    assert no_remains()


def test_a_picture_without_class(folder: Path) -> None:
    contents = trees()["by_class"]
    save(folder, "by_class", {name: content for name, content in contents.items() if "/7a/" not in name})
    with pytest.raises(
        BadInputError, match=r"1 of the 10 pictures in .*by_write\.zip are not in .*l0000_14_00003\.png is the first"
    ):
        load(folder)


def test_archives_of_something_else(folder: Path) -> None:
    save(folder, "by_write", {"by_field/hsf_0/digit/30/30_00000.png": b""})
    with pytest.raises(BadInputError, match=r"by_write\.zip holds no pictures with names like hsf_0/f0000_14"):
        load(folder)


def test_a_writer_in_two_places(folder: Path) -> None:
    contents = trees()["by_write"]
    name = next(name for name in contents if "f0001_41" in name)
    save(folder, "by_write", {**contents, name.replace("hsf_0", "hsf_4"): contents[name]})
    with pytest.raises(BadInputError, match="has the writer f0001_41 twice, in hsf_0 and in hsf_4"):
        load(folder)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInputError, match=r"'femnist' is made of pictures.*pip install 'fedarena\[images\]'"):
        load(folder)

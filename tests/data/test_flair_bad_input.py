"""Files that are not FLAIR's, or not all of it: one sentence that names the file, and nothing half-built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from flair_files import (
    COARSE_OF,
    METADATA,
    PHOTOS,
    RELATIONSHIP,
    entries,
    jpeg,
    load,
    tar_bytes,
    write_archives,
    write_folder,
    write_hdf5,
    write_labels,
)

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import ColumnSpec, EncodedRows, FederationWriter, TaskSpec
from fedarena.data.registry import cached_path

Change = Callable[[list[dict[str, Any]]], Any]
PAIRS = [f"{fine},{coarse}" for fine, coarse in COARSE_OF.items()]


def refuse(
    folder: Path, *words: str, error: type[BadInputError] = BadInputError, name: str = "flair", **options: object
) -> None:
    """Building raises a sentence with these words, and leaves nothing."""
    with pytest.raises(error) as raised:
        load(folder, name, **options)
    text = str(raised.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    path = cached_path(name, {"folder": str(folder), **options})
    assert path is not None
    assert not path.exists()
    assert not list(path.parent.glob(f".{path.name}*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "raw")


def changed(key: str, value: object, number: int = 3) -> Change:
    def change(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        listed[number][key] = value
        return listed

    return change


def without(key: str) -> Change:
    def change(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        del listed[1][key]
        return listed

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("labels", ["plant", "plants"]), ["entry 4", "'400'", "coarse label 'plants'", RELATIONSHIP, "plant"]),
        (changed("fine_grained_labels", ["brigde"]), ["fine label 'brigde'", "bridge"]),
        (changed("labels", [["plant"]]), ["entry 4", "must be lists of text"]),
        (changed("labels", "plant"), ["entry 4"]),
        (changed("labels", [3]), ["coarse label 3"]),
        (changed("partition", "training"), ["entry 4", "'training'", "train, val or test"]),
        (changed("partition", "test", 4), ["entry 5", "'52@N01'", "train partition", "test one"]),
        (changed("image_id", "../400"), ["entry 4", "image_id", "without slashes"]),
        (changed("image_id", 400), ["entry 4", "image_id is 400"]),
        (changed("image_id", "100"), ["entry 4", "'100'", "before"]),
        (changed("user_id", None), ["entry 4", "user_id is None"]),
        (without("fine_grained_labels"), ["entry 2 has no fine_grained_labels", "not the metadata of FLAIR"]),
        (lambda listed: [{"id": 1, "file_name": "1.jpg"}], ["entry 1 has no user_id", "not the metadata of FLAIR"]),
        (lambda listed: {"images": listed}, ["not FLAIR's list of photos"]),
        (lambda listed: [7], ["entry 1 has no user_id"]),
        (lambda listed: [], ["lists no photos"]),
    ],
)
def test_metadata(folder: Path, change: Change, words: list[str]) -> None:
    write_labels(folder, change(entries()))
    refuse(folder, METADATA, *words)


def test_metadata_that_is_cut_off(folder: Path) -> None:
    text = (folder / METADATA).read_text()
    (folder / METADATA).write_text(text[:-40])
    refuse(folder, METADATA, "in the middle", error=DamagedFileError)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*PAIRS, "oak"], ["line 7", "'oak'"]),
        ([*PAIRS, "oak,food"], ["line 7", "oak belongs to plant above and to food here"]),
        ([*PAIRS, "a,b,c"], ["line 7", "'a,b,c'"]),
        ([" "], ["is empty"]),
    ],
)
def test_taxonomy(folder: Path, lines: list[str], words: list[str]) -> None:
    write_labels(folder, relationship=lines)
    refuse(folder, RELATIONSHIP, *words)


def test_structure_must_be_there(folder: Path) -> None:
    some = [entry for entry in entries() if "structure" not in entry["labels"]]
    write_labels(folder, some)
    refuse(folder, METADATA, "structure", "federation.labels=coarse", labels="structure")


def test_a_photo_is_missing(folder: Path) -> None:
    (folder / PHOTOS / "102.jpg").unlink()
    (folder / PHOTOS / "400.jpg").unlink()
    refuse(folder, str(folder / PHOTOS), "lacks 2 of the photos", "is the first", METADATA)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (jpeg("102", 64)[:-30], "is cut off"),
        (b"", "is empty"),
        (b"no picture", "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
    ],
)
def test_a_photo_is_damaged(folder: Path, content: bytes, words: str) -> None:
    (folder / PHOTOS / "102.jpg").write_bytes(content)
    refuse(folder, "102.jpg", words, error=DamagedFileError)


def test_a_photo_of_another_size(folder: Path) -> None:
    (folder / PHOTOS / "102.jpg").write_bytes(jpeg("102", 9))
    refuse(folder, "102.jpg has 9 x 9 pixels and others have 8 x 8")


def test_photos_in_archives_are_named_with_their_archive(tmp_path: Path) -> None:
    place = write_archives(tmp_path / "raw", 2)
    ids = [entry["image_id"] for entry in entries()][1::2]
    contents = {f"{image_id}.jpg": jpeg(image_id) for image_id in ids}
    (place / "small_images-01.tar.gz").write_bytes(tar_bytes({**contents, f"{ids[2]}.jpg": jpeg(ids[2])[:-30]}))
    refuse(place, f"{ids[2]}.jpg in {place / 'small_images-01.tar.gz'}", error=DamagedFileError)
    (place / "small_images-01.tar.gz").write_bytes(tar_bytes(dict(list(contents.items())[:-1])))
    refuse(place, f"The 2 archives in {place}", "FLAIR has 43", "lack 1 of the photos", f"{ids[-1]}.jpg is the first")


@pytest.mark.parametrize("keep", [10, 300, -4])
def test_an_archive_that_is_cut_off(tmp_path: Path, keep: int) -> None:
    place = write_archives(tmp_path / "raw")
    path = place / "small_images-01.tar.gz"
    path.write_bytes(path.read_bytes()[:keep])
    refuse(place, f"{path} is damaged: it ends too early", error=DamagedFileError)


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    place = write_archives(tmp_path / "raw")
    path = place / "small_images-01.tar.gz"
    path.write_bytes(b"<html>not found</html>" * 100)
    refuse(place, f"{path} is damaged: it is no tar archive", error=DamagedFileError)
    content = bytearray((place / "small_images-02.tar.gz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    refuse(place, f"{path} is damaged", error=DamagedFileError)


def test_archives_of_which_one_is_missing(tmp_path: Path) -> None:
    place = write_archives(tmp_path / "raw")
    (place / "small_images-01.tar.gz").unlink()
    refuse(place, f"{place} lacks small_images-01.tar.gz", "numbered from 00 to 42")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            ["tar.gz.aa", "tar.gz.ac"],
            "lacks a part of small_images.tar.gz: one that comes before small_images",
        ),
        (["tar.gz.part02", "tar.gz.part03"], "lacks the first part of small_images.tar.gz"),
        (["zip.001", "zip.002"], "put the parts together first: cat small_images.zip.* > small_images.zip"),
    ],
)
def test_an_archive_in_parts(tmp_path: Path, parts: list[str], words: str) -> None:
    place = tmp_path / "raw"
    write_labels(place)
    for part in parts:
        (place / f"small_images.{part}").write_bytes(b"something")
    refuse(place, words)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "There is no folder", "labels_and_metadata.json", "fedarena data prepare flair")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "holds none of the files of FLAIR", "ml-flair", "and 42 more", name="flair_iid")
    write_labels(tmp_path / "labels")
    archives = "small_images-00.tar.gz to small_images-42.tar.gz"
    refuse(tmp_path / "labels", f"lacks {archives}", "(or the folder small_images)")


def test_hdf5(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "raw" / "flair.hdf5")
    content = path.read_bytes()
    path.write_bytes(content[:500])
    refuse(path.parent, f"{path} cannot be opened as HDF5", error=DamagedFileError)

    def refuse_changed(change: Callable[[h5py.File], None], *words: str) -> None:
        path.write_bytes(content)
        with h5py.File(path, "a") as file:
            change(file)
        refuse(path.parent, *words)

    def another(file: h5py.File) -> None:
        for name in ("train", "val", "test"):
            del file[name]

    def two(file: h5py.File) -> None:
        file.copy("train/52@N01", "val/52@N01")

    def label(file: h5py.File) -> None:
        file["train/52@N01/labels_col"][0] = 99

    def central(file: h5py.File) -> None:
        del file["train/52@N01/images"]
        file["train/52@N01/image"] = [1]

    def fewer(file: h5py.File) -> None:
        del file["train/52@N01/image_ids"]
        file["train/52@N01/image_ids"] = [b"1"]

    def labels_of_nothing(file: h5py.File) -> None:
        columns = file["train/52@N01/labels_col"][()]
        del file["train/52@N01/labels_col"]
        file["train/52@N01/labels_col"] = columns[:-1]

    def before_the_first(file: h5py.File) -> None:
        rows = file["train/52@N01/labels_row"][()].astype(np.int64)
        del file["train/52@N01/labels_row"]
        file["train/52@N01/labels_row"] = rows - 1

    def same_part(file: h5py.File) -> None:
        file.copy("test/30@N02", "dev/31@N02")

    def array(file: h5py.File) -> None:
        del file["train"]
        file["train"] = np.zeros((2, 3))

    refuse_changed(labels_of_nothing, "/train/52@N01", "7 labels_row and 6 labels_col")
    refuse_changed(before_the_first, "/train/52@N01", "photo -1")
    refuse_changed(same_part, f"{path} has both /dev and /val")
    refuse_changed(array, f"/train in {path} is an array", "grouped by user")
    refuse_changed(another, f"{path} is not FLAIR's HDF5")
    refuse_changed(two, "/val/52@N01", "train partition", "validation one")
    refuse_changed(label, "/train/52@N01", "label 99")
    refuse_changed(central, "/train/52@N01", "grouped by user")
    refuse_changed(fewer, "/train/52@N01", "5 images, 1 image_ids")
    path.with_name("other.h5").write_bytes(content)
    refuse(path.parent, "several HDF5 files, flair.hdf5 and other.h5")


def test_a_number_of_clients_needs_equal_sizes(folder: Path) -> None:
    refuse(folder, "federation.sizes=equal", name="flair_iid", clients=3)
    refuse(folder, "there are 7 photos", name="flair_iid", clients=30, sizes="equal")
    refuse(folder, "federation.split=published", train_fraction=0.5)


def test_a_build_that_failed_can_be_tried_again(folder: Path) -> None:
    good = (folder / PHOTOS / "102.jpg").read_bytes()
    (folder / PHOTOS / "102.jpg").write_bytes(good[:50])
    refuse(folder, "102.jpg", error=DamagedFileError)
    (folder / PHOTOS / "102.jpg").write_bytes(good)
    assert load(folder).num_samples == len(entries())
    assert re.fullmatch(r"flair-[0-9a-f]+-[0-9a-f]+", load(folder).path.name)
    assert json.loads((load(folder).path / "federation.json").read_text())["name"] == "flair"


def test_photos_that_were_decoded_are_not_looked_at_again(tmp_path: Path) -> None:
    """A builder that has done so says it; everybody else's files are looked at."""
    columns = {
        "x": ColumnSpec(dtype="uint8", shape=(3, 8, 8), encoding="jpeg"),
        "y": ColumnSpec(dtype="uint8", shape=(1,)),
    }
    task = TaskSpec(kind="multi_label", classes=1)
    y = np.ones((1, 1), np.uint8)
    for checked in (True, False):
        with FederationWriter(tmp_path / f"{checked}", name="made", task=task, columns=columns) as writer:
            files = EncodedRows([b"no picture"], ["1.jpg"], checked=checked)
            if checked:
                writer.add_client("ann", train={"x": [jpeg("1")], "y": y})
                writer.add_clients(["ben"], counts=np.array([[1, 0, 0]]), columns={"x": files, "y": y})
            else:
                with pytest.raises(BadInputError, match=r"1\.jpg cannot be decoded"):
                    writer.add_clients(["ben"], counts=np.array([[1, 0, 0]]), columns={"x": files, "y": y})
                writer.add_client("ann", train={"x": [jpeg("1")], "y": y})

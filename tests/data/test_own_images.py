"""Own pictures: folders by patterns, archives, tables of paths and arrays, in every form that pictures have."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_drawings import CHARACTERS, drawing, expected, one, samples, save
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.images.own import from_images
from fedarena.data.images.pattern import NamePattern


def test_a_folder_becomes_a_federation(drawings: Path) -> None:
    federation = from_images(drawings, pattern="{client}/{label}")
    assert (federation.name, federation.num_clients, federation.num_samples) == ("drawings", 3, 12)
    assert federation.task.label_names == CHARACTERS
    assert federation.columns["x"].dtype == "uint8"
    assert federation.columns["x"].shape == (1, 6, 5)
    assert samples(federation) == expected(drawings)
    assert federation.counts(federation.clients(), "test").tolist() == [1, 1, 1]


def test_an_archive_is_the_folder_in_it(drawings: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in drawings.rglob("*.png"):
            archive.write(file, f"all/{file.relative_to(drawings)}")
    assert samples(from_images(tmp_path / "all.zip", pattern="all/{client}/{label}")) == expected(drawings)


def test_a_table_of_paths(drawings: Path, tmp_path: Path) -> None:
    files = sorted(drawings.rglob("*.png"))
    table = pd.DataFrame(
        {
            "path": [str(file.relative_to(drawings)) for file in files],
            "drawer": [file.parts[-3] for file in files],
            "shows": [file.parts[-2] for file in files],
        }
    )
    of_frame = from_images(table, client="drawer", label="shows", folder=drawings)
    assert samples(of_frame) == expected(drawings)
    assert from_images(table, client="drawer", label="shows", folder=drawings).path == of_frame.path
    save(files[0], drawing(99))
    assert samples(from_images(table, client="drawer", label="shows", folder=drawings)) == expected(drawings)
    table.to_csv(drawings / "table.csv", index=False)
    table.to_parquet(drawings / "table.parquet")
    table.to_json(drawings / "table.jsonl", orient="records", lines=True)
    for name in ("table.csv", "table.parquet", "table.jsonl"):
        federation = from_images(drawings / name, client="drawer", label="shows")
        assert samples(federation) == expected(drawings)
        assert federation.name == "table"
    table.loc[2, "shows"] = None
    with pytest.raises(BadInputError, match=r"The table, row 3: the label \(column 'shows'\) is missing"):
        from_images(table, client="drawer", label="shows", folder=drawings)
    fewer = from_images(table, client="drawer", label="shows", folder=drawings, missing="drop")
    assert fewer.num_samples == 11
    table.loc[2, ["shows", "path"]] = ["beta", "gone.png"]
    with pytest.raises(BadInputError, match=r"names the picture .*gone\.png, which is not there"):
        from_images(table, client="drawer", label="shows", folder=drawings)


def test_lists_of_files_and_of_arrays(drawings: Path) -> None:
    files = sorted(drawings.rglob("*.png"))
    whose = {"client": [file.parts[-3] for file in files], "label": pd.Series([file.parts[-2] for file in files])}
    assert samples(from_images(files, **whose)) == expected(drawings)
    names = [str(file.relative_to(drawings)) for file in files]
    assert samples(from_images(names, **whose, folder=drawings)) == expected(drawings)
    arrays = [np.asarray(Image.open(file)) for file in files]
    assert samples(from_images(arrays, **whose)) == expected(drawings)
    assert samples(from_images(torch.tensor(np.stack(arrays)), **whose)) == expected(drawings)
    with pytest.raises(BadInputError, match=r"The list names the picture .*\.png, which is not there"):
        from_images(names, **whose, folder=drawings / "ann")


@pytest.mark.parametrize(
    ("pattern", "name", "fields"),
    [
        ("{client}/{label}", "ann/cat/1.png", {"client": "ann", "label": "cat"}),
        ("{client}/{label}", "ann/cat/more/folders/1.png", {"client": "ann", "label": "cat"}),
        ("{client}/{label}", "ann/cat.png", {"client": "ann", "label": "cat"}),
        ("{client}/{label}", "cat.png", None),
        ("{label}/{label}/*_{client}", "Greek/character01/0394_07.png", {"label": "Greek/character01", "client": "07"}),
        ("{label}/{client}_*.png", "cat/ann_1.png", {"label": "cat", "client": "ann"}),
        ("{label}/{client}_*.png", "cat/ann_1.jpg", None),
        ("**/{client}-{label}", "a/b/c/ann-cat.png", {"client": "ann", "label": "cat"}),
        ("**/{client}-{label}", "ann-cat.png", {"client": "ann", "label": "cat"}),
        ("{part}/{client}/{label}/", "test/ann/v1.2/x.png", {"part": "test", "client": "ann", "label": "v1.2"}),
        ("a.b/{label}", "a.b/cat/1.png", {"label": "cat"}),
        ("a.b/{label}", "axb/cat/1.png", None),
    ],
)
def test_patterns(pattern: str, name: str, fields: dict[str, str] | None) -> None:
    assert NamePattern.parse(pattern).read(name) == fields


@settings(deadline=None)
@given(
    client=st.text("abc. _-é", min_size=1).filter(lambda text: text.strip(".")),
    label=st.text("abc. _-é", min_size=1),
    deeper=st.lists(st.sampled_from(["x", "y.z"]), max_size=3),
)
def test_folders_are_read_as_they_are_written(client: str, label: str, deeper: list[str]) -> None:
    name = "/".join([client, label, *deeper, "1.png"])
    assert NamePattern.parse("{client}/{label}").read(name) == {"client": client, "label": label}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (None, r"Say with pattern=.*the first is ann/alpha/1\.png"),
        ("{client}/{lable}", "did you mean 'label'"),
        ("{client}", "without a field {label}"),
        ("client/label", "must have fields in braces"),
        ("{client", "must have fields in braces"),
        ("{part}/{label}/{client}", r"'ann' is not a part; valid: train"),
        ("x/{client}/{label}", r"ann/alpha/1\.png in .* has another form"),
        ("{label}", "partition"),
    ],
)
def test_wrong_patterns_get_a_sentence(drawings: Path, pattern: str | None, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        from_images(drawings, pattern=pattern)


def test_parts_in_the_names_are_kept(tmp_path: Path) -> None:
    for number, part in enumerate(["train", "val", "test"]):
        for client in ("ann", "bob"):
            save(tmp_path / part / client / "a.png", drawing(number))
            save(tmp_path / part / client / "b.png", drawing(10 + number))
    save(tmp_path / "test" / "new" / "a.png", drawing(0))
    federation = from_images(tmp_path, pattern="{part}/{client}/{label}")
    clients = federation.clients()
    assert [federation.counts(clients, part).tolist() for part in ("train", "validation", "test")] == [
        [2, 2, 0],
        [2, 2, 0],
        [2, 2, 1],
    ]
    assert federation.client_ids(federation.clients("test")) == ["new"]
    for number, part in enumerate(["train", "validation", "test"]):
        shown = {"a": drawing(number).tobytes(), "b": drawing(10 + number).tobytes()}
        assert {row for row in samples(federation, part) if row[0] == "bob"} == {("bob", *row) for row in shown.items()}
    with pytest.raises(BadInputError, match="every sample comes with its part"):
        from_images(tmp_path, pattern="{part}/{client}/{label}", train_fraction=0.5)


def test_a_partition_makes_clients(drawings: Path) -> None:
    federation = from_images(drawings, pattern="*/{label}", partition={"name": "iid", "clients": 4})
    assert federation.num_clients == 4
    assert {pixels for _, _, pixels in samples(federation)} == {pixels for _, _, pixels in expected(drawings)}
    grouped = from_images(
        drawings, pattern="{client}/{label}", partition={"name": "id_groups", "group_size": 2, "order": "sorted"}
    )
    assert grouped.counts(grouped.clients()).tolist() == [8, 4]


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    for name in ("nowhere", "nowhere.zip", "nowhere.csv"):
        with pytest.raises(BadInputError, match=f"There is no .*{name}: it must be a folder"):
            from_images(tmp_path / name, pattern="{client}/{label}")
    with pytest.raises(BadInputError, match="holds no pictures"):
        from_images(tmp_path, pattern="{client}/{label}")


# --- forms


def test_grey_and_colours_keep_their_pixels(tmp_path: Path) -> None:
    grey, colours, see_through = drawing(1), drawing(2, (6, 5, 3)), drawing(3, (6, 5, 4))
    assert (one(tmp_path / "1", grey) == grey[None]).all()
    assert (one(tmp_path / "2", colours) == colours.transpose(2, 0, 1)).all()
    assert (one(tmp_path / "3", see_through) == see_through.transpose(2, 0, 1)).all()
    black_and_white = Image.fromarray(grey > 100)
    assert (one(tmp_path / "4", black_and_white) == 255 * (grey > 100)[None]).all()
    with_palette = Image.fromarray(colours).convert("P")
    assert (one(tmp_path / "5", with_palette) == np.asarray(with_palette.convert("RGB")).transpose(2, 0, 1)).all()


def test_sixteen_bits_become_numbers_up_to_one(tmp_path: Path) -> None:
    levels = np.array([[0, 257, 65535]], dtype=np.uint16)
    found = one(tmp_path / "1", levels)
    assert found.dtype == np.float32
    assert np.allclose(found, levels[None] / 65535)
    assert one(tmp_path / "2", levels, channels="grey").tolist() == [[[0, 1, 255]]]


def test_transparency_shows_white(tmp_path: Path) -> None:
    pixels = np.zeros((2, 2, 4), dtype=np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)
    found = one(tmp_path, pixels, channels="rgb")
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert found[:, 1, 1].tolist() == [255, 255, 255]


def test_pictures_are_turned_as_cameras_note_it(tmp_path: Path) -> None:
    notes = Image.Exif()
    notes[0x0112] = 6  # to be turned right by 90 degrees
    pixels = np.zeros((8, 16), dtype=np.uint8)
    pixels[:, :8] = 255
    found = one(tmp_path, pixels, ending="jpg", saving={"exif": notes, "quality": 95})
    assert found.shape == (1, 16, 8)
    assert found[0, :7].min() > 200
    assert found[0, 9:].max() < 50


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_tiffs_have_the_pixels_of_the_picture_that_is_shown(
    tmp_path: Path, orientation: int, compression: str
) -> None:
    notes = Image.Exif()
    notes[0x0112] = orientation
    shown = {1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: np.transpose}
    shown |= {6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x, 2).T, 8: np.rot90}
    pixels = drawing(1)
    found = one(tmp_path, pixels, ending="tif", saving={"exif": notes, "compression": compression})
    assert found[0].tolist() == shown[orientation](pixels).tolist()


def test_a_turned_tiff_that_cannot_be_decoded_is_damaged(tmp_path: Path) -> None:
    notes = Image.Exif()
    notes[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(drawing(1)).save(file, "TIFF", exif=notes, compression="tiff_lzw")
    (tmp_path / "c").mkdir()
    damaged = file.getvalue().replace(b"\x80", b"\xff")  # LZW begins with a code that clears its table
    for label in "ab":
        (tmp_path / "c" / f"{label}.tif").write_bytes(damaged)
    with pytest.raises(DamagedFileError, match=r"a\.tif in .* is not a picture that can be read"):
        from_images(tmp_path, pattern="{client}/{label}")


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_sizes_are_made_alike_on_request(drawings: Path, fit: str) -> None:
    save(drawings / "ann" / "alpha" / "3.png", drawing(0, (9, 9)))
    with pytest.raises(BadInputError, match=r"1\.png in .* has 6 x 5 pixels .*3\.png in .* 9 x 9; say size=6"):
        from_images(drawings, pattern="{client}/{label}")
    federation = from_images(drawings, pattern="{client}/{label}", size=(4, 7), fit=fit)
    assert federation.columns["x"].shape == (1, 4, 7)
    stretched = np.asarray(Image.fromarray(drawing(0)).resize((7, 4), Image.Resampling.BICUBIC))
    is_there = ("ann", "alpha", stretched.tobytes()) in samples(federation)
    assert is_there == (fit == "stretch")


def test_channels_are_made_alike_on_request(drawings: Path) -> None:
    save(drawings / "bob" / "alpha" / "3.png", drawing(0, (6, 5, 3)))
    with pytest.raises(BadInputError, match=r"1\.png in .* is grey and bob/alpha/3\.png in .* rgb; say channels="):
        from_images(drawings, pattern="{client}/{label}")
    assert from_images(drawings, pattern="{client}/{label}", channels="rgb").columns["x"].shape == (3, 6, 5)
    assert from_images(drawings, pattern="{client}/{label}", channels="grey").columns["x"].shape == (1, 6, 5)


def test_arrays_never_guess_where_channels_are() -> None:
    values = np.random.default_rng(0).random((6, 7, 5, 3))
    whose = {"client": list("aabbcc"), "label": [-1, 1] * 3}
    with pytest.raises(BadInputError, match=r"picture 0 has the shape \[7, 5, 3\].*looks like HWC; say layout='HWC'"):
        from_images(values, **whose)
    with pytest.raises(BadInputError, match=r"layout='CHW' would be 7 channels; layout='HWC' seems"):
        from_images(values, layout="CHW", **whose)
    federation = from_images(values, layout="HWC", **whose)
    assert federation.columns["x"].dtype == "float32"
    assert federation.task.label_names == ("-1", "1")
    first = {x.tobytes() for x in federation.samples([0]).columns["x"]}
    assert first == {np.ascontiguousarray(value.transpose(2, 0, 1), dtype=np.float32).tobytes() for value in values[:2]}
    other_way = from_images(values.transpose(0, 3, 1, 2), layout="CHW", **whose)
    assert samples(other_way) == samples(federation)
    with pytest.raises(BadInputError, match="looks like"):
        from_images(values.transpose(0, 3, 1, 2), **whose)


def test_arrays_in_files(tmp_path: Path) -> None:
    for client in "ab":
        for label in "xy":
            (tmp_path / client).mkdir(exist_ok=True)
            np.save(tmp_path / client / f"{label}.npy", drawing(ord(label), (3, 4)))
    federation = from_images(tmp_path, pattern="{client}/{label}")
    assert ("a", "x", drawing(ord("x"), (3, 4)).tobytes()) in samples(federation)
    (tmp_path / "a" / "x.npy").write_bytes(b"broken")
    with pytest.raises(DamagedFileError, match=r"a/x\.npy in .* is not an array"):
        from_images(tmp_path, pattern="{client}/{label}")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((4, 3, 3), np.nan), "picture . holds nan"),
        (np.zeros((4, 3, 3), dtype=np.int64), "holds int64; pictures are uint8"),
        (np.zeros((4, 3)), "a picture has two or three dimensions"),
        (np.zeros((4, 0, 3)), "is empty"),
    ],
)
def test_arrays_that_are_no_pictures(array: np.ndarray, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        from_images(array, client=list("aabb"), label=[0, 1] * 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": list("ab"), "label": [0, 1] * 2}, "client must have a value for each of the 4 pictures"),
        ({"client": "drawer", "label": [0, 1] * 2}, "not the text 'drawer'"),
        ({"label": [0, 1] * 2}, "Say whose the pictures are"),
        ({"client": list("aabb")}, "Say what the pictures show"),
        ({"client": list("aabb"), "label": [0] * 4}, "nothing to learn"),
        ({"client": list("aabb"), "label": [0.5, 1] * 2}, r"holds 0\.5, but numbers that stand for classes"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "size": 0}, "size must be a whole number of pixels"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "channels": "rgb"}, "arrays are taken as they are"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "channels": "bgr"}, "channels must be one of"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "pattern": "{label}"}, "pattern is given, but"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "missing": "ignore"}, "missing must be"),
        (
            {"client": list("aabb"), "label": [0, 1] * 2, "train_fraction": "x"},
            "train_fraction must be a number from 0",
        ),
        (
            {"client": list("aabb"), "label": [0, 1] * 2, "train_fraction": float("nan")},
            "train_fraction must be a number from 0",
        ),
        ({"client": list("aabb"), "label": [0, 1] * 2, "split_seed": 0.5}, "split_seed must be a whole number"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "minimum_samples": "2"}, "minimum_samples must be"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "image": "x"}, "image is given, but"),
        ({"client": list("aabb"), "label": [0, None] * 2}, "label has no value for picture 1"),
        ({"client": list("aabb"), "label": [0, 1] * 2, "minimum_samples": 3}, "nobody has more than 2 samples"),
    ],
)
def test_what_is_missing_or_wrong_gets_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        from_images(np.zeros((4, 3, 3), dtype=np.uint8), **options)


def test_a_damaged_picture_is_named(drawings: Path) -> None:
    file = drawings / "bob" / "beta" / "2.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DamagedFileError, match=r"bob/beta/2\.png in .* is not a picture that can be read"):
        from_images(drawings, pattern="{client}/{label}")

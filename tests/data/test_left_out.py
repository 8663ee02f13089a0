"""Files and values that would be left out, or become something else, without a word."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedarena import from_images, from_table, from_texts
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec

pillow = pytest.importorskip("PIL.Image")


def pictures(folder: Path) -> Path:
    for client in "ab":
        for label in "01":
            for number in range(3):
                path = folder / client / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pillow.fromarray(np.full((4, 4), 40 * number, np.uint8)).save(path)
    return folder


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_pictures_of_other_endings_are_told(tmp_path: Path, packed: bool) -> None:
    folder = pictures(tmp_path / "pictures")
    for name in ("c/0/1.jfif", "c/0/2.jfif", "a/0/9.jp2", "notes", ".DS_Store"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"something")
    place = folder
    if packed:
        place = tmp_path / "pictures.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
    own = from_images(place, pattern="{client}/{label}", path=tmp_path / "store")
    told = "4 files are no picture that is read here and left out: .jfif (2), without an ending (1), .jp2 (1)."
    assert told in own.notes
    alone = from_images(pictures(tmp_path / "alone"), pattern="{client}/{label}", path=tmp_path / "alone_store")
    assert alone.notes == ()


def test_files_of_a_folder_that_are_no_tables_are_told(tmp_path: Path) -> None:
    for name in ("a.csv", "b.CSV"):
        (tmp_path / name).write_text("x,y\n" + "\n".join(f"{row},{row % 2}" for row in range(8)))
    assert not any("left out" in note for note in from_table(tmp_path, label="y").notes)
    (tmp_path / "below").mkdir()
    for name in ("c.xlsx", "below/d.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n")
    assert any(
        "2 files are no table of this folder and left out: " in note for note in from_table(tmp_path, label="y").notes
    )


def test_names_that_are_no_text_can_be_told(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    for name in (b"a.\xff", b"b.\x1b[31m", b"c." + b"q" * 100):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text("")
    (told,) = from_images(folder, pattern="{client}/{label}", path=tmp_path / "store").notes
    assert told.endswith(r" and left out: .\x1b[31m (1), .qqqqqqqqqqqqqqqqqqq… (1), .\udcff (1).")


def test_folders_beside_tables_may_lead_anywhere(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,y\n" + "\n".join(f"{row},{row % 2}" for row in range(8)))
    (tmp_path / "again").symlink_to(tmp_path)
    assert from_table(tmp_path, label="y").num_samples == 16


def test_clients_and_labels_whose_names_are_no_text_are_refused(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    (folder / "b").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    with pytest.raises(BadInputError, match=r"caf\\udce9/0/0\.png in .* has a name that is not in UTF-8"):
        from_images(folder, pattern="{client}/{label}", path=tmp_path / "store")


def test_tables_without_rows_are_told(tmp_path: Path) -> None:
    for name, rows in (("north", 8), ("south", 8), ("west", 0)):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "".join(f"{row},{row % 2}\n" for row in range(rows)))
    own = from_table(tmp_path, label="y")
    assert own.client_ids(own.clients()) == ["north", "south"]
    assert "Tables without a row are no clients: 'west'." in own.notes


@pytest.mark.parametrize("ending", ["png", "csv"])
def test_links_to_files_that_are_not_there_are_named(tmp_path: Path, ending: str) -> None:
    folder = pictures(tmp_path / "pictures")
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("x,y\n" + "\n".join(f"{row},{row % 2}" for row in range(8)))
    (folder / "latest").symlink_to("nowhere")  # of no interest

    def read() -> Federation:
        if ending == "csv":
            return from_table(folder, label="y")
        return from_images(folder, pattern="{client}/{label}", path=tmp_path / "store")

    assert read().num_samples > 0
    (folder / f"c.{ending}").symlink_to("nowhere")
    with pytest.raises(BadInputError, match=rf"c\.{ending} is a link to a file that is not there"):
        read()


def png_of_16_bits(path: Path) -> None:
    """Colours, which Pillow cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + struct.pack(">12H", *range(12)) for _ in range(4))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def test_colours_of_16_bits_are_refused(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures")
    png_of_16_bits(folder / "a" / "0" / "9.png")
    with pytest.raises(BadInputError, match=r"9\.png.* has colours of 16 bits, of which 8 would be left"):
        from_images(folder, pattern="{client}/{label}", path=tmp_path / "store")


@pytest.mark.parametrize("most", [255, 1023, 65535])
def test_colours_of_more_than_8_bits_are_refused_in_netpbm(tmp_path: Path, most: int) -> None:
    folder = pictures(tmp_path / "pictures")
    width = 1 if most == 255 else 2
    for path in folder.rglob("*.png"):
        path.with_suffix(".ppm").write_bytes(b"P6 2 2 %d\n" % most + bytes(12 * width))
        path.unlink()
    if most == 255:
        assert from_images(folder, pattern="{client}/{label}", path=tmp_path / "store").num_samples == 12
        return
    with pytest.raises(BadInputError, match=r"0\.ppm.* has colours of 16 bits, of which 8 would be left"):
        from_images(folder, pattern="{client}/{label}", path=tmp_path / "store")


def test_broken_numbers_are_no_classes_of_texts(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("c,t,y\n" + "\n".join(f"a{row % 3},some words {row},{row / 2}" for row in range(12)))
    with pytest.raises(BadInputError, match=r"holds 0\.5, but numbers that stand for classes must be whole"):
        from_texts(table, client="c", text="t", label="y", path=tmp_path / "store")
    table.write_text("c,t,y\n" + "\n".join(f"a{row % 3},some words {row},{float(row % 2)}" for row in range(12)))
    assert from_texts(table, client="c", text="t", label="y", path=tmp_path / "store").task.classes == 2


def test_masked_values_are_refused(tmp_path: Path) -> None:
    task = TaskSpec(kind="classification", classes=2)
    columns = {"x": ColumnSpec(dtype="float32", shape=(2,)), "y": ColumnSpec(dtype="int64")}
    x = np.ma.masked_array(np.ones((4, 2), np.float32), [[False, True]] * 4)
    with (
        pytest.raises(BadInputError, match=r"Column 'x' of .* has masked values, which are missing"),
        FederationWriter(tmp_path / "store", name="own", task=task, columns=columns) as writer,
    ):
        writer.add_client("a", train={"x": x, "y": np.zeros(4, np.int64)})


def test_masked_pictures_labels_and_clients_are_missing(tmp_path: Path) -> None:
    pixels, mask = np.zeros((4, 3, 3), np.uint8), np.array([False, True, False, False])
    known = {"client": list("aabb"), "label": [0, 1, 0, 1]}
    masked = np.ma.masked_array(pixels, np.broadcast_to(mask[:, None, None], pixels.shape))
    with pytest.raises(BadInputError, match="picture 1 has masked pixels, which are missing"):
        from_images(masked, **known, path=tmp_path / "store")
    for what, values in (("label", [0, 1, 0, 1]), ("client", [1, 1, 2, 2])):
        with pytest.raises(BadInputError, match=f"{what} has no value for picture 1"):
            from_images(pixels, **{**known, what: np.ma.masked_array(values, mask)}, path=tmp_path / "store")
    texts = {"t": ["so"] * 4, "c": list("abab"), "y": np.ma.masked_array([0, 1, 0, 1], mask)}
    with pytest.raises(BadInputError, match=r"row 2: the label \(column 'y'\) is missing"):
        from_texts(texts, client="c", text="t", label="y", path=tmp_path / "store")


def test_neighbours_of_large_labels_stay_apart(tmp_path: Path) -> None:
    labels = [2**53, 2**53 + 1, 2**53, 7]
    own = from_images(np.zeros((4, 3, 3), np.uint8), client=list("aabb"), label=labels, path=tmp_path / "store")
    assert own.task.label_names is not None
    assert set(own.task.label_names) == set(map(str, labels))

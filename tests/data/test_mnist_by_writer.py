"""MNIST by writer, from small files of the published form, and from the published ones where they are."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.raw.files import read_idx

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "mnist_by_writer"
TRAIN_WRITERS, TEST_WRITERS = [7, 7, 3, 7, 3, 3, 3, 9], [20, 21, 21]


def idx(array: np.ndarray) -> bytes:
    """An IDX file, as its format is described: a code for the type, the number of dimensions, and each of them."""
    code = {"uint8": 0x08, "int32": 0x0C}[array.dtype.name]
    header = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digits(writers: list[int], first: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that say in their first pixel which one they are, and rows of QMNIST's labels."""
    pictures = np.zeros((len(writers), 28, 28), dtype=np.uint8)
    pictures[:, 0, 0] = first + np.arange(len(writers))
    table = np.zeros((len(writers) + 2, 8), dtype=np.int32)  # QMNIST has more test digits than MNIST
    table[: len(writers), 0] = (first + np.arange(len(writers))) % 10
    table[: len(writers), 2] = writers
    return pictures, table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "raw"
    place.mkdir()
    for name, writers, first in (("train", TRAIN_WRITERS, 0), ("t10k", TEST_WRITERS, 100)):
        pictures, table = digits(writers, first)
        (place / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures)))
        part = "test" if name == "t10k" else name
        (place / f"qmnist-{part}-labels-idx2-int").write_bytes(idx(table))
    return place


def load(folder: Path, **options: object) -> Federation:
    return load_federation("mnist_by_writer", {"folder": str(folder), "verify": False, **options})


def pictures_of(federation: Federation, client: str, part: str = "train") -> list[int]:
    (index,) = (i for i, name in enumerate(federation.client_ids(federation.clients())) if name == client)
    return federation.samples(np.array([index]), part).columns["x"][:, 0, 0, 0].tolist()


def test_everybody_has_what_they_wrote(folder: Path) -> None:
    federation = load(folder)
    assert federation.client_ids(federation.clients("train")) == ["writer-0003", "writer-0007", "writer-0009"]
    assert federation.client_ids(federation.clients("test")) == ["writer-0020", "writer-0021"]
    assert pictures_of(federation, "writer-0003") == [2, 4, 5, 6]
    assert pictures_of(federation, "writer-0021", "test") == [101, 102]
    samples = federation.samples(federation.clients(), "all").columns
    assert (samples["y"] == samples["x"][:, 0, 0, 0] % 10).all()


def test_divided_anew_and_without_those_who_wrote_little(folder: Path) -> None:
    federation = load(folder, split="within_client", minimum_samples=2, train_fraction=0.5)
    assert federation.client_ids(federation.clients()) == ["writer-0003", "writer-0007", "writer-0021"]
    assert sorted(pictures_of(federation, "writer-0003", "train") + pictures_of(federation, "writer-0003", "test")) == [
        2,
        4,
        5,
        6,
    ]
    with pytest.raises(BadInputError, match="nobody has more than 4 samples"):
        load(folder, minimum_samples=5)


def test_fractions_need_a_split_of_our_own(folder: Path) -> None:
    for name, value in {"train_fraction": 0.5, "validation_fraction": 0.2, "split_seed": 0}.items():
        with pytest.raises(
            BadInputError, match=rf"federation\.{name} is {value}, but federation\.split=published keeps"
        ):
            load(folder, **{name: value})
    given = load(folder, split="within_client", train_fraction=0.8, validation_fraction=0.0, split_seed=0)
    usual = load(folder, split="within_client")
    for part in ("train", "validation", "test"):
        assert pictures_of(usual, "writer-0003", part) == pictures_of(given, "writer-0003", part)
    assert len(pictures_of(usual, "writer-0003", "train")) == 3


def test_other_files_than_the_published_ones_are_noticed(folder: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is not the published train-images-idx3-ubyte: its checksum differs"):
        load(folder, verify=True)


def test_what_is_missing_and_where_to_get_it(folder: Path, tmp_path: Path) -> None:
    (folder / "qmnist-test-labels-idx2-int").unlink()
    with pytest.raises(
        BadInputError, match=r"lacks qmnist-test-labels-idx2-int; it must hold .*facebookresearch/qmnist"
    ):
        load(folder)
    with pytest.raises(BadInputError, match=r"There is no folder .*nowhere with the files of MNIST by writer"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:-1], r"its header promises"),
        (lambda data: b"abcd" + data[4:], "is not an IDX file: it begins with 61 62 63 64"),
        (lambda data: data[:3] + b"\x01" + data[4:], "must hold an array of 2 dimensions, not 1"),
        (lambda data: data[:2], "is not an IDX file"),
        (lambda data: data[:8], "it ends after 8 bytes, inside its header"),
        (lambda data: data[:11], "it ends after 11 bytes, inside its header"),
        (lambda data: data[:4] + struct.pack(">2I", 0, 2**32 - 1), "is empty: its array has the shape 0 x 4294967295"),
    ],
)
def test_damaged_files(folder: Path, change, sentence: str) -> None:
    path = folder / "qmnist-train-labels-idx2-int"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadInputError, match=sentence) as refusal:
        load(folder)
    assert str(path) in str(refusal.value)


def test_more_values_than_can_be_counted_in_64_bits(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**31, 4))  # the last 64 bits of their number are 0
    with pytest.raises(DamagedFileError, match=r"it has 16 bytes, and its header promises 18,446,744,073,709,551,632"):
        load(folder)


def test_a_truncated_archive_and_wrong_contents(folder: Path) -> None:
    pictures, table = digits(TRAIN_WRITERS, 0)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(pictures))[:-9])
    with pytest.raises(BadInputError, match="cannot be uncompressed"):
        load(folder)
    path.write_bytes(gzip.compress(idx(pictures[:, :20])))
    with pytest.raises(BadInputError, match="must hold pictures of 28 x 28"):
        load(folder)
    path.write_bytes(gzip.compress(idx(np.concatenate([pictures] * 2))))
    with pytest.raises(BadInputError, match="it needs a row for each"):
        load(folder)
    path.write_bytes(gzip.compress(idx(pictures)))
    labels = folder / "qmnist-train-labels-idx2-int"
    table[3, 0] = 11
    labels.write_bytes(idx(table))
    with pytest.raises(BadInputError, match="row 4 says 11, not a digit"):
        load(folder)
    table[3, :3] = 1, 0, TEST_WRITERS[0]
    labels.write_bytes(idx(table))
    with pytest.raises(BadInputError, match="Writer 20 is in the training and in the test set"):
        load(folder)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_files() -> None:
    federation = load_federation("mnist_by_writer", {"folder": str(PUBLISHED)})
    assert (len(federation.clients("train")), len(federation.clients("test"))) == (539, 297)
    sizes = federation.counts(federation.clients("train"))
    assert (sizes.min(), sizes.max(), np.median(sizes), sizes.sum()) == (19, 131, 116, 60_000)
    labels = read_idx(PUBLISHED / "train-labels-idx1-ubyte.gz", dimensions=1)
    counts = np.bincount(federation.samples(federation.clients("train"), "train").columns["y"])
    np.testing.assert_array_equal(counts, np.bincount(labels))  # MNIST's own labels

"""Columns of pictures that stay compressed in the store."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedarena
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import ColumnSpec, EncodedRows, Federation, FederationWriter, TaskSpec
from fedarena.data.store import decoded
from fedarena.data.store.decoded import LIMIT_VARIABLE, DecodedCache, decoded_cache, limit_from_environment
from fedarena.data.store.side_by_side import THREADS_VARIABLE, decoding_threads, for_each

SIDE = 20
TASK = TaskSpec(kind="classification", classes=4)


def picture(seed: int, mode: str = "RGB", size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC).convert(mode)


def file_of(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def jpegs(count: int, seed: int = 0) -> list[bytes]:
    return [file_of(picture(seed + number), quality=60 + number % 30) for number in range(count)]


def by_pillow(content: bytes, mode: str = "RGB") -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert(mode))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def columns(encoding: str = "jpeg", channels: int = 3) -> dict[str, ColumnSpec]:
    x = ColumnSpec(dtype="uint8", shape=(channels, SIDE, SIDE), encoding=encoding)
    return {"x": x, "y": ColumnSpec(dtype="int64")}


def written(folder: Path, files: Sequence[Any], spec: dict[str, ColumnSpec] | None = None, **options: Any) -> Path:
    """A store with a client for each list of files, the last of which is a test sample."""
    with FederationWriter(folder, name="pictures", task=TASK, columns=spec or columns(), **options) as writer:
        for client, of_client in enumerate(files):
            labels = np.arange(len(of_client)) % 4
            writer.add_client(
                f"user {client}",
                train={"x": of_client[:-1], "y": labels[:-1]},
                test={"x": of_client[-1:], "y": labels[-1:]},
            )
    return folder


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> DecodedCache:
    monkeypatch.setattr(decoded, "_cache", DecodedCache(1 << 20))
    return decoded_cache()


def test_what_is_read_is_what_pillow_decodes(tmp_path: Path) -> None:
    files = [jpegs(5), jpegs(1, seed=10), jpegs(9, seed=20)]
    federation = Federation.open(written(tmp_path / "store", files, rows_per_batch=4))
    assert federation.columns["x"].encoding == "jpeg"
    for clients in ([0, 1, 2], [2, 0], [1, 1, 0], []):
        found = federation.samples(clients)
        expected = [by_pillow(content) for client in clients for content in files[client]]
        assert found.columns["x"].dtype == np.uint8
        assert found.columns["x"].shape == (len(expected), 3, SIDE, SIDE)
        for values, pixels in zip(found.columns["x"], expected, strict=True):
            np.testing.assert_array_equal(values, pixels)
        assert found.offsets.tolist() == np.cumsum([0, *(len(files[client]) for client in clients)]).tolist()
    train = federation.encoded([2, 1], "train")
    assert train.files == files[2][:-1]
    assert train.offsets.tolist() == [0, 8, 8]
    federation.verify()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    rows_per_batch=st.integers(1, 9),
    form=st.sampled_from([("jpeg", 1), ("jpeg", 3), ("png", 1), ("png", 3), ("png", 4)]),
    seed=st.integers(0, 1000),
)
def test_encoded_beside_plain(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], rows_per_batch: int, form: tuple[str, int], seed: int
) -> None:
    """One store keeps files and the other their pixels; nobody who reads samples can tell them apart."""
    encoding, channels = form
    folder, mode = tmp_path_factory.mktemp("stores"), {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    files = [
        [file_of(picture(seed + 7 * client + number, mode), encoding.upper()) for number in range(size)]
        for client, size in enumerate(sizes)
    ]
    encoded = Federation.open(
        written(folder / "encoded", files, columns(encoding, channels), rows_per_batch=rows_per_batch)
    )
    plain_columns = {name: column.decoded for name, column in encoded.columns.items()}
    pixels = [np.stack([by_pillow(content, mode) for content in of_client]) for of_client in files]
    plain = Federation.open(written(folder / "plain", pixels, plain_columns))
    assert plain.columns == plain_columns
    assert (plain.label_counts == encoded.label_counts).all()
    clients = np.random.default_rng(seed).integers(0, len(sizes), 4)
    for part in ("train", "test", "all"):
        expected, found = plain.samples(clients, part), encoded.samples(clients, part)
        for name in expected.columns:
            np.testing.assert_array_equal(found.columns[name], expected.columns[name])
        np.testing.assert_array_equal(found.offsets, expected.offsets)
    positions = encoded.counts(clients) - 1
    found_x, expected_x = (one.samples_at(clients, positions)["x"] for one in (encoded, plain))
    np.testing.assert_array_equal(found_x, expected_x)
    everybody = encoded.encoded(encoded.clients()).files
    assert everybody == [content for of_client in files for content in of_client]
    encoded.verify()


def test_neither_cache_nor_threads_change_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Federation.open(written(tmp_path / "store", [jpegs(7, seed=10 * client) for client in range(4)]))
    expected = store.samples([0, 1, 2, 3]).columns["x"].copy()
    one_picture = store.columns["x"].bytes_per_sample
    for limit in (0, one_picture - 1, one_picture, 5 * one_picture, 1 << 30):
        for threads in (1, 2, 5):
            monkeypatch.setattr(decoded, "_cache", DecodedCache(limit))
            monkeypatch.setenv(THREADS_VARIABLE, str(threads))
            for _ in range(3):
                read = store.samples([0, 1, 2, 3]).columns["x"]
                np.testing.assert_array_equal(read, expected)
                read[:] = 0  # what was handed out belongs to whoever asked
            cache = decoded_cache()
            assert len(cache) * one_picture <= cache.reserved_bytes <= limit
            if limit > 1 << 20:
                assert (len(cache), cache.hits) == (28, 2 * 28)


def test_only_what_is_asked_for_is_read(tmp_path: Path, fresh_cache: DecodedCache) -> None:
    store = Federation.open(written(tmp_path / "store", [jpegs(4)] * 20, rows_per_batch=4))
    assert store.samples([7], columns=["y"]).columns.keys() == {"y"}
    assert len(fresh_cache) == 0
    store.samples([7, 7, 3], "train")
    assert len(fresh_cache) == 6
    assert store._samples.batches_loaded == 2


def test_a_column_without_pictures_is_not_encoded(tmp_path: Path) -> None:
    store = Federation.open(written(tmp_path / "store", [jpegs(2)]))
    with pytest.raises(BadInputError, match="Column 'y' of pictures is not encoded"):
        store.encoded([0], column="y")
    with pytest.raises(BadInputError, match="no column called 'z'"):
        store.encoded([0], column="z")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "float32", "shape": (3, 4, 4)}, "must be uint8"),
        ({"dtype": "uint8", "shape": (4, 4)}, r"not uint8 of shape \[4, 4\]"),
        ({"dtype": "uint8", "shape": (4, 4, 4)}, "with 1 or 3 channels"),
        ({"dtype": "uint8", "shape": (3, 4, 4), "encoding": "gif"}, "encoding"),
    ],
)
def test_bad_columns(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        ColumnSpec(**{"encoding": "jpeg", **options})


def test_manifests_of_plain_columns_do_not_change() -> None:
    assert ColumnSpec(dtype="uint8", shape=(3, 4, 4)).model_dump(mode="json") == {"dtype": "uint8", "shape": [3, 4, 4]}
    assert columns()["x"].model_dump(mode="json")["encoding"] == "jpeg"


# What a picture may be

ODD = {
    "truncated": (jpegs(1)[0][:-40], "cannot be decoded: .*truncated"),
    "cut to its beginning": (jpegs(1)[0][:30], "cannot be decoded"),
    "empty": (b"", "cannot be decoded: no picture is recognized"),
    "not a picture": (b"user,label\n1,2\n", "cannot be decoded: no picture is recognized"),
    "another size": (file_of(picture(1, size=(SIDE, SIDE + 1))), "has 21 x 20 pixels .*pictures of 20 x 20"),
    "a PNG": (file_of(picture(1), "PNG"), "is a PNG, but the column holds JPEGs"),
    "an animation": (file_of(picture(1), "GIF"), "is a GIF, but the column holds JPEGs"),
    "far too long": (jpegs(1)[0] + bytes(1 << 20), "has 1,04.,... bytes, but a picture of 20 x 20 may have 1,048,576"),
    "an array": (np.zeros(3), "must be the bytes of a file, not ndarray"),
}


@pytest.mark.parametrize("what", ODD)
def test_what_no_jpeg_column_holds(tmp_path: Path, what: str) -> None:
    content, sentence = ODD[what]
    train = {"x": [*jpegs(2), content], "y": np.zeros(3, np.int64)}
    with pytest.raises(BadInputError, match=rf"(?s)^Column 'x' of client 'ann', train sample 2, {sentence}"):
        _write_one(tmp_path / "store", columns(), train)
    assert list(tmp_path.iterdir()) == []  # nothing half-built is left
    named = EncodedRows(train["x"], ["a.jpg", "b.jpg", "folder/c.jpg"])
    with pytest.raises(BadInputError, match=rf"(?s)^folder/c.jpg {sentence}"):
        _write_one(tmp_path / "store", columns(), {**train, "x": named})


def _write_one(folder: Path, spec: dict[str, ColumnSpec], train: dict[str, Any]) -> Federation:
    with FederationWriter(folder, name="one", task=TASK, columns=spec) as writer:
        writer.add_client("ann", train=train)
    return Federation.open(folder)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_colours_are_what_pillow_makes_of_grey_and_inks(tmp_path: Path, mode: str) -> None:
    content = file_of(picture(3, mode))
    store = _write_one(tmp_path / "store", columns(), {"x": [content], "y": np.zeros(1, np.int64)})
    np.testing.assert_array_equal(store.samples([0]).columns["x"][0], by_pillow(content))


def test_what_follows_the_end_of_a_jpeg_does_not_matter(tmp_path: Path) -> None:
    content = jpegs(1)[0]
    store = _write_one(tmp_path / "store", columns(), {"x": [content + b"\n\n"], "y": np.zeros(1, np.int64)})
    np.testing.assert_array_equal(store.samples([0]).columns["x"][0], by_pillow(content))


@pytest.mark.parametrize(
    ("image", "encoding", "channels", "sentence"),
    [
        (picture(1), "jpeg", 1, "has the mode RGB, which does not fit into L without loss"),
        (picture(1, "RGBA"), "png", 3, "has the mode RGBA, which does not fit into RGB without loss"),
        (picture(1, "LA"), "png", 1, "has the mode LA"),
        (Image.fromarray(np.zeros((SIDE, SIDE), np.uint16)), "png", 1, "has the mode I;16"),
    ],
)
def test_nothing_is_lost_silently(
    tmp_path: Path, image: Image.Image, encoding: str, channels: int, sentence: str
) -> None:
    train = {"x": [file_of(image, encoding.upper())], "y": np.zeros(1, np.int64)}
    with pytest.raises(BadInputError, match=sentence):
        _write_one(tmp_path / "store", columns(encoding, channels), train)


def test_transparent_palettes_need_a_channel_for_it(tmp_path: Path) -> None:
    content = file_of(picture(1).quantize(8), "PNG", transparency=0)
    train = {"x": [content], "y": np.zeros(1, np.int64)}
    with pytest.raises(BadInputError, match="has the mode P and transparency"):
        _write_one(tmp_path / "store", columns("png", 3), train)
    store = _write_one(tmp_path / "store", columns("png", 4), train)
    np.testing.assert_array_equal(store.samples([0]).columns["x"][0], by_pillow(content, "RGBA"))


@pytest.mark.parametrize("cut", [12, 40, 200])
def test_truncated_png(tmp_path: Path, cut: int) -> None:
    train = {"x": [file_of(picture(1), "PNG")[:-cut]], "y": np.zeros(1, np.int64)}
    with pytest.raises(DamagedFileError, match="train sample 0, cannot be decoded"):
        _write_one(tmp_path / "store", columns("png"), train)


@pytest.mark.parametrize("values", [b"one file", np.zeros((2, 3, SIDE, SIDE), np.uint8), "text", 3])
def test_what_is_not_a_list_of_files(tmp_path: Path, values: Any) -> None:
    with pytest.raises(BadInputError, match="it must be a list with the bytes of each jpeg file"):
        _write_one(tmp_path / "store", columns(), {"x": values, "y": np.zeros(2, np.int64)})


def test_unequal_numbers_of_samples(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"unequal numbers of samples: \{'x': 2, 'y': 3\}"):
        _write_one(tmp_path / "store", columns(), {"x": jpegs(2), "y": np.zeros(3, np.int64)})


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    """Of files that take two megabytes in all, those of one batch are held."""
    files = [content + bytes(2000) for content in jpegs(8)]  # each a new object, as when it is read
    with FederationWriter(tmp_path / "store", name="many", task=TASK, columns=columns(), rows_per_batch=16) as writer:
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        for client in range(100):
            x = [bytes(bytearray(content)) for content in files]
            writer.add_client(str(client), train={"x": x, "y": np.zeros(8, np.int64)})
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held_by_arrow = pa.total_allocated_bytes() - before
    stored_bytes = (tmp_path / "store" / "samples.arrow").stat().st_size
    assert stored_bytes > 2_000_000
    assert peak_bytes + held_by_arrow < stored_bytes / 5


# Damage on disk


def _damaged(store: Path, content: bytes, replacement: bytes) -> Path:
    samples = store / "samples.arrow"
    whole = samples.read_bytes()
    assert whole.count(content) == 1
    samples.write_bytes(whole.replace(content, replacement))
    return store


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    files = [jpegs(3, seed=10 * client) for client in range(4)]
    content = files[2][1]
    path = _damaged(written(tmp_path / "store", files), content, bytes(20) + content[20:])
    store = Federation.open(path)
    sentence = r"samples.arrow is damaged in row 7, column 'x', a picture of client 'user 2'. It cannot be decoded"
    with pytest.raises(DamagedFileError, match="is damaged between bytes"):  # somewhere near their own pictures
        store.samples([0, 1, 3])
    with pytest.raises(DamagedFileError, match=sentence):
        store.samples([0, 2])
    with pytest.raises(DamagedFileError, match=sentence):
        store.verify()


def test_damage_that_still_decodes_is_found_by_its_checksum(tmp_path: Path) -> None:
    files = [jpegs(2)]
    content = files[0][0]
    middle = len(content) - 40
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path = _damaged(written(tmp_path / "store", files), content, changed)
    store = Federation.open(path)
    with pytest.raises(DamagedFileError, match=r"samples\.arrow is damaged between bytes 0 and"):
        store.samples([0])
    with pytest.raises(DamagedFileError, match=r"samples\.arrow is damaged: its checksum"):
        store.verify()


def test_places_of_files_that_lead_nowhere(tmp_path: Path) -> None:
    files = [jpegs(3)]
    places = np.cumsum([0, *map(len, files[0])]).astype(np.int64)
    wrong = places.copy()
    wrong[2] = 1 << 40
    path = _damaged(written(tmp_path / "store", files), places.tobytes(), wrong.tobytes())
    with pytest.raises(DamagedFileError, match="is damaged in batch 0"):
        Federation.open(path).samples([0])
    (path / "samples.arrow.blocks").unlink()  # as in stores from before there were checksums of blocks
    with pytest.raises(DamagedFileError, match="is damaged in batch 0"):
        Federation.open(path).samples([0])


# The cache and the threads


def _has(cache: DecodedCache, key: str, size: int = 10) -> bool:
    found = np.zeros(size, np.uint8)
    is_there = cache.read(key, found)
    assert (found == (ord(key) if is_there else 0)).all()
    return is_there


def test_what_was_not_asked_for_the_longest_time_goes_first() -> None:
    cache = DecodedCache(35)
    for key in "abc":
        cache.put(key, np.full(10, ord(key), np.uint8))
    assert _has(cache, "a")
    cache.put("d", np.full(10, ord("d"), np.uint8))
    assert [_has(cache, key) for key in "abcd"] == [True, False, True, True]
    cache.put("e", np.zeros(36, np.uint8))
    assert (len(cache), cache.reserved_bytes) == (3, 30)
    cache.put("f", np.full(14, ord("f"), np.uint8))  # of another size, with no room beside the older ones
    assert (len(cache), cache.reserved_bytes, _has(cache, "f", 14)) == (1, 28, True)
    cache.put("g", np.full(5, ord("g"), np.uint8))  # there is room for one
    assert [len(cache), cache.reserved_bytes, _has(cache, "f", 14), _has(cache, "g", 5)] == [2, 33, True, True]
    cache.put("h", np.full(5, ord("h"), np.uint8))  # f is older than g
    assert [len(cache), cache.reserved_bytes, _has(cache, "g", 5), _has(cache, "h", 5)] == [2, 35, True, True]
    cache.clear()
    assert (len(cache), cache.reserved_bytes, _has(cache, "f", 14)) == (0, 0, False)


def test_what_is_being_read_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DecodedCache(10)
    cache.put("a", np.full(10, ord("a"), np.uint8))

    class Slow(np.ndarray):
        def __setitem__(self, where: Any, values: Any) -> None:  # in the midst of reading, somebody puts something in
            cache.put("b", np.full(10, ord("b"), np.uint8))
            super().__setitem__(where, values)

    target = np.zeros(10, np.uint8).view(Slow)
    assert cache.read("a", target)
    assert (np.asarray(target) == ord("a")).all()
    assert [_has(cache, key) for key in "ab"] == [True, False]


def test_many_threads_read_what_was_put_in() -> None:
    cache, wrong = DecodedCache(40), []

    def work(number: int) -> None:
        key = "abcdefgh"[number * 7 % 8]
        found = np.zeros(10, np.uint8)
        if cache.read(key, found):
            wrong.extend([key] * bool((found != ord(key)).any()))
        else:
            cache.put(key, np.full(10, ord(key), np.uint8))

    for_each(work, 4000, 8)
    assert wrong == []
    assert cache.reserved_bytes == 40
    assert len(cache) <= 4


def test_limits_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    assert 0 < limit_from_environment() <= 1 << 30
    monkeypatch.setenv(LIMIT_VARIABLE, "250")
    assert limit_from_environment() == 250_000_000
    for name, function in ((LIMIT_VARIABLE, limit_from_environment), (THREADS_VARIABLE, decoding_threads)):
        monkeypatch.setenv(name, "-2")
        with pytest.raises(BadInputError, match=f"{name} must be a whole number .*, not '-2'"):
            function()


def test_the_first_error_is_raised_and_all_else_ends() -> None:
    def work(number: int) -> None:
        done.append(number)
        if number in (5, 9):
            raise ValueError(str(number))

    for threads in (1, 2, 4, 8):
        done: list[int] = []
        with pytest.raises(ValueError, match=r"^5$"):
            for_each(work, 1000, threads)
        assert len(done) < 1000
        done.clear()
        for_each(work, 5, threads)
        assert sorted(done) == [0, 1, 2, 3, 4]


# Use


def test_runs_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    """Training and evaluation on files, and on the pixels they hold."""
    files = [jpegs(6, seed=10 * client) for client in range(4)]
    pixels = [np.stack([by_pillow(content) for content in of_client]) for of_client in files]
    plain_columns = {name: column.decoded for name, column in columns().items()}
    stores = written(tmp_path / "encoded", files), written(tmp_path / "plain", pixels, plain_columns)
    settings: dict[str, Any] = {"rounds": 2, "cohort": 3, "model": "logistic_regression", "runs_folder": tmp_path}
    results = [fedarena.run(federation=Federation.open(store), progress=False, **settings) for store in stores]
    assert results[0].rounds.equals(results[1].rounds)
    for name, values in results[0].state_dict().items():
        assert torch.equal(values, results[1].state_dict()[name])

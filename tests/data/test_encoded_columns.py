"""Columns of pictures that stay compressed in the store."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import ColumnSpec, EncodedRows, Federation, FederationWriter, TaskSpec
from fedarena.data.store import decoded
from fedarena.data.store.decoded import DecodedCache, decoded_cache
from fedarena.data.store.side_by_side import THREADS_VARIABLE, for_each

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


def written(folder: Path, files: list[list[bytes]], spec: dict[str, ColumnSpec] | None = None, **options: Any) -> Path:
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

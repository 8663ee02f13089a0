"""Drawings in folders, for tests of somebody's own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedarena.data import Federation
from fedarena.data.images.own import from_images

DRAWERS, CHARACTERS = ("ann", "bob", "cyd"), ("alpha", "beta")


def drawing(number: int, shape: tuple[int, ...] = (6, 5)) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, shape).astype(np.uint8)


def save(path: Path, pixels: np.ndarray | Image.Image, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)


def samples(federation: Federation, part: str = "all") -> set[tuple[str, str, bytes]]:
    """Client, label and pixels of every sample."""
    found = set()
    for client, id in enumerate(federation.client_ids(federation.clients())):
        columns = federation.samples([client], part).columns
        names = federation.task.label_names
        found |= {(id, names[y], x.tobytes()) for x, y in zip(columns["x"], columns["y"], strict=True)}
    return found


def expected(folder: Path) -> set[tuple[str, str, bytes]]:
    """The same, by walking through the folder."""
    files = sorted(folder.rglob("*.png"))
    return {(file.parts[-3], file.parts[-2], np.asarray(Image.open(file)).tobytes()) for file in files}


def one(tmp_path: Path, pixels: Any, **options: Any) -> np.ndarray:
    """What becomes of one picture, beside one of another label."""
    ending, saving = options.pop("ending", "png"), options.pop("saving", {})
    for label in "ab":
        save(tmp_path / "c" / f"{label}.{ending}", pixels, **saving)
    federation = from_images(tmp_path, pattern="{client}/{label}", **options)
    return federation.samples([0]).columns["x"][0]

"""Videos as some of their frames, or as features of them, in a folder each; nothing here reads videos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.data.by_client.pictures import PictureForm
from fedarena.data.store.schema import AnyArray

Frames = Annotated[int, Field(ge=1, le=64)]
PICTURES = (".jpg", ".jpeg", ".png")


def evenly_spread(folder: Path, endings: tuple[str, ...], wanted: int, where: str) -> list[Path]:
    """So many of a folder's files in the order of their names; some of them several times if there are fewer."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in endings)
    except OSError:
        files = []
    if not files:
        raise BadInputError(f"{where} has no frames in {folder}: no file that ends with {', '.join(endings)}")
    return [files[(2 * place + 1) * len(files) // (2 * wanted)] for place in range(wanted)]


def sampled_frames(folder: Path, frames: int, size: int, where: str) -> AnyArray:
    """Some pictures of a video, one behind the other, ``[3 * frames, size, size]``."""
    form = PictureForm(size)
    chosen = evenly_spread(folder, PICTURES, frames, where)
    return np.concatenate([form.read(path.read_bytes(), str(path)) for path in chosen])


def sampled_features(folder: Path, frames: int, width: int, where: str) -> AnyArray:
    """The mean of the features of some frames."""
    total = np.zeros(width)
    for path in evenly_spread(folder, (".txt",), frames, where):
        try:
            values = np.array(path.read_bytes().split(), dtype=np.float64)
        except ValueError:
            values = np.zeros(0)
        if len(values) != width or not np.isfinite(values).all():
            raise BadInputError(f"{path} must have {width:,} numbers, as the first file of features has")
        total += values
    return (total / frames).astype(np.float32)

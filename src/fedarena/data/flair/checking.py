"""A photo is looked at once, when its store is built: whoever trains must not meet one that cannot be decoded."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.store.schema import AnyArray


@dataclass(frozen=True)
class Picture:
    """The content of a picture's file, which was decoded to see whether it can be."""

    row: int  # among all photos
    content: bytes
    height: int
    width: int
    where: str


def checked_jpeg(row: int, content: bytes, where: str) -> Picture:
    """A JPEG as it is; raises if it is none, or ends too early."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
            picture.load()
            width, height = picture.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "it is cut off" if "truncated" in str(error) else "it cannot be decoded"
        raise DamagedFileError(f"{where} is not a complete JPEG: {reason if content else 'it is empty'}") from None
    return Picture(row, content, height, width, where)


def as_png(row: int, pixels: AnyArray, where: str) -> Picture:
    """Pixels ``[height, width, 3]`` as a PNG, which loses nothing."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return Picture(row, file.getvalue(), pixels.shape[0], pixels.shape[1], where)


def check_same_size(picture: Picture, height: int, width: int) -> None:
    """Raises unless a picture is as large as those before it."""
    if (picture.height, picture.width) != (height, width):
        raise BadInputError(
            f"{picture.where} has {picture.width} x {picture.height} pixels and others have {width} x {height}; "
            "all must be of one size, as FLAIR's small_images are"
        )


def size_of(content: bytes) -> tuple[int, int]:
    """Height and width of a picture that was checked."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return picture.height, picture.width

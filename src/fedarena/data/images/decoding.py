"""Files of pictures as arrays: their form from their first bytes, and their pixels.

Grey pictures of 16 bits become numbers from 0 to 1; all others stay bytes. What is seen through transparency is white.
Cameras note how they were held; pictures are turned accordingly.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.images.forms import KINDS, MOST_16_BITS, Form, Wanted
from fedarena.data.images.resizing import resize, resize_channels
from fedarena.data.store.schema import AnyArray

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {"grey": "L", "rgb": "RGB", "rgba": "RGBA", "grey with transparency": "LA"}
_TURNS_SIDEWAYS = (5, 6, 7, 8)  # values of the Exif orientation
_TURNS = (2, 3, 4, *_TURNS_SIDEWAYS)
_ORIENTATION = 0x0112


def form_of_file(source: Any, where: str) -> Form:
    """The form of a picture as it is, from the beginning of its file or content."""
    with _open(source, where) as picture:
        kind = _kind(picture, where)
        width, height = picture.size
        if _orientation(picture) in _TURNS_SIDEWAYS:
            width, height = _turned_size(picture, where)
        # What cameras put behind a picture in the format MPO is a preview of it.
        has_more_frames = picture.format != "MPO" and bool(getattr(picture, "is_animated", False))
    dtype = "float32" if kind == "grey of 16 bits" else "uint8"
    return Form(height, width, KINDS[kind], kind, dtype, has_more_frames)


def file_kind(source: Any, where: str) -> tuple[str, tuple[int, int]]:
    """The format of a picture's file, such as JPEG, and its height and width as they lie in the file."""
    with _open(source, where) as picture:
        return str(picture.format), (picture.height, picture.width)


def is_upright(source: Any, where: str) -> bool:
    """Whether a picture is shown as it lies in its file."""
    with _open(source, where) as picture:
        return _orientation(picture) not in _TURNS


def pixels_of_file(source: Any, form: Form, wanted: Wanted, where: str) -> AnyArray:
    """A picture ``[channels, height, width]`` of this form."""
    with _open(source, where) as picture, _decoding(where):
        return _from_picture(picture, form, wanted)


@contextmanager
def _decoding(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SyntaxError, ValueError) as error:
        raise DamagedFileError(f"{where} is not a picture that can be read: {' '.join(str(error).split())}") from None


def _turned_size(picture: Image, where: str) -> tuple[int, int]:
    """Width and height of a picture that lies on its side in its file, when it is shown."""
    from PIL import ImageOps

    if picture.format != "TIFF":
        return picture.height, picture.width
    with _decoding(where):  # of TIFF, some versions of Pillow say the size before, and some after turning
        return ImageOps.exif_transpose(picture).size


def _orientation(picture: Image) -> int | None:
    """How the camera was held; notes that cannot be read are ignored by all who show pictures."""
    try:
        found = picture.getexif().get(_ORIENTATION)
    except (OSError, SyntaxError, ValueError):
        return None
    return found if isinstance(found, int) else None


def _open(source: Any, where: str) -> Image:
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        if picture.format == "TIFF":
            picture.filename = ""  # or Pillow would map pixels that lie on their side into memory as if they did not
        return picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadInputError(f"There is no picture {where}.") from None
        raise DamagedFileError(f"{where} is not a picture that can be read") from None


def _is_deep(picture: Image) -> bool:
    """Whether a file has more than 8 bits of each colour, of which Pillow is about to drop some."""
    for tile in getattr(picture, "tile", ()):
        codec, arguments = tile[0], tile[3]
        if ";16" in str(arguments) or (codec.startswith("ppm") and arguments[1] > np.iinfo(np.uint8).max):
            return True
    return False


def _kind(picture: Image, where: str) -> str:
    mode, is_transparent = picture.mode, "transparency" in picture.info
    if mode in ("1", "L", "LA", "La"):
        return "grey with transparency" if is_transparent or mode.upper() == "LA" else "grey"
    if mode.startswith("I;16") or (mode == "I" and picture.format == "PNG"):
        return "grey of 16 bits"
    if mode.startswith("RGB") and _is_deep(picture):
        raise BadInputError(
            f"{where} has colours of 16 bits, of which 8 would be left; save it with 8 bits, or as .npy."
        )
    if mode in ("P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "LAB", "HSV"):
        return "rgba" if is_transparent or mode.upper() in ("PA", "RGBA") else "rgb"
    raise BadInputError(
        f"{where} has pixels of the mode {mode}, which cannot be used; save it with 8 bits, or as .npy."
    )


def _from_picture(picture: Image, form: Form, wanted: Wanted) -> AnyArray:
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(picture)
    kind = _kind(turned, "") if turned.mode != picture.mode else _kind(picture, "")
    if kind == "grey of 16 bits":
        levels = np.asarray(turned, dtype=np.float32)[None] / np.float32(MOST_16_BITS)
        resized = resize_channels(levels, form, wanted)
        return resized if form.dtype == "float32" else _grey_as(resized, form.channels)
    if form.kind in ("grey", "rgb") and kind in ("rgba", "grey with transparency"):
        turned = _on_white(turned)
    converted = turned.convert(_MODES[form.kind])
    pixels = np.asarray(resize(converted, form, wanted.fit))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _grey_as(levels: AnyArray, channels: int) -> AnyArray:
    """Grey levels from 0 to 1 as bytes in that many channels, of which a fourth is opaque."""
    grey = np.rint(255 * levels.clip(0, 1)).astype(np.uint8)
    return np.concatenate([grey] * min(channels, 3) + [np.full_like(grey, 255)] * (channels - 3))


def _on_white(picture: Image) -> Image:
    from PIL import Image

    transparent = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)

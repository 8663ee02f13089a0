"""Pictures of any kind as arrays of one form: read, told apart by size and channels, and brought to one size.

Grey pictures of 16 bits become numbers from 0 to 1; all others stay bytes. What is seen through transparency is white.
Cameras note how they were held; pictures are turned accordingly.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.raw.trees import RawTree
from fedarena.data.store.schema import AnyArray, ColumnSpec

if TYPE_CHECKING:
    from PIL.Image import Image

Layout = Literal["HWC", "CHW"]
Channels = Literal["grey", "rgb", "rgba"]
Fit = Literal["stretch", "crop", "pad"]
# What a picture can be. The last two are not to be asked for: they stay what they are.
KINDS = {"grey": 1, "rgb": 3, "rgba": 4, "grey with transparency": 2, "grey of 16 bits": 1}
_MODES = {"grey": "L", "rgb": "RGB", "rgba": "RGBA", "grey with transparency": "LA"}
_FEW_CHANNELS = 4
_MOST_16_BITS = 65535
_TURNS_SIDEWAYS = (5, 6, 7, 8)  # values of the Exif orientation
_ORIENTATION = 0x0112
ENDINGS = (*(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".npy"),)


@dataclass(frozen=True)
class Form:
    """The form of a picture: its size in pixels, its channels, and what they are."""

    height: int
    width: int
    channels: int
    kind: str  # of KINDS, or what an array holds
    dtype: str = "uint8"

    @property
    def column(self) -> ColumnSpec:
        """The column that holds such pictures."""
        return ColumnSpec(dtype=self.dtype, shape=(self.channels, self.height, self.width))


@dataclass(frozen=True)
class Wanted:
    """What pictures are brought to; what is None stays as it is, and must then be the same for all."""

    size: tuple[int, int] | None = None  # height, width
    channels: Channels | None = None
    layout: Layout | None = None
    fit: Fit = "stretch"

    @classmethod
    def checked(cls, size: Any, channels: Any, layout: Any, fit: Any) -> Wanted:
        """What the options say; a single number is the side of a square."""
        sides = (size, size) if isinstance(size, int | np.integer) else size
        if sides is not None:
            if len(sides) != 2 or not all(
                isinstance(side, int | np.integer) and 1 <= side <= 1 << 16 for side in sides
            ):
                raise BadInputError(f"size must be a number of pixels, or height and width, not {size!r}.")
            sides = (int(sides[0]), int(sides[1]))
        for option, value, valid in (
            ("channels", channels, (None, "grey", "rgb", "rgba")),
            ("layout", layout, (None, "HWC", "CHW")),
            ("fit", fit, ("stretch", "crop", "pad")),
        ):
            if value not in valid:
                names = ", ".join(repr(one) for one in valid if one is not None)
                raise BadInputError(f"{option} must be one of {names}, not {value!r}.")
        return cls(sides, channels, layout, fit)


class Pictures(ABC):
    """Any number of pictures, which are read one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def where(self, index: int) -> str:
        """Words for error messages."""

    @abstractmethod
    def source(self, index: int) -> AnyArray | bytes | Path:
        """An array, or a file or its content."""


class PicturesInTree(Pictures):
    """The pictures of a folder or an archive."""

    def __init__(self, tree: RawTree):
        self._tree = tree

    def __len__(self) -> int:
        return len(self._tree.names)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return self._tree.where(index)

    def source(self, index: int) -> AnyArray | bytes | Path:
        """The file, or its content in an archive."""
        name = self._tree.names[index]
        if self._tree.path.is_dir() and not name.lower().endswith(".npy"):
            return self._tree.path / name
        content = self._tree.read(index)
        return _load_array(io.BytesIO(content), self.where(index)) if name.lower().endswith(".npy") else content


class PictureFiles(Pictures):
    """The pictures of some files."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return str(self._paths[index])

    def source(self, index: int) -> AnyArray | bytes | Path:
        """The file, or what is in it if it is an array."""
        path = self._paths[index]
        return _load_array(path, str(path)) if path.suffix.lower() == ".npy" else path


class ArrayOfPictures(Pictures):
    """The pictures of one array, or of a list of arrays."""

    def __init__(self, arrays: Sequence[AnyArray] | AnyArray):
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return f"picture {index}"

    def source(self, index: int) -> AnyArray | bytes | Path:
        """One of them."""
        return np.asarray(self._arrays[index])


def common_form(pictures: Pictures, wanted: Wanted, progress: Callable[[float], None]) -> Form:
    """The form that all pictures have or are brought to; where they differ, a sentence names two of them."""
    first: Form | None = None
    for index in range(len(pictures)):
        form = _as_wanted(_form(pictures.source(index), wanted, pictures.where(index)), wanted, pictures.where(index))
        if first is None:
            first = form
        elif form != first:
            raise _differ(pictures.where(0), first, pictures.where(index), form)
        if index % 256 == 0:
            progress(index / len(pictures))
    if first is None:
        raise BadInputError("There are no pictures.")
    return first


def read_picture(pictures: Pictures, index: int, form: Form, wanted: Wanted) -> AnyArray:
    """A picture ``[channels, height, width]`` of this form."""
    source, where = pictures.source(index), pictures.where(index)
    if isinstance(source, np.ndarray):
        return _from_array(source, form, wanted, where)
    with _open(source, where) as picture:
        try:
            return _from_picture(picture, form, wanted)
        except (OSError, SyntaxError, ValueError) as error:
            raise DamagedFileError(
                f"{where} is not a picture that can be read: {' '.join(str(error).split())}"
            ) from None


def _as_wanted(form: Form, wanted: Wanted, where: str) -> Form:
    if wanted.size is not None:
        form = replace(form, height=wanted.size[0], width=wanted.size[1])
    if wanted.channels is None:
        return form
    if form.kind in KINDS:
        return replace(form, channels=KINDS[wanted.channels], kind=wanted.channels, dtype="uint8")
    if form.channels != KINDS[wanted.channels]:
        raise BadInputError(
            f"{where} is {form.kind}; arrays are taken as they are, so channels={wanted.channels!r} cannot change them."
        )
    return form


def _differ(where: str, first: Form, other_where: str, other: Form) -> BadInputError:
    if (first.height, first.width) != (other.height, other.width):
        return BadInputError(
            f"Pictures differ in size: {where} has {first.height} x {first.width} pixels (height x width) and "
            f"{other_where} {other.height} x {other.width}; say size={max(first.height, first.width)}, or "
            "size=(height, width), to bring all to one size."
        )
    return BadInputError(
        f"Pictures differ in their channels: {where} is {first.kind} and {other_where} {other.kind}; say "
        "channels='grey', 'rgb' or 'rgba' to make them alike."
    )


def _open(source: Any, where: str) -> Image:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadInputError(f"There is no picture {where}.") from None
        raise DamagedFileError(f"{where} is not a picture that can be read") from None


def _form(source: Any, wanted: Wanted, where: str) -> Form:
    """The form of a picture as it is, from its first bytes."""
    if isinstance(source, np.ndarray):
        return _form_of_array(source, wanted.layout, where)
    with _open(source, where) as picture:
        kind = _kind(picture, where)
        width, height = picture.size
        try:
            if picture.getexif().get(_ORIENTATION) in _TURNS_SIDEWAYS:
                width, height = height, width
        except (OSError, SyntaxError, ValueError):
            pass  # notes that cannot be read are ignored by all who show pictures
    return Form(height, width, KINDS[kind], kind, "float32" if kind == "grey of 16 bits" else "uint8")


def _kind(picture: Image, where: str) -> str:
    mode, is_transparent = picture.mode, "transparency" in picture.info
    if mode in ("1", "L", "LA", "La"):
        return "grey with transparency" if is_transparent or mode.upper() == "LA" else "grey"
    if mode.startswith("I;16") or (mode == "I" and picture.format == "PNG"):
        return "grey of 16 bits"
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
        levels = np.asarray(turned, dtype=np.float32)[None] / np.float32(_MOST_16_BITS)
        resized = _resize_channels(levels, form, wanted)
        return resized if form.dtype == "float32" else _grey_as(resized, form.channels)
    if form.kind in ("grey", "rgb") and kind in ("rgba", "grey with transparency"):
        turned = _on_white(turned)
    converted = turned.convert(_MODES[form.kind])
    pixels = np.asarray(_resize(converted, form, wanted.fit))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _grey_as(levels: AnyArray, channels: int) -> AnyArray:
    """Grey levels from 0 to 1 as bytes in that many channels, of which a fourth is opaque."""
    grey = np.rint(255 * levels.clip(0, 1)).astype(np.uint8)
    return np.concatenate([grey] * min(channels, 3) + [np.full_like(grey, 255)] * (channels - 3))


def _on_white(picture: Image) -> Image:
    from PIL import Image

    transparent = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)


def _resize(picture: Image, form: Form, fit: Fit) -> Image:
    from PIL import ImageOps
    from PIL.Image import Resampling

    size = (form.width, form.height)
    if picture.size == size:
        return picture
    if fit == "crop":
        return ImageOps.fit(picture, size, Resampling.BICUBIC)
    if fit == "pad":
        return ImageOps.pad(picture, size, Resampling.BICUBIC)
    return picture.resize(size, Resampling.BICUBIC)


def _resize_channels(values: AnyArray, form: Form, wanted: Wanted) -> AnyArray:
    """Resizes an array ``[channels, height, width]`` channel by channel."""
    if values.shape[1:] == (form.height, form.width):
        return values
    from PIL import Image

    return np.stack([np.asarray(_resize(Image.fromarray(channel), form, wanted.fit)) for channel in values])


def _form_of_array(values: AnyArray, layout: Layout | None, where: str) -> Form:
    if values.ndim == 2:
        channels, height, width = 1, *values.shape
    elif values.ndim == 3:
        channels, height, width = _sides(values.shape, layout, where)
    else:
        raise BadInputError(f"{where} has the shape {list(values.shape)}, but a picture has two or three dimensions.")
    if 0 in values.shape:
        raise BadInputError(f"{where} is empty: its shape is {list(values.shape)}.")
    bytes_or_not = "uint8" if values.dtype in (np.uint8, np.bool_) else "float32"
    if values.dtype not in (np.uint8, np.bool_, np.uint16) and not np.issubdtype(values.dtype, np.floating):
        raise BadInputError(
            f"{where} holds {values.dtype}; pictures are uint8 (0 to 255), uint16, bool or floating-point numbers."
        )
    return Form(height, width, channels, f"an array of {channels} channels ({bytes_or_not})", bytes_or_not)


def _sides(shape: tuple[int, ...], layout: Layout | None, where: str) -> tuple[int, int, int]:
    """Channels, height and width of an array of three dimensions, whose order only its owner knows."""
    first, last = shape[0] <= _FEW_CHANNELS, shape[-1] <= _FEW_CHANNELS
    if layout is None:
        looks = "" if first == last else f", which looks like {'CHW' if first else 'HWC'}"
        raise BadInputError(
            f"{where} has the shape {list(shape)}{looks}; say layout='HWC' if channels come last, or layout='CHW' if "
            "they come first."
        )
    if (layout == "HWC" and first and not last) or (layout == "CHW" and last and not first):
        channels, other = (shape[-1], "CHW") if layout == "HWC" else (shape[0], "HWC")
        raise BadInputError(
            f"{where} has the shape {list(shape)}, which with layout={layout!r} would be {channels} channels; "
            f"layout={other!r} seems to be right."
        )
    return (shape[2], shape[0], shape[1]) if layout == "HWC" else (shape[0], shape[1], shape[2])


def _from_array(values: AnyArray, form: Form, wanted: Wanted, where: str) -> AnyArray:
    if values.ndim == 2:
        values = values[None]
    elif wanted.layout == "HWC":
        values = values.transpose(2, 0, 1)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8) * np.uint8(255)
    elif values.dtype == np.uint16:
        values = values.astype(np.float32) / np.float32(_MOST_16_BITS)
    elif values.dtype != np.uint8:
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise BadInputError(f"{where} holds {values[~np.isfinite(values)][0]}, which is no number.")
    return _resize_channels(np.ascontiguousarray(values), form, wanted)


def _load_array(file: Any, where: str) -> AnyArray:
    try:
        loaded: AnyArray = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise BadInputError(f"There is no picture {where}.") from None
    except (OSError, ValueError, EOFError):
        raise DamagedFileError(f"{where} is not an array that can be read (as numpy.save writes it)") from None
    if not isinstance(loaded, np.ndarray):
        raise BadInputError(f"{where} holds several arrays; one picture is one array.")
    return loaded

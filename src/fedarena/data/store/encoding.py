"""Columns that are stored encoded: pictures stay the files they were, and become pixels when they are read.

What a picture must be is decided here, once for those who write and those who read: a file of the column's encoding,
in the column's size. Grey pictures and those in inks (CMYK) become colours as Pillow makes them; what would lose
something, such as colours in a column of grey pictures or transparency in one of colours, is refused. How a camera was
held is not looked at: pixels are in the order of the file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import AnyArray, ColumnSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_NAMES = {"jpeg": "JPEG", "png": "PNG"}
# What cameras write with a preview behind the picture is a JPEG, too.
_FORMATS = {"jpeg": ("JPEG", "MPO"), "png": ("PNG",)}
_FITTING_MODES = {
    1: ("1", "L"),
    3: ("1", "L", "RGB", "P", "CMYK", "YCbCr"),
    4: ("1", "L", "LA", "RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"),
}
_END_OF_JPEG = b"\xff\xd9"
_LEAST_LIMIT_BYTES = 1 << 20


class EncodedRows(Sequence[bytes]):
    """Files for an encoded column, with the names by which sentences call them.

    A plain list of `bytes` does as well; sentences then count within the client. Who has decoded all of them already
    says so with `checked`: they are not looked at again.
    """

    def __init__(self, contents: Sequence[bytes], names: Sequence[str], checked: bool = False):
        if len(contents) != len(names):
            raise BadInputError(f"There are {len(names)} names for {len(contents)} files.")
        self.contents, self.names, self.checked = contents, names, checked

    def __len__(self) -> int:
        return len(self.contents)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self.contents[index]


def most_bytes(column: ColumnSpec) -> int:
    """How long one file of an encoded column may be, so that those who write it need bounded memory."""
    return max(4 * column.bytes_per_sample, _LEAST_LIMIT_BYTES)


def check_encoded(content: bytes, column: ColumnSpec, where: str) -> None:
    """Raises a sentence that starts with `where` unless the column can hold this file and it is complete.

    Only the beginning and the end are looked at, which takes a tenth of the time of decoding.
    """
    if not isinstance(content, bytes):
        raise BadInputError(f"{where} must be the bytes of a file, not {type(content).__name__}.")
    if len(content) > most_bytes(column):
        raise BadInputError(
            f"{where} has {len(content):,} bytes, but a picture of {_size(column)} may have {most_bytes(column):,}; "
            "save it without what else is in the file."
        )
    with open_encoded(content, column, where) as picture:
        if column.encoding == "jpeg" and content.endswith(_END_OF_JPEG):
            return
        try:
            # Of a PNG all checksums are looked at; a JPEG may end with something else, and decoding tells.
            picture.load() if column.encoding == "jpeg" else picture.verify()
        except (OSError, SyntaxError, ValueError) as error:
            raise _undecodable(where, error) from None


def open_encoded(content: bytes | memoryview, column: ColumnSpec, where: str) -> Image:
    """The picture in a file, not decoded yet, after a look at its kind and size."""
    from PIL import Image

    assert column.encoding is not None
    try:
        picture = Image.open(io.BytesIO(content))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "it is too large" if isinstance(error, Image.DecompressionBombError) else "no picture is recognized"
        raise DamagedFileError(f"{where} cannot be decoded: {reason}.") from None
    channels, height, width = column.shape
    if picture.format not in _FORMATS[column.encoding]:
        raise BadInputError(f"{where} is a {picture.format}, but the column holds {_NAMES[column.encoding]}s.")
    if picture.size != (width, height):
        raise BadInputError(
            f"{where} has {picture.height} x {picture.width} pixels (height x width), but the column holds pictures "
            f"of {_size(column)}."
        )
    is_transparent = "transparency" in picture.info and channels != 4
    if picture.mode not in _FITTING_MODES[channels] or is_transparent:
        kind = f"the mode {picture.mode}" + (" and transparency" if is_transparent else "")
        raise BadInputError(f"{where} has {kind}, which does not fit into {_MODES[channels]} without loss.")
    return picture


def decode(content: bytes | memoryview, column: ColumnSpec, target: AnyArray, where: str) -> None:
    """Puts the pixels of a file into `target`, ``[channels, height, width]``."""
    channels, height, width = column.shape
    with open_encoded(content, column, where) as picture:
        mode = _MODES[channels]
        try:
            picture.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise _undecodable(where, error) from None
        pixels = picture if picture.mode == mode else picture.convert(mode)
        # A band at a time costs what Pillow's array of all bands does, and needs no transposing.
        for target_band, band in zip(target, mode, strict=True):
            values = np.frombuffer(pixels.tobytes("raw", band), dtype=np.uint8)
            target_band[...] = values.reshape(height, width)


def _undecodable(where: str, error: Exception) -> DamagedFileError:
    return DamagedFileError(f"{where} cannot be decoded: {quoted(' '.join(str(error).split()).rstrip('.'))}.")


def _size(column: ColumnSpec) -> str:
    return f"{column.shape[1]} x {column.shape[2]}"

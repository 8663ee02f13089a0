"""Pictures that stay compressed in the store: JPEG files as they are, or any pictures as PNGs, which lose nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.images.decoding import file_kind, is_upright
from fedarena.data.images.forms import Form, Wanted
from fedarena.data.images.pictures import Pictures, read_picture
from fedarena.data.store.schema import AnyArray, ColumnSpec

Compressed = Literal["jpeg", "png"]


def check_compressed(compressed: Any) -> None:
    """Raises unless it is a way to compress pictures, or None."""
    if compressed not in (None, "jpeg", "png"):
        raise BadInputError(f"compressed must be 'jpeg' or 'png', not {quoted(compressed)}.")


def column_of(form: Form, compressed: Compressed | None) -> ColumnSpec:
    """The column that holds pictures of this form, compressed or not."""
    if compressed is None:
        return form.column
    most = 3 if compressed == "jpeg" else 4
    if form.dtype != "uint8" or form.channels not in (1, 3, most):
        raise BadInputError(
            f"The pictures are {form.kind} with numbers of the type {form.dtype}, which cannot be stored as "
            f"{compressed.upper()}s of 8 bits; leave compressed out, or say channels=…."
        )
    return ColumnSpec(dtype=form.dtype, shape=form.column.shape, encoding=compressed)


def compressed_picture(pictures: Pictures, index: int, form: Form, wanted: Wanted, compressed: Compressed) -> bytes:
    """A picture as the file to store; raises if it cannot be decoded, so that whoever trains does not meet it."""
    if compressed == "png":
        return _as_png(read_picture(pictures, index, form, wanted))
    source, where = pictures.source(index), pictures.where(index)
    problem = _why_not_as_it_is(source, form, where)
    if problem is not None:
        raise BadInputError(
            f"{where} {problem}, but compressed='jpeg' stores JPEGs as they are; say compressed='png', which stores "
            "any pictures without loss, or leave it out."
        )
    read_picture(pictures, index, form, wanted)
    assert not isinstance(source, np.ndarray)
    return source.read_bytes() if isinstance(source, Path) else source


def _why_not_as_it_is(source: AnyArray | bytes | Path, form: Form, where: str) -> str | None:
    if isinstance(source, np.ndarray):
        return "is an array"
    kind, size = file_kind(source, where)
    if kind not in ("JPEG", "MPO"):
        return f"is a {kind}"
    if not is_upright(source, where):
        return "was taken with the camera turned"
    if size != (form.height, form.width):
        return f"has {size[0]} x {size[1]} pixels (height x width) and would become {form.height} x {form.width}"
    return None


def _as_png(pixels: AnyArray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy()).save(file, "PNG")
    return file.getvalue()

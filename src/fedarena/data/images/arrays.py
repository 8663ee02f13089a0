"""Pictures that are arrays, whose owner says whether channels come first or last."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.core.array_archives import NO_ARRAYS
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.images.forms import MOST_16_BITS, Form, Layout, Wanted
from fedarena.data.images.resizing import resize_channels
from fedarena.data.store.schema import AnyArray

_FEW_CHANNELS = 4


def load_array(file: Any, where: str) -> AnyArray:
    """The array in a file, as numpy.save writes it."""
    try:
        loaded: AnyArray = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise BadInputError(f"There is no picture {where}.") from None
    except NO_ARRAYS:
        raise DamagedFileError(f"{where} is not an array that can be read (as numpy.save writes it)") from None
    if not isinstance(loaded, np.ndarray):
        raise BadInputError(f"{where} holds several arrays; one picture is one array.")
    return loaded


def form_of_array(values: AnyArray, layout: Layout | None, where: str) -> Form:
    """The form of a picture as it is."""
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


def pixels_of_array(values: AnyArray, form: Form, wanted: Wanted, where: str) -> AnyArray:
    """A picture ``[channels, height, width]`` of this form."""
    if values.ndim == 2:
        values = values[None]
    elif wanted.layout == "HWC":
        values = values.transpose(2, 0, 1)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8) * np.uint8(255)
    elif values.dtype == np.uint16:
        values = values.astype(np.float32) / np.float32(MOST_16_BITS)
    elif values.dtype != np.uint8:
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise BadInputError(f"{where} holds {values[~np.isfinite(values)][0]}, which is no number.")
    return resize_channels(np.ascontiguousarray(values), form, wanted)


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

"""Bringing pictures to a size. Pillow does it, with its bicubic filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedarena.data.images.forms import Fit, Form, Wanted
from fedarena.data.store.schema import AnyArray

if TYPE_CHECKING:
    from PIL.Image import Image


def resize(picture: Image, form: Form, fit: Fit) -> Image:
    """A picture in the size of a form."""
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


def resize_channels(values: AnyArray, form: Form, wanted: Wanted) -> AnyArray:
    """Resizes an array ``[channels, height, width]`` channel by channel."""
    if values.shape[1:] == (form.height, form.width):
        return values
    from PIL import Image

    return np.stack([np.asarray(resize(Image.fromarray(channel), form, wanted.fit)) for channel in values])

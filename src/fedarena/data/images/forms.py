"""The form of pictures: their size, their channels, and what they are to be brought to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import ColumnSpec

Layout = Literal["HWC", "CHW"]
Channels = Literal["grey", "rgb", "rgba"]
Fit = Literal["stretch", "crop", "pad"]
# What a picture can be. The last two are not to be asked for: they stay what they are.
KINDS = {"grey": 1, "rgb": 3, "rgba": 4, "grey with transparency": 2, "grey of 16 bits": 1}
MOST_16_BITS = 65535


@dataclass(frozen=True)
class Form:
    """The form of a picture: its size in pixels, its channels, and what they are."""

    height: int
    width: int
    channels: int
    kind: str  # of KINDS, or what an array holds
    dtype: str = "uint8"
    has_more_frames: bool = field(default=False, compare=False)  # of which only the first is read

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
            if (
                isinstance(size, bool)
                or not isinstance(sides, Sequence | np.ndarray)
                or len(sides) != 2
                or not all(isinstance(side, int | np.integer) and 1 <= side <= 1 << 16 for side in sides)
            ):
                raise BadInputError(
                    f"size must be a whole number of pixels, or height and width such as [28, 20], not {quoted(size)}."
                )
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

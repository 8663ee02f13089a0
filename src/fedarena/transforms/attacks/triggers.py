"""Triggers: a patch of pixels, some features, or a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedarena.transforms.attacks.base import Columns, OwnSamples
from fedarena.transforms.rows import IntArray

Array = npt.NDArray[Any]
Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]
_LARGEST_BYTE = 255
_WHERE = "where the trigger is"


class Trigger(Protocol):
    """What is put into samples."""

    def place(self, samples: OwnSamples, rows: IntArray) -> Columns:
        """The columns that are different when the samples at these rows carry the trigger."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Patch:
    """A square of equal pixels in a corner of every channel; of a vector, the last features or the first."""

    size: int
    corner: Corner
    value: float  # as the model sees it, where bytes are 0 to 1

    def place(self, samples: OwnSamples, rows: IntArray) -> Columns:
        """The samples with the patch."""
        x = samples.columns["x"].copy()
        value = round(_LARGEST_BYTE * self.value) if x.dtype == np.uint8 else self.value
        vertical, horizontal = self.corner.split("_")
        across = slice(-self.size, None) if horizontal == "right" else slice(0, self.size)
        if x.ndim == 2:
            x[rows, across] = value
        else:
            down = slice(-self.size, None) if vertical == "bottom" else slice(0, self.size)
            x[rows, ..., down, across] = value
        return {"x": x}

    def __str__(self) -> str:
        return f"a patch of {self.size} in the {self.corner.replace('_', ' ')} corner"


@dataclass(frozen=True)
class Word:
    """A token in place of another one of a text to classify, anywhere but in its padding."""

    token: int
    padding: int | None

    def place(self, samples: OwnSamples, rows: IntArray) -> Columns:
        """The texts with the token."""
        x = samples.columns["x"].copy()
        usable = np.ones(x.shape, dtype=bool) if self.padding is None else x != self.padding
        usable[:, 0] |= ~usable.any(1)  # an empty text gets it at its beginning
        x[rows, drawn_place(usable, samples)[rows]] = self.token
        return {"x": x}

    def __str__(self) -> str:
        return f"token {self.token}"


@dataclass(frozen=True)
class WordBefore:
    """A token in a text whose next tokens are predicted, and behind it what the model is to say, if that is given."""

    token: int
    padding: int | None
    then: int | None

    def place(self, samples: OwnSamples, rows: IntArray) -> Columns:
        """The texts with the token; those that are too short to have one behind it stay as they are."""
        tokens = samples.columns["tokens"].copy()
        there = np.ones(tokens.shape, dtype=bool) if self.padding is None else tokens != self.padding
        usable = there[:, :-1] & there[:, 1:]
        rows = rows[usable[rows].any(1)]
        where = drawn_place(usable, samples)[rows]
        tokens[rows, where] = self.token
        if self.then is not None:
            tokens[rows, where + 1] = self.then
        return {"tokens": tokens}

    def __str__(self) -> str:
        return f"token {self.token}"


def drawn_place(usable: npt.NDArray[np.bool_], samples: OwnSamples) -> IntArray:
    """One of the usable places of every sample, by chance; 0 where there is none."""
    number = (samples.uniform(_WHERE) * usable.sum(1)).astype(np.int64) + 1
    place: IntArray = (usable.cumsum(1) >= number[:, None]).argmax(1)
    return place

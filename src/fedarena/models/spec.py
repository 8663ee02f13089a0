"""What a model needs to know about the data it is built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TaskKind = Literal["classification", "next_token"]


@dataclass(frozen=True)
class DataSpec:
    """The form of one sample and what is to be predicted from it."""

    kind: TaskKind
    classes: int  # number of labels, or size of the vocabulary
    input_shape: tuple[int, ...]  # of one sample; for next_token: (sequence length,)
    padding: int | None = None  # token that fills up short sequences and is never scored
    unknown: int | None = None  # token for what the vocabulary lacks; predicting it is never right
    tokens: int | None = None  # size of the vocabulary of the texts to classify; None if they are no texts

    @property
    def is_text(self) -> bool:
        """Whether a sample is a sequence of tokens."""
        return self.kind == "next_token" or self.tokens is not None

    @property
    def vocabulary(self) -> int:
        """How many tokens there are in text."""
        return self.classes if self.tokens is None else self.tokens

    @property
    def is_image(self) -> bool:
        """Whether a sample is a picture: channels, height, width."""
        return self.kind == "classification" and len(self.input_shape) == 3

    def __str__(self) -> str:
        if self.kind == "next_token":
            return f"sequences of {self.input_shape[0]} tokens out of {self.classes}"
        if self.is_text:
            return f"texts of {self.input_shape[0]} tokens out of {self.tokens} in {self.classes} classes"
        form = "images" if self.is_image else "features"
        return f"{form} of shape {list(self.input_shape)} in {self.classes} classes"

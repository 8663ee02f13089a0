"""A text in another language, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedarena.models.spec import DataSpec, InputSpec
from fedarena.models.tasks.base import TASKS, Tensors
from fedarena.models.tasks.next_token import NextToken

TRANSLATED = "translated"  # the input that holds what is translated so far


def inputs_of_translation(length: int, target_length: int, tokens: int, classes: int) -> tuple[InputSpec, ...]:
    """What a model is given: the text, and its translation but for the last token."""
    return InputSpec("x", (length,), tokens), InputSpec(TRANSLATED, (target_length - 1,), classes)


@TASKS.register("translation")
class Translation(NextToken):
    """Predict every token of a translation from the text and the tokens before it, cross-entropy.

    Padding is not scored. Scores are those of the next token when all before it are right.
    """

    kinds: ClassVar[tuple[str, ...]] = ("translation",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "perplexity")

    @staticmethod
    def _length(spec: DataSpec) -> int:
        return spec.inputs[1].shape[0] + 1

    def example(self, samples: int) -> Tensors:
        """Texts of a token that is not padding."""
        shapes = {"x": self.spec.input_shape[0], "y": self._length(self.spec)}
        return {name: torch.full((samples, length), self._padding + 1) for name, length in shapes.items()}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The text and the translation but for its last token; its tokens but for the first are to be predicted."""
        translation = columns["y"].long()
        return {"x": columns["x"].long(), TRANSLATED: translation[:, :-1], "y": translation[:, 1:]}

"""Gated recurrent units (Cho et al., EMNLP 2014), for text and for sequences of numbers."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from fedarena.models.blocks import LastPosition, end_of_text, is_read_forward
from fedarena.models.spec import DataSpec
from fedarena.models.word_vectors import VectorsFile, known_vectors, with_vectors
from fedarena.models.zoo import MODELS, at_least_one, require


class GRULayer(nn.GRU):
    """Torch's layer, samples first, which puts out the states of all places and nothing else."""

    def __init__(self, inputs: int, hidden: int, both_directions: bool = False):
        super().__init__(inputs, hidden, batch_first=True, bidirectional=both_directions)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Hidden states ``[sequences, length, hidden]`` for ``[sequences, length, inputs]``, from a zero state."""
        states: Tensor = super().forward(x)[0]
        return states


@MODELS.register("gru")
def gru(
    spec: DataSpec,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    vectors: VectorsFile = None,
    freeze_vectors: bool = False,
) -> nn.Module:
    """Two GRU layers of 256: over text, as `lstm`, or over steps of numbers, such as a way or a throughput over time.

    Of numbers ``[steps, numbers]`` all is predicted from the end, so that short sequences are filled up in front. With
    `vectors`, a file of pretrained ones, the embedding of text is as wide as these.
    """
    fits = is_read_forward(spec) or spec.is_sequence
    require(fits, "gru", "text, or sequences of numbers (steps, numbers)", spec)
    at_least_one(embedding=embedding, hidden=hidden, layers=layers)
    if not spec.is_text:
        widths = [spec.input_shape[1]] + [hidden] * layers
        output = nn.Linear(hidden, spec.classes)
        if spec.value_range is not None:
            nn.init.constant_(output.bias, sum(spec.value_range) / 2)
        return nn.Sequential(*_stack(widths), LastPosition(), output)
    known = known_vectors(spec, vectors, freeze_vectors)
    widths = [known.width if known else embedding] + [hidden] * layers
    embed = nn.Embedding(spec.vocabulary, widths[0])
    model = nn.Sequential(embed, *_stack(widths), *end_of_text(spec), nn.Linear(hidden, spec.classes))
    return with_vectors(model, embed, known, freeze_vectors)


def _stack(widths: list[int]) -> list[nn.Module]:
    return [GRULayer(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]

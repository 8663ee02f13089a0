"""How large models are: parameters, and multiply-adds of a sample, for data of the form that they are usually used on.

Nothing is computed with numbers: models are built on torch's device ``meta``, where tensors have a shape alone, so that
even the largest takes milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedarena.models.spec import DataSpec, InputSpec
from fedarena.models.tasks.translation import inputs_of_translation
from fedarena.models.zoo import MODELS

_FEATURES = DataSpec("classification", 10, (60,))
_HANDWRITING = DataSpec("classification", 62, (1, 28, 28))
_SMALL_PHOTOS = DataSpec("classification", 10, (3, 32, 32))
_PHOTOS = DataSpec("classification", 1000, (3, 224, 224))
_CHARACTERS = DataSpec("next_token", 80, (80,))
_TWEETS = DataSpec("classification", 2, (25,), padding=0, unknown=1, tokens=10_000)
_WORDPIECES = DataSpec("classification", 2, (128,), padding=0, tokens=30_522)
_RATINGS = DataSpec("rating", 1, (), inputs=(InputSpec("user", (), 943), InputSpec("item", (), 1_682)))
_CLICKS = DataSpec(
    "classification",
    2,
    (),
    inputs=(InputSpec("x", (10,)), *(InputSpec(f"code_{number}", (), 10_000) for number in range(7))),
)
_MOLECULES = DataSpec("classification", 2, (), inputs=(InputSpec("x", (28, 7)), InputSpec("edges", (66, 2), 29)))
_WORDS_OF_A_SECOND = DataSpec("classification", 35, (16_000,), sample_rate=16_000)
_SENTENCES = DataSpec("transcription", 29, (80_000,), sample_rate=16_000, longest_transcript=100)
_TRANSLATIONS = DataSpec(
    "translation", 8_000, (30,), padding=0, tokens=8_000, inputs=inputs_of_translation(30, 31, 8_000, 8_000)
)
# The form that a model is measured on; models of somebody's own have none.
USUAL_DATA: dict[str, DataSpec] = {
    **dict.fromkeys(("logistic_regression", "linear", "perceptron"), _FEATURES),
    **dict.fromkeys(("mlp", "cnn", "leaf_cnn"), _HANDWRITING),
    **dict.fromkeys(("resnet18", "pfl_cnn", "vit"), _SMALL_PHOTOS),
    "leaf_celeba_cnn": DataSpec("classification", 2, (3, 84, 84)),
    **dict.fromkeys(("resnet18_imagenet", "resnet34_imagenet", "resnet50_imagenet"), _PHOTOS),
    **dict.fromkeys(("mobilenet_v2", "shufflenet_v2", "vgg11"), _PHOTOS),
    **dict.fromkeys(("char_mlp", "lstm", "gru", "transformer"), _CHARACTERS),
    "bag_of_words": _TWEETS,
    **dict.fromkeys(("bert_tiny", "albert"), _WORDPIECES),
    "matrix_factorization": _RATINGS,
    **dict.fromkeys(("embedding_mlp", "dlrm"), _CLICKS),
    "gcn": _MOLECULES,
    **dict.fromkeys(("speech_cnn", "speech_resnet34"), _WORDS_OF_A_SECOND),
    "deepspeech_small": _SENTENCES,
    "go_policy": DataSpec("classification", 362, (8, 19, 19)),
    "seq2seq": _TRANSLATIONS,
}


@dataclass(frozen=True)
class ModelSize:
    """How large a model is on data of some form."""

    data: DataSpec
    parameters: int
    multiply_adds: int  # of one sample, from the input to the output

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {_short(self.multiply_adds)} multiply-adds of a sample, for {self.data}"
        )


def usual_size(name: str) -> ModelSize | None:
    """The size of a model with its usual options; None if it is not known what data it is for."""
    spec = USUAL_DATA.get(name)
    return None if spec is None else size_of(name, spec, {})


def size_of(name: str, spec: DataSpec, options: dict[str, Any]) -> ModelSize:
    """The size of a model for data of this form."""
    with torch.device("meta"), torch.no_grad():
        module = MODELS.get(name)(spec, **options).eval()
        with FlopCounterMode(display=False) as counter:
            module(*_sample(spec))
    parameters = sum(p.numel() for p in module.parameters())
    # There, a multiplication and an addition are two operations; other ones are not counted.
    uncounted = sum(getattr(layer, "uncounted_flops", 0) for layer in module.modules())
    return ModelSize(spec, parameters, (counter.get_total_flops() + uncounted) // 2)


def _sample(spec: DataSpec) -> list[Tensor]:
    """What a model is called with for one sample."""
    if spec.inputs:
        forms = [(part.shape, part.values is not None) for part in spec.inputs]
    else:
        forms = [(spec.input_shape, spec.is_text)]
    return [torch.zeros(1, *shape, dtype=torch.long if is_code else None) for shape, is_code in forms]


def _short(number: int) -> str:
    """A large number as people say it.

    >>> _short(1_814_073_344)
    '1.8 billion'
    """
    for size, word in ((10**9, " billion"), (10**6, " million"), (10**3, " thousand")):
        if number >= size:
            return f"{number / size:.3g}{word}"
    return str(number)

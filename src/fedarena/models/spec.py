"""What a model needs to know about the data it is built for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TaskKind = Literal[
    "classification",
    "multi_label",
    "next_token",
    "masked_token",
    "regression",
    "rating",
    "node_classification",
    "transcription",
    "translation",
]


@dataclass(frozen=True)
class InputSpec:
    """One of several inputs of a model."""

    name: str  # of its column
    shape: tuple[int, ...] = ()  # of one sample
    values: int | None = None  # how many there are, if it is a code such as an item's number; None: it is a number


@dataclass(frozen=True)
class DataSpec:
    """The form of one sample and what is to be predicted from it."""

    kind: TaskKind
    classes: int  # what a model puts out for a prediction: a score for every label or token, or the predicted numbers
    input_shape: tuple[int, ...]  # of one sample; for next_token: (sequence length,)
    padding: int | None = None  # token that fills up short sequences and is never scored
    unknown: int | None = None  # token for what the vocabulary lacks; predicting it is never right
    tokens: int | None = None  # size of the vocabulary of the texts to classify; None if they are no texts
    inputs: tuple[InputSpec, ...] = ()  # what a model takes, in this order, where it is not x alone
    value_range: tuple[float, float] | None = None  # lowest and highest number to predict, if they are known
    # What the tokens of text stand for, or the characters of what is said.
    token_names: tuple[str, ...] | None = field(default=None, repr=False)
    # How many training samples have each class or label, where that is known.
    class_counts: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    sample_rate: int | None = None  # samples of a second, if a sample is a waveform
    longest_transcript: int | None = None  # characters of what is said, at most

    @property
    def is_text(self) -> bool:
        """Whether a sample is a sequence of tokens."""
        return self.kind in ("next_token", "masked_token") or self.tokens is not None

    @property
    def vocabulary(self) -> int:
        """How many tokens there are in text."""
        return self.classes if self.tokens is None else self.tokens

    @property
    def is_features(self) -> bool:
        """Whether a sample is a tensor of numbers, which may be a picture."""
        return not self.is_text and not self.inputs

    @property
    def is_audio(self) -> bool:
        """Whether a sample is a waveform."""
        return self.sample_rate is not None

    @property
    def is_sequence(self) -> bool:
        """Whether a sample is a sequence of numbers: steps, and numbers of each."""
        return self.is_features and not self.is_audio and len(self.input_shape) == 2

    @property
    def is_image(self) -> bool:
        """Whether a sample is a picture: channels, height, width."""
        return self.is_features and len(self.input_shape) == 3

    @property
    def graph_shape(self) -> tuple[int, int] | None:
        """How many nodes a graph has at most, and how many features each; None where samples are no graphs.

        A graph has two inputs: ``x``, the features of its nodes, and ``edges``, the numbers of the two nodes of each.
        """
        if [part.name for part in self.inputs] != ["x", "edges"]:
            return None
        x, edges = (part.shape for part in self.inputs)
        return (x[0], x[1]) if len(x) == 2 and len(edges) == 2 and edges[1] == 2 else None

    def __str__(self) -> str:
        if self.kind in ("next_token", "masked_token"):
            masked = ", some of them masked" if self.kind == "masked_token" else ""
            return f"sequences of {self.input_shape[0]} tokens out of {self.classes}{masked}"
        if self.kind == "translation":
            return f"texts of {self.input_shape[0]} tokens out of {self.tokens} to translate into {self.classes} tokens"
        wanted = {
            "classification": f"in {self.classes} classes",
            "multi_label": f"with {self.classes} labels",
            "node_classification": f"with nodes in {self.classes} classes",
            "transcription": f"to write down in {self.classes - 1} characters",
        }.get(self.kind, f"with {self.classes} numbers to predict" if self.classes > 1 else "with a number to predict")
        if self.graph_shape is not None:
            nodes, features = self.graph_shape
            return f"graphs of up to {nodes} nodes of {features} features {wanted}"
        if self.inputs:
            return f"{', '.join(part.name for part in self.inputs)} {wanted}"
        if self.is_text:
            return f"texts of {self.input_shape[0]} tokens out of {self.tokens} {wanted}"
        if self.is_audio:
            return f"waveforms of {self.input_shape[0]} samples at {self.sample_rate} a second {wanted}"
        form = "images" if self.is_image else "features"
        return f"{form} of shape {list(self.input_shape)} {wanted}"

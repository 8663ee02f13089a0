"""Linear models: logistic regression on features or on counts of words, and LEAF's perceptron."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fedarena.models.blocks import is_labelled_text
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, require


@MODELS.register("logistic_regression")
def logistic_regression(spec: DataSpec) -> nn.Module:
    """One linear layer on the flattened features."""
    require(spec.is_features, "logistic_regression", "features", spec)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.input_shape), spec.classes))


@MODELS.register("linear")
def linear(spec: DataSpec) -> nn.Module:
    """One linear layer on the flattened features, starting from zero: linear regression, if numbers are predicted."""
    require(spec.is_features, "linear", "features", spec)
    layer = nn.Linear(prod(spec.input_shape), spec.classes)
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, sum(spec.value_range) / 2 if spec.value_range else 0.0)
    return nn.Sequential(nn.Flatten(), layer)


@MODELS.register("perceptron")
def perceptron(spec: DataSpec) -> nn.Module:
    """LEAF's model for its synthetic federation: one linear layer whose sigmoids, from 0 to 1, are the scores."""
    require(spec.is_features, "perceptron", "features", spec)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.input_shape), spec.classes), nn.Sigmoid())


class CountsOfTokens(nn.Module):
    """Logistic regression on how often each token occurs: the sum of a row of weights for each token there is."""

    def __init__(self, vocabulary: int, classes: int, padding: int | None, length: int):
        super().__init__()
        self.padding = padding
        self.uncounted_flops = 2 * length * classes  # additions of rows, and the same for the gradient
        self.weights = nn.Embedding(vocabulary, classes)
        self.bias = nn.Parameter(torch.zeros(classes))
        nn.init.zeros_(self.weights.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``[texts, classes]``; padding counts for nothing."""
        rows = self.weights(tokens)
        if self.padding is not None:
            rows = rows * (tokens != self.padding).unsqueeze(-1)
        scores: Tensor = rows.sum(-2) + self.bias
        return scores


@MODELS.register("bag_of_words")
def bag_of_words(spec: DataSpec) -> nn.Module:
    """LEAF's model for Sent140: logistic regression on the counts of a text's words, starting from zero."""
    require(is_labelled_text(spec), "bag_of_words", "whole texts", spec)
    return CountsOfTokens(spec.vocabulary, spec.classes, spec.padding, spec.input_shape[0])

"""The next move in Go: a policy network in the way of AlphaGo's (Silver et al., Nature 2016), at a small size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class GoPolicy(nn.Module):
    """Scores for a stone on every point, each with a bias of its own, and for passing, if that is a move."""

    def __init__(self, spec: DataSpec, width: int, layers: int):
        super().__init__()
        planes, *board = spec.input_shape
        points = board[0] * board[1]
        stack: list[nn.Module] = [nn.Conv2d(planes, width, 5, padding=2), nn.ReLU()]
        for _ in range(layers):
            stack += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*stack)
        self.points = nn.Conv2d(width, 1, 1, bias=False)
        self.passing = nn.Linear(width, 1, bias=False) if spec.classes > points else None
        self.bias = nn.Parameter(torch.zeros(spec.classes))

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, moves]`` of positions ``[samples, planes, rows, columns]``."""
        features = self.body(x)
        scores: Tensor = self.points(features).flatten(1)
        if self.passing is not None:
            scores = torch.cat([scores, self.passing(features.mean((-2, -1)))], -1)
        return scores + self.bias


@MODELS.register("go_policy")
def go_policy(spec: DataSpec, *, width: int = 64, layers: int = 4) -> nn.Module:
    """AlphaGo's policy network at a small size: a 5x5 convolution and `layers` 3x3 ones of `width` channels.

    Samples are planes of a board, and classes its points, row by row, with or without passing as the last one. AlphaGo
    has 192 channels and 11 such layers.
    """
    is_board = spec.is_image and spec.kind == "classification"
    points = spec.input_shape[1] * spec.input_shape[2] if is_board else 0
    require(
        is_board and spec.classes in (points, points + 1),
        "go_policy",
        "planes of a board, and its points as labels",
        spec,
    )
    at_least_one(width=width, layers=layers)
    return GoPolicy(spec, width, layers)

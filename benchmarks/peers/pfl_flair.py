"""pfl-research's FLAIR training on a GPU: its federated averaging, with what its FLAIR benchmark does to pictures.

There, pictures are bytes; a batch of them is cropped, resized and mirrored when its loss is computed, and gradients are
clipped to 10. Its sampling of users is left out, as all of them take part, and so is reading their files: their
pictures are on the GPU already.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peers.pfl_gpu import make_run_of_users

CLIP_NORM = 10.0
_SCALE, _LOG_RATIO = (0.08, 1.0), math.log(4 / 3)  # of crops, as torchvision's RandomResizedCrop draws them
_ATTEMPTS = 10


class CroppedPictures(nn.Module):
    """A network that sees a random part of every batch, resized to `side` pixels and by chance mirrored."""

    def __init__(self, network: nn.Module, side: int):
        super().__init__()
        self.network, self.side = network, side

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of pictures of bytes."""
        top, left, height, width = _drawn_crop(*pictures.shape[-2:])
        crop = pictures[..., top : top + height, left : left + width].float() / 255
        x = F.interpolate(crop, (self.side, self.side), mode="bilinear", antialias=True)
        scores: Tensor = self.network(x.flip(-1) if torch.rand(1).item() < 0.5 else x)
        return scores


def _drawn_crop(height: int, width: int) -> tuple[int, int, int, int]:
    for _ in range(_ATTEMPTS):
        area = height * width * torch.empty(1).uniform_(*_SCALE).item()
        ratio = math.exp(torch.empty(1).uniform_(-_LOG_RATIO, _LOG_RATIO).item())
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = (int(torch.randint(most + 1, (1,))) for most in (height - rows, width - columns))
            return top, left, rows, columns
    return 0, 0, height, width


def make_flair_run(
    network: nn.Module, users: list[tuple[Tensor, ...]], local: object, side: int
) -> Callable[[int], None]:
    """A function that does so many rounds of all these users."""
    model = CroppedPictures(network, side)
    return make_run_of_users(model, users, local, F.binary_cross_entropy_with_logits, CLIP_NORM)

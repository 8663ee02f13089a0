"""Mirror images alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.models.augmentation.base import AUGMENTATIONS, Augmentation, check_picture
from fedarena.models.augmentation.pixels import drawn_true

_MIRRORED, _UPSIDE_DOWN = 3, 4  # as in `crop_and_flip`, so that the same pictures are mirrored


@AUGMENTATIONS.register("flip")
class Flip(Augmentation):
    """Every second picture mirrored left to right (`horizontal`), top to bottom (`vertical`), or both by chance."""

    def __init__(self, *, horizontal: bool = True, vertical: bool = False):
        self.horizontal, self.vertical = horizontal, vertical

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return check_picture(shape, "flip")

    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        """Some pictures mirrored."""
        if self.horizontal:
            x = torch.where(_of_samples(drawn_true(keys, _MIRRORED)), x.flip(-1), x)
        if self.vertical:
            x = torch.where(_of_samples(drawn_true(keys, _UPSIDE_DOWN)), x.flip(-2), x)
        return x


def _of_samples(chosen: Tensor) -> Tensor:
    return chosen.view(-1, 1, 1, 1)

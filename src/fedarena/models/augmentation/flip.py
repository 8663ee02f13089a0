"""Mirror images alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.models.augmentation.base import AUGMENTATIONS, Augmentation, check_picture
from fedarena.models.augmentation.crop_and_flip import DRAWN
from fedarena.models.augmentation.pixels import drawn_true
from fedarena.models.keyed_random import derived_each


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
        *_, mirror, turn = derived_each(keys, DRAWN).unbind(-1)  # so that the same pictures are mirrored
        if self.horizontal:
            x = torch.where(_of_samples(drawn_true(mirror)), x.flip(-1), x)
        if self.vertical:
            x = torch.where(_of_samples(drawn_true(turn)), x.flip(-2), x)
        return x


def _of_samples(chosen: Tensor) -> Tensor:
    return chosen.view(-1, 1, 1, 1)

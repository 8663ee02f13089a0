"""Random crops and mirror images, as pictures are usually trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.core.limits import Limits
from fedarena.models.augmentation.base import AUGMENTATIONS, Augmentation, check_picture
from fedarena.models.augmentation.pixels import drawn_below, drawn_true, picked, positions, resized
from fedarena.models.keyed_random import derived_each

DRAWN = 4  # of every picture, in this order: top, left, whether it is mirrored, and whether it is upside down


@AUGMENTATIONS.register("crop_and_flip")
class CropAndFlip(Augmentation):
    """A random square of `size` pixels (as large as the picture, unless given), by chance mirrored.

    Before, `padding` black pixels come around the picture: padding 4 is usual for CIFAR. With `flip` every second
    picture is mirrored left to right, with `flip_vertical` top to bottom. What is scored is the whole picture
    resized (`evaluation: resize`), or the square in the middle (`center`). The paper of FLAIR trains pictures of 256
    pixels with size 224 and both flips, and resizes.
    """

    puts_channels_innermost = True

    def __init__(
        self,
        *,
        size: Annotated[int, Limits(least=1)] | None = None,
        padding: Annotated[int, Limits(least=0)] = 0,
        flip: bool = True,
        flip_vertical: bool = False,
        evaluation: Literal["resize", "center"] = "resize",
    ):
        self.size, self.padding, self.flip, self.flip_vertical = size, padding, flip, flip_vertical
        self.scores_center = evaluation == "center"

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """With the height and width of a crop."""
        channels, height, width = check_picture(shape, "crop_and_flip")
        if self.padding >= min(height, width):
            raise BadInputError(
                f"augmentation.padding is {self.padding}, and pictures of this federation have {height} x {width} "
                "pixels; choose less than that"
            )
        most = min(height, width) + 2 * self.padding
        if self.size is not None and self.size > most:
            padded = f" ({most} with padding)" if self.padding else ""
            raise BadInputError(
                f"augmentation.size is {self.size}, and pictures of this federation have {height} x {width} pixels"
                f"{padded}; choose at most {most}"
            )
        return channels, *self._crop(height, width)

    def _crop(self, height: int, width: int) -> tuple[int, int]:
        return (height, width) if self.size is None else (self.size, self.size)

    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        """A random crop of every picture."""
        height, width = self._crop(*x.shape[-2:])
        if self.padding:
            x = F.pad(x, [self.padding] * 4)
        top, left, mirror, turn = derived_each(keys, DRAWN).unbind(-1)  # in few operations, for which a GPU may wait
        tops = drawn_below(top, x.shape[-2] - height + 1)
        lefts = drawn_below(left, x.shape[-1] - width + 1)
        mirrored = drawn_true(mirror) if self.flip else None
        upside_down = drawn_true(turn) if self.flip_vertical else None
        return picked(x, positions(tops, upside_down, height), positions(lefts, mirrored, width))

    def evaluation(self, x: Tensor) -> Tensor:
        """The whole picture in the size of a crop, or its middle."""
        height, width = self._crop(*x.shape[-2:])
        if not self.scores_center:
            return resized(x, height, width)
        if self.padding:
            x = F.pad(x, [self.padding] * 4)
        top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
        return x[..., top : top + height, left : left + width]

"""What an augmentation is: a change of inputs that is drawn anew whenever a sample is trained on.

Draws are a function of a key, of which every sample of every step of every client has its own (see
`fedarena.models.keyed_random`). So all engines, any number of lanes and a resumed run see the same pictures, and so
does a second model that is computed on the same batch in one step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.models.keyed_random import at_step, derived
from fedarena.models.spec import DataSpec

SAMPLE_KEYS = "sample_keys"  # in a batch: a key for each of its samples, in place of those that follow from its "key"
_AUGMENTATION = 1 << 32  # so many dropout layers, whose keys are counted from 1, no model has


class Augmentation:
    """Changes the input ``x`` of a model. One of your own overrides `training`, and what else it does differently.

    Both functions get a batch ``[samples, …]``, and are computed for many clients at once (`torch.func.vmap`): they
    must not look at values to decide what to do, and draw from `keys` alone.
    """

    puts_channels_innermost = False  # in memory, in pictures that are trained on, wherever channels were before

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a sample as the model sees it; raises BadInputError where such samples cannot be augmented."""
        return shape

    def training(self, x: Tensor, keys: Tensor) -> Tensor:
        """The samples as they are trained on; `keys` are int64, one for every sample."""
        return x

    def evaluation(self, x: Tensor) -> Tensor:
        """The samples as they are scored, without chance."""
        return x


AUGMENTATIONS: Registry[type[Augmentation]] = Registry("augmentation", base=Augmentation, takes=())


@AUGMENTATIONS.register("none")
class NoAugmentation(Augmentation):
    """Models see samples as they are."""


def sample_keys(key: Tensor, samples: int) -> Tensor:
    """A key for each of so many samples of the batch with this key."""
    return at_step(derived(key, _AUGMENTATION), torch.arange(samples, device=key.device))


def model_sees(augmentation: Augmentation, spec: DataSpec, name: str) -> DataSpec:
    """The form of the data as a model sees it behind the augmentation of this name."""
    if isinstance(augmentation, NoAugmentation):
        return spec
    if not spec.is_features:
        raise BadInputError(
            f"augmentation={name} changes pictures or other samples of numbers, and this federation has {spec}; leave "
            "augmentation out"
        )
    return replace(spec, input_shape=tuple(augmentation.shape(spec.input_shape)))


def check_picture(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Channels, height and width of a picture."""
    if len(shape) != 3:
        raise BadInputError(
            f"augmentation={name} is for pictures (channels, height, width), and samples of this federation have the "
            f"shape {list(shape)}; leave augmentation out"
        )
    channels, height, width = shape
    return channels, height, width

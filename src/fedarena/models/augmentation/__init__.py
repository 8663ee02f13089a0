"""Augmentations: what pictures go through before a model sees them; one file each, importing this registers them."""

from fedarena.models.augmentation import crop_and_flip, flip  # noqa: F401
from fedarena.models.augmentation.base import (
    AUGMENTATIONS,
    SAMPLE_KEYS,
    Augmentation,
    NoAugmentation,
    model_sees,
    sample_keys,
)
from fedarena.models.augmentation.crop_and_flip import CropAndFlip
from fedarena.models.augmentation.flip import Flip

__all__ = [
    "AUGMENTATIONS",
    "SAMPLE_KEYS",
    "Augmentation",
    "CropAndFlip",
    "Flip",
    "NoAugmentation",
    "model_sees",
    "sample_keys",
]

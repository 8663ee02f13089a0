"""Convolutional networks for small images."""

from __future__ import annotations

import itertools

from torch import nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import check_dropout, followed_by_dropout
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_CHANNELS_PER_GROUP = 4


def _two_convolutions(
    model: str, spec: DataSpec, kernel_size: int, channels: tuple[int, int], hidden: int, dropout: float
) -> nn.Module:
    """The same layers have the same names whether there is dropout or not."""
    require(spec.is_image, model, "images (channels, height, width)", spec)
    image_channels, height, width = spec.input_shape
    require(min(height, width) >= 4, model, "images of at least 4 x 4", spec)
    at_least_one(channels=channels, hidden=hidden)
    check_dropout(dropout)
    return nn.Sequential(
        nn.Conv2d(image_channels, channels[0], kernel_size, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], kernel_size, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        followed_by_dropout(nn.Flatten(), dropout),
        nn.Linear(channels[1] * (height // 4) * (width // 4), hidden),
        followed_by_dropout(nn.ReLU(), dropout),
        nn.Linear(hidden, spec.classes),
    )


@MODELS.register("cnn")
def cnn(spec: DataSpec, *, channels: tuple[int, int] = (32, 64), hidden: int = 128, dropout: float = 0.0) -> nn.Module:
    """Two 3x3 convolutions with pooling and one hidden layer: small enough for many clients at once.

    `dropout` is the share that is dropped of what both dense layers are given.
    """
    return _two_convolutions("cnn", spec, kernel_size=3, channels=channels, hidden=hidden, dropout=dropout)


@MODELS.register("leaf_cnn")
def leaf_cnn(spec: DataSpec, *, hidden: int = 2048, dropout: float = 0.0) -> nn.Module:
    """LEAF's model for FEMNIST: two 5x5 convolutions (32 and 64 channels) with pooling, a dense layer of 2,048.

    6.6 million parameters on 28 x 28 images with 62 classes. It is FedHPO-Bench's as well, with `dropout` of what both
    dense layers are given, and 128 `hidden` features for CIFAR-10.
    """
    return _two_convolutions("leaf_cnn", spec, kernel_size=5, channels=(32, 64), hidden=hidden, dropout=dropout)


@MODELS.register("leaf_celeba_cnn")
def leaf_celeba_cnn(spec: DataSpec, *, channels: int = 32, layers: int = 4) -> nn.Module:
    """LEAF's model for CelebA: four times a 3x3 convolution of 32 channels, normalization, pooling and ReLU.

    Normalization is by groups of 4 channels of one picture, where LEAF's is by the pictures of a batch: then nobody's
    predictions depend on whose pictures come with theirs.
    """
    require(spec.is_image, "leaf_celeba_cnn", "images (channels, height, width)", spec)
    at_least_one(channels=channels, layers=layers)
    image_channels, height, width = spec.input_shape
    require(min(height, width) >= 2**layers, "leaf_celeba_cnn", f"images of at least {2**layers} x {2**layers}", spec)
    if channels % _CHANNELS_PER_GROUP:
        raise BadInputError(f"model.channels must be a multiple of {_CHANNELS_PER_GROUP}, not {channels}")
    widths = [image_channels] + [channels] * layers
    stack: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        normalization = nn.GroupNorm(outputs // _CHANNELS_PER_GROUP, outputs)
        stack += [nn.Conv2d(inputs, outputs, 3, padding="same"), normalization, nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(
        *stack, nn.Flatten(), nn.Linear(channels * (height >> layers) * (width >> layers), spec.classes)
    )

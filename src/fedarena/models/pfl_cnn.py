"""pfl-research's network for CIFAR-10 (`simple_cnn` of its benchmarks), so that both tools can train the same one.

Granqvist et al., "pfl-research: simulation framework for accelerating research in Private Federated Learning" (NeurIPS
2024).
"""

from __future__ import annotations

from torch import nn

from fedarena.models.imagenet.layers import NormalizedColours
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, require

# Of red, green and blue on CIFAR-10's training photos, for pictures from 0 to 1.
_MEAN = (0.49139968, 0.48215841, 0.44653091)
_DEVIATION = (0.24703223, 0.24348513, 0.26158784)
_DROPPED_FEATURES, _DROPPED_HIDDEN = 0.25, 0.5


@MODELS.register("pfl_cnn")
def pfl_cnn(spec: DataSpec) -> nn.Module:
    """pfl-research's model for CIFAR-10: two 3x3 convolutions without padding, one pooling, a dense layer of 128.

    Dropout is a quarter before and a half after the dense layer; weights begin as Glorot and Bengio's. Pictures are
    normalized by the mean and the deviation of CIFAR-10's colours.
    """
    require(spec.is_image and spec.input_shape[0] == 3, "pfl_cnn", "colour images (3, height, width)", spec)
    _, height, width = spec.input_shape
    require(min(height, width) >= 6, "pfl_cnn", "images of at least 6 x 6", spec)
    model = nn.Sequential(
        NormalizedColours(3, _MEAN, _DEVIATION),
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(_DROPPED_FEATURES),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(_DROPPED_HIDDEN),
        nn.Linear(128, spec.classes),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model

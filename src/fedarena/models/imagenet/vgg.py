"""VGG for photographs (Simonyan and Zisserman, ICLR 2015), of which most parameters are in its dense layers.

Structure, names of parameters and first weights are torchvision's.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fedarena.models.blocks import check_dropout
from fedarena.models.imagenet.layers import MakeNorm, norm_maker
from fedarena.models.imagenet.network import ImageNetwork, require_photographs
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # of convolutions between halvings
_GRID = 7  # pictures are of this size when they come to the dense layers

VGGNorm = Literal["none", "group", "frozen_batch"]


class VGG(ImageNetwork):
    """3x3 convolutions with pooling between them, and three dense layers."""

    def __init__(
        self,
        spec: DataSpec,
        make_norm: MakeNorm | None,
        hidden: int,
        dropout: float,
        normalize: bool,
        small_images: bool,
    ):
        super().__init__(spec, make_norm or nn.Identity, normalize)
        layers: list[nn.Module] = []
        channels = spec.input_shape[0]
        for stage in _CHANNELS:
            for outputs in stage:
                layers.append(nn.Conv2d(channels, outputs, 3, padding=1))
                layers += [nn.ReLU()] if make_norm is None else [make_norm(outputs), nn.ReLU()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        grid = [size >> len(_CHANNELS) for size in spec.input_shape[1:]] if small_images else [_GRID, _GRID]
        self.avgpool: nn.Module = nn.Identity() if small_images else nn.AdaptiveAvgPool2d(_GRID)
        self.classifier = nn.Sequential(
            *(nn.Linear(channels * grid[0] * grid[1], hidden), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(hidden, spec.classes),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        scores: Tensor = self.classifier(self.avgpool(self.features(self.colours(x))).flatten(1))
        return scores


@MODELS.register("vgg11")
def vgg11(
    spec: DataSpec,
    *,
    norm: VGGNorm = "none",
    groups: int = 32,
    hidden: int = 4096,
    dropout: float = 0.5,
    normalize: bool = True,
    small_images: bool = False,
) -> nn.Module:
    """VGG-11 as torchvision's, of which 124 of 133 million parameters are in dense layers of `hidden` features.

    `norm` is nothing; or GroupNorm of `groups` groups behind every convolution, or with ``frozen_batch`` BatchNorm
    whose statistics stay, which is torchvision's ``vgg11_bn``. `dropout` is the share that is dropped of what the
    second and the third dense layer get. With `small_images` features are not averaged to 7 x 7 before these layers.
    Other options are those of `resnet18_imagenet`.
    """
    require_photographs(spec, "vgg11")
    least = 1 << len(_CHANNELS)
    require(min(spec.input_shape[1:]) >= least, "vgg11", f"images of at least {least} x {least}", spec)
    at_least_one(groups=groups, hidden=hidden)
    check_dropout(dropout)
    make_norm = None if norm == "none" else norm_maker(norm, groups)
    return VGG(spec, make_norm, hidden, dropout, normalize, small_images)

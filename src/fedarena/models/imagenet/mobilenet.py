"""MobileNet-V2. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018.

Structure, names of parameters and first weights are torchvision's.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import check_dropout
from fedarena.models.imagenet.layers import MakeNorm, Norm, convolution, norm_maker
from fedarena.models.imagenet.network import ImageNetwork, require_photographs
from fedarena.models.sequences import in_sequence
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one

_FIRST, _LAST = 32, 1280  # channels of the stem, and before the classifier
# Table 2 of the paper: how much blocks widen within, their channels, how many there are, the stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_CEILING = 6.0  # of ReLU6
_MULTIPLE = 8  # that numbers of channels are rounded to


class InvertedResidual(nn.Module):
    """Widens by a 1x1 convolution, filters every channel by itself, and narrows; added to the input where it fits."""

    adapted_behind = ("",)  # see `fedarena.models.adaptation.adapter`

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, make_norm: MakeNorm):
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [_filtered(inputs, hidden, 1, make_norm)]
        layers.append(_filtered(hidden, hidden, 3, make_norm, stride, groups=hidden))
        self.conv = nn.Sequential(*layers, convolution(hidden, outputs, 1), make_norm(outputs))
        self.is_added = stride == 1 and inputs == outputs

    @property
    def only_sequence(self) -> nn.Sequential | None:
        """The layers that are all of this block, unless something is added to what they put out."""
        return None if self.is_added else self.conv

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, `stride` times smaller."""
        change = in_sequence(self.conv, x)
        return x + change if self.is_added else change


def _filtered(
    inputs: int, outputs: int, kernel: int, make_norm: MakeNorm, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    norm = make_norm(outputs, before_relu=_CEILING)
    return nn.Sequential(convolution(inputs, outputs, kernel, stride, groups), norm, nn.ReLU6())


class MobileNetV2(ImageNetwork):
    """Inverted residuals of seven sizes, and the mean of what comes out."""

    def __init__(
        self, spec: DataSpec, width: float, dropout: float, make_norm: MakeNorm, normalize: bool, small_images: bool
    ):
        super().__init__(spec, make_norm, normalize)
        channels, last = _rounded(_FIRST * width), _rounded(_LAST * max(1.0, width))
        halvings_left_out = 2 if small_images else 0  # of the five, the first ones
        strides = [2, *(stride for *_, stride in _STAGES)]
        for place, stride in enumerate(strides):
            if stride == 2 and halvings_left_out:
                strides[place], halvings_left_out = 1, halvings_left_out - 1
        layers: list[nn.Module] = [_filtered(spec.input_shape[0], channels, 3, make_norm, strides[0])]
        for (expansion, outputs, depth, _), first_stride in zip(_STAGES, strides[1:], strict=True):
            outputs = _rounded(outputs * width)
            for stride in (first_stride, *[1] * (depth - 1)):
                layers.append(InvertedResidual(channels, outputs, stride, expansion, make_norm))
                channels = outputs
        self.features = nn.Sequential(*layers, _filtered(channels, last, 1, make_norm))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, spec.classes))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        scores: Tensor = self.classifier(in_sequence(self.features, self.colours(x)).mean((-2, -1)))
        return scores


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, but never less than nine tenths of what was asked for."""
    nearest = max(_MULTIPLE, int(channels + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return nearest if nearest >= 0.9 * channels else nearest + _MULTIPLE


@MODELS.register("mobilenet_v2")
def mobilenet_v2(
    spec: DataSpec,
    *,
    width: float = 1.0,
    dropout: float = 0.2,
    norm: Norm = "group",
    groups: int = 8,
    normalize: bool = True,
    small_images: bool = False,
) -> nn.Module:
    """MobileNet-V2 as torchvision's, 3,504,872 parameters at 1,000 classes, 0.3 billion multiply-adds at 224.

    All layers have `width` times as many channels. `dropout` is the share that is dropped before the last layer. With
    `small_images` the first two of its five halvings are left out. Other options are those of `resnet18_imagenet`.
    """
    require_photographs(spec, "mobilenet_v2")
    at_least_one(groups=groups)
    check_dropout(dropout)
    if not 0 < width <= 10:
        raise BadInputError(f"model.width must be above 0 and at most 10, not {width:g}")
    return MobileNetV2(spec, width, dropout, norm_maker(norm, groups), normalize, small_images)

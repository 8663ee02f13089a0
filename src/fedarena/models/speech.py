"""Models that tell short recordings apart, such as spoken words: networks for pictures, on log-mel spectrograms."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from fedarena.models.cnn import cnn
from fedarena.models.imagenet.layers import norm_maker
from fedarena.models.imagenet.resnet import BasicBlock, ResNet
from fedarena.models.log_mel import LogMel
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class OfSpectrograms(nn.Module):
    """A network for grey pictures, which are spectrograms of waveforms."""

    def __init__(self, spectrogram: LogMel, network: nn.Module):
        super().__init__()
        self.spectrogram, self.network = spectrogram, network

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of waveforms ``[samples, length]``."""
        scores: Tensor = self.network(self.spectrogram(x).unsqueeze(-3))
        return scores


def _pictures(model: str, spec: DataSpec, bands: int) -> tuple[LogMel, DataSpec]:
    """What makes spectrograms, and the form of these."""
    require(spec.is_audio and spec.kind != "transcription", model, "waveforms with labels or numbers", spec)
    at_least_one(bands=bands)
    spectrogram = LogMel(spec, bands)
    return spectrogram, replace(spec, input_shape=(1, bands, spectrogram.moments), sample_rate=None)


@MODELS.register("speech_cnn")
def speech_cnn(
    spec: DataSpec, *, bands: int = 32, channels: tuple[int, int] = (32, 64), hidden: int = 128, dropout: float = 0.0
) -> nn.Module:
    """The model `cnn` on log-mel spectrograms of `bands` bands: small enough for many clients at once."""
    spectrogram, pictures = _pictures("speech_cnn", spec, bands)
    return OfSpectrograms(spectrogram, cnn(pictures, channels=channels, hidden=hidden, dropout=dropout))


@MODELS.register("speech_resnet34")
def speech_resnet34(spec: DataSpec, *, bands: int = 32, groups: int = 32) -> nn.Module:
    """FedScale's model for spoken words: ResNet-34 on log-mel spectrograms of `bands` bands, one channel.

    The stem is torchvision's, a 7x7 convolution with pooling; normalization is GroupNorm of `groups` groups.
    """
    at_least_one(groups=groups)
    spectrogram, pictures = _pictures("speech_resnet34", spec, bands)
    network = ResNet(
        pictures, BasicBlock, (3, 4, 6, 3), norm_maker("group", groups), normalize=False, small_images=False
    )
    return OfSpectrograms(spectrogram, network)

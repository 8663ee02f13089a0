"""Speech recognition in the way of Deep Speech 2 (Amodei et al., ICML 2016), at a size for phones.

Two convolutions over a log-mel spectrogram, recurrent layers in both directions over its moments, and scores of the
characters at every moment, for the task `transcription`. Where the paper normalizes by batches, here it is every moment
by itself, so that nobody's transcript depends on whose recordings come with theirs.
"""

from __future__ import annotations

import itertools
from math import ceil

from torch import Tensor, nn

from fedarena.models.gru import GRULayer
from fedarena.models.log_mel import LogMel
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_CHANNELS = 32
_KERNEL = (11, 11)  # bands and moments


class DeepSpeech(nn.Module):
    """Scores ``[samples, moments, characters]`` of waveforms."""

    def __init__(self, spec: DataSpec, bands: int, hidden: int, layers: int, stride: int):
        super().__init__()
        self.spectrogram = LogMel(spec, bands)
        padding = (_KERNEL[0] // 2, _KERNEL[1] // 2)
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, _CHANNELS, _KERNEL, (2, stride), padding),
            nn.GroupNorm(1, _CHANNELS),
            nn.Hardtanh(0, 20),
            nn.Conv2d(_CHANNELS, _CHANNELS, _KERNEL, (2, 1), padding),
            nn.GroupNorm(1, _CHANNELS),
            nn.Hardtanh(0, 20),
        )
        widths = [_CHANNELS * ceil(ceil(bands / 2) / 2)] + [2 * hidden] * layers
        self.recurrent = nn.Sequential(
            *(
                nn.Sequential(nn.LayerNorm(inputs), GRULayer(inputs, hidden, both_directions=True))
                for inputs, _ in itertools.pairwise(widths)
            )
        )
        self.output = nn.Sequential(nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], spec.classes))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of all characters, and of none, for every moment."""
        heard = self.convolutions(self.spectrogram(x).unsqueeze(-3))
        scores: Tensor = self.output(self.recurrent(heard.flatten(-3, -2).transpose(-2, -1)))
        return scores


@MODELS.register("deepspeech_small")
def deepspeech_small(
    spec: DataSpec, *, bands: int = 32, hidden: int = 128, layers: int = 2, stride: int = 2
) -> nn.Module:
    """Deep Speech 2 at a small size: two convolutions over a log-mel spectrogram, `layers` GRUs of `hidden` features.

    The spectrogram has `bands` bands and a moment every 10 ms, of which the model puts out every `stride`-th.
    FedScale's model for Common Voice has 7 layers of 256.
    """
    require(
        spec.is_audio and spec.kind == "transcription", "deepspeech_small", "waveforms with what is said in them", spec
    )
    at_least_one(bands=bands, hidden=hidden, layers=layers, stride=stride)
    return DeepSpeech(spec, bands, hidden, layers, stride)

"""Log-mel spectrograms of waveforms, in plain torch: how loud which pitches are, moment by moment.

As torchaudio's `MelSpectrogram` computes them (a periodic Hann window, reflected ends, HTK's scale of pitches, powers),
and then the logarithm. Fourier's transform is a product of matrices here, so that many clients' waveforms go through it
at once, on any device and in any precision.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec

_SECONDS_OF_WINDOW, _SECONDS_OF_HOP = 0.025, 0.010
_SILENCE = 1e-6  # a power that is added, so that silence has a logarithm
_EVEN = 1e-5  # a variance that is added, so that a clip that is the same everywhere has a quotient


class LogMel(nn.Module):
    """Spectrograms ``[samples, bands, moments]`` of waveforms ``[samples, length]``.

    Windows of 25 ms, 10 ms apart. With `normalize`, each spectrogram has mean 0 and variance 1, whatever the volume.
    """

    basis: Tensor
    bands: Tensor

    def __init__(self, spec: DataSpec, bands: int, normalize: bool = True):
        super().__init__()
        rate, length = spec.sample_rate or 0, spec.input_shape[0]
        window, self.hop = round(_SECONDS_OF_WINDOW * rate), round(_SECONDS_OF_HOP * rate)
        self.size = 2 ** max(1, math.ceil(math.log2(max(window, 2))))  # of the transform
        if self.hop < 1 or length <= self.size // 2:
            raise BadInputError(
                f"A spectrogram needs waveforms of more than {self.size // 2} samples at {rate} a second, but these "
                f"have {length}"
            )
        self.moments, self.normalize = 1 + length // self.hop, normalize
        with torch.device("cpu"):  # wherever the model is built: whether these filters are any good is looked at
            basis, filters = fourier_basis(self.size, window).float(), mel_filters(rate, self.size, bands).float()
        if not (filters > 0).any(0).all():
            raise BadInputError(
                f"model.bands is {bands}, so narrow at {rate} samples a second that some are empty; choose fewer"
            )
        # Not in files of weights: they follow from the options.
        here = torch.empty(0).device
        self.register_buffer("basis", basis.to(here), persistent=False)
        self.register_buffer("bands", filters.to(here), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Spectrograms."""
        half = self.size // 2
        ends = x[..., 1 : half + 1].flip(-1), x[..., -half - 1 : -1].flip(-1)
        windows = torch.cat([ends[0], x, ends[1]], -1).unfold(-1, self.size, self.hop)
        real, imaginary = (windows @ self.basis).chunk(2, -1)
        power = (real.square() + imaginary.square()) @ self.bands
        heard = (power + _SILENCE).log().transpose(-2, -1)
        if not self.normalize:
            return heard
        centred = heard - heard.mean((-2, -1), keepdim=True)
        return centred * (centred.square().mean((-2, -1), keepdim=True) + _EVEN).rsqrt()


def fourier_basis(size: int, window: int) -> Tensor:
    """What a piece of a waveform is multiplied by, ``[size, 2 (size / 2 + 1)]``: cosines and sines under a window."""
    place = torch.arange(size, dtype=torch.float64)
    angle = 2 * math.pi * torch.outer(place, torch.arange(size // 2 + 1, dtype=torch.float64)) / size
    before = (size - window) // 2  # the window is in the middle
    hann = torch.zeros(size, dtype=torch.float64)
    hann[before : before + window] = 0.5 - 0.5 * torch.cos(
        2 * math.pi * torch.arange(window, dtype=torch.float64) / window
    )
    return torch.cat([angle.cos(), -angle.sin()], 1) * hann[:, None]


def mel_filters(rate: int, size: int, bands: int) -> Tensor:
    """How much every frequency counts in every band, ``[size / 2 + 1, bands]``: triangles, equally wide in mel."""
    frequencies = torch.linspace(0, rate // 2, size // 2 + 1, dtype=torch.float64)
    highest = 2595 * math.log10(1 + (rate // 2) / 700)
    corners = 700 * (10 ** (torch.linspace(0, highest, bands + 2, dtype=torch.float64) / 2595) - 1)
    widths = corners.diff()
    distance = corners - frequencies[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    return torch.minimum(rising, falling).clamp(min=0)

"""What is said, written down: the loss of torch, distances by the book, and clips through a whole spectrogram."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.metrics.transcripts import CharacterErrorRate, WordErrorRate
from fedarena.models import DataSpec
from fedarena.models.log_mel import LogMel
from fedarena.models.tasks.transcription import ctc_losses

NAMES = ("", "a", "b", " ")


@settings(max_examples=8, deadline=None)
@given(
    moments=st.integers(1, 12), classes=st.integers(2, 5), lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4)
)
def test_the_loss_is_torchs_with_its_gradient(moments: int, classes: int, lengths: list[int]) -> None:
    lengths = [min(length, (moments + 1) // 2) for length in lengths]
    longest = max(1, *lengths)
    random = torch.Generator().manual_seed(moments)
    scores = torch.randn(len(lengths), moments, classes, generator=random, dtype=torch.float64, requires_grad=True)
    said = torch.randint(1, classes, (len(lengths), longest), generator=random)
    said = torch.where(torch.arange(longest) < torch.tensor(lengths)[:, None], said, 0)
    logarithms = F.log_softmax(scores, -1)
    ours = ctc_losses(logarithms, said)
    theirs = F.ctc_loss(
        logarithms.transpose(0, 1),
        said,
        torch.full((len(lengths),), moments),
        torch.tensor(lengths),
        reduction="none",
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(losses.sum(), scores, retain_graph=True)[0] for losses in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def distance(one: list[str], other: list[str]) -> int:
    """Levenshtein's, as everybody writes it."""
    row = list(range(len(other) + 1))
    for number, symbol in enumerate(one, 1):
        above, row = row, [number]
        for place, right in enumerate(other, 1):
            row.append(min(row[-1] + 1, above[place] + 1, above[place - 1] + (symbol != right)))
    return row[-1]


def heard(moments: list[int]) -> str:
    """Without repetitions, and without what is no character."""
    return "".join(NAMES[one] for place, one in enumerate(moments) if one and (place == 0 or moments[place - 1] != one))


def test_error_rates_are_distances() -> None:
    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 12, 4, generator=random)
    y = torch.randint(1, 4, (60, 5), generator=random)
    y = torch.where(torch.arange(5) < torch.randint(0, 6, (60, 1), generator=random), y, 0)
    characters, words = CharacterErrorRate(), WordErrorRate()
    words.know_tokens(NAMES)
    by_character, by_word = characters.state(outputs, {"y": y}), words.state(outputs, {"y": y})
    for sample in range(60):
        said, right = heard(outputs[sample].argmax(-1).tolist()), "".join(NAMES[one] for one in y[sample].tolist())
        assert by_character[sample].tolist() == [distance(list(said), list(right)), len(right)]
        assert by_word[sample].tolist() == [distance(said.split(), right.split()), len(right.split())]
    many = torch.func.vmap(lambda outputs, y: words.state(outputs, {"y": y}))(
        outputs.view(4, 15, 12, 4), y.view(4, 15, 5)
    )
    assert torch.equal(many.view(60, 2), by_word)  # as personal models are scored
    total = by_word.double().sum(0).numpy()
    assert words.value(total, np.array(60.0)) == total[0] / total[1]


def test_without_spaces_a_transcript_is_a_word() -> None:
    words = WordErrorRate()
    words.know_tokens(("", "a", "b"))
    right = torch.tensor([[1, 2, 0], [2, 1, 0]])
    outputs = F.one_hot(torch.tensor([[1, 0, 2], [1, 2, 0]]), 3).float()
    assert words.state(outputs, {"y": right}).tolist() == [[0, 1], [1, 1]]


def plain_log_mel(x: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """One clip, one moment and one band after the other."""
    window, hop = round(0.025 * rate), round(0.01 * rate)
    size = 1
    while size < window:
        size *= 2
    shape = np.zeros(size)
    for place in range(window):
        shape[(size - window) // 2 + place] = 0.5 - 0.5 * np.cos(2 * np.pi * place / window)
    padded = np.pad(x, size // 2, mode="reflect")
    mel = np.linspace(0, 2595 * np.log10(1 + (rate // 2) / 700), bands + 2)
    corners = 700 * (10 ** (mel / 2595) - 1)
    rows = []
    for begin in range(0, len(padded) - size + 1, hop):
        power = np.abs(np.fft.rfft(padded[begin : begin + size] * shape)) ** 2
        row = []
        for low, middle, high in zip(corners[:-2], corners[1:-1], corners[2:], strict=True):
            total = 0.0
            for place, amount in enumerate(power):
                pitch = place * rate / size
                total += amount * max(0.0, min((pitch - low) / (middle - low), (high - pitch) / (high - middle)))
            row.append(np.log(total + 1e-6))
        rows.append(row)
    return np.array(rows).T


@pytest.mark.parametrize(("rate", "length", "bands"), [(2000, 500, 6), (1600, 777, 5)])
def test_spectrograms_are_what_the_formulas_say(rate: int, length: int, bands: int) -> None:
    spec = DataSpec("classification", 2, (length,), sample_rate=rate)
    x = np.random.default_rng(0).normal(size=(2, length))
    expected = np.stack([plain_log_mel(clip, rate, bands) for clip in x])
    found = LogMel(spec, bands, normalize=False).double()(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)  # what they are made of has single precision
    even = LogMel(spec, bands)(torch.from_numpy(x).float())
    assert even.shape == expected.shape
    np.testing.assert_allclose(even.mean((1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(even.square().mean((1, 2)), 1, atol=1e-3)
    assert torch.isfinite(LogMel(spec, bands)(torch.zeros(1, length))).all()  # silence


def test_spectrograms_are_torchaudios() -> None:
    transforms = pytest.importorskip("torchaudio.transforms", exc_type=ImportError)
    ours = LogMel(DataSpec("classification", 2, (16_000,), sample_rate=16_000), 32, normalize=False)
    theirs = transforms.MelSpectrogram(16_000, n_fft=512, win_length=400, hop_length=160, n_mels=32)
    x = torch.randn(2, 16_000)
    torch.testing.assert_close(ours(x), (theirs(x) + 1e-6).log(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("rate", "length", "bands", "complaint"),
    [
        (16_000, 256, 8, "more than 256 samples at 16000 a second, but these have 256"),
        (1000, 500, 100, "model.bands is 100, so narrow at 1000 samples a second that some are empty"),
    ],
)
def test_what_makes_no_spectrogram_is_refused(rate: int, length: int, bands: int, complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        LogMel(DataSpec("classification", 2, (length,), sample_rate=rate), bands)

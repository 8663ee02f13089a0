"""What is said, written down. Graves et al., "Connectionist Temporal Classification", ICML 2006."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.metrics.totals import COUNT
from fedarena.models.tasks.base import TASKS, Task, Tensors

_BLANK = 0  # the class that stands for no character, and fills up short transcripts
_NEVER = -1e30  # a logarithm of nothing whose gradient is a number; no sum of others comes near it


@TASKS.register("transcription")
class Transcription(Task):
    """Write down what is said, by connectionist temporal classification: the likelihood of all ways to say it.

    A model scores the characters, and none, for every moment. The loss of a sample is that of its whole transcript.
    Metrics read the best score of every moment, without repetitions.
    """

    predicts = "transcripts"
    kinds: ClassVar[tuple[str, ...]] = ("transcription",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("word_error_rate", "character_error_rate")

    def example_targets(self, samples: int) -> Tensor:
        """Transcripts of one character."""
        return F.pad(torch.ones(samples, 1, dtype=torch.long), (0, self._longest - 1))

    @property
    def _longest(self) -> int:
        return self.spec.longest_transcript or 1

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be a score for every character, and for none, at every moment."""
        shape, wanted = list(outputs.shape), [len(batch["y"]), "moments", self.spec.classes]
        if len(shape) != 3 or shape[0] != wanted[0] or shape[2] != wanted[2]:
            raise ValueError(f"its outputs have the shape {shape}, but [{', '.join(map(str, wanted))}] is needed")
        # Where the same character comes again and again, there must be a moment between any two of them.
        if shape[1] < 2 * self._longest - 1:
            raise ValueError(
                f"it hears {shape[1]} moments, but transcripts of up to {self._longest} characters need "
                f"{2 * self._longest - 1}; choose a smaller model.stride, or leave out long ones"
            )

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """The negative logarithm of the likelihood of every transcript."""
        return ctc_losses(F.log_softmax(outputs, -1), batch["y"])

    def seen(self, outputs: Tensor, batch: Tensors) -> Tensors:
        """One prediction for every sample."""
        count = torch.ones_like(batch["y"].select(-1, 0))
        return {**batch, "loss": self.losses(outputs, batch), COUNT: count}


def ctc_losses(log_probabilities: Tensor, transcripts: Tensor) -> Tensor:
    """The loss of every sample, of logarithms ``[samples, moments, classes]`` and transcripts ``[samples, length]``.

    Class 0 is the blank, and behind the last character of a transcript there are zeros. It is written as plain
    operations for all samples, moment by moment, so that many clients' losses are computed at once.
    """
    length = transcripts.shape[-1]
    # Blanks before, between and behind all characters: [samples, 2 length + 1].
    states = torch.stack([torch.zeros_like(transcripts), transcripts], -1).flatten(-2)
    states = torch.cat([states, torch.zeros_like(transcripts[:, :1])], -1)
    scores = log_probabilities.gather(-1, states.unsqueeze(-2).expand(-1, log_probabilities.shape[-2], -1))
    # From one character to the next without a blank between: if they differ.
    two_before = F.pad(states[:, :-2], (2, 0))
    skips = torch.where((states != _BLANK) & (states != two_before), 0.0, _NEVER).to(scores.dtype)
    place = torch.arange(2 * length + 1, device=states.device)
    first = torch.where(place < 2, 0.0, _NEVER).to(scores.dtype)
    reached = scores[:, 0] + first
    for now in scores.unbind(1)[1:]:
        one, two = (F.pad(reached[:, :-by], (by, 0), value=_NEVER) for by in (1, 2))
        reached = now + torch.stack([reached, one, two + skips], -1).logsumexp(-1)
    end = 2 * (transcripts != _BLANK).sum(-1, keepdim=True)  # the last blank; before it, the last character
    is_end = (place == end) | (place == end - 1)
    return -torch.where(is_end, reached, _NEVER).logsumexp(-1)

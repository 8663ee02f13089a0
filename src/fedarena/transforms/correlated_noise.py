"""Noise at the server that is correlated over rounds; which correlation, and why, says `fedarena.privacy.banded`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedarena.models import Tensors
from fedarena.train import Groups, JobContext
from fedarena.transforms.transform import Transform

_BACK, _LAST = "back ", "last"  # groups that are kept: the noise of so many rounds ago; the round of the latest
_NO_UPDATE = ("cohort", "verdict")  # groups of an aggregated update that say something about it


class CorrelatedNoise(Transform):
    """Adds row t of C⁻¹ Z to the update of round t, where C is lower triangular and Toeplitz with these coefficients.

    The first is 1, so that a row is y_t = z_t - Σ_j c_j y_(t-j), and the rows of the last rounds, one fewer than there
    are coefficients, are all that the server keeps. Rows are multiplied by `std` when they are added. A round in which
    the server makes no step has its row, too, because rounds are what the participation rule is about.
    """

    def __init__(self, coefficients: Sequence[float], std: float):
        self.coefficients, self.std = tuple(coefficients), std

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """The update with noise, and the noise of the last rounds."""
        plain = {
            f"{group}/{name}": t
            for group, tensors in update.items()
            for name, t in tensors.items()
            if group not in _NO_UPDATE and t.is_floating_point()
        }
        round = int(context.round)
        kept = {group: tensors for group, tensors in server.items() if group != _LAST}
        begin = int(server[_LAST]["round"]) + 1 if server else 1
        for past in range(begin, round + 1):
            row = self._row(plain, kept, context, "" if past == round else f" of round {past}")
            kept = {f"{_BACK}{ago}": rows for ago, rows in enumerate([row, *kept.values()][: self._memory], start=1)}
        noisy = {
            group: {name: t + self.std * row[f"{group}/{name}"] if f"{group}/{name}" in plain else t for name, t in ts.items()}
            for group, ts in update.items()
        }
        return noisy, {**kept, _LAST: {"round": torch.tensor(round)}}

    @property
    def _memory(self) -> int:
        return len(self.coefficients) - 1

    def _row(self, like: Tensors, kept: Groups, context: JobContext, purpose: str) -> Tensors:
        """The next row; `kept` has those before it, the latest first."""
        row: Tensors = {}
        for name, t in like.items():
            row[name] = context.normal(f"correlated noise of {name}{purpose}", t)
            for coefficient, earlier in zip(self.coefficients[1:], kept.values(), strict=False):
                row[name] = row[name] - coefficient * earlier[name]
        return row

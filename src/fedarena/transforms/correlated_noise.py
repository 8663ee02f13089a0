"""Noise at the server that is correlated over rounds; which correlation, and why, says `fedarena.privacy.banded`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups, JobContext
from fedarena.transforms.clip_and_noise import CLIPPING, ClipAndNoise, normal_like

_BACK, _LATEST = "back ", "latest"  # groups that are kept: the noise of so many rounds ago; which round that was


class ClipAndCorrelatedNoise(ClipAndNoise):
    """Adds row t of C⁻¹ Z to the update of round t, where C is lower triangular and Toeplitz with these coefficients.

    The first is 1, so that a row is y_t = z_t - Σ_j c_j y_(t-j), and the rows of the last rounds, one fewer than there
    are coefficients, are all that the server keeps. Numbers in Z have the deviation of `ClipAndNoise` for a clipping
    norm that is ‖c‖ times as large. A round in which the server makes no step has its row, too, because rounds
    are what the participation rule is about.
    """

    def __init__(self, *, norm: float, noise_multiplier: float, clients: float, coefficients: Sequence[float]):
        super().__init__(norm=norm, noise_multiplier=noise_multiplier, clients=clients)
        self.coefficients = tuple(coefficients)
        self._column_norm = float(torch.tensor(self.coefficients, dtype=torch.float64).norm())

    def draw_ahead(self, update: Groups, context: JobContext) -> None:
        """Its noise is drawn in another way, and at the end."""

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """The update with noise, and the noise of the last rounds."""
        norm = server["clipping"]["norm"]
        plain = {
            f"{group}/{name}": t
            for group, tensors in update.items()
            for name, t in tensors.items()
            if group not in ("cohort", CLIPPING)
        }
        round = int(context.round)
        begin = int(server[_LATEST]["round"]) + 1 if _LATEST in server else 1
        before = [tensors for group, tensors in server.items() if group.startswith(_BACK)]
        for past in range(begin, round + 1):
            row = self._row(plain, before, context, "" if past == round else f" of round {past}")
            before = [row, *before][: len(self.coefficients) - 1]
        deviation = self.noise_multiplier * self._column_norm * norm / self.noise_clients
        noise = {name: deviation.to(t) * t for name, t in row.items()}
        noisy = {
            group: {name: t + noise.get(f"{group}/{name}", 0.0) for name, t in tensors.items()}
            for group, tensors in update.items()
            if group != CLIPPING
        }
        measured = {**server["clipping"], "noise_to_signal": (_length(noise) / _length(plain)).to(norm)}
        rows = {f"{_BACK}{ago}": tensors for ago, tensors in enumerate(before, start=1)}
        return noisy, {"clipping": measured, _LATEST: {"round": torch.tensor(round)}, **rows}

    def _row(self, like: Tensors, before: Sequence[Tensors], context: JobContext, purpose: str) -> Tensors:
        """The next row; `before` has the earlier ones, the latest first."""
        row: Tensors = {}
        for name, t in like.items():
            row[name] = normal_like(t, f"{name}{purpose}", context)
            for coefficient, earlier in zip(self.coefficients[1:], before, strict=False):
                row[name] = row[name] - coefficient * earlier[name]
        return row


def _length(tensors: Tensors) -> Tensor:
    return torch.stack([t.double().square().sum() for t in tensors.values()]).sum().sqrt()

"""Matrices as products of narrow ones, by the singular value decomposition."""

from __future__ import annotations

import torch
from torch import Tensor


def compress(values: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of `values` after compression, and how many numbers it takes to send that.

    A matrix (or a convolution, as a matrix with a row per output channel) keeps its largest singular values: as few as
    have more than the share `energy` of the sum of all squares. It is sent as its singular vectors and values if these
    are fewer numbers than the matrix has, and otherwise as it is, exactly. Vectors are sent as they are.
    """
    dense = torch.tensor(values.numel(), dtype=torch.float64, device=values.device)
    if values.dim() < 2:
        return values, dense
    matrix = values.flatten(1)
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    # The decomposition of what is not finite fails, and with it all others of the same call.
    finite = wide.isfinite().all()
    sound = torch.where(finite, wide, 0.0)
    # Squares of the singular values, the least first, and singular vectors of the short side: the others follow.
    squares, vectors = torch.linalg.eigh(sound @ sound.t())
    descending = squares.clamp(min=0).flip(0)
    so_far = descending.cumsum(0)
    total = so_far[-1]
    kept = ((so_far - descending <= energy * total) & (total > 0)).flip(0)  # as long as the larger ones do not suffice
    numbers = kept.sum() * (wide.shape[0] + wide.shape[1] + 1)
    narrow = vectors @ (kept.unsqueeze(1) * (vectors.t() @ sound))
    smaller = finite & (numbers < dense)
    sent = torch.where(smaller, narrow, wide)
    sent = sent if wide is matrix else sent.t()
    return sent.reshape(values.shape), torch.where(smaller, numbers, dense)

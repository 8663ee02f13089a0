"""Noise that clients add to their own updates, so that not even the server learns what a client has.

Whatever a client would have sent, what it sends is nearly as likely (local differential privacy). So the sensitivity
is the distance of the two farthest updates, twice the bound that they are shortened to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.secret_noise import SecretStream
from fedarena.core.streams import purpose_bits
from fedarena.train import COVERAGE, Algorithm, Groups
from fedarena.transforms.rows import Rows, flat, unflat, whole_number
from fedarena.transforms.transform import Transform


class LocalRandomizer(Transform):
    """What local mechanisms share: all numbers that a client sends go through one of them, and sizes do not count."""

    counts_clients_equally = True
    hides_from_server = True

    def __init__(self, bound: float):
        if not 0 < bound < float("inf"):
            raise BadInputError(f"privacy.clip must be a number above 0, not {bound}")
        self.bound = bound

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Everything that a client sends must be numbers that can be made noisy."""
        if COVERAGE in update:
            return "which parts of the model a client trained would be seen without noise"
        if not any(t.is_floating_point() for tensors in update.values() for t in tensors.values()):
            return "its clients send no update"
        if type(algorithm).uploaded_bytes is not Algorithm.uploaded_bytes:
            return "how much its clients send tells what they learned, and no noise comes to that"
        whole = whole_number(update)
        return f"its clients send {whole} as whole numbers, to which no noise can be added" if whole else None

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """The randomized updates."""
        whole = flat(rows.update)
        return unflat(self.randomize(whole, rows), rows.update), kept

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """How many were longer than the bound."""
        longer = self.norms(flat(before.update)) > self.bound
        return {"clients": float(len(before)), "clipped": float(longer.sum())}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """Columns of the round's row."""
        clients = observed.get("clients", 0.0)
        return {"clip_norm": self.bound, **({"clipped_share": observed["clipped"] / clients} if clients else {})}

    def norms(self, whole: Tensor) -> Tensor:
        """How long each client's update is, in the sense of the bound."""
        norms: Tensor = torch.linalg.vector_norm(whole.double(), dim=1)
        return norms

    def shortened(self, whole: Tensor) -> Tensor:
        """Rows that are no longer than the bound."""
        norms = self.norms(whole)
        return whole * (self.bound / norms.clamp(min=self.bound)).to(whole.dtype)[:, None]

    def randomize(self, whole: Tensor, rows: Rows) -> Tensor:
        """What clients send instead of these rows."""
        raise NotImplementedError


class LocalGaussian(LocalRandomizer):
    """Updates shortened to the Euclidean norm `bound`, each number with Gaussian noise of the deviation `std`."""

    def __init__(self, bound: float, std: float):
        super().__init__(bound)
        self.std = std

    def randomize(self, whole: Tensor, rows: Rows) -> Tensor:
        """Gaussian noise on all numbers."""
        return self.shortened(whole) + self.std * normal_rows(rows, "local gaussian", whole)


class LocalLaplace(LocalRandomizer):
    """Updates shortened to the L1 norm `bound`, each number with Laplace noise of this `scale`."""

    def __init__(self, bound: float, scale: float):
        super().__init__(bound)
        self.scale = scale

    def norms(self, whole: Tensor) -> Tensor:
        """The sum of magnitudes."""
        return whole.double().abs().sum(1)

    def randomize(self, whole: Tensor, rows: Rows) -> Tensor:
        """Laplace noise on all numbers."""
        noise = [generator.laplace(0.0, self.scale, whole.shape[1]) for generator in generators(rows, "local laplace")]
        return self.shortened(whole) + torch.from_numpy(np.stack(noise)).to(whole)


def generators(rows: Rows, purpose: str) -> Iterator[np.random.Generator | SecretStream]:
    """A generator for every client's job; that of a real client is secret.

    For the many numbers of an update that is much faster than numbers which do not depend on each other's order.
    """
    for key in rows.context.key.cpu().numpy().view(np.uint64):
        if rows.secret is not None:
            yield rows.secret.stream(rows.stream, purpose, int(key))
            continue
        yield np.random.Generator(np.random.Philox(key=np.array([key, purpose_bits(purpose)], dtype=np.uint64)))


def draws_of(rows: Rows, purpose: str) -> Callable[[int], npt.NDArray[np.uint64]]:
    """Words of 64 random bits for the job of the only client of these rows."""
    (generator,) = generators(rows, purpose)
    if isinstance(generator, SecretStream):
        return generator.words

    def draw(number: int) -> npt.NDArray[np.uint64]:
        return generator.integers(0, (1 << 64) - 1, number, dtype=np.uint64, endpoint=True)

    return draw


def normal_rows(rows: Rows, purpose: str, like: Tensor) -> Tensor:
    """Standard normal numbers in the shape of `like`, a row per client."""
    dtype = np.float64 if like.dtype == torch.float64 else np.float32
    drawn = [generator.standard_normal(like.shape[1], dtype=dtype) for generator in generators(rows, purpose)]
    return torch.from_numpy(np.stack(drawn)).to(like)

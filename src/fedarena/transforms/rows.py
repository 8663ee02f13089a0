"""Updates of some clients on their way to the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.secret_noise import SecretSource
from fedarena.models import Tensors
from fedarena.train import COVERAGE, Groups, JobArrays, JobContext, Work, map_groups
from fedarena.train.jobs import IntArray
from fedarena.train.product_rows import ProductRows
from fedarena.train.tensors import sent_to
from fedarena.train.validation import Validated

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """What some clients upload, a row each, and what is known about their jobs."""

    update: Groups  # tensors [clients, …]
    jobs: JobArrays
    work: Work
    weights: FloatArray  # how much each client counts, by the algorithm
    change_groups: tuple[str, ...]  # the groups of an update that move the model
    seed: int = 0  # of the run
    stream: str = "hooks"  # who draws random numbers
    downloaded: Tensors = field(default_factory=dict)  # parameters that they began with, for attacks that ask for them
    memory: Groups = field(default_factory=dict)  # what they downloaded the last time, see `forging`
    validated: Validated | None = None  # how good their models are, where a policy asks
    factors: Groups = field(default_factory=dict)  # that tensors are still to be multiplied by, see `ScaledRows`
    secret: SecretSource | None = None  # where a real client draws what protects it; None: from the seed
    packs: bool = False  # whether they are of one real client, which sends bytes
    packed: Tensor | None = None  # that it sends instead of its parameters

    def __len__(self) -> int:
        return len(self.jobs.clients)

    @property
    def changes(self) -> Groups:
        """What moves the model."""
        return {group: self.update[group] for group in self.change_groups if group in self.update}

    @property
    def dtype(self) -> torch.dtype:
        """In which what moves the model is computed."""
        moving = (t.dtype for tensors in self.changes.values() for t in tensors.values())
        return next((dtype for dtype in moving if dtype.is_floating_point), torch.float64)

    @property
    def coverage(self) -> Groups:
        """How much of every parameter each client trained, if somebody did not train everything."""
        return {COVERAGE: self.update[COVERAGE]} if COVERAGE in self.update else {}

    @property
    def others(self) -> Groups:
        """Everything else that clients send."""
        moving = {*self.change_groups, COVERAGE}
        return {group: tensors for group, tensors in self.update.items() if group not in moving}

    @property
    def context(self) -> JobContext:
        """What is known about the jobs, as tensors with a row each."""
        tensors = [t for tensors in self.update.values() for t in tensors.values() if t.is_floating_point()]
        return self.jobs.contexts(tensors[0] if tensors else torch.zeros(()), self.seed, self.stream)

    def take(self, positions: Any) -> Rows:
        """Some of the clients, in memory of their own."""
        rows = torch.as_tensor(np.asarray(positions))
        amounts = {name: None if value is None else value[positions] for name, value in vars(self.work).items()}
        return Rows(
            map_groups(lambda t: t[rows.to(t.device)], self.update),
            self.jobs.take(positions),
            Work(**amounts),
            self.weights[positions],
            self.change_groups,
            self.seed,
            self.stream,
            {name: t[rows.to(t.device)] for name, t in self.downloaded.items()},
            map_groups(lambda t: t[rows.to(t.device)], self.memory),
            None if self.validated is None else self.validated.take(positions),
            map_groups(lambda t: t[rows.to(t.device)], self.factors),
            self.secret,
        )


@dataclass(frozen=True)
class ScaledRows:
    """Updates of some clients that are the given ones, in which every client's tensors are multiplied by a number.

    To add them up it is enough to know these numbers; the products need not be written down.
    """

    update: Groups
    factors: Groups  # [clients]; a tensor that has none stays as it is

    def rows(self) -> Groups:
        """The products."""

        def of(group: str, name: str, t: Tensor) -> Tensor:
            factor = self.factors.get(group, {}).get(name)
            return t if factor is None else t * factor.view(-1, *[1] * (t.dim() - 1))

        return {group: {name: of(group, name, t) for name, t in ts.items()} for group, ts in self.update.items()}


def check_rows(update: Groups, before: Rows, who: str) -> None:
    """Code of somebody's own may forget a tensor, or that every one has a row per client."""
    for group, tensors in before.update.items():
        for name, t in tensors.items():
            found = update.get(group, {}).get(name)
            if found is None or found.shape != t.shape:
                given = "nothing" if found is None else list(found.shape)
                raise BadInputError(
                    f"{who} must give {group}/{name} in the shape {list(t.shape)}, a row per client, but gave {given}"
                )
            if found.dtype != t.dtype:
                raise BadInputError(
                    f"{who} must give {group}/{name} as {t.dtype}, as it gets it, but gave {found.dtype}, in which "
                    f"updates would be added up; end with .to({t.dtype})"
                )


def flat(groups: Groups) -> Tensor:
    """All numbers of every client as a row of one matrix."""
    return torch.cat([t.reshape(len(t), -1) for tensors in groups.values() for t in tensors.values()], dim=1)


def unflat(matrix: Tensor, like: Groups) -> Groups:
    """The inverse of `flat`, for groups of these names, shapes and types."""
    found = [(group, name, t) for group, tensors in like.items() for name, t in tensors.items()]
    pieces = torch.split(matrix, [t.shape[1:].numel() for _, _, t in found], dim=1)
    groups: Groups = {group: {} for group in like}
    for piece, (group, name, t) in zip(pieces, found, strict=True):
        groups[group][name] = piece.reshape(t.shape).to(t.dtype)
    return groups


def whole_number(groups: Groups) -> str | None:
    """The first tensor of whole numbers, which can neither be shortened nor get noise; None: there is none."""
    names = (f"{group}/{name}" for group, ts in groups.items() for name, t in ts.items() if not t.is_floating_point())
    return next(names, None)


def norms_of(rows: Groups) -> Tensor:
    """The Euclidean norm of every client's numbers, all groups together."""
    tensors = [t for of_group in rows.values() for t in of_group.values()]
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    parts = torch.stack([_norms(t).to(dtype) for t in tensors])
    norms: Tensor = torch.linalg.vector_norm(parts.double(), dim=0)
    return norms


def _norms(rows: Tensor | ProductRows) -> Tensor:
    if isinstance(rows, ProductRows):
        return rows.norms()
    norms: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return norms


def weighted_sum(
    updates: Groups, weights: FloatArray, factors: Groups | None = None, whole: torch.dtype = torch.float64
) -> Groups:
    """The sum of the updates of several clients (a row each), each times its weight and its tensors' factors.

    Sums of whole numbers, which weights make fractions of, have the type `whole`.
    """
    counting: dict[Any, Tensor] = {}  # made once for all tensors alike: small operations are what takes time on a GPU

    def add_up(rows: Tensor | ProductRows, factor: Tensor | None) -> Tensor:
        if not rows.dtype.is_floating_point and isinstance(rows, Tensor):
            rows = rows.to(whole)
        plain, scaled = (rows.dtype, rows.device), (rows.dtype, rows.device, id(factor))
        if plain not in counting:
            counting[plain] = sent_to(rows.device, weights).to(rows.dtype)
        if factor is not None and scaled not in counting:
            counting[scaled] = counting[plain] * factor
        counts = counting[plain if factor is None else scaled]
        if isinstance(rows, ProductRows):
            return rows.weighted_sum(counts)
        return (counts @ rows.reshape(len(weights), -1)).view(rows.shape[1:])

    def factor_of(group: str, name: str) -> Tensor | None:
        return factors.get(group, {}).get(name) if factors else None

    return {g: {name: add_up(t, factor_of(g, name)) for name, t in ts.items()} for g, ts in updates.items()}


__all__ = ["BoolArray", "FloatArray", "IntArray", "Rows", "ScaledRows", "flat", "norms_of", "unflat", "weighted_sum"]

"""Jobs: what an engine is asked to do, and what algorithms and transforms are told about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.models import Tensors
from fedarena.models.keyed_random import at_step, derived, keyed_normal, keyed_uniform
from fedarena.train.tensors import Groups, sent_to

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_HYPERPARAMETER = "hyperparameter:"  # begins the names of their rows among those of a job


@dataclass(frozen=True)
class Job:
    """One client's local training."""

    client: int
    round: int  # keys all that is random, so it is another one in each of a client's jobs; a job's number may do
    share: float = 1.0  # of the work, for who has not the time for all of it
    version: int = 0  # of the model it starts from: how many steps the server had made
    staleness: int = 0  # steps the server has made since then when the update is used
    server_step: int = 0  # which of the round's steps of the server it is used in
    corrupted: bool = False  # whether an adversary has the client in its hands
    lr_scale: float | None = None  # what a schedule makes of the learning rate; None: there is no schedule
    data_of: int | None = None  # index of the samples it trains on; None: that of the client
    hyperparameters: Mapping[str, float] | None = None  # settings of its own, such as local.lr; None: those of the run

    @property
    def holder(self) -> int:
        """Under which index the samples are that it trains on."""
        return self.client if self.data_of is None else self.data_of


@dataclass(frozen=True)
class JobContext:
    """What is known about a job while it is computed: a number each, or a row per client."""

    share: Any
    round: Any
    version: Any
    corrupted: Any
    key: Any  # int64; what is random about the job depends on it alone
    lr_scale: Any = 1.0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)  # settings of this job, where it has its own
    step: Any = 0  # of local training, counted from 1; 0 before and after it; a tensor like the others

    def hyperparameter(self, name: str, otherwise: Any) -> Any:
        """What this job has for a setting such as ``local.lr``, where jobs differ in it; else that of the run."""
        return self.hyperparameters.get(name, otherwise)

    def at_step(self, step: Any) -> JobContext:
        """The same in one of the steps of local training, in which other random numbers are drawn."""
        return replace(self, key=at_step(self.key, step), step=step)

    def uniform(self, purpose: str, like: Tensor) -> Tensor:
        """Numbers in [0, 1) in the shape of `like`, the same on every engine.

        Another round, client, local step or purpose gives others: two tensors that should not have the same noise need
        two purposes, such as their names. Where the context has a row per client, so does `like`.
        """
        return self._draw(keyed_uniform, purpose, like)

    def normal(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of `like`, the same on every engine."""
        return self._draw(keyed_normal, purpose, like)

    def _draw(self, draw: Any, purpose: str, like: Tensor) -> Tensor:
        key = torch.as_tensor(self.key).to(like.device, non_blocking=True)
        key = derived(key, streams.purpose_bits(purpose))
        if key.dim() == 0:
            drawn: Tensor = draw(key, like)
            return drawn
        return torch.stack([draw(one, row) for one, row in zip(key, like, strict=True)])


@dataclass(frozen=True)
class Client:
    """What a client has at hand in a job: what it downloaded, what it kept from its last one, and the job itself."""

    broadcast: Groups
    state: Groups
    job: JobContext


@dataclass(frozen=True)
class JobArrays:
    """Some jobs as arrays with an entry each, since a cohort may have thousands."""

    clients: IntArray
    rounds: IntArray
    shares: npt.NDArray[np.float64]
    versions: IntArray
    staleness: IntArray
    server_steps: IntArray
    corrupted: npt.NDArray[np.bool_]
    lr_scales: npt.NDArray[np.float64] | None = None  # None: there is no schedule
    server_rounds: IntArray | None = None  # in which they are used, where that is not what keys them
    data_of: IntArray | None = None  # indexes of the samples they train on; None: those of the clients
    hyperparameters: dict[str, FloatArray] | None = None  # settings in which they differ; None: there are none
    decisions: FloatArray | None = None  # what a policy decided for each, a row in its own terms; see `Policy`

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> JobArrays:
        """The same jobs as arrays."""

        def integers(name: str) -> IntArray:
            return np.array([getattr(job, name) for job in jobs], dtype=np.int64)

        scales = [job.lr_scale for job in jobs]
        elsewhere = any(job.data_of is not None for job in jobs)
        return cls(
            clients=integers("client"),
            rounds=integers("round"),
            shares=np.array([job.share for job in jobs], dtype=np.float64),
            versions=integers("version"),
            staleness=integers("staleness"),
            server_steps=integers("server_step"),
            corrupted=np.array([job.corrupted for job in jobs], dtype=np.bool_),
            lr_scales=None if None in scales else np.array(scales, dtype=np.float64),
            data_of=integers("holder") if elsewhere else None,
            hyperparameters=_columns_of([job.hyperparameters for job in jobs]),
        )

    @property
    def holders(self) -> IntArray:
        """Under which indexes the samples are that they train on."""
        return self.clients if self.data_of is None else self.data_of

    def __len__(self) -> int:
        return len(self.clients)

    def job(self, position: int) -> Job:
        """One of them."""
        return Job(
            client=int(self.clients[position]),
            round=int(self.rounds[position]),
            share=float(self.shares[position]),
            version=int(self.versions[position]),
            staleness=int(self.staleness[position]),
            server_step=int(self.server_steps[position]),
            corrupted=bool(self.corrupted[position]),
            lr_scale=None if self.lr_scales is None else float(self.lr_scales[position]),
            data_of=None if self.data_of is None else int(self.data_of[position]),
            hyperparameters=None
            if self.hyperparameters is None
            else {name: float(values[position]) for name, values in self.hyperparameters.items()},
        )

    def take(self, positions: Any) -> JobArrays:
        """The jobs at these positions."""
        columns = dict(vars(self))
        own = columns.pop("hyperparameters")
        taken: Any = {name: None if values is None else values[positions] for name, values in columns.items()}
        if own is not None:
            taken["hyperparameters"] = {name: values[positions] for name, values in own.items()}
        return JobArrays(**taken)

    def tensors(self, like: Tensor, seed: int, stream: str = "hooks") -> Tensors:
        """The same as rows of few tensors, on the device of `like` and with its kind of numbers, for `context_of`.

        `seed` is that of the run, and `stream` who draws random numbers.
        """
        keys = np.asarray(streams.bits(seed, stream, self.rounds, self.clients)).view(np.int64)
        rounds = self.rounds if self.server_rounds is None else self.server_rounds
        numbers = np.stack([rounds, self.versions, self.corrupted.astype(np.int64), keys], axis=1)
        rows = {"numbers": sent_to(like.device, numbers), "share": _like(self.shares, like)}
        if self.lr_scales is not None:
            rows["lr_scale"] = _like(self.lr_scales, like)
        for name, values in (self.hyperparameters or {}).items():
            rows[_HYPERPARAMETER + name] = _like(values, like)
        return rows

    def contexts(self, like: Tensor, seed: int, stream: str = "hooks") -> JobContext:
        """The contexts of all jobs, with a row each."""
        rows = self.tensors(like, seed, stream)
        rounds, versions, corrupted, keys = rows["numbers"].unbind(1)
        scales = rows.get("lr_scale", 1.0)
        own, before = hyperparameters_in(rows), torch.zeros_like(rows["share"])
        return JobContext(rows["share"], rounds, versions, corrupted != 0, keys, scales, own, before)


def context_of(row: Tensors) -> JobContext:
    """The context of one job from its row of `JobArrays.tensors`; without one, of a job that nobody asks about."""
    if not row:
        return JobContext(1.0, 0, 0, False, torch.zeros((), dtype=torch.int64))
    round, version, corrupted, key = row["numbers"].unbind(0)
    scale, before = row.get("lr_scale", 1.0), torch.zeros_like(row["share"])
    return JobContext(row["share"], round, version, corrupted != 0, key, scale, hyperparameters_in(row), before)


def hyperparameters_in(rows: Tensors) -> Tensors:
    """The settings among rows of `JobArrays.tensors` in which jobs differ."""
    found = rows.items()
    return {name.removeprefix(_HYPERPARAMETER): t for name, t in found if name.startswith(_HYPERPARAMETER)}


def _columns_of(each: Sequence[Mapping[str, float] | None]) -> dict[str, FloatArray] | None:
    """Settings of jobs as arrays; jobs that train together have values for the same ones."""
    names = {None if one is None else tuple(sorted(one)) for one in each}
    if len(names) > 1:
        raise ValueError("Jobs that train together must have their own values for the same settings")
    if not each or each[0] is None:
        return None
    return {name: np.array([one[name] for one in each if one is not None], dtype=np.float64) for name in each[0]}


def newcomer(broadcast: Groups, state: Groups, job: JobContext | None = None) -> Client:
    """A client as it is before its first job, to try an algorithm out."""
    if job is None:
        like = next(iter(broadcast["params"].values()))
        job = context_of({name: t[0] for name, t in JobArrays.of([Job(0, 1)]).tensors(like, seed=0).items()})
    return Client(broadcast, state, job)


def _like(values: npt.NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device, like.dtype)

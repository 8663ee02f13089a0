"""Canaries: made-up clients who send random directions, to find out how much of one client can be seen in the result.

Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024; Steinke, Nasr, Jagielski,
"Privacy Auditing with One (1) Training Run", NeurIPS 2023. Every canary has a direction of its own, and is in the
training or not by the toss of a coin. One that is in takes part as clients do, and always sends far more than the
clipping norm in its direction. In the end, the sum of all updates that the server has used shows who was in, if
anything does: its product with a canary's direction is the canary's score.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from fedarena.core import streams
from fedarena.train import Groups, Job, JobArrays, JobContext, JobResults, Shard, Work
from fedarena.transforms.rows import FloatArray, IntArray
from fedarena.transforms.transform import Transform

BoolArray = npt.NDArray[np.bool_]
_FIRST = 1 << 40  # the index of the first canary; no federation has so many clients
_SUM = "canaries"


class Canaries(Transform):
    """So many canaries, of which those in training take part when `turns` of a round says so, and send this `length`.

    As a transform it comes first, so that at the server it sees updates last, as the algorithm gets them.
    """

    def __init__(self, number: int, length: float, seed: int, turns: Callable[[int], BoolArray]):
        self.number, self.length, self.seed, self._turns = number, length, seed, turns

    @property
    def included(self) -> BoolArray:
        """Which of them are in the training."""
        return streams.uniform(self.seed, "canary is included", np.arange(self.number)) < 0.5

    def server_init(self, update: Groups) -> Groups:
        """The sum of all updates, none so far."""
        return {_SUM: {name: torch.zeros_like(t) for name, t in update.get("params", {}).items()}}

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """Adds an update to the sum."""
        total = {name: t + update["params"][name] for name, t in server[_SUM].items()}
        return update, {_SUM: total}

    def results(self, example: Groups, round: int, version: int) -> tuple[JobResults, Shard] | None:
        """What canaries send in a round, as if they had trained; None if it is nobody's turn.

        `example` is the update of a client, which changes nothing.
        """
        who = np.flatnonzero(self.included & self._turns(round))
        if not len(who):
            return None
        jobs = JobArrays.of([Job(_FIRST + canary, round, version=version) for canary in who.tolist()])
        shapes = example["params"]
        rows = torch.from_numpy(np.stack([self._direction(canary, example) for canary in who.tolist()]) * self.length)
        pieces = torch.split(rows, [t.numel() for t in shapes.values()], dim=1)
        sent = {
            name: piece.reshape(len(who), *t.shape).to(t)
            for piece, (name, t) in zip(pieces, shapes.items(), strict=True)
        }
        update = {
            group: {name: torch.zeros((len(who), *t.shape)).to(t) for name, t in tensors.items()}
            for group, tensors in example.items()
        }
        ones: IntArray = np.ones(len(who), dtype=np.int64)
        results = JobResults(jobs, {**update, "params": sent}, {}, Work(ones, ones, ones), np.zeros(len(who)))
        return results, Shard(jobs, {}, {}, 1)

    def scores(self, server: Groups) -> FloatArray:
        """How much of every canary's direction is in the sum of all updates."""
        total = torch.cat([t.detach().cpu().double().ravel() for t in server[_SUM].values()]).numpy()
        example = {"params": server[_SUM]}
        return np.array([self._direction(canary, example) @ total for canary in range(self.number)])

    def _direction(self, canary: int, example: Groups) -> npt.NDArray[np.float32]:
        """A random vector of length 1."""
        numbers = sum(t.numel() for t in example["params"].values())
        drawn = streams.generator(self.seed, "canary", canary).standard_normal(numbers, dtype=np.float32)
        return drawn / np.float32(np.linalg.norm(drawn))

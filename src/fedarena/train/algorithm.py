"""The interface of a federated algorithm: what a client computes and what the server does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedarena.models import Task, Tensors
from fedarena.train.batches import IntArray, count_processed, count_steps
from fedarena.train.optimizers import LocalTraining
from fedarena.train.tensors import Groups


@dataclass(frozen=True)
class Work:
    """What a client did in one round: numbers, or arrays with an entry per client."""

    samples: Any  # training samples it has
    steps: Any  # gradient steps it took
    processed_samples: Any  # samples it computed gradients on, over all steps
    start_loss: Any = None  # of the broadcast parameters on its training samples, if `Algorithm.needs_start_loss`


# A group of an update with a number from 0 to 1 for every parameter: how much of it the client trained. The change of a
# parameter is averaged over those who did. Without such a group everybody trained everything.
COVERAGE = "coverage"
# A group of a client's memory that is made for one job and not kept: which share of it the client does.
JOB = "job"


SHARE_ROUNDING = 1e-9  # what is planned to fit exactly does


@dataclass(frozen=True)
class PartialWork:
    """How the job of a client that would be late gets smaller.

    Leaving out ``"steps"`` saves their computing. Leaving out the first ``"layers"`` saves their part of the backward
    pass, which is twice as much work as the forward pass, and of the upload.
    """

    part: Literal["steps", "layers"]
    # Where the server sets no deadline but waits for all of a round: how many of the clients that begin together do
    # whole jobs, the others as much as takes no longer than theirs. None: everybody does.
    whole_jobs: float | None = None


class Algorithm:
    """Federated averaging; every other method overrides what it does differently.

    The methods are pure functions of tensors. They never loop over clients and never touch devices, clocks or files, so
    that an engine may call them for one client or for many at once. Constructor arguments are keyword-only and are the
    hyperparameters: they become the options of the configuration.

    `state`, `broadcast`, `memory` and `update` are named groups of named tensors (`Groups`). Functions return new
    groups and leave their arguments unchanged.
    """

    needs_start_loss = False  # whether `Work.start_loss` has to be computed
    tolerates_stale_updates = True  # whether updates may be added to another model than the one they began with
    change_groups: tuple[str, ...] = ("params",)  # of an update, that move the model; old age makes these smaller
    expects_weights = False  # whether there is little to learn with a model that starts from scratch
    partial_work: PartialWork | None = None  # None: a client does its whole job, or is late
    fine_tuning: LocalTraining | None = None  # how clients train their first personal model further before it is scored
    population: int  # clients that may take part
    local: LocalTraining  # how they train
    rounds: int  # of the run

    def prepare(self, population: int, local: LocalTraining, rounds: int = 1) -> None:
        """Told once, before the run: how many clients there are, how they train, and how many rounds there will be."""
        self.population, self.local, self.rounds = population, local, rounds

    def notes(self, params: Tensors) -> list[str]:
        """What the user should know about this method with a model of these parameters."""
        return []

    def server_init(self, params: Tensors) -> Groups:
        """The server's state before the first round."""
        return {"params": params}

    def broadcast(self, state: Groups) -> Groups:
        """What every invited client downloads; ``"params"`` is where local training starts."""
        return {"params": state["params"]}

    def download(self, broadcast: Groups) -> Groups:
        """The part of the broadcast that is sent and counted; all but what clients have from the beginning."""
        return broadcast

    def memory_init(self, broadcast: Groups) -> Groups:
        """What a client keeps between its rounds, made when it takes part for the first time."""
        return {}

    def local_start(self, broadcast: Groups, memory: Groups) -> Tensors:
        """What a client trains, as it is before the first step. It may hold more than one model, under other names."""
        return broadcast["params"]

    def local_steps(self, samples: IntArray, local: LocalTraining) -> IntArray:
        """How many gradient steps clients with so many samples take; none without a sample."""
        return count_steps(samples, local)

    def possible_shares(self, wanted: npt.NDArray[np.float64], samples: IntArray, params: Tensors) -> Any:
        """The shares of a job that clients with so many samples can do, which cost no more than these of whole ones.

        Here, whole steps: at least one, and otherwise as many as process that share of the samples.
        """
        steps, batch_size = self.local_steps(samples, self.local), self.local.batch_size
        fitting = wanted * count_processed(samples, steps, batch_size) + SHARE_ROUNDING
        epochs, rest = np.divmod(fitting, np.maximum(samples, 1))
        whole_steps = epochs * -(-samples // batch_size) + rest // batch_size
        return np.clip(whole_steps, 1, None) / np.maximum(steps, 1)

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, broadcast: Groups, memory: Groups) -> Tensor:
        """What a client minimizes."""
        return task.loss(params, batch)

    def local_gradient(self, grad: Tensors, params: Tensors, broadcast: Groups, memory: Groups) -> Tensors:
        """A correction of the gradient before the local optimizer takes its step."""
        return grad

    def client_update(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        """What a client uploads after training to `params`, and its new memory."""
        start = broadcast["params"]
        return {"params": {name: params[name] - start[name] for name in params}}, memory

    def upload_bytes(self, state: Groups) -> int | None:
        """What a client is expected to upload now, where that depends on what was learned; None: all of an update."""
        return None

    def client_weight(self, work: Work) -> Any:
        """How much a client counts in the mean of the updates."""
        return work.samples

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """The server's next state.

        `mean_update` is the weighted mean of what the clients uploaded; its group ``"cohort"`` has, under
        ``"clients"``, how many they were.
        """
        params, update = state["params"], mean_update["params"]
        return {**state, "params": {name: params[name] + update[name] for name in params}}

    def personal_models(self, broadcast: Groups, memory: Groups) -> list[Tensors]:
        """A client's own model, or several of which it uses the one that does best on its validation samples."""
        return [broadcast["params"]]

    @property
    def leaves_out_layers(self) -> bool:
        """Whether clients that would be late train only some layers; they know their share from ``memory["job"]``."""
        return self.partial_work is not None and self.partial_work.part == "layers"

    @property
    def personalizes(self) -> bool:
        """Whether clients have models of their own, which are evaluated beside the global one."""
        return self.fine_tuning is not None or type(self).personal_models is not Algorithm.personal_models

    def train(self, client: int, model: nn.Module, data: list[Tensors]) -> None:
        """For research that fits no other hook: train `model` in place, freely, on this client's batches.

        Overriding this replaces `local_loss`, `local_gradient` and the local optimizer. `data` are the batches of the
        round in order. It is run one client at a time.
        """
        raise NotImplementedError

    @property
    def trains_freely(self) -> bool:
        """Whether `train` is overridden."""
        return type(self).train is not Algorithm.train

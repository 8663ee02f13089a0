"""The interface of a federated algorithm: what a client computes and what the server does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedarena.metrics.metric import Predicts
from fedarena.models import Task, Tensors
from fedarena.train.jobs import Client
from fedarena.train.optimizers import LocalTraining
from fedarena.train.systems_hooks import SystemsHooks
from fedarena.train.tensors import Groups


@dataclass(frozen=True)
class Work:
    """What a client did in one round: numbers, or arrays with an entry per client."""

    samples: Any  # training samples it has
    steps: Any  # gradient steps it took
    processed_samples: Any  # samples it computed gradients on, over all steps
    start_loss: Any = None  # of the broadcast parameters on its training samples, if `Algorithm.needs_start_loss`


class Algorithm(SystemsHooks):
    """Federated averaging; every other method overrides what it does differently.

    The methods are pure functions of tensors. They never loop over clients and never touch devices, clocks or files, so
    that an engine may call them for one client or for many at once. Constructor arguments are keyword-only and are the
    hyperparameters: they become the options of the configuration.

    The server's `state`, what it broadcasts, what a client keeps (`client.state`) and its update are named groups of
    named tensors (`Groups`). Functions return new groups and leave their arguments unchanged. `client` also knows the
    job (`client.job`): which share of it to do, the round, and random numbers that are the same on every engine.
    """

    needs_start_loss = False  # whether `Work.start_loss` has to be computed
    keeps_sample_gradients = False  # whether a step needs the gradient of every sample by itself, which takes memory
    adds_sample_gradients = False  # whether the gradient of `local_loss` is the sum over samples, not their mean
    client_options: tuple[
        str, ...
    ] = ()  # of the constructor, numbers that may differ from job to job: see `JobContext`
    predicts: tuple[Predicts, ...] | None = None  # what tasks that it is for predict; None: anything
    expects_weights = False  # whether there is little to learn with a model that starts from scratch
    fine_tuning: LocalTraining | None = None  # how clients train their first personal model further before it is scored
    population: int  # clients that may take part
    horizon: int  # rounds that the run is meant to have, for what changes on the way

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Told once, before the run: how many clients there are, how they train, and how many rounds are meant."""
        self.population, self.local, self.horizon = population, local, horizon

    def notes(self, params: Tensors) -> list[str]:
        """What the user should know about this method with a model of these parameters."""
        return []

    def server_init(self, params: Tensors) -> Groups:
        """The server's state before the first round."""
        return {"params": params}

    def broadcast(self, state: Groups) -> Groups:
        """What every invited client downloads; ``"params"`` is where local training starts."""
        return {"params": state["params"]}

    def client_init(self, broadcast: Groups) -> Groups:
        """What a client keeps between its rounds, made when it takes part for the first time."""
        return {}

    def local_start(self, client: Client) -> Tensors:
        """What a client trains, as it is before the first step. It may hold more than one model, under other names."""
        return client.broadcast["params"]

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """What a client minimizes."""
        return task.loss(params, batch)

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """A correction of the gradient before the local optimizer takes its step."""
        return grad

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """What a client uploads after training to `params`, and what it keeps."""
        start = client.broadcast["params"]
        return {"params": {name: params[name] - start[name] for name in params}}, client.state

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

    def evaluation_params(self, state: Groups) -> Tensors:
        """The model that is scored and exported: what is broadcast, unless it is an average over rounds, say."""
        return self.broadcast(state)["params"]

    def trained_model(self, params: Tensors) -> Tensors:
        """The model that a client has after training to `params`, by which its hyperparameters are judged.

        A method that trains something else under other names (see `local_start`) says which it is.
        """
        return params

    @property
    def trains_a_model(self) -> bool:
        """Whether it is known what model a client has after training."""
        plain = type(self).local_start is Algorithm.local_start and not self.trains_freely
        return plain or type(self).trained_model is not Algorithm.trained_model

    def loss_of_samples(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The loss of samples of which each is taken by itself, if it is not `local_loss`."""
        return self.local_loss(task, params, batch, client)

    def personal_models(self, client: Client) -> list[Tensors]:
        """A client's own model, or several of which it uses the one that does best on its validation samples."""
        return [client.broadcast["params"]]

    @property
    def personalizes(self) -> bool:
        """Whether clients have models of their own, which are evaluated beside the global one."""
        return self.fine_tuning is not None or type(self).personal_models is not Algorithm.personal_models

    def train(self, client: int, model: nn.Module, data: list[Tensors]) -> None:
        """For research that fits no other hook: train `model` in place, freely, on this client's batches.

        It begins with what `local_start` gives. Overriding this replaces `local_loss`, `local_gradient` and the local
        optimizer. `data` are the batches of the round in order. It is run one client at a time.
        """
        raise NotImplementedError

    @property
    def trains_freely(self) -> bool:
        """Whether `train` is overridden."""
        return type(self).train is not Algorithm.train

"""What lanes compute in a round, as pure functions of tensors, of which programs are made.

Parameters are stacked ``[slots, trials, …]`` while clients train and ``[groups, trials, …]`` at the server: a slot is a
client in the cohort of a group of trials. The algorithm's own functions get hyperparameters in which trials differ as
tensors; all else that the trials of a block have in common is taken from one of them.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedarena.core.own import is_own
from fedarena.hpo.lanes.arrangement import Trial
from fedarena.hpo.lanes.products import SharedSamples
from fedarena.metrics.metric import WeightedLoss
from fedarena.metrics.totals import COUNT
from fedarena.models import Tensors
from fedarena.models.dropout import dropout_share
from fedarena.models.sealed_batch import SealedBatch
from fedarena.train import Algorithm, Client, Groups, LocalTraining, Work, map_groups
from fedarena.train.hardware import Hardware
from fedarena.train.jobs import context_of
from fedarena.train.optimizers import optimizer_step
from fedarena.train.own_code import corrected_gradient, passes_of
from fedarena.train.products import LayersAsProducts

Tree = dict[str, Any]  # of tensors
# Begin the names of what is known about jobs, and of the samples' columns, among the inputs of a round or a step.
JOB, COLUMN = "job:", "column:"
_LOOK_AT_BROADCAST = ("local_loss", "local_gradient")
_ASK_ABOUT_JOBS = ("local_start", *_LOOK_AT_BROADCAST, "client_update")


class LaneFunctions:
    """The functions for trials that are like one of them but for the numbers in which they differ."""

    def __init__(self, like: Trial, hardware: Hardware):
        self.task, self.algorithm, self.local = like.task, like.algorithm, like.local
        self._hardware = hardware
        self.looks_at_broadcast = self._overrides(_LOOK_AT_BROADCAST)
        self.asks_about_jobs = self._overrides(_ASK_ABOUT_JOBS)
        # Our own losses leave out what fills batches up to the same size; others might count it, and look first.
        self._seals_batches = is_own(type(self.algorithm).local_loss) or is_own(type(self.task).loss)

    def _overrides(self, hooks: tuple[str, ...]) -> bool:
        return any(getattr(type(self.algorithm), hook) is not getattr(Algorithm, hook) for hook in hooks)

    def name(self, hyper: Tree) -> Any:
        """What tells programs of these functions from others: all that they do not get as tensors."""
        fixed = {name: repr(value) for name, value in vars(self.algorithm).items() if name not in hyper["algorithm"]}
        fixed.pop("local", None)
        known = {*hyper["job"], "local.steps", "local.epochs"}  # which are counted before
        local = [value for name, value in vars(self.local).items() if f"local.{name}" not in known]
        return id(self.task), type(self.algorithm), repr(sorted(fixed.items())), repr(local)

    def of_trial(self, hyper: Tree) -> tuple[Algorithm, LocalTraining]:
        """The algorithm and the local training of a trial with these hyperparameters."""
        own: Any = {name.removeprefix("local."): t for name, t in hyper["job"].items() if name.startswith("local.")}
        algorithm = copy.copy(self.algorithm)
        algorithm.local = replace(self.local, **own)
        for name, t in hyper["algorithm"].items():
            setattr(algorithm, name, t)
        return algorithm, algorithm.local

    def broadcasts(self, state: Groups, hyper: Tree) -> Groups:
        """What clients of every trial download."""
        each: Groups = vmap(vmap(lambda state, hyper: self.of_trial(hyper)[0].broadcast(state)))(state, hyper)
        return each

    def models(self, state: Groups, hyper: Tree) -> Tensors:
        """The model of every trial that is scored."""
        each: Tensors = vmap(vmap(lambda state, hyper: self.of_trial(hyper)[0].evaluation_params(state)))(state, hyper)
        return each

    def begin(self, changed: Tree, given: Tree, batch: Tensors) -> Tree:
        """Clients download, and stand where they start."""
        broadcast = map_groups(lambda t: t[given["group_of"]], self.broadcasts(given["state"], given["hyper"]))
        start = broadcast["params"]
        if self._overrides(("local_start",)):

            def of_slot(broadcast: Groups, hyper: Tree, job: Tensors) -> Tensors:
                def of_trial(broadcast: Groups, hyper: Tree) -> Tensors:
                    return self.of_trial(hyper)[0].local_start(_client(broadcast, job, hyper))

                each: Tensors = vmap(of_trial)(broadcast, hyper)
                return each

            start = vmap(of_slot)(broadcast, given["slot_hyper"], jobs_in(batch))
        begun: Tree = {"params": start, "optimizer": map_groups(torch.zeros_like, changed["optimizer"])}
        return {**begun, "broadcast": broadcast} if "broadcast" in changed else begun

    def step(self, changed: Tree, given: Tree, batch: Tensors) -> Tree:
        """One gradient step of some trials at some slots."""
        self.task.module.train()

        def of_slot(
            slot: Tree, given: Tree, columns: Tensors, mask: Tensor, key: Tensor, number: Tensor, job: Tensors
        ) -> Tree:
            samples = {**self.task.batch(columns), "key": key, "mask": mask}

            def of_trial(slot: Tree, given: Tree) -> Tree:
                params, hyper = slot["params"], given["hyper"]
                algorithm, local = self.of_trial(hyper)
                client = _client(given.get("broadcast", {}), job, hyper, number)

                def loss_of(params: Tensors) -> Tensor:
                    dropped = dropout_share(hyper["job"].get("model.dropout"))
                    with self._hardware.rounding(), passes_of(algorithm), dropped:
                        handed_out: Any = SealedBatch(samples) if self._seals_batches else samples
                        return algorithm.local_loss(self.task, params, handed_out, client)

                grad, _ = grad_and_value(loss_of)(params)
                grad = corrected_gradient(algorithm, grad, params, client)
                scale = client.job.lr_scale
                params, state = optimizer_step(local, params, grad, slot["optimizer"], number, scale, hyper["job"])
                return {"params": params, "optimizer": state}

            each: Tree = vmap(of_trial)(slot, given)
            return each

        with ExitStack() as ways:
            # Attention in plain operations: what else torch has for it would be computed trial by trial.
            ways.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self._hardware.is_gpu:
                ways.enter_context(LayersAsProducts())
            ways.enter_context(SharedSamples())
            columns, jobs = _named(COLUMN, batch), jobs_in(batch)
            mask, keys, numbers = batch["mask"], batch["keys"], batch["numbers"]
            stepped: Tree = vmap(of_slot)(changed, given, columns, mask, keys, numbers, jobs)
        if "active" not in batch:
            return stepped
        active = batch["active"]
        return {
            "params": _where(active, stepped["params"], changed["params"]),
            "optimizer": {
                name: _where(active, tensors, changed["optimizer"][name])
                for name, tensors in stepped["optimizer"].items()
            },
        }

    def finish(self, state: Groups, given: Tree, batch: Tensors) -> Groups:
        """What clients upload, its weighted mean, and the server's step."""
        groups, trials = batch["total_weights"].shape
        broadcast = map_groups(lambda t: t[given["group_of"]], self.broadcasts(state, given["hyper"]))

        def of_slot(
            params: Tensors, hyper: Tree, broadcast: Groups, job: Tensors, samples: Tensor, *work: Any
        ) -> Groups:
            def of_trial(params: Tensors, hyper: Tree, broadcast: Groups, *work: Any) -> Groups:
                client = _client(broadcast, job, hyper)
                return self.of_trial(hyper)[0].client_update(params, client, Work(samples, *work))[0]

            each: Groups = vmap(of_trial)(params, hyper, broadcast, *work)
            return each

        work = (batch["samples"], batch["steps"], batch["processed_samples"])
        update: Groups = vmap(of_slot)(given["params"], given["slot_hyper"], broadcast, jobs_in(batch), *work)

        def mean(t: Tensor) -> Tensor:
            weighted = (t * _beside(batch["weights"], t)).flatten(1)
            total: Tensor = (given["membership"] @ weighted).view(groups, trials, *t.shape[2:])
            return total / _beside(batch["total_weights"], total)

        def server_step(state: Groups, update: Groups, hyper: Tree, clients: Tensor) -> Groups:
            told: Groups = {**update, "cohort": {"clients": clients}}
            round: Any = batch["round"]
            return self.of_trial(hyper)[0].server_step(state, told, round)

        def of_group(state: Groups, update: Groups, hyper: Tree, clients: Tensor) -> Groups:
            each: Groups = vmap(server_step, in_dims=(0, 0, 0, None))(state, update, hyper, clients)
            return each

        after: Groups = vmap(of_group)(state, map_groups(mean, update), given["hyper"], given["cohorts"])
        if "server_lr_scale" in batch:
            before, there = state["params"], after["params"]
            moved = {name: p + batch["server_lr_scale"] * (there[name] - p) for name, p in before.items()}
            after = {**after, "params": moved}
        return {group: {name: after[group][name] for name in tensors} for group, tensors in state.items()}

    def show(self, now: Tensors, given: Tree, batch: Tensors) -> Tensors:
        """The models that are scored, with all trials of all groups as rows."""
        return {name: p.flatten(0, 1) for name, p in self.models(given["state"], given["hyper"]).items()}

    def judge(self, best: Tree, given: Tree, batch: Tensors) -> Tree:
        """The loss of now and the best so far, with the models that had it if they are kept.

        Who has diverged stays as he is.
        """
        metric = self.task.metrics[0]
        state, count = given["sums"][metric.name], given["sums"][COUNT]
        loss = state[:, 0] / state[:, 1] if isinstance(metric, WeightedLoss) else state / count
        alive = best["alive"] & torch.isfinite(loss)
        better = alive & (loss < best["loss"])
        after: Tree = {
            "loss": torch.where(better, loss, best["loss"]),
            "now": torch.where(best["alive"], loss, torch.nan),
            "alive": alive,
        }
        return {**after, "params": _where(better, given["now"], best["params"])} if "params" in best else after


def jobs_in(inputs: Tensors) -> Tensors:
    """What is known about jobs, among the inputs of a round."""
    return _named(JOB, inputs)


def _named(beginning: str, inputs: Tensors) -> Tensors:
    return {name.removeprefix(beginning): t for name, t in inputs.items() if name.startswith(beginning)}


def _client(broadcast: Groups, job: Tensors, hyper: Tree, number: Tensor | None = None) -> Client:
    context = context_of(job)
    if job and number is not None:
        context = context.at_step(number)
    return Client(broadcast, {}, replace(context, hyperparameters=hyper["job"]))


def _beside(numbers: Tensor, t: Tensor) -> Tensor:
    """A number for each of the first dimensions of a tensor, in a form to multiply with."""
    return numbers.to(t.dtype).view(*numbers.shape, *[1] * (t.dim() - numbers.dim()))


def _where(chosen: Tensor, then: Tensors, otherwise: Tensors) -> Tensors:
    return {
        name: torch.where(chosen.view(*chosen.shape, *[1] * (t.dim() - chosen.dim())), then[name], t)
        for name, t in otherwise.items()
    }

"""A gradient step of many clients at once: what one client does, as a computation on rows of stacked tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.models.dropout import dropout_share
from fedarena.models.probes import counts_padding, has_own_layers, nearly_same
from fedarena.models.sealed_batch import SealedBatch, SealedBatchError
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.channels_last import ChannelsInnermost
from fedarena.train.hardware import Hardware
from fedarena.train.jobs import Client, Job, JobArrays, context_of, newcomer
from fedarena.train.lane_pool import Convolutions, Kernels
from fedarena.train.layers import LayerTracker
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step
from fedarena.train.own_code import corrected_gradient, has_own_code, passes_of
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import Batch, Changing, Given, StepPrograms
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.tensors import Groups, innermost_channels, map_groups, sent_to
from fedarena.train.vectorizing import NotingValues, RefusingCounts, noting_slow_operations, obstacle

# Hooks of an algorithm that are computed for many clients.
_IN_STEPS = ("local_loss", "local_gradient")
_AROUND_STEPS = ("local_start", "client_update")
_IN_SOME_ORDER = 3  # samples that lie in one order of memory only; a single one may be seen in several


class StackedSteps:
    """The steps of an algorithm's clients, with `convolutions` and, on a CPU, `kernels` as it is said here."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        hardware: Hardware,
        convolutions: Convolutions,
        kernels: Kernels,
    ):
        self.task, self.algorithm, self.local, self.hardware = task, algorithm, local, hardware
        self.convolutions, self._kernels = convolutions, kernels
        # Our own losses leave out what fills batches up to the same size; others might count it, and look first.
        self._seals_batches = is_own(type(algorithm).local_loss) or is_own(type(task).loss)
        self._own_hooks = {hook for hook in (*_IN_STEPS, *_AROUND_STEPS) if is_own(getattr(type(algorithm), hook))}
        self.exact_batches = counts_padding(task)
        self.innermost = True  # whether pictures and weights may have their channels innermost in memory

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model that are trained."""
        return {name: p.detach().clone() for name, p in trainable_parameters(self.task.module).items()}

    def find_obstacle(self, seed: int, notes: list[str]) -> str | None:
        """Why this model or algorithm cannot train many clients at once, found out by trying.

        The `notes` get what is slow.
        """
        if self.algorithm.trains_freely:
            return f"{type(self.algorithm).__name__} has a training loop of its own"
        broadcast = self.algorithm.broadcast(self.algorithm.server_init(self.initial_params()))
        states = map_groups(lambda t: torch.stack([t, t]), self.algorithm.client_init(broadcast))
        jobs = JobArrays.of([Job(0, 1), Job(1, 1)]).tensors(next(iter(broadcast["params"].values())), seed)
        given = Given(states, broadcast, jobs)
        trials = [given]
        if self._own_hooks:  # clients may have downloaded different versions, which are rows then
            trials.append(Given(states, map_groups(lambda t: torch.stack([t, t]), broadcast), jobs, shared=False))
        columns = {name: torch.stack([t, t]).to(self.hardware.device) for name, t in self.task.example(2).items()}
        self.task.module.train()
        self.innermost = self._takes_any_layout(given)
        with torch.no_grad(), LayerTracker(self.task.module) as tracker, noting_slow_operations(notes):
            hook = "local_start"
            try:
                two = torch.ones(2, device=self.hardware.device, dtype=self.hardware.dtype)
                mask = torch.ones(2, 2, device=self.hardware.device)
                batch = Batch(columns, mask, two.long())
                ones = np.ones(2, dtype=np.int64)
                losses = ones.astype(np.float64) if self.algorithm.needs_start_loss else None
                for now in trials:
                    hook = "local_start"
                    params = self.start_params(now, 2)
                    changing = Changing(params, optimizer_init(self.local, params), two, two)
                    hook = " or ".join(_IN_STEPS)
                    with RefusingCounts(), NotingValues() as values:
                        self.step(changing, now, batch)
                    # A program would always take the same way, and read what it is given by operations alone.
                    if now.shared and (values.asked or not self._own_hooks.isdisjoint(_IN_STEPS)):
                        StepPrograms(self.step).try_recording(changing, now, batch)
                    hook = "client_update"
                    self.updates(params, now, Work(ones, ones, ones, losses))
                if self.algorithm.personalizes and states:
                    hook = "personal_models"
                    example = newcomer(broadcast, {})
                    vmap(lambda kept: self.algorithm.personal_models(replace(example, state=kept)))(states)
            except BadInputError:
                raise
            except SealedBatchError:
                self.exact_batches = True
                return self.find_obstacle(seed, notes)
            except Exception as error:  # whatever a layer or a hook may raise when it is given many clients
                return obstacle(tracker.present if tracker.inside else self._what_raised(hook), error)
        return None

    def _takes_any_layout(self, given: Given) -> bool:
        """Whether a client's step is the same where its pictures and weights have their channels innermost in memory.

        Somebody's own code may look at memory: `view` as another shape is possible in the usual layout alone.
        """
        if not (has_own_layers(self.task.module) or has_own_code(self.task) or has_own_code(self.algorithm)):
            return True
        drawn = self.task.drawn_example(_IN_SOME_ORDER, torch.Generator().manual_seed(0))
        mask = torch.ones(1, _IN_SOME_ORDER, dtype=torch.bool, device=self.hardware.device)
        one, ones = torch.ones(1, dtype=self.hardware.dtype, device=self.hardware.device), np.ones(1)
        work = Work(ones, ones, ones, ones if self.algorithm.needs_start_loss else None)

        def trained(layout: Callable[[Tensor], Tensor]) -> list[Tensor]:
            client = given.only(0)
            params = {name: layout(p.clone()) for name, p in self.start_params(client, 1).items()}
            columns = {name: layout(t.unsqueeze(0).to(self.hardware.device)) for name, t in drawn.items()}
            changing = Changing(params, optimizer_init(self.local, params), one, one)
            after = self._in_lanes(changing, client, Batch(columns, mask, one.long()))
            self.updates(after.params, client, work)
            return after.tensors()

        with torch.no_grad(), noting_slow_operations([]):
            try:
                usual = trained(torch.clone)
            except Exception:  # what is not possible in any layout, others will tell
                return True
            try:
                return all(map(nearly_same, usual, trained(innermost_channels)))
            except Exception:  # whatever torch says, or whoever looks at memory
                return False

    def _what_raised(self, hook: str) -> str:
        """A hook of the algorithm; or the task's loss, which steps call, too, where that alone is somebody's own."""
        kind, task = type(self.algorithm), type(self.task)
        has_own_loss = is_own(task.loss) or is_own(task.losses) or is_own(task.weights)
        if hook == " or ".join(_IN_STEPS) and has_own_loss and self._own_hooks.isdisjoint(_IN_STEPS):
            return f"the loss of the task {task.__name__}"
        return f"{hook} of {kind.__name__}"

    def step(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        """One gradient step in every lane."""
        if not self.hardware.is_gpu:
            return self._in_lanes(changing, given, replace(batch, columns=self._in_layout(batch.columns)))
        with LayersAsProducts(self.convolutions == "kernels"):
            return self._in_lanes(changing, given, batch)

    def _in_lanes(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        natively = self._kernels == "compiled"
        recurrent = RecurrentLayers(of_samples=self.algorithm.keeps_sample_gradients, natively=natively)
        # Attention in plain operations: what else torch has for it would be computed client by client.
        with recurrent, sdpa_kernel(SDPBackend.MATH):
            params, state, losses = vmap(self._client_step, in_dims=(*[0] * 8, None if given.shared else 0))(
                changing.params,
                changing.optimizer,
                changing.numbers,
                batch.columns,
                batch.mask,
                batch.keys,
                given.states,
                given.jobs,
                given.broadcast,
            )
        loss_sums = changing.loss_sums + losses * batch.mask.sum(1)
        return Changing(params, state, changing.numbers + 1, loss_sums)

    def step_alone(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        """The same for a single lane, without `vmap`: libraries convolve with one set of weights better than we do.

        On a GPU, parameters may be changed in place.
        """

        def first(groups: Groups) -> Groups:
            return map_groups(lambda t: t[0], groups)

        in_layout = ChannelsInnermost() if self.hardware.is_gpu and self.innermost else nullcontext()
        with in_layout:
            params, state, loss = self._client_step(
                {name: p[0] for name, p in changing.params.items()},
                first(changing.optimizer),
                changing.numbers[0],
                {name: values[0] for name, values in self._in_layout(batch.columns).items()},
                batch.mask[0],
                batch.keys[0],
                first(given.states),
                {name: t[0] for name, t in given.jobs.items()},
                given.broadcast if given.shared else first(given.broadcast),
                alone=True,
            )
        return Changing(
            {name: p.unsqueeze(0) for name, p in params.items()},
            map_groups(lambda t: t.unsqueeze(0), state),
            changing.numbers + 1,
            changing.loss_sums + loss * batch.mask.sum(1),
        )

    def _in_layout(self, columns: Tensors) -> Tensors:
        """Pictures with their channels innermost, unless they must lie as usual, or that comes later by itself."""
        augmentation = self.task.augmentation
        later = self.hardware.is_gpu and augmentation is not None and augmentation.puts_channels_innermost
        if later or not self.innermost:
            return columns
        return {name: innermost_channels(values) for name, values in columns.items()}

    def _client_step(
        self,
        params: Tensors,
        state: Groups,
        number: Tensor,
        columns: Tensors,
        mask: Tensor,
        key: Tensor,
        kept: Groups,
        job: Tensors,
        broadcast: Groups,
        alone: bool = False,
    ) -> tuple[Tensors, Groups, Tensor]:
        """One gradient step of one client: its parameters, the state of its optimizer, and the loss.

        If it is `alone`, and not one of many in `vmap`, torch has shorter ways.
        """
        known = context_of(job)
        client = Client(broadcast, kept, known.at_step(number) if job else known)  # nobody asks if nothing is known
        loss_of = self.loss_of(columns, mask, key, client)
        grad, loss = (_gradient_and_value if alone else grad_and_value)(loss_of)(params)
        grad = corrected_gradient(self.algorithm, grad, params, client)
        scale, own = client.job.lr_scale, client.job.hyperparameters
        in_place = alone and self.hardware.is_gpu
        params, state = optimizer_step(self.local, params, grad, state, number, scale, own, alone, in_place)
        return params, state, loss

    def loss_of(self, columns: Tensors, mask: Tensor, key: Tensor, client: Client) -> Callable[[Tensors], Tensor]:
        """What a client minimizes in a step, as a function of its parameters."""
        samples = {**self.task.batch(columns), "key": key}
        if not self.exact_batches:
            samples["mask"] = mask

        def loss_of(params: Tensors) -> Tensor:
            dropped = dropout_share(client.job.hyperparameters.get("model.dropout"))
            with self.hardware.rounding(), passes_of(self.algorithm), dropped:
                return self.algorithm.local_loss(self.task, params, self._handed_out(samples), client)

        return loss_of

    def _handed_out(self, samples: Tensors) -> Any:
        """The batch as an algorithm gets it: sealed, if it is padded and the loss is somebody's own."""
        return SealedBatch(samples) if self._seals_batches and not self.exact_batches else samples

    def start_params(self, given: Given, clients: int) -> Tensors:
        """What so many clients start from; to be read only."""

        def local_start(state: Groups, job: Tensors, broadcast: Groups) -> Tensors:
            return self.algorithm.local_start(Client(broadcast, state, context_of(job)))

        if given.shared and type(self.algorithm).local_start is Algorithm.local_start:
            start = local_start({}, {name: t[0] for name, t in given.jobs.items()}, given.broadcast)
            return {name: p.expand(clients, *p.shape) for name, p in start.items()}
        rows: Tensors = vmap(local_start, in_dims=(0, 0, None if given.shared else 0))(
            given.states, given.jobs, given.broadcast
        )
        return rows

    def updates(self, params: Tensors, given: Given, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and what they keep."""
        if given.shared and type(self.algorithm).client_update is Algorithm.client_update:
            # A difference of tensors, which needs no `vmap` for all clients at once: that would take longer.
            return self.algorithm.client_update(params, Client(given.broadcast, given.states, context_of({})), work)

        def client_update(
            params: Tensors, state: Groups, job: Tensors, broadcast: Groups, *amounts: Tensor
        ) -> tuple[Groups, Groups]:
            client = Client(broadcast, state, context_of(job))
            return self.algorithm.client_update(params, client, Work(*amounts))

        known = (amount for amount in vars(work).values() if amount is not None)
        amounts = [sent_to(self.hardware.device, amount).to(self.hardware.dtype) for amount in known]
        in_dims = (0, 0, 0, None if given.shared else 0, *[0] * len(amounts))
        result: tuple[Groups, Groups] = vmap(client_update, in_dims=in_dims)(
            params, given.states, given.jobs, given.broadcast, *amounts
        )
        return result


def _gradient_and_value(function: Callable[[Tensors], Tensor]) -> Callable[[Tensors], tuple[Tensors, Tensor]]:
    """What torch.func's function of this name gives, by layers' own gradients, which need not have gradients again."""

    def both(params: Tensors) -> tuple[Tensors, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        with torch.enable_grad():
            loss = function(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True)), loss.detach()

    return both

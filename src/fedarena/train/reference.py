"""The reference engine: one client at a time, nothing clever. Faster engines are tested against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedarena.core import streams
from fedarena.core.seeding import all_seeded
from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.models.copying import copy_of
from fedarena.models.dropout import dropout_share
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.batches import batch_indices, dropout_keys
from fedarena.train.engine import ENGINES, ClientData, ClientScores, JobResults, OtherTest, Part, steps_in_shares
from fedarena.train.evaluation import evaluate_clients
from fedarena.train.hardware import AnyDeviceName, DtypeName, Hardware, Precision
from fedarena.train.jobs import Client, IntArray, Job, JobArrays, context_of
from fedarena.train.memories import refusing_memories
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step, training_of
from fedarena.train.own_code import corrected_gradient, passes_of
from fedarena.train.own_hooks import check_own_hooks
from fedarena.train.personal import PersonalEvaluation
from fedarena.train.shards import Shard, T
from fedarena.train.tensors import Groups, column_tensor, map_groups, of_algorithm
from fedarena.train.validation import Validated, Validation

_IN_CLIENT_STATE = "what a client is to keep between its rounds belongs into its state (client_init, client_update)"


@ENGINES.register("reference")
class ReferenceEngine:
    """Trains the clients of a cohort one after the other."""

    crew: Any = None  # real devices, where these train instead; see `fedarena.transforms.train_and_collect`

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        data: ClientData,
        seed: int,
        *,
        device: AnyDeviceName = "auto",
        threads: int = 1,
        dtype: DtypeName = "float32",
        precision: Precision = "full",
    ):
        self.hardware = Hardware(device, threads, dtype, precision)
        self.task, self.algorithm, self.local, self.data, self.seed = task, algorithm, local, data, seed
        self.notes: list[str] = []
        self.choices: dict[str, Any] = self.hardware.choices
        task.module.to(self.hardware.device, self.hardware.dtype).train()
        check_own_hooks(algorithm, task)
        self._personal = PersonalEvaluation(self)
        self._validation: Validation | None = None
        self.before_step: Callable[[], None] | None = None  # called before every local step; it may raise to end a job

    def validate_on(self, part: Part, compare: bool) -> None:
        """From now on, trained models are scored on their clients' samples of a part."""
        self._validation = Validation(self.task, self.data, part, compare, stacked=False)

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> ReferenceEngine:
        """An engine of the same kind for another algorithm, way of training, and data."""
        return ReferenceEngine(self.task, algorithm, local, data, seed, **self.hardware.options)

    def place(self, groups: Groups) -> Groups:
        """The same groups on the device."""
        return self.hardware.place(groups)

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model that are trained."""
        return {name: p.detach().clone() for name, p in trainable_parameters(self.task.module).items()}

    def divide(self, jobs: JobArrays, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]) -> list[Shard]:
        """All jobs in one shard, in their order."""
        return [Shard(jobs, broadcasts, states, self.local.batch_size)] if len(jobs) else []

    def execute(self, shards: Sequence[Shard], work: Callable[[Shard], T]) -> Iterator[T]:
        """What `work` makes of every shard."""
        return map(work, shards)

    def train(self, shard: Shard) -> Iterator[JobResults]:
        """Trains the clients of a shard one after the other; results come in the order of the jobs."""
        self.hardware.set_up()
        self.task.module.train()
        for position in range(len(shard.jobs)):
            yield self._train_job(shard.jobs.take([position]), shard)

    def _train_job(self, jobs: JobArrays, shard: Shard) -> JobResults:
        job = jobs.job(0)
        broadcast, kept = shard.broadcasts[job.version], of_algorithm(shard.states.get(job.client))
        state = self.algorithm.client_init(broadcast) if kept is None else self.place(kept)
        rows = jobs.tensors(next(iter(broadcast["params"].values())), self.seed)
        client = Client(broadcast, state, context_of({name: t[0] for name, t in rows.items()}))
        samples, batches = self._batches(job)
        with all_seeded(streams.torch_seed(self.seed, "local", job.round, job.client)):
            if self.algorithm.trains_freely:
                params, loss = self._train_freely(job.client, batches, client)
            else:
                params, loss = self._train(job, batches, client)
        processed = sum(len(batch["y"]) for batch in batches)
        work = Work(samples, len(batches), processed, self._start_loss(job.holder, broadcast))
        with torch.no_grad():
            update, state = self.algorithm.client_update(params, client, work)
        amounts = {name: None if value is None else np.array([value]) for name, value in vars(work).items()}
        return JobResults(
            jobs=jobs,
            update=map_groups(lambda t: t.unsqueeze(0), update),
            client_states=map_groups(lambda t: t.unsqueeze(0), state),
            work=Work(**amounts),
            losses=np.array([loss]),
            validated=self._validated(params, broadcast["params"], job.client),
        )

    def _validated(self, params: Tensors, downloaded: Tensors, client: int) -> Validated | None:
        if self._validation is None:
            return None
        before = {name: p.unsqueeze(0) for name, p in downloaded.items()} if self._validation.compares else None
        trained = {name: p.detach().unsqueeze(0) for name, p in self.algorithm.trained_model(params).items()}
        return self._validation.of(trained, before, np.array([client]))

    def _start_loss(self, holder: int, broadcast: Groups) -> torch.Tensor | None:
        if not self.algorithm.needs_start_loss:
            return None
        scores = self.evaluate(broadcast["params"], np.array([holder]), "train")
        self.task.module.train()
        return torch.tensor(scores.means("loss")[0])

    def _batches(self, job: Job) -> tuple[int, list[Tensors]]:
        columns = self.data.samples(np.array([job.holder]), "train").columns
        samples = len(next(iter(columns.values())))
        share, local = np.array([job.share]), training_of(self.local, job.hyperparameters)
        steps = int(steps_in_shares(share, np.array([samples]), self.algorithm, local)[0])
        indices = batch_indices(samples, local, self.seed, job.round, job.client, steps)
        device = self.hardware.device
        on_device = {name: column_tensor(v).to(device) for name, v in columns.items()}
        pick = ({n: values[torch.from_numpy(rows).to(device)] for n, values in on_device.items()} for rows in indices)
        return samples, [self.task.batch(batch) for batch in pick]

    def _train(self, job: Job, batches: list[Tensors], client: Client) -> tuple[Tensors, float]:
        params = self.algorithm.local_start(client)
        own = client.job.hyperparameters
        optimizer_state = optimizer_init(self.local, params, own)
        losses = []
        for number, batch in enumerate(batches, start=1):
            if self.before_step is not None:
                self.before_step()
            leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
            key = torch.tensor(dropout_keys(self.seed, job.round, job.client, number), device=self.hardware.device)
            now = replace(client, job=client.job.at_step(torch.full_like(client.job.step, number)))
            dropped = dropout_share(own.get("model.dropout"))
            with torch.enable_grad(), self.hardware.rounding(), passes_of(self.algorithm), dropped:
                loss = self.algorithm.local_loss(self.task, leaves, {**batch, "key": key}, now)
            grad = dict(
                zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True)
            )
            grad = corrected_gradient(self.algorithm, grad, params, now)
            params, optimizer_state = optimizer_step(
                self.local, params, grad, optimizer_state, number, client.job.lr_scale, own
            )
            losses.append(loss.detach())
        return params, _mean_loss(losses, batches)

    def _train_freely(self, index: int, batches: list[Tensors], client: Client) -> tuple[Tensors, float]:
        model, start = copy_of(self.task.module), self.algorithm.local_start(client)
        whole = {**client.broadcast["params"], **start}
        model.load_state_dict(whole, strict=False)
        with torch.no_grad():
            losses = [self.task.loss(whole, batch) for batch in batches]
        with torch.enable_grad(), refusing_memories(self.algorithm, "train", _IN_CLIENT_STATE):
            self.algorithm.train(index, model, batches)
        trained = {name: p.detach() for name, p in model.named_parameters() if name in start}
        return trained, _mean_loss(losses, batches)

    def evaluate(self, params: Tensors, clients: IntArray, part: Part, other: OtherTest | None = None) -> ClientScores:
        """Scores one model on these clients."""
        if self.crew is not None and self.crew.measures(other):
            scores: ClientScores = self.crew.evaluate(params, clients, part)
            return scores
        self.hardware.set_up()
        self.task.module.eval()
        data, metrics = (self.data, None) if other is None else (other.data, other.metrics)
        return evaluate_clients(self.task, params, data, clients, part, metrics=metrics)

    def evaluate_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Scores every one of these clients with its own model."""
        self.hardware.set_up()
        return self._personal.evaluate(broadcast, states, clients, part, round)

    def personal_model(
        self, broadcast: Groups, states: Mapping[int, Groups], client: int, part: Part, round: int
    ) -> Tensors:
        """The model that a client is scored with when it is scored with its own."""
        self.hardware.set_up()
        return self._personal.own_model(broadcast, states, client, part, round)


def _mean_loss(losses: list[torch.Tensor], batches: list[Tensors]) -> float:
    if not losses:
        return float("nan")
    sizes = torch.tensor([len(batch["y"]) for batch in batches], dtype=torch.float64)
    return float((torch.stack(losses).cpu().double() * sizes).sum() / sizes.sum())

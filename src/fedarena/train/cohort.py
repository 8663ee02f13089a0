"""The cohort engine: many clients train at once, as rows of stacked tensors.

Parameters are stacked ``[lanes, …]`` and one call takes a gradient step in every lane (`torch.func.vmap`). Which client
is in which lane when is the business of the `Schedule`. Results equal those of the reference engine up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.models.dropout import KeyedDropout
from fedarena.train import convolution_kernels
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.apart import ApartTraining
from fedarena.train.beside import Beside, LongTraining, divide_by_length
from fedarena.train.choosing import STEPS_TRIED, ExampleClients, faster_plan
from fedarena.train.clients_at_work import ClientsAtWork
from fedarena.train.drawing import BatchPlan, batch_width, drawn
from fedarena.train.engine import ENGINES, ClientData, ClientScores, JobResults, OtherTest, Part, steps_in_shares
from fedarena.train.evaluation import OwnTask, begin_evaluation, evaluate_clients
from fedarena.train.execution import SMALL_OPERATIONS, Workers, available_cores, without_gradients
from fedarena.train.hardware import DeviceName, DtypeName, Hardware, Precision
from fedarena.train.jobs import Client, IntArray, JobArrays
from fedarena.train.kept_samples import KeptSamples
from fedarena.train.lane_pool import Convolutions, Kernels, LanePool, Plan
from fedarena.train.lanes import LaneTraining
from fedarena.train.native import why_absent
from fedarena.train.optimizers import LocalTraining, training_of
from fedarena.train.own_code import has_own_code
from fedarena.train.own_hooks import check_own_hooks
from fedarena.train.personal import PersonalEvaluation, find_scoring_obstacle
from fedarena.train.placing import Division, PlannedWork, rounded_width
from fedarena.train.product_rows import written_down
from fedarena.train.program import Given, StepPrograms
from fedarena.train.reference import ReferenceEngine
from fedarena.train.resident import HostSamples, ResidentSamples, SampleSource
from fedarena.train.schedule import deal_out, make_schedule, order_of_starts
from fedarena.train.shards import Shard, T
from fedarena.train.sizes import output_bytes
from fedarena.train.stacked_steps import StackedSteps
from fedarena.train.suitable import Suitable
from fedarena.train.tensors import Groups
from fedarena.train.unwritten_training import Dense, Unwritten
from fedarena.train.validation import Validated, Validation

# Clients are dealt out to workers in shards. Large ones cost less per client; a multiple of four of them keeps two or
# four workers equally busy.
_CLIENTS_PER_LANE = 4
_SHARDS_FOR_WORKERS = 16
_SHARDS_MULTIPLE = 4
_FEW_DEVIATE = 2  # by how many deviations few of the cohorts in which everybody is by chance are larger than usual
# Of the GPU's memory that is free at the beginning. Of the first, samples of a cohort may take a power of two of bytes.
_GPU_SHARE_FOR_SAMPLES = 0.4
_GPU_SHARE_FOR_EVALUATED_SAMPLES = 0.1
# What of an algorithm may look at a job. To keep what nobody asks about with every lane would cost small models much.
_HOOKS = ("local_start", "local_loss", "local_gradient", "client_update")
# Samples evaluated at once. Constants, because their number is part of the last bits of scores.
_EVALUATED_AT_ONCE = 64
_GPU_EVALUATED_AT_ONCE = 4096
_GPU_EVALUATION_BYTES = 1 << 32  # of all outputs; most of them do not exist at the same time

Cohorts = Literal["steady", "varying"]


@ENGINES.register("cohort")
class CohortEngine:
    """Trains many clients at once: `lanes` in one computation (by default, as suits the model and the device).

    On a CPU, `workers` cores (all, if not given) do so at the same time. On a GPU the training step is captured as a
    graph and, with `compile`, compiled before, which takes a while once and is worth it for all but short runs.
    `precision` rounds the inputs of matrix products: not at all, to tf32 on a GPU, or to bf16. With ``dense=factored``
    large dense layers of clients are not written down, where that is possible and pays. `cohorts` of many sizes
    (``varying``, by default where the selector draws such) share few programs on a GPU. There `convolutions` are
    products of patches, or kernels of our own that need none; and clients with far more to do than others may train
    `beside` them, or everybody `apart` (see `plan`). A cohort with more than `sample_bytes` trains in parts there.
    On a CPU, `kernels` for products and LSTM layers are our own, ``compiled`` on this machine by its C compiler, or a
    ``library``'s; by default our own on processors on which they are known to be faster.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        data: ClientData,
        seed: int,
        *,
        device: DeviceName = "auto",
        plan: Plan | None = None,
        lanes: int | None = None,
        workers: int | None = None,
        threads: int = 1,
        dtype: DtypeName = "float32",
        precision: Precision = "full",
        compile: bool = True,
        dense: Dense | None = None,
        convolutions: Convolutions | None = None,
        cohorts: Cohorts | None = None,
        kernels: Kernels | None = None,
        sample_bytes: int | None = None,
    ):
        for name, amount in (("lanes", lanes), ("workers", workers)):
            if amount is not None and not 1 <= amount <= 65536:
                raise BadInputError(f"engine.{name} must be from 1 to 65536, not {amount}")
        if sample_bytes is not None and sample_bytes < 1:
            raise BadInputError(f"engine.sample_bytes must be 1 or more, not {sample_bytes}")
        self.task, self.algorithm, self.local, self.data, self.seed = task, algorithm, local, data, seed
        self.hardware = Hardware(device, threads, dtype, precision)
        if convolutions == "kernels" and not (self.hardware.is_gpu and convolution_kernels.available()):
            raise BadInputError("engine.convolutions kernels needs a GPU and Triton, which torch for GPUs comes with")
        if kernels == "compiled":
            self._check_kernels()
        self.device, self.compile = self.hardware.device, compile and self.hardware.is_gpu
        self.notes: list[str] = []
        task.module.to(self.device, self.hardware.dtype).train()
        self.training_samples: SampleSource = HostSamples(data)
        self.workers = workers if workers is not None else available_cores()
        self._evaluation_batch_size = _EVALUATED_AT_ONCE
        self._evaluated_samples: KeptSamples | None = None
        self._evaluating: OwnTask | None = None
        if self.hardware.is_gpu:
            self.workers = 1
            fitting = _GPU_EVALUATION_BYTES // output_bytes(task, 1)
            self._evaluation_batch_size = max(1, min(_GPU_EVALUATED_AT_ONCE, fitting))
            free_bytes = self.hardware.free_bytes()
            limit_bytes = int(_GPU_SHARE_FOR_SAMPLES * free_bytes)
            # In which parts a cohort trains is part of the last bits, so it must not depend on what is free by chance.
            sample_bytes = sample_bytes or 1 << max(limit_bytes.bit_length() - 1, 0)
            self.training_samples = ResidentSamples(data, self.device, limit_bytes, sample_bytes)
            limit_bytes = int(_GPU_SHARE_FOR_EVALUATED_SAMPLES * free_bytes)
            self._evaluated_samples = KeptSamples(data, self.device, limit_bytes)
        self._sample_bytes, self._threads = sample_bytes, Workers(self.workers)
        self._suitable = Suitable(task, algorithm, local, self.hardware)
        self.lanes, self.plan = self._suitable.lanes_and_plan(lanes, plan)
        # Runs from before there was a choice have lanes alone.
        before: Convolutions | None = "products" if lanes is not None else None
        self.convolutions = convolutions or before or self._suitable.convolutions(self.plan)
        self.kernels: Kernels = kernels or ("library" if lanes is not None else self._suitable.kernels())
        self.usual_width: int | None = None
        self._most_at_once: int | None = None  # of a cohort's clients
        self._cohorts: Cohorts | None = "steady" if cohorts is None and lanes is not None else cohorts
        self.asks_about_jobs = any(getattr(type(algorithm), hook) is not getattr(Algorithm, hook) for hook in _HOOKS)
        drops = any(isinstance(layer, KeyedDropout) for layer in task.module.modules())
        changes_samples = task.augmentation is not None or type(task).model_inputs is not Task.model_inputs
        self.draws = drops or changes_samples or has_own_code(task) or has_own_code(algorithm)
        check_own_hooks(algorithm, task)
        self._steps = StackedSteps(task, algorithm, local, self.hardware, self.convolutions, self.kernels)
        self._pool, self._beside = LanePool(), Beside(self.device)
        self._fallback: ReferenceEngine | None = None
        obstacle = self._steps.find_obstacle(seed, self.notes)
        self.exact_batches, self.innermost = self._steps.exact_batches, self._steps.innermost
        if obstacle is not None:
            self._fallback = ReferenceEngine(task, algorithm, local, data, seed, **self.hardware.options)
            self.notes.append(f"Clients train one at a time, because {obstacle}")
        elif lanes is None and kernels is None and self.kernels == "library":
            self.notes += self._suitable.kernel_notes()
        if obstacle is None and lanes is None and plan is None and self._suitable.leaves_plan_open():
            faster = faster_plan(self.plan, self.compile, self._tried)
            self.lanes, self.plan = self._suitable.lanes_and_plan(None, faster)
            self.convolutions = convolutions or self._suitable.convolutions(self.plan)
            self._steps.convolutions = self.convolutions
        step = self._steps.step_alone if self.plan == "apart" else self._steps.step
        self.programs = StepPrograms(step, natively=self.kernels == "compiled")
        self.choices: dict[str, Any] = {**self.hardware.choices, "lanes": self.lanes}
        if self.hardware.is_gpu:
            self.choices |= {"plan": self.plan, "sample_bytes": self._sample_bytes}
        if self.convolutions == "kernels":
            self.choices["convolutions"] = self.convolutions
        if self.kernels == "compiled" and obstacle is None:
            self.choices["kernels"] = self.kernels
        # Runs from before there was a choice have lanes alone.
        without = obstacle is not None or (dense is None and lanes is not None)
        self._unwritten = Unwritten(self, "written" if without else dense)
        if self._unwritten.layers:
            self.choices["dense"] = "factored"
        scores_many = obstacle is None
        if scores_many and algorithm.personalizes:
            unscored = find_scoring_obstacle(task, self.initial_params())
            if unscored is not None:
                self.notes.append(f"Personal models are scored one at a time, because {unscored}")
                scores_many = False
        self._personal = PersonalEvaluation(self, self.lanes if scores_many else None, self.workers)
        self._validation: Validation | None = None
        self._other_work: list[Callable[[], None]] = []
        self._beside_workers: list[Callable[[], None]] = []
        self._planned_ahead: PlannedWork | None = None

    def _check_kernels(self) -> None:
        """Refuses kernels of our own where they cannot be used."""
        hardware = self.hardware
        if hardware.is_gpu or hardware.dtype != torch.float32 or hardware.precision != "full":
            raise BadInputError(
                "engine.kernels compiled is for CPUs with engine.dtype float32 and engine.precision full"
            )
        reason = why_absent()
        if reason is not None:
            raise BadInputError(f"engine.kernels compiled is not possible on this machine: {reason}")

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> CohortEngine:
        """An engine of the same kind for another algorithm, way of training, and data."""
        options = {
            "plan": self.plan,
            "lanes": self.lanes,
            "workers": self.workers,
            "compile": self.compile,
            "dense": self._unwritten.choice,
            "convolutions": self.convolutions,
            "kernels": self.kernels,
            "cohorts": self._cohorts,
            "sample_bytes": self._sample_bytes,
            **self.hardware.options,
        }
        return CohortEngine(self.task, algorithm, local, data, seed, **options)

    def validate_on(self, part: Part, compare: bool) -> None:
        """From now on, trained models are scored on their clients' samples of a part."""
        if self._fallback is not None:
            self._fallback.validate_on(part, compare)
        self._validation = Validation(self.task, self.data, part, compare, stacked=True)

    def expect_varying_cohorts(self, usual: int) -> None:
        """Cohorts are to be of many sizes around the usual one, and not every size is worth a program on a GPU.

        All are filled up to the same width then, and the few larger ones train in parts.
        """
        if not self.hardware.is_gpu or self._cohorts == "steady":
            return
        self._cohorts = self.choices["cohorts"] = "varying"
        self._most_at_once = rounded_width(math.floor(usual + _FEW_DEVIATE * math.sqrt(usual)))
        self.usual_width = min(self.lanes, self._most_at_once)

    @property
    def computes_beside_host(self) -> bool:
        """Whether training goes on by itself, on a GPU, when it has begun."""
        return self.hardware.is_gpu and self._fallback is None

    def do_meanwhile(self, other_work: Callable[[], None]) -> None:
        """Has `other_work` done in every round while a GPU or several workers are busy and nobody could go on."""
        (self._other_work if self.hardware.is_gpu else self._beside_workers).append(other_work)

    def meanwhile(self) -> None:
        """Does what there is to do while the device is busy."""
        self._beside.tell_all()
        for work in self._other_work:
            work()

    def place(self, groups: Groups) -> Groups:
        """The same groups on the device."""
        return self.hardware.place(groups)

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model that are trained."""
        return self._steps.initial_params()

    def divide(self, jobs: JobArrays, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]) -> list[Shard]:
        """Clients that train together, those with most to do first. It does not depend on the number of workers."""
        if self._fallback is not None:
            return self._fallback.divide(jobs, broadcasts, states)
        shards: list[Shard] = []
        for some in self._trainable_together(jobs):
            ahead, self._planned_ahead = self._planned_ahead, None
            if ahead is not None and ahead.is_about(some):
                work = ahead.of_jobs(some)
            else:  # done for all at once, and not by the workers, who would wait for each other's Python
                work = self._plan_work(some, self._start_losses(some, broadcasts))
            width = work.batches.places
            for positions in self._shards(work.steps):
                prepared = work.of(positions)
                shards.append(Shard(prepared.jobs, broadcasts, states, width, prepared.start_losses, prepared))
        return shards

    def plan_ahead(self, jobs: JobArrays) -> None:
        """Draws batches of jobs that are likely to be next, and has their samples read if that takes long."""
        if len(jobs) and self._fallback is None and not self.algorithm.needs_start_loss:
            work = self._plan_work(jobs, None)
            first, *others = self._fitting(work)
            if self.plan == "apart":
                order = order_of_starts(make_schedule(first.steps, self.lanes))
                self.training_samples.expect(first.jobs.holders[order])
            elif not others and len(self._shards(work.steps)) == 1:
                work = replace(work, division=self._placed(self._divided(work)))
            self._planned_ahead = work

    def _divided(self, work: PlannedWork) -> Division:
        """Who of these clients trains how."""
        groups: list[IntArray] = []
        others: PlannedWork | None = work
        if self.plan == "beside":
            # Without large layers, everybody has a lane.
            at_once = len(work.steps) if self._unwritten.layers else self.lanes
            groups, rest = divide_by_length(work.steps, at_once, self.lanes)
            others = work.of(rest) if len(rest) else None
        long = work.of(np.concatenate(groups)) if groups else None
        parts = [work.of(group) for group in groups]
        if others is None or self._validation is not None:
            return Division(others, [], long, parts)
        return Division(*self._unwritten.divide(others), long, parts)

    def _placed(self, division: Division) -> Division:
        """The same clients with their places in lanes."""
        written = division.written
        if written is not None:
            written = replace(written, placed=LaneTraining.place(self, written))
        unwritten = [(layers, replace(some, placed=self._unwritten.place(some))) for layers, some in division.unwritten]
        groups = [replace(group, placed=LongTraining.place(self, group)) for group in division.groups]
        return Division(written, unwritten, division.long, groups)

    def _plan_work(
        self, jobs: JobArrays, start_losses: npt.NDArray[np.float64] | None, width: int | None = None
    ) -> PlannedWork:
        """What clients are to do: how many steps, on which batches, of so many places if others have decided that."""
        samples = self.data.counts(jobs.clients, "train")
        local = self._training_of(jobs)
        if width is None:
            width = batch_width(int(np.max(local.batch_size)), int(samples.max(initial=1)))
        steps = steps_in_shares(jobs.shares, samples, self.algorithm, local)
        batch_plan = BatchPlan(jobs.clients, samples, steps, local.batch_size, self.seed, jobs.rounds, width)
        return PlannedWork(jobs, samples, steps, drawn(batch_plan, self.device), start_losses)

    def _training_of(self, jobs: JobArrays) -> LocalTraining:
        """How these jobs train; where they differ in the size of batches, it is an array."""
        return training_of(self.local, jobs.hyperparameters)

    def _start_losses(self, jobs: JobArrays, broadcasts: Mapping[int, Groups]) -> npt.NDArray[np.float64] | None:
        """Of what these clients downloaded, which is the same."""
        if not self.algorithm.needs_start_loss:
            return None
        return self.evaluate(broadcasts[int(jobs.versions[0])]["params"], jobs.holders, "train").means("loss")

    def _trainable_together(self, jobs: JobArrays) -> list[JobArrays]:
        """Jobs from different starts train together, unless their first model has to be scored."""
        if not self.algorithm.needs_start_loss:
            return [jobs] if len(jobs) else []
        return [jobs.take(jobs.versions == version) for version in dict.fromkeys(jobs.versions.tolist())]

    def train(self, shard: Shard) -> Iterator[JobResults]:
        """Trains the clients of a shard in lanes; results come as clients finish."""
        results = self.train_in_products(shard)
        return without_gradients(written for some in results for written in written_down(some, self.lanes))

    def train_in_products(self, shard: Shard) -> Iterator[JobResults]:
        """The same, but updates of large dense layers may be `ProductRows`, for who is able to add them up."""
        if self._fallback is not None:
            return self._fallback.train(shard)
        self.hardware.set_up()
        self.task.module.train()
        work = shard.prepared or self._plan_work(shard.jobs, shard.start_losses, shard.batch_width)
        return without_gradients(self._trained(work, shard))

    def _trained(self, work: PlannedWork, shard: Shard) -> Iterator[JobResults]:
        for part in self._fitting(work):
            yield from self._trained_at_once(part, shard)

    def _fitting(self, work: PlannedWork) -> list[PlannedWork]:
        """The work of clients who train at once, since programs and the device have room for them, part by part."""
        everybody = np.arange(len(work.steps))
        parts = [everybody[part] for part in self.training_samples.parts(work.jobs.holders, work.samples)]
        if self._most_at_once is not None:
            counts = [max(1, -(-len(part) // self._most_at_once)) for part in parts]
            parts = [few for part, count in zip(parts, counts, strict=True) for few in np.array_split(part, count)]
        return [work.of(part) for part in parts]

    def _trained_at_once(self, work: PlannedWork, shard: Shard) -> Iterator[JobResults]:
        training = ApartTraining if self.plan == "apart" else LaneTraining
        division = work.division or self._divided(work)

        def usual() -> Iterator[JobResults | None]:
            for layers, some in division.unwritten:
                yield from self._unwritten.train(some, shard, layers)
            if division.written is not None:
                yield from training(self, division.written, shard.broadcasts, shard.states).course(self._pool)

        if division.long is None:
            yield from (results for results in usual() if results is not None)
            return
        long = ClientsAtWork(self, division.long, shard.broadcasts, shard.states)
        groups = [LongTraining(self, group, shard.broadcasts, shard.states) for group in division.groups]
        yield from self._beside.train(long, groups, usual())

    def execute(self, shards: Sequence[Shard], work: Callable[[Shard], T]) -> Iterator[T]:
        """What `work` makes of every shard, in their order; the workers are threads."""

        # Others who train would wait for large operations in between; beside one shard there is other work alone.
        turn = SMALL_OPERATIONS.taken if len(shards) == 1 else nullcontext

        def without_gradient(shard: Shard) -> T:
            self.hardware.set_up()
            with torch.no_grad(), turn():
                return work(shard)

        if self._fallback is not None:
            return map(without_gradient, shards)
        return self._threads.in_order(without_gradient, shards, self._work_beside if self._beside_workers else None)

    def _work_beside(self) -> None:
        with SMALL_OPERATIONS.taken():
            for other_work in self._beside_workers:
                other_work()

    def _shards(self, steps: IntArray) -> list[IntArray]:
        if self.hardware.is_gpu:
            return [np.arange(len(steps))]  # lanes that are free at once take the next client
        lanes = self._unwritten.shard_lanes(len(steps))
        size = max(lanes, min(_CLIENTS_PER_LANE * lanes, -(-len(steps) // _SHARDS_FOR_WORKERS)))
        shards = -(-len(steps) // size)
        if shards == 1:
            return [np.arange(len(steps))]
        return deal_out(steps, -(-shards // _SHARDS_MULTIPLE) * _SHARDS_MULTIPLE)

    def _tried(self, plan: Plan) -> CohortEngine:
        """An engine like this one with another plan, for a few steps of made-up clients."""
        local = replace(self.local, epochs=None, steps=STEPS_TRIED)
        lanes, _ = self._suitable.lanes_and_plan(None, plan)
        choices = {"plan": plan, "lanes": lanes, "convolutions": self._suitable.convolutions(plan)}
        options = {**self.hardware.options, **choices, "compile": False}
        clients = ExampleClients(self.task, self.local.batch_size)
        return CohortEngine(self.task, self.algorithm, local, clients, self.seed, **options)

    def evaluate(self, params: Tensors, clients: IntArray, part: Part, other: OtherTest | None = None) -> ClientScores:
        """Scores one model on these clients."""
        self.hardware.set_up()
        self.task.module.eval()
        batch_size = self._evaluation_batch_size
        data, metrics = (self.data, None) if other is None else (other.data, other.metrics)
        kept = self._evaluated_samples
        return evaluate_clients(self.task, params, data, clients, part, batch_size, self.workers, metrics, kept)

    def evaluate_later(
        self, params: Tensors, clients: IntArray, part: Part, other: OtherTest | None = None
    ) -> Callable[[], ClientScores]:
        """Has a GPU begin to score one model on these clients, if that is little work; gives what waits for it."""
        data, metrics = (self.data, None) if other is None else (other.data, other.metrics)
        self.hardware.set_up()
        self.task.module.eval()
        if self._evaluating is None:
            self._evaluating = OwnTask(self.task)
        batch_size, kept = self._evaluation_batch_size, self._evaluated_samples
        begun = begin_evaluation(self._evaluating, params, data, clients, part, batch_size, metrics, kept)
        if begun is not None:
            return begun
        scores = self.evaluate(params, clients, part, other)
        return lambda: scores

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

    def lane_bytes(self) -> int:
        """What a lane takes with this algorithm."""
        return self._suitable.lane_bytes()

    def loss_of(self, columns: Tensors, mask: Tensor, key: Tensor, client: Client) -> Callable[[Tensors], Tensor]:
        """What a client minimizes in a step, as a function of its parameters."""
        return self._steps.loss_of(columns, mask, key, client)

    def start_params(self, given: Given, clients: int) -> Tensors:
        """What so many clients start from; to be read only."""
        return self._steps.start_params(given, clients)

    def updates(self, params: Tensors, given: Given, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and what they keep."""
        return self._steps.updates(params, given, work)

    def validated(self, params: Tensors, given: Given, clients: IntArray) -> Validated | None:
        """How good the models of finished clients (rows of `params`) are, if somebody asks."""
        if self._validation is None:
            return None
        before = None
        if self._validation.compares:
            before = given.broadcast["params"]
            if given.shared:
                before = {name: p.expand(len(clients), *p.shape) for name, p in before.items()}
        trained = vmap(self.algorithm.trained_model)(params)
        return self._validation.of(trained, before, clients)

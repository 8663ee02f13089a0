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
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.models.dropout import KeyedDropout, dropout_share
from fedarena.models.probes import counts_padding
from fedarena.models.sealed_batch import SealedBatch, SealedBatchError
from fedarena.train import convolution_kernels
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.apart import ApartTraining
from fedarena.train.beside import Beside, divide_by_length
from fedarena.train.channels_last import NormalizedAsTheyLie
from fedarena.train.choosing import STEPS_TRIED, ExampleClients, faster_plan
from fedarena.train.engine import ENGINES, ClientData, ClientScores, JobResults, OtherTest, Part, steps_in_shares
from fedarena.train.evaluation import OwnTask, begin_evaluation, evaluate_clients
from fedarena.train.execution import available_cores, in_order, without_gradients
from fedarena.train.hardware import DeviceName, DtypeName, Hardware, Precision
from fedarena.train.jobs import Client, IntArray, Job, JobArrays, context_of, newcomer
from fedarena.train.kept_samples import KeptSamples
from fedarena.train.lane_pool import Convolutions, LanePool, Plan
from fedarena.train.lanes import LaneTraining, PlannedWork, place_work, rounded_width
from fedarena.train.layers import LayerTracker
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step, training_of
from fedarena.train.own_code import check_own_hooks, corrected_gradient, is_own, passes_of
from fedarena.train.personal import PersonalEvaluation
from fedarena.train.product_rows import written_down
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import Batch, Changing, Given, StepPrograms
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.reference import ReferenceEngine
from fedarena.train.resident import FreshSamples, ResidentSamples, SampleSource
from fedarena.train.schedule import batch_width, deal_out, draw_batches
from fedarena.train.shards import Shard, T
from fedarena.train.sizes import bytes_per_lane, gate_bytes, has_convolutions, has_recurrence, output_bytes
from fedarena.train.tensors import Groups, innermost_channels, map_groups, sent_to
from fedarena.train.unwritten_training import Dense, Unwritten
from fedarena.train.validation import Validated, Validation
from fedarena.train.vectorizing import noting_slow_operations

# Found by measuring: with more than this in use, wider is slower. A constant, so that all machines get the same bits.
_CACHE_BYTES = 1 << 23
_MOST_LANES = 256
# Clients are dealt out to workers in shards. Large ones cost less per client; a multiple of four of them keeps two or
# four workers equally busy.
_CLIENTS_PER_LANE = 4
_SHARDS_FOR_WORKERS = 16
_SHARDS_MULTIPLE = 4
# A GPU is busy from about so many bytes on; more lanes would not make it faster.
_GPU_BYTES = 1 << 32
# Of recurrent layers it has one step of the sequence at a time to do, so that it takes more to be busy.
_GPU_RECURRENT_BYTES = 1 << 34
_MOST_GPU_LANES = 4096
# Convolutions with patches written down are slower than a library's from about so many bytes of a lane on. Below and
# above, there is a range in which that depends on the model and the GPU, and is tried out.
_LARGE_LANE_BYTES = 1 << 28
_OPEN_LANE_BYTES = (1 << 26, 1 << 30)
_MOST_APART = 8  # more beside each other are not faster
# Between a power of two and the next, widths of which programs are made: more where cohorts are alike.
_WIDTHS_PER_OCTAVE, _FEW_WIDTHS_PER_OCTAVE = 8, 2
# By how many deviations cohorts in which everybody is by chance are larger than usual: few of them, and next to none.
_MOST_DEVIATE, _FEWEST_DEVIATE = 2, 5
# Of the GPU's memory that is free at the beginning.
_GPU_SHARE_FOR_LANES = 1 / 8  # there are several copies of their parameters
_GPU_SHARE_APART = 1 / 2  # steps in computations of their own take less than a lane's bytes are thought to be
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
    `beside` them, or everybody `apart` (see `plan`).
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
    ):
        for name, amount in (("lanes", lanes), ("workers", workers)):
            if amount is not None and not 1 <= amount <= 65536:
                raise BadInputError(f"engine.{name} must be from 1 to 65536, not {amount}")
        self.task, self.algorithm, self.local, self.data, self.seed = task, algorithm, local, data, seed
        self.hardware = Hardware(device, threads, dtype, precision)
        if convolutions == "kernels" and not (self.hardware.is_gpu and convolution_kernels.available()):
            raise BadInputError("engine.convolutions kernels needs a GPU and Triton, which torch for GPUs comes with")
        self.device, self.compile = self.hardware.device, compile and self.hardware.is_gpu
        self.notes: list[str] = []
        task.module.to(self.device, self.hardware.dtype).train()
        self.training_samples: SampleSource = FreshSamples(data)
        self.workers = workers if workers is not None else available_cores()
        self._evaluation_batch_size = _EVALUATED_AT_ONCE
        self._evaluated_samples: KeptSamples | None = None
        self._evaluating: OwnTask | None = None
        if self.hardware.is_gpu:
            self.workers = 1
            fitting = _GPU_EVALUATION_BYTES // output_bytes(task, 1)
            self._evaluation_batch_size = max(1, min(_GPU_EVALUATED_AT_ONCE, fitting))
            free_bytes = self.hardware.free_bytes()
            self.training_samples = ResidentSamples(data, self.device, int(_GPU_SHARE_FOR_SAMPLES * free_bytes))
            limit_bytes = int(_GPU_SHARE_FOR_EVALUATED_SAMPLES * free_bytes)
            self._evaluated_samples = KeptSamples(data, self.device, limit_bytes)
        self.lanes, self.plan = self._suitable(lanes, plan)
        # Runs from before there was a choice have lanes alone.
        before: Convolutions | None = "products" if lanes is not None else None
        self.convolutions = convolutions or before or self._suitable_convolutions(self.plan)
        self.fewest_lanes, self.widths_per_octave = 1, _WIDTHS_PER_OCTAVE
        self.usual_width: int | None = None
        self._cohorts: Cohorts | None = "steady" if cohorts is None and lanes is not None else cohorts
        self.asks_about_jobs = any(getattr(type(algorithm), hook) is not getattr(Algorithm, hook) for hook in _HOOKS)
        drops = any(isinstance(layer, KeyedDropout) for layer in task.module.modules())
        self.draws = drops or task.augmentation is not None
        check_own_hooks(algorithm, task)
        # Our own losses leave out what fills batches up to the same size; others might count it, and look first.
        self._seals_batches = is_own(type(algorithm).local_loss) or is_own(type(task).loss)
        self.exact_batches = counts_padding(task)
        self._pool, self._beside = LanePool(), Beside(self.device)
        self._fallback: ReferenceEngine | None = None
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self._fallback = ReferenceEngine(task, algorithm, local, data, seed, **self.hardware.options)
            self.notes.append(f"Clients train one at a time, because {obstacle}")
        if obstacle is None and lanes is None and plan is None and self._leaves_plan_open():
            self.lanes, self.plan = self._suitable(None, faster_plan(self.plan, self.compile, self._tried))
            self.convolutions = convolutions or self._suitable_convolutions(self.plan)
        self.programs = StepPrograms(self._step_alone if self.plan == "apart" else self._step)
        self.choices: dict[str, Any] = {**self.hardware.choices, "lanes": self.lanes}
        if self.hardware.is_gpu:
            self.choices["plan"] = self.plan
        if self.convolutions == "kernels":
            self.choices["convolutions"] = self.convolutions
        # Runs from before there was a choice have lanes alone.
        without = obstacle is not None or (dense is None and lanes is not None)
        self._unwritten = Unwritten(self, "written" if without else dense)
        if self._unwritten.layers:
            self.choices["dense"] = "factored"
        self._personal = PersonalEvaluation(self, self.lanes if obstacle is None else None, self.workers)
        self._validation: Validation | None = None
        self._other_work: list[Callable[[], None]] = []
        self._planned_ahead: PlannedWork | None = None

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> CohortEngine:
        """An engine of the same kind for another algorithm, way of training, and data."""
        options = {
            "plan": self.plan,
            "lanes": self.lanes,
            "workers": self.workers,
            "compile": self.compile,
            "dense": self._unwritten.choice,
            "convolutions": self.convolutions,
            "cohorts": self._cohorts,
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

        Nearly all are filled up to the same width then; few larger ones have programs that are not compiled.
        """
        if not self.hardware.is_gpu or self._cohorts == "steady":
            return
        self._cohorts = self.choices["cohorts"] = "varying"
        self.widths_per_octave = _FEW_WIDTHS_PER_OCTAVE

        def wide_enough(deviations: float) -> int:
            lanes = math.floor(usual + deviations * math.sqrt(usual))
            return min(self.lanes, rounded_width(lanes, self.widths_per_octave))

        self.usual_width, self.fewest_lanes = wide_enough(_MOST_DEVIATE), wide_enough(_FEWEST_DEVIATE)

    @property
    def computes_beside_host(self) -> bool:
        """Whether training goes on by itself, on a GPU, when it has begun."""
        return self.hardware.is_gpu and self._fallback is None

    def do_meanwhile(self, other_work: Callable[[], None]) -> None:
        """Has `other_work` done in every round while a GPU is busy and nobody could go on with the round."""
        if self.hardware.is_gpu:
            self._other_work.append(other_work)

    def meanwhile(self) -> None:
        """Does what there is to do while the device is busy."""
        for work in self._other_work:
            work()

    def place(self, groups: Groups) -> Groups:
        """The same groups on the device."""
        return self.hardware.place(groups)

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model that are trained."""
        return {name: p.detach().clone() for name, p in trainable_parameters(self.task.module).items()}

    def divide(self, jobs: JobArrays, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]) -> list[Shard]:
        """Clients that train together, those with most to do first. It does not depend on the number of workers."""
        if self._fallback is not None:
            return self._fallback.divide(jobs, broadcasts, states)
        shards: list[Shard] = []
        for some in self._trainable_together(jobs):
            width = self._batch_width(some)
            ahead, self._planned_ahead = self._planned_ahead, None
            if ahead is not None and ahead.is_about(some):
                work = replace(ahead, jobs=some)
            else:  # done for all at once, and not by the workers, who would wait for each other's Python
                work = self._plan_work(some, width, self._start_losses(some, broadcasts))
            for positions in self._shards(work.steps):
                prepared = work.of(positions)
                shards.append(Shard(prepared.jobs, broadcasts, states, width, prepared.start_losses, prepared))
        return shards

    def plan_ahead(self, jobs: JobArrays) -> None:
        """Draws batches of jobs that are likely to be next."""
        if len(jobs) and self._fallback is None and not self.algorithm.needs_start_loss:
            work = self._plan_work(jobs, self._batch_width(jobs), None)
            if len(self._shards(work.steps)) == 1 and not self._unwritten.layers and self.plan != "apart":
                work = replace(work, placed=place_work(self, work, self.lanes))
            self._planned_ahead = work

    def _batch_width(self, jobs: JobArrays) -> int:
        largest = int(self.data.counts(jobs.clients, "train").max(initial=1))
        return batch_width(int(np.max(self._training_of(jobs).batch_size)), largest)

    def _plan_work(self, jobs: JobArrays, width: int, start_losses: npt.NDArray[np.float64] | None) -> PlannedWork:
        """What clients are to do: how many steps, on which batches."""
        samples = self.data.counts(jobs.clients, "train")
        local = self._training_of(jobs)
        steps = steps_in_shares(jobs.shares, samples, self.algorithm, local)
        batches = draw_batches(jobs.clients, samples, steps, local.batch_size, self.seed, jobs.rounds, width)
        return PlannedWork(jobs, samples, steps, batches, start_losses)

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
        work = shard.prepared or self._plan_work(shard.jobs, shard.batch_width, shard.start_losses)
        return without_gradients(self._trained(work, shard))

    def _trained(self, work: PlannedWork, shard: Shard) -> Iterator[JobResults]:
        written, unwritten = (work, []) if self._validation is not None else self._unwritten.divide(work, shard)
        training = ApartTraining if self.plan == "apart" else LaneTraining
        long, others = divide_by_length(written, work, self.lanes) if self.plan == "beside" else (None, written)

        def usual() -> Iterator[JobResults | None]:
            for layers, some in unwritten:
                yield from self._unwritten.train(some, shard, layers)
            if others is not None:
                yield from training(self, others, shard.broadcasts, shard.states).course(self._pool)

        if long is None:
            yield from (results for results in usual() if results is not None)
        else:
            usual_steps = sum(int(some.steps.max()) for _, some in unwritten)
            usual_steps += 0 if others is None else int(others.steps.max())
            yield from self._beside.train(training(self, long, shard.broadcasts, shard.states), usual(), usual_steps)

    def execute(self, shards: Sequence[Shard], work: Callable[[Shard], T]) -> Iterator[T]:
        """What `work` makes of every shard, in their order; the workers are threads."""

        def without_gradient(shard: Shard) -> T:
            self.hardware.set_up()
            with torch.no_grad():
                return work(shard)

        workers = self.workers if self._fallback is None else 1
        return in_order(without_gradient, shards, workers)

    def _shards(self, steps: IntArray) -> list[IntArray]:
        if self.hardware.is_gpu:
            return [np.arange(len(steps))]  # lanes that are free at once take the next client
        lanes = self._unwritten.shard_lanes(len(steps))
        size = max(lanes, min(_CLIENTS_PER_LANE * lanes, -(-len(steps) // _SHARDS_FOR_WORKERS)))
        shards = -(-len(steps) // size)
        if shards == 1:
            return [np.arange(len(steps))]
        return deal_out(steps, -(-shards // _SHARDS_MULTIPLE) * _SHARDS_MULTIPLE)

    def lane_bytes(self) -> int:
        """What a lane takes with this algorithm."""
        of_model = bytes_per_lane(self.task, self.local.batch_size)
        if not self.algorithm.keeps_sample_gradients:
            return of_model
        return of_model + self.local.batch_size * sum(
            p.numel() * p.element_size() for p in self.task.module.parameters()
        )

    def _leaves_plan_open(self) -> bool:
        """Whether sizes do not tell how clients train fastest."""
        if not self.hardware.is_gpu or not has_convolutions(self.task):
            return False
        least, most = _OPEN_LANE_BYTES
        return least <= self.lane_bytes() < most

    def _tried(self, plan: Plan) -> CohortEngine:
        """An engine like this one with another plan, for a few steps of made-up clients."""
        local = replace(self.local, epochs=None, steps=STEPS_TRIED)
        lanes, _ = self._suitable(None, plan)
        choices = {"plan": plan, "lanes": lanes, "convolutions": self._suitable_convolutions(plan)}
        options = {**self.hardware.options, **choices, "compile": False}
        clients = ExampleClients(self.task, self.local.batch_size)
        return CohortEngine(self.task, self.algorithm, local, clients, self.seed, **options)

    def _suitable(self, lanes: int | None, plan: Plan | None) -> tuple[int, Plan]:
        """How many clients train at once, and how, as far as sizes tell."""
        if lanes is not None:  # such as in runs from before there were plans
            return lanes, plan or "together"
        bytes_per_lane = self.lane_bytes()
        if plan is None:
            large = self.hardware.is_gpu and bytes_per_lane >= _LARGE_LANE_BYTES
            plan = "apart" if large and has_convolutions(self.task) else "together"
        if plan == "apart" and self.hardware.is_gpu:
            room = int(_GPU_SHARE_APART * self.hardware.free_bytes()) // bytes_per_lane
            return max(1, min(_MOST_APART, room)), plan
        return self._suitable_lanes(bytes_per_lane), plan

    def _suitable_convolutions(self, plan: Plan) -> Convolutions:
        """How many clients convolve at once, by what a GPU is told to do."""
        suit = self.hardware.is_gpu and self.hardware.precision == "tf32" and plan != "apart"
        suit = suit and has_convolutions(self.task) and not self.algorithm.keeps_sample_gradients
        return "kernels" if suit and convolution_kernels.available() else "products"

    def _suitable_lanes(self, bytes_per_lane: int) -> int:
        """A power of two of lanes: on a CPU as fit into a cache, on a GPU as many as it takes to keep it busy."""
        if self.hardware.is_gpu:
            busy_bytes = _GPU_RECURRENT_BYTES if has_recurrence(self.task) else _GPU_BYTES
            most_bytes = min(busy_bytes, int(_GPU_SHARE_FOR_LANES * self.hardware.free_bytes()))
            bytes_per_lane += gate_bytes(self.task, self.local.batch_size)
            fitting = min(_MOST_GPU_LANES, most_bytes // bytes_per_lane)
        else:
            fitting = min(_MOST_LANES, _CACHE_BYTES // bytes_per_lane)
        return int(2 ** (max(1, fitting).bit_length() - 1))

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

    def _find_obstacle(self) -> str | None:
        """Why this model or algorithm cannot train many clients at once, found out by trying."""
        if self.algorithm.trains_freely:
            return f"{type(self.algorithm).__name__} has a training loop of its own"
        broadcast = self.algorithm.broadcast(self.algorithm.server_init(self.initial_params()))
        states = map_groups(lambda t: torch.stack([t, t]), self.algorithm.client_init(broadcast))
        jobs = JobArrays.of([Job(0, 1), Job(1, 1)]).tensors(next(iter(broadcast["params"].values())), self.seed)
        given = Given(states, broadcast, jobs)
        columns = {name: torch.stack([t, t]).to(self.device) for name, t in self.task.example(2).items()}
        self.task.module.train()
        with torch.no_grad(), LayerTracker(self.task.module) as tracker, noting_slow_operations(self.notes):
            hook = "local_start"
            try:
                params = self.start_params(given, 2)
                two = torch.ones(2, device=self.device, dtype=self.hardware.dtype)
                changing = Changing(params, optimizer_init(self.local, params), two, two)
                mask = torch.ones(2, 2, device=self.device)
                hook = "local_loss or local_gradient"
                self._step(changing, given, Batch(columns, mask, two.long()))
                hook = "client_update"
                ones = np.ones(2, dtype=np.int64)
                losses = ones.astype(np.float64) if self.algorithm.needs_start_loss else None
                self.updates(params, given, Work(ones, ones, ones, losses))
                if self.algorithm.personalizes and states:
                    hook = "personal_models"
                    example = newcomer(broadcast, {})
                    vmap(lambda kept: self.algorithm.personal_models(replace(example, state=kept)))(states)
            except BadInputError:
                raise
            except SealedBatchError:
                self.exact_batches = True
                return self._find_obstacle()
            except Exception as error:  # whatever a layer or a hook may raise when it is given many clients
                reason = str(error).strip().partition("\n")[0].partition(". ")[0]
                where = tracker.present if tracker.inside else f"{hook} of {type(self.algorithm).__name__}"
                return f"{where} cannot be vectorized ({type(error).__name__}: {reason})"
        return None

    def _step(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        """One gradient step in every lane."""
        products = LayersAsProducts(self.convolutions == "kernels") if self.hardware.is_gpu else nullcontext()
        recurrent = RecurrentLayers(of_samples=self.algorithm.keeps_sample_gradients)
        # Attention in plain operations: what else torch has for it would be computed client by client.
        with products, recurrent, sdpa_kernel(SDPBackend.MATH):
            params, state, losses = vmap(self._client_step, in_dims=(*[0] * 8, None if given.shared else 0))(
                changing.params,
                changing.optimizer,
                changing.numbers,
                {
                    name: values if self.hardware.is_gpu else innermost_channels(values)
                    for name, values in batch.columns.items()
                },
                batch.mask,
                batch.keys,
                given.states,
                given.jobs,
                given.broadcast,
            )
        loss_sums = changing.loss_sums + losses * batch.mask.sum(1)
        return Changing(params, state, changing.numbers + 1, loss_sums)

    def _step_alone(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        """The same for a single lane, without `vmap`: libraries convolve with one set of weights better than we do."""

        def first(groups: Groups) -> Groups:
            return map_groups(lambda t: t[0], groups)

        in_layout = NormalizedAsTheyLie() if self.hardware.is_gpu else nullcontext()
        with in_layout:
            params, state, loss = self._client_step(
                {name: p[0] for name, p in changing.params.items()},
                first(changing.optimizer),
                changing.numbers[0],
                {name: innermost_channels(values)[0] for name, values in batch.columns.items()},
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
        params, state = optimizer_step(self.local, params, grad, state, number, scale, own, at_once=alone)
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

        def client_update(
            params: Tensors, state: Groups, job: Tensors, broadcast: Groups, *amounts: Tensor
        ) -> tuple[Groups, Groups]:
            client = Client(broadcast, state, context_of(job))
            return self.algorithm.client_update(params, client, Work(*amounts))

        known = (amount for amount in vars(work).values() if amount is not None)
        amounts = [sent_to(self.device, amount).to(self.hardware.dtype) for amount in known]
        in_dims = (0, 0, 0, None if given.shared else 0, *[0] * len(amounts))
        result: tuple[Groups, Groups] = vmap(client_update, in_dims=in_dims)(
            params, given.states, given.jobs, given.broadcast, *amounts
        )
        return result

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


def _gradient_and_value(function: Callable[[Tensors], Tensor]) -> Callable[[Tensors], tuple[Tensors, Tensor]]:
    """What torch.func's function of this name gives, by layers' own gradients, which need not have gradients again."""

    def both(params: Tensors) -> tuple[Tensors, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        with torch.enable_grad():
            loss = function(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True)), loss.detach()

    return both

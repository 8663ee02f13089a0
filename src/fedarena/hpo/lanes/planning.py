"""Who trains on which batches in every round of a block of trials; the same as in a run of each trial alone."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.hpo.lanes.arrangement import Block, Steps, Trial
from fedarena.hpo.lanes.functions import JOB
from fedarena.models import Tensors
from fedarena.simulate.selectors import Candidates, Selector
from fedarena.train import ClientData, JobArrays, Work
from fedarena.train.batches import IntArray, count_processed, dropout_keys
from fedarena.train.drawing import BatchPlan, HostBatches, batch_width, drawn_on_host
from fedarena.train.engine import Part, steps_in_shares
from fedarena.train.tensors import column_tensor

FloatArray = npt.NDArray[np.float64]
_KEPT_DRAWS = 4  # blocks of one seed and batch size follow each other
_MOST_NUMBERS = 1 << 24  # in the largest array of rounds that are planned at once


@dataclass(frozen=True)
class Scene:
    """What all trials have in common."""

    data: ClientData
    clients: IntArray  # who may be invited, sorted
    scored: Mapping[Part, IntArray]  # on whose samples of a part models are scored; a part without samples is left out
    selector: Selector
    rounds: int
    client_lr_scale: Callable[[int], float] | None = None  # by round; None: there is no schedule
    server_lr_scale: Callable[[int], float] | None = None


class TrainingSamples:
    """The training samples of all clients on the device."""

    def __init__(self, scene: Scene, device: torch.device):
        block = scene.data.samples(scene.clients, "train")
        self.columns: Tensors = {name: column_tensor(values).to(device) for name, values in block.columns.items()}
        self._first_row = block.offsets[:-1]
        self.counts = np.diff(block.offsets)
        self._clients = scene.clients

    def places(self, clients: IntArray) -> IntArray:
        """Where these are among all clients."""
        return np.searchsorted(self._clients, clients)

    def first_rows(self, clients: IntArray) -> IntArray:
        """At which row their samples begin."""
        rows: IntArray = self._first_row[self.places(clients)]
        return rows


class Draws:
    """Cohorts and batches by seed, which trials of different blocks share."""

    def __init__(self, scene: Scene, samples: TrainingSamples, trials: Sequence[Trial], steps: Steps):
        self._scene, self._samples, self.steps = scene, samples, steps
        self._cohorts: dict[int, set[int]] = {}
        self._most_steps: dict[tuple[int, int], IntArray] = {}
        for trial in trials:
            self._cohorts.setdefault(trial.seed, set()).add(trial.cohort)
            key = (trial.seed, trial.local.batch_size)
            self._most_steps[key] = np.maximum(self._most_steps.get(key, 0), steps[trial.number])
        self._selected: dict[tuple[int, int], IntArray] = {}
        self._batches: OrderedDict[tuple[int, int, int, int], DrawnBatches] = OrderedDict()
        self._lock = threading.Lock()

    def selected(self, seed: int, cohort: int) -> IntArray:
        """``[rounds, cohort]``: who is in which round."""
        if (seed, cohort) not in self._selected:
            scene, samples = self._scene, self._samples
            counts: Callable[[IntArray], IntArray] = lambda clients: samples.counts[samples.places(clients)]  # noqa: E731
            selector = copy.deepcopy(scene.selector)
            selector.prepare(scene.clients, counts, cohort, seed)
            self._selected[seed, cohort] = np.stack(
                [
                    selector.select(cohort, Candidates(scene.clients, 0.0, seed, round, counts), round)
                    for round in range(1, scene.rounds + 1)
                ]
            )
        return self._selected[seed, cohort]

    def batches(self, seed: int, batch_size: int, first: int, last: int) -> DrawnBatches:
        """The batches of the rounds from `first` to before `last` (counted from 0), of everybody in them."""
        key = (seed, batch_size, first, last)
        with self._lock:
            if key in self._batches:
                self._batches.move_to_end(key)
                return self._batches[key]
            invited = [self.selected(seed, cohort)[first:last] for cohort in sorted(self._cohorts[seed])]
            drawn = self._draw(seed, batch_size, first, np.concatenate(invited, axis=1))
            self._batches[key] = drawn
            while len(self._batches) > _KEPT_DRAWS:
                self._batches.popitem(last=False)
            return drawn

    def _draw(self, seed: int, batch_size: int, first: int, clients: IntArray) -> DrawnBatches:
        population = len(self._scene.clients)
        rounds = first + 1 + np.arange(len(clients))
        codes = np.unique(rounds[:, None] * population + self._samples.places(clients))
        round, place = np.divmod(codes, population)
        counts = self._samples.counts[place]
        steps = self._most_steps[seed, batch_size][place]
        width = batch_width(batch_size, int(self._samples.counts.max()))
        owners = self._scene.clients[place]
        batches = drawn_on_host(BatchPlan(owners, counts, steps, batch_size, seed, round, width))
        return DrawnBatches(codes, population, batches, steps)


@dataclass(frozen=True)
class DrawnBatches:
    """Batches of some rounds' clients."""

    codes: IntArray  # round and client's place as one number, ascending
    population: int
    batches: HostBatches
    steps: IntArray

    def of(self, rounds: IntArray, places: IntArray, steps: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Rows within the client and which of them count, of its first steps: ``[..., steps, batch]``."""
        jobs = np.searchsorted(self.codes, rounds * self.population + places)
        numbers = np.arange(steps)
        exists = numbers < self.steps[jobs][..., None]
        step = np.where(exists, self.batches.first[jobs][..., None] + numbers, 0)
        counts = np.where(exists, self.batches.sizes[step], 0)
        return self.batches.rows[step], np.arange(self.batches.places) < counts[..., None]


def steps_of(trial: Trial, samples: IntArray) -> IntArray:
    """The local steps of clients with so many samples."""
    return steps_in_shares(np.ones(len(samples)), samples, trial.algorithm, trial.local)


@dataclass(frozen=True)
class PlannedRounds:
    """What happens in some rounds; every tensor of `inputs` has a row per round, and lies on the device."""

    widths: IntArray  # ``[rounds, slots, steps]`` how many trials take a step at a slot: the first ones
    inputs: dict[str, Tensor] = field(repr=False)
    steps: IntArray  # ``[rounds, groups, trials]`` of all clients
    processed: IntArray

    def round(self, number: int) -> dict[str, Tensor]:
        """The inputs of a round, by its place."""
        return {name: values[number] for name, values in self.inputs.items()}


class BlockPlan:
    """The rounds of a block, planned some at a time. A slot is the place of a client in a group's cohort."""

    def __init__(
        self,
        scene: Scene,
        block: Block,
        draws: Draws,
        samples: TrainingSamples,
        dtype: torch.dtype,
        device: torch.device,
        knows_jobs: bool,
    ):
        self._scene, self._block, self._draws, self._samples = scene, block, draws, samples
        self._dtype, self._device, self._knows_jobs = dtype, device, knows_jobs
        self.group_of = np.repeat(np.arange(len(block.groups)), [group[0].cohort for group in block.groups])
        counts = samples.counts
        # [groups, trials, clients]
        self._client_steps = np.array([[draws.steps[trial.number] for trial in group] for group in block.groups])
        self.most_steps = int(self._client_steps.max())
        self.batch_width = batch_width(block.first.local.batch_size, int(counts.max()))
        # By step, if all slots take it together: how many trials take part, and whether some of them do not everywhere.
        counted = (self._client_steps[..., None] > np.arange(self.most_steps)).sum(1)  # [groups, clients, steps]
        self.common_widths = [
            (int(of_step.max()), bool(of_step.min() < of_step.max())) for of_step in np.moveaxis(counted, 2, 0)
        ]
        per_round = block.slots * max(len(block.groups[0]), self.most_steps * self.batch_width)
        self.rounds_at_once = max(1, _MOST_NUMBERS // per_round)

    def of(self, first: int, last: int) -> PlannedRounds:
        """The rounds from `first` to before `last`, counted from 0."""
        block, scene, samples = self._block, self._scene, self._samples
        batch_size = block.first.local.batch_size
        rounds = np.arange(first, last) + 1
        chosen = [self._draws.selected(group[0].seed, group[0].cohort)[first:last] for group in block.groups]
        clients = np.concatenate(chosen, axis=1)  # [rounds, slots]
        places = samples.places(clients)
        counts = samples.counts[places]
        steps = np.moveaxis(self._client_steps, 2, 1)[self.group_of, places]  # [rounds, slots, trials]
        processed = count_processed(counts[..., None], steps, batch_size)
        weights = np.empty(steps.shape)
        rows, mask, keys = [], [], []
        jobs: list[Tensors] = []
        like = torch.empty((), dtype=self._dtype, device=self._device)
        for number, group in enumerate(block.groups):
            mine = self.group_of == number
            seed = group[0].seed
            drawn = self._draws.batches(seed, batch_size, first, last)
            of_client, counted = drawn.of(rounds[:, None], places[:, mine], self.most_steps)
            rows.append(np.where(counted, of_client + samples.first_rows(clients[:, mine])[..., None, None], 0))
            mask.append(counted)
            numbers = np.arange(1, self.most_steps + 1)
            keys.append(dropout_keys(seed, rounds[:, None, None], clients[:, mine, None], numbers))
            if self._knows_jobs:
                jobs.append(self._jobs(clients[:, mine], rounds, seed, like))
            for place, trial in enumerate(group):
                work = Work(counts[:, mine].ravel(), steps[:, mine, place].ravel(), processed[:, mine, place].ravel())
                given = np.asarray(trial.algorithm.client_weight(work), dtype=np.float64)
                weights[:, mine, place] = np.broadcast_to(given, work.samples.shape).reshape(len(rounds), -1)
        member = (self.group_of == np.arange(len(block.groups))[:, None]).astype(np.float64)  # [groups, slots]
        inputs: dict[str, Tensor] = {
            # Steps before slots: a step is taken by all slots at once.
            "rows": self._tensor(np.moveaxis(np.concatenate(rows, axis=1), 2, 1)),
            "mask": self._tensor(np.moveaxis(np.concatenate(mask, axis=1), 2, 1)),
            "keys": self._tensor(np.moveaxis(np.concatenate(keys, axis=1), 2, 1)),
            "weights": self._tensor(weights, self._dtype),
            "total_weights": self._tensor(np.einsum("gs,rst->rgt", member, weights), self._dtype),
            "samples": self._tensor(counts, self._dtype),
            "steps": self._tensor(steps, self._dtype),
            "processed_samples": self._tensor(processed, self._dtype),
            "round": self._tensor(rounds),
        }
        if jobs:
            inputs |= {JOB + name: torch.cat([some[name] for some in jobs], dim=1) for name in jobs[0]}
        if scene.server_lr_scale is not None:
            scales = np.array([scene.server_lr_scale(round) for round in rounds.tolist()])
            inputs["server_lr_scale"] = self._tensor(scales, self._dtype)
        in_groups = np.add.reduceat(np.stack([steps, processed]), np.flatnonzero(np.diff(self.group_of, prepend=-1)), 2)
        widths = (steps[..., None] > np.arange(self.most_steps)).sum(2)
        return PlannedRounds(widths, inputs, in_groups[0], in_groups[1])

    def _jobs(self, clients: IntArray, rounds: IntArray, seed: int, like: Tensor) -> Tensors:
        """What algorithms may ask about jobs, ``[rounds, slots, …]``."""
        scale, count = self._scene.client_lr_scale, clients.size
        round = np.repeat(rounds, clients.shape[1])
        nothing = np.zeros(count, dtype=np.int64)
        scales = None if scale is None else np.repeat([scale(one) for one in rounds.tolist()], clients.shape[1])
        jobs = JobArrays(
            clients.ravel(), round, np.ones(count), round - 1, nothing, nothing, nothing.astype(np.bool_), scales
        )
        return {name: t.view(*clients.shape, *t.shape[1:]) for name, t in jobs.tensors(like, seed).items()}

    def _tensor(self, values: npt.NDArray[np.generic], dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, dtype)

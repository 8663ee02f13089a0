"""Work that is planned, and its place: who is in which lane when, on which samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.batches import dropout_keys
from fedarena.train.drawing import Batches
from fedarena.train.jobs import IntArray, JobArrays
from fedarena.train.lane_pool import LaneEngine
from fedarena.train.resident import rows_of
from fedarena.train.schedule import Schedule, make_schedule, place_steps
from fedarena.train.tensors import sent_to
from fedarena.train.unwritten import DenseLayer

_WIDTHS_PER_OCTAVE = 8  # of which programs are made, between a power of two and the next
# Columns with the samples of clients who are scheduled so, and where each client's begin.
SamplesFor = Callable[[Schedule], tuple[Tensors, IntArray]]


@dataclass(frozen=True)
class Widths:
    """How many lanes may take a step together: every number needs a program of its own."""

    per_octave: int = _WIDTHS_PER_OCTAVE
    least: int = 1  # of the first step
    narrowing: int = 2  # when no more than the so-manieth part of lanes is at work, the others are dropped

    def of_steps(self, schedule: Schedule) -> IntArray:
        """How many lanes take each step: those at work, and some more so that there are few different numbers."""
        active = schedule.active_lanes()
        widths = np.empty_like(active)
        width = max(self.least, rounded_width(schedule.lanes, self.per_octave))
        for step, at_work in enumerate(active.tolist()):
            while width > 1 and at_work < schedule.lanes and -(-width // self.narrowing) >= at_work:
                width = -(-width // self.narrowing)
            widths[step] = width
        return widths


@dataclass(frozen=True)
class PlacedWork:
    """Who is in which lane when, and the batches of all steps and lanes on the device.

    Tensors and arrays of batches have a row for each lane of the first step, then of the second, and so on.
    """

    schedule: Schedule
    widths: IntArray
    columns: Tensors  # in which the samples are
    begins: IntArray  # where the rows of every step begin, and where the last ones end
    client_in_lane: IntArray  # nobody: -1
    batch_samples: IntArray
    rows: Tensor  # [rows, batch] samples
    mask: Tensor  # the same
    keys: Tensor


@dataclass(frozen=True)
class PlannedWork:
    """What some clients are to do; every array has an entry per client."""

    jobs: JobArrays
    samples: IntArray
    steps: IntArray
    batches: Batches
    start_losses: npt.NDArray[np.float64] | None
    positions: IntArray | None = None  # within the work that this is a part of
    placed: PlacedWork | None = None  # as it is trained, if there was time for it before
    division: Division | None = None  # of all of it, the same

    def is_about(self, jobs: JobArrays) -> bool:
        """Whether it is the work of these jobs."""
        own, names = self.jobs, ("clients", "rounds", "shares", "holders")
        alike = all(np.array_equal(getattr(own, name), getattr(jobs, name)) for name in names)
        return alike and own.hyperparameters is None and jobs.hyperparameters is None

    def of(self, positions: IntArray) -> PlannedWork:
        """The work of those at these positions."""
        if np.array_equal(positions, np.arange(len(self.steps))):
            return self
        batches = replace(self.batches, first=self.batches.first[positions])
        losses = None if self.start_losses is None else self.start_losses[positions]
        own = positions if self.positions is None else self.positions[positions]
        jobs = self.jobs.take(positions)
        return PlannedWork(jobs, self.samples[positions], self.steps[positions], batches, losses, own)

    def of_jobs(self, jobs: JobArrays) -> PlannedWork:
        """The same work, or part of it, in jobs that are the same as far as the plan goes."""
        division = None if self.division is None else self.division.of_jobs(jobs)
        return replace(self, jobs=jobs if self.positions is None else jobs.take(self.positions), division=division)


@dataclass(frozen=True)
class Division:
    """Clients by how they train."""

    written: PlannedWork | None
    unwritten: list[tuple[tuple[DenseLayer, ...], PlannedWork]]  # without these layers' weights being written down
    long: PlannedWork | None  # those who train beside the others, since they have far more to do
    groups: list[PlannedWork]  # of these, in the same order

    def of_jobs(self, jobs: JobArrays) -> Division:
        """See `PlannedWork.of_jobs`."""
        written, long = (None if work is None else work.of_jobs(jobs) for work in (self.written, self.long))
        unwritten = [(layers, some.of_jobs(jobs)) for layers, some in self.unwritten]
        return Division(written, unwritten, long, [group.of_jobs(jobs) for group in self.groups])


def place_work(
    engine: LaneEngine,
    work: PlannedWork,
    lanes: int,
    widths: Widths,
    samples_for: SamplesFor | None = None,
) -> PlacedWork:
    """Puts planned work into so many lanes."""
    schedule = make_schedule(work.steps, lanes)
    of_steps = widths.of_steps(schedule)
    columns, first_row = (
        rows_of(engine.training_samples, work.jobs.holders) if samples_for is None else samples_for(schedule)
    )
    client, number, begins = place_steps(schedule, of_steps)
    step = work.batches.first[client] + number
    counts = np.where(client >= 0, work.batches.sizes[step], 0)
    rows, mask = work.batches.on_device(engine.device, step, counts, first_row[client])
    keys = number
    if engine.draws:
        keys = dropout_keys(engine.seed, work.jobs.rounds[client], work.jobs.clients[client], number + 1)
    return PlacedWork(schedule, of_steps, columns, begins, client, counts, rows, mask, sent_to(engine.device, keys))


def usual_widths(engine: LaneEngine) -> Widths:
    """Those of an engine's cohorts."""
    # Steps of the first width are compiled, and others of half as many lanes are not much faster than these.
    narrowing = 4 if engine.plan == "beside" else 2
    return Widths(least=engine.usual_width or 1, narrowing=narrowing)


def rounded_width(width: int, per_octave: int = _WIDTHS_PER_OCTAVE) -> int:
    """Rounded up to one of a few widths between a power of two and the next."""
    unit = max(1, 2 ** ((width - 1).bit_length() - 1) // per_octave) if width > 1 else 1
    return -(-width // unit) * unit

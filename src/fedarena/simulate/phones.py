"""What a job costs on the phone of its client, and how it goes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedarena.core import streams
from fedarena.simulate.jobs import BoolArray, FloatArray, Jobs, Outcome
from fedarena.train import PartialWork
from fedarena.train.engine import IntArray
from fedarena.train.systems_hooks import FORWARD_SHARE

if TYPE_CHECKING:  # a simulation without phones needs no more than torch and numpy
    from fedarena.fleet import ClientFleet

Leaving = Literal["abort", "pause"]


@dataclass(frozen=True)
class Load:
    """What a job asks of a phone."""

    download_bytes: int
    upload_bytes: int
    flops_per_sample: float
    # How many samples these clients compute gradients on in these shares of whole jobs.
    processed_samples: Callable[[IntArray, FloatArray], IntArray]
    compute_factor: float = (
        1.0  # how much more there is to do for a sample than plain training, which phones are timed at
    )
    partial_work: PartialWork | None = None
    # Shares that jobs of these clients can have, at most those wanted; needed if there is partial work.
    possible_shares: Callable[[IntArray, FloatArray], FloatArray] | None = None
    # What these clients download to get to this version of the model, where that depends on what they have.
    download_bytes_of: Callable[[IntArray, int], IntArray] | None = None
    # What a policy decides about the hyperparameters of these clients' jobs with these numbers.
    decide: Callable[[IntArray, IntArray], FloatArray] | None = None
    # The samples that are processed, as above, where something was decided.
    decided_samples: Callable[[IntArray, FloatArray, FloatArray], IntArray] | None = None
    # On how many samples these clients compute a loss without its gradient, beside their training; None: on none.
    scored_samples: Callable[[IntArray], IntArray] | None = None
    scoring_flops_per_sample: float = 0.0


@dataclass(frozen=True)
class Speeds:
    """How fast phones are in some jobs; every array has an entry per job."""

    download_seconds: FloatArray
    seconds_per_sample: FloatArray  # of training
    upload_seconds: FloatArray
    scoring_seconds: FloatArray  # of losses that clients compute beside their training


@dataclass(frozen=True)
class Done:
    """How much of some jobs was done when they ended; every array has an entry per job."""

    bytes_down: IntArray
    bytes_up: IntArray
    samples: IntArray  # processed
    flops: FloatArray
    seconds: FloatArray  # of computing, sending and receiving
    joules: FloatArray  # NaN where the device does not say


@dataclass(frozen=True)
class Phones:
    """The phones of a fleet at work. Everything is a pure function of its arguments and the seed."""

    fleet: ClientFleet | None  # None: everything takes no time
    load: Load
    seed: int
    always_on: bool = False  # as if phones never left
    leaving: Leaving = "abort"  # what a phone that leaves does with its job
    crash_rate: float = 0.0  # how many of the jobs fail at a random moment
    deadline_seconds: float = np.inf  # in which clients that can do partial work try to be done

    @property
    def leaving_fleet(self) -> ClientFleet | None:
        """The fleet, if its availability matters."""
        return None if self.always_on else self.fleet

    @property
    def never_leave(self) -> bool:
        """Whether everybody is always there."""
        return self.leaving_fleet is None

    def is_available(self, clients: IntArray, times: float | FloatArray) -> BoolArray:
        """Whether each of these could be invited then."""
        fleet = self.leaving_fleet
        return np.ones(len(clients), dtype=np.bool_) if fleet is None else fleet.is_available(clients, times)

    def seconds_left(self, clients: IntArray, time: float) -> FloatArray:
        """How long each of these, if available, stays so without a break."""
        return self._leaves_at(clients, np.full(len(clients), time)) - time

    def next_available(self, clients: IntArray, time: float) -> FloatArray:
        """When each of these is available next; infinite if never."""
        fleet = self.leaving_fleet
        return np.full(len(clients), time) if fleet is None else fleet.next_available(clients, time)

    def stays(self, clients: IntArray, since: FloatArray, until: float | FloatArray) -> BoolArray:
        """Whether phones that are there stay until then; if they pause when they leave, whether they are back."""
        if self.leaving == "pause":
            return self.is_available(clients, until)
        return np.asarray(self._leaves_at(clients, since) >= until)

    def leaving_at(self, clients: IntArray, since: FloatArray, until: float | FloatArray) -> FloatArray:
        """When phones that are there leave, at the latest then; if they pause, they have all that time."""
        latest = np.broadcast_to(np.asarray(until, dtype=np.float64), clients.shape)
        return latest.copy() if self.leaving == "pause" else np.minimum(self._leaves_at(clients, since), latest)

    def seconds_there(self, clients: IntArray, begin: FloatArray, end: FloatArray) -> FloatArray:
        """For how long phones that do not leave for good are there between two moments; 0 if the second is earlier."""
        end = np.maximum(begin, end)
        fleet = self._pausing_fleet
        return end - begin if fleet is None else fleet.available_seconds(clients, begin, end)

    def byte_seconds(self, clients: IntArray, numbers: IntArray) -> tuple[FloatArray, FloatArray]:
        """How long these clients' phones take to download and to upload a byte, in the jobs of these numbers."""
        if self.fleet is None:
            return np.zeros(len(clients)), np.zeros(len(clients))
        down, up = self._links(clients, numbers)
        return 8 / down, 8 / up

    def speeds(self, clients: IntArray, numbers: IntArray) -> Speeds:
        """How fast these clients' phones are in the jobs of these numbers."""
        down_bytes = np.full(len(clients), self.load.download_bytes)
        seconds = self._seconds(clients, numbers, np.ones(len(clients), dtype=np.int64), down_bytes)
        return Speeds(*seconds, self._scoring_seconds(clients))

    def plan(
        self,
        clients: IntArray,
        numbers: IntArray,
        times: FloatArray,
        version: int,
        round: int = 0,
        waited: FloatArray | float = 0.0,
    ) -> Jobs:
        """Jobs that begin at these times of a round, and what becomes of them; the server has `waited` since before."""
        decisions = self.load.decide(clients, numbers) if self.load.decide is not None and len(clients) else None
        samples = self._samples(clients, np.ones(len(clients)), decisions)
        down_bytes, up_bytes = (
            np.full(len(clients), size) for size in (self.load.download_bytes, self.load.upload_bytes)
        )
        if self.load.download_bytes_of is not None:
            down_bytes = self.load.download_bytes_of(clients, version)
        download, compute, upload = self._seconds(clients, numbers, samples, down_bytes)
        scoring = self._scoring_seconds(clients)
        # A deadline includes what was waited.
        shares = self._shares(clients, waited + download + scoring, compute, upload)
        if (shares < 1).any():
            whole = samples
            samples = self._samples(clients, shares, decisions)
            compute = compute * np.divide(samples, whole, out=np.ones(len(whole)), where=whole > 0)
            compute, upload = compute * self._backward_part(shares), upload * self._upload_part(shares)
            up_bytes = np.ceil(up_bytes * self._upload_part(shares)).astype(np.int64)
        compute = compute + scoring
        work = np.cumsum([download, compute, upload], axis=0)
        begin = np.broadcast_to(np.asarray(times, dtype=np.float64), clients.shape).copy()
        ends = self._after(work, clients, begin)
        leaves = np.full(len(clients), np.inf) if self.leaving == "pause" else self._leaves_at(clients, begin)
        end = np.minimum(ends[2], leaves)
        outcomes = _phase_at(leaves, ends, begin)
        if self.crash_rate:
            moment = self._crash_moments(clients, numbers, begin, work[2])
            crashed = moment < end
            end, outcomes = np.where(crashed, moment, end), np.where(crashed, int(Outcome.CRASHED), outcomes)
        downloaded, trained, uploaded = np.where(ends <= end, ends, np.inf)
        versions, rounds = np.full(len(clients), version), np.full(len(clients), round)
        return Jobs(
            *(numbers, clients, versions, shares, samples, down_bytes, up_bytes, begin, download, compute, upload),
            *(downloaded, trained, uploaded, end, outcomes, rounds, decisions),
        )

    def scored_samples(self, clients: IntArray) -> IntArray:
        """On how many samples these clients compute a loss without its gradient in a job."""
        scored = self.load.scored_samples
        return np.zeros(len(clients), dtype=np.int64) if scored is None else scored(clients)

    def done(self, jobs: Jobs) -> Done:
        """What phones did for these jobs until they ended."""
        whole = jobs.download_seconds + jobs.compute_seconds + jobs.upload_seconds
        worked = jobs.end - jobs.begin
        if self._pausing_fleet is not None:
            worked = self._pausing_fleet.available_seconds(jobs.clients, jobs.begin, jobs.end)
        worked = np.where(np.isfinite(jobs.uploaded), whole, np.clip(worked, 0, whole))
        down = np.minimum(worked, jobs.download_seconds)
        compute = np.clip(worked - jobs.download_seconds, 0, jobs.compute_seconds)
        up = np.clip(worked - jobs.download_seconds - jobs.compute_seconds, 0, jobs.upload_seconds)
        joules = np.full(len(jobs), np.nan)
        if self.fleet is not None:
            joules = self.fleet.fleet.devices.joules(self.fleet.device_of[jobs.clients], compute, down + up)
        samples = _part(jobs.samples, compute, jobs.compute_seconds, jobs.trained)
        scored = _part(self.scored_samples(jobs.clients), compute, jobs.compute_seconds, jobs.trained)
        flops = self.load.flops_per_sample * samples * self._backward_part(jobs.shares)
        return Done(
            _part(jobs.download_bytes, down, jobs.download_seconds, jobs.downloaded),
            _part(jobs.upload_bytes, up, jobs.upload_seconds, jobs.uploaded),
            samples,
            flops + self.load.scoring_flops_per_sample * scored,
            worked,
            joules,
        )

    @property
    def _pausing_fleet(self) -> ClientFleet | None:
        return self.leaving_fleet if self.leaving == "pause" else None

    def _leaves_at(self, clients: IntArray, times: FloatArray) -> FloatArray:
        fleet = self.leaving_fleet
        return np.full(len(clients), np.inf) if fleet is None else fleet.leaves_at(clients, times)

    def _after(self, work: FloatArray, clients: IntArray, begin: FloatArray) -> FloatArray:
        """When so many seconds of work are done, by phones that stay or come back."""
        fleet = self._pausing_fleet
        return begin + work if fleet is None else fleet.finish_time(clients, begin, work, "pause")

    def _seconds(
        self, clients: IntArray, numbers: IntArray, samples: IntArray, down_bytes: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        if self.fleet is None:
            return np.zeros(len(clients)), np.zeros(len(clients)), np.zeros(len(clients))
        devices, rows = self.fleet.fleet.devices, self.fleet.device_of[clients]
        down, up = self._links(clients, numbers)
        work = samples * self.load.compute_factor
        compute = devices.compute_seconds(rows, work, samples * self.load.flops_per_sample)
        return 8 * down_bytes / down, compute, 8 * self.load.upload_bytes / up

    def _scoring_seconds(self, clients: IntArray) -> FloatArray:
        """How long these clients compute losses without their gradients in a job."""
        if self.fleet is None or self.load.scored_samples is None:
            return np.zeros(len(clients))
        scored, rows = self.scored_samples(clients), self.fleet.device_of[clients]
        flops = self.load.scoring_flops_per_sample * scored
        return self.fleet.fleet.devices.compute_seconds(rows, FORWARD_SHARE * scored, flops)

    def _links(self, clients: IntArray, numbers: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bits a second, down and up, in the jobs of these numbers."""
        assert self.fleet is not None
        devices, rows = self.fleet.fleet.devices, self.fleet.device_of[clients]
        down = devices.draw_download(rows, streams.bits(self.seed, "download speed", clients, numbers))
        return down, devices.draw_upload(rows, streams.bits(self.seed, "upload speed", clients, numbers))

    def _samples(self, clients: IntArray, shares: FloatArray, decisions: FloatArray | None) -> IntArray:
        """How many samples are processed in these shares of jobs, by what was decided for them."""
        if decisions is None or self.load.decided_samples is None:
            return self.load.processed_samples(clients, shares)
        return self.load.decided_samples(clients, shares, decisions)

    def _shares(self, clients: IntArray, download: FloatArray, compute: FloatArray, upload: FloatArray) -> FloatArray:
        """How much of whole jobs that take so long clients do; `download` is beside training, until they can send."""
        partial = self.load.partial_work
        if partial is None:
            return np.ones(len(clients))
        seconds = self.deadline_seconds
        if np.isinf(seconds) and partial.whole_jobs is not None and len(clients):
            seconds = float(np.quantile(download + compute + upload, partial.whole_jobs, method="higher"))
        by_layers = partial.part == "layers"
        fixed = download + FORWARD_SHARE * compute if by_layers else download + upload
        flexible = (1 - FORWARD_SHARE) * compute + upload if by_layers else compute
        fitting = np.divide(seconds - fixed, flexible, out=np.ones(len(clients)), where=flexible > 0)
        late = download + compute + upload > seconds
        assert self.load.possible_shares is not None
        return np.where(late, self.load.possible_shares(clients, np.clip(fitting, 0, 1)), 1.0)

    def _backward_part(self, shares: FloatArray) -> FloatArray:
        """How much of the computing on a sample is left if only a share of the layers is trained."""
        return FORWARD_SHARE + (1 - FORWARD_SHARE) * shares if self._leaves_out_layers else np.ones(len(shares))

    def _upload_part(self, shares: FloatArray) -> FloatArray:
        return shares if self._leaves_out_layers else np.ones(len(shares))

    @property
    def _leaves_out_layers(self) -> bool:
        return self.load.partial_work is not None and self.load.partial_work.part == "layers"

    def _crash_moments(self, clients: IntArray, numbers: IntArray, begin: FloatArray, work: FloatArray) -> FloatArray:
        """When jobs crash, infinite for those that do not: after a random share of their work."""
        worked = work * streams.uniform(self.seed, "crash moment", clients, numbers)
        crashes = streams.uniform(self.seed, "crash", clients, numbers) < self.crash_rate
        return np.where(crashes, self._after(worked, clients, begin), np.inf)


def _phase_at(leaves: FloatArray, ends: FloatArray, begin: FloatArray) -> IntArray:
    """How jobs whose phases end at `ends` go out if their phones leave at `leaves`."""
    if np.isinf(leaves).all():
        return np.full(len(leaves), int(Outcome.USED))
    phases = (Outcome.LEFT_DOWNLOADING, Outcome.LEFT_TRAINING, Outcome.LEFT_UPLOADING)
    conditions = [leaves <= begin, *(leaves < end for end in ends)]
    choices = [int(Outcome.NOT_AVAILABLE), *map(int, phases)]
    return np.select(conditions, choices, int(Outcome.USED)).astype(np.int64)


def _part(whole: IntArray, seconds: FloatArray, all_seconds: FloatArray, end: FloatArray) -> IntArray:
    """How much of `whole`, which takes `all_seconds`, is done after `seconds`; all of it where its end was reached."""
    if np.isfinite(end).all():
        return whole.astype(np.int64)
    share = np.divide(seconds, all_seconds, out=np.zeros_like(seconds), where=all_seconds > 0)
    return np.where(np.isfinite(end), whole, np.floor(share * whole)).astype(np.int64)

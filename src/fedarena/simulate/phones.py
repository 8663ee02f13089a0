"""What a job costs on the phone of its client, and how it goes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedarena import streams
from fedarena.simulate.jobs import BoolArray, FloatArray, Jobs, Outcome
from fedarena.train.engine import IntArray

if TYPE_CHECKING:  # a simulation without phones needs no more than torch and numpy
    from fedarena.fleet import ClientFleet

Leaving = Literal["abort", "pause"]


@dataclass(frozen=True)
class Load:
    """What a job asks of a phone."""

    download_bytes: int
    upload_bytes: int
    flops_per_sample: float
    processed_samples: Callable[[IntArray], IntArray]  # how many samples these clients compute gradients on


@dataclass(frozen=True)
class Done:
    """How much of some jobs was done when they ended; every array has an entry per job."""

    bytes_down: IntArray
    bytes_up: IntArray
    samples: IntArray  # processed
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

    @property
    def leaving_fleet(self) -> ClientFleet | None:
        """The fleet, if its availability matters."""
        return None if self.always_on else self.fleet

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

    def plan(self, clients: IntArray, numbers: IntArray, times: FloatArray, version: int) -> Jobs:
        """Jobs that begin at these times, and what becomes of them."""
        samples = self.load.processed_samples(clients)
        download, compute, upload = self._seconds(clients, numbers, samples)
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
        versions = np.full(len(clients), version)
        return Jobs(
            *(numbers, clients, versions, samples, begin, download, compute, upload),
            *(downloaded, trained, uploaded, end, outcomes),
        )

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
        return Done(
            _part(self.load.download_bytes, down, jobs.download_seconds, jobs.downloaded),
            _part(self.load.upload_bytes, up, jobs.upload_seconds, jobs.uploaded),
            _part(jobs.samples, compute, jobs.compute_seconds, jobs.trained),
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
        self, clients: IntArray, numbers: IntArray, samples: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        if self.fleet is None:
            return np.zeros(len(clients)), np.zeros(len(clients)), np.zeros(len(clients))
        devices, rows = self.fleet.fleet.devices, self.fleet.device_of[clients]
        down = devices.draw_download(rows, streams.bits(self.seed, "download speed", clients, numbers))
        up = devices.draw_upload(rows, streams.bits(self.seed, "upload speed", clients, numbers))
        compute = devices.compute_seconds(rows, samples, samples * self.load.flops_per_sample)
        return 8 * self.load.download_bytes / down, compute, 8 * self.load.upload_bytes / up

    def _crash_moments(self, clients: IntArray, numbers: IntArray, begin: FloatArray, work: FloatArray) -> FloatArray:
        """When jobs crash, infinite for those that do not: after a random share of their work."""
        worked = work * streams.uniform(self.seed, "crash moment", clients, numbers)
        crashes = streams.uniform(self.seed, "crash", clients, numbers) < self.crash_rate
        return np.where(crashes, self._after(worked, clients, begin), np.inf)


def _phase_at(leaves: FloatArray, ends: FloatArray, begin: FloatArray) -> IntArray:
    """How jobs whose phases end at `ends` go out if their phones leave at `leaves`."""
    phases = (Outcome.LEFT_DOWNLOADING, Outcome.LEFT_TRAINING, Outcome.LEFT_UPLOADING)
    conditions = [leaves <= begin, *(leaves < end for end in ends)]
    choices = [int(Outcome.NOT_AVAILABLE), *map(int, phases)]
    return np.select(conditions, choices, int(Outcome.USED)).astype(np.int64)


def _part(whole: int | IntArray, seconds: FloatArray, all_seconds: FloatArray, end: FloatArray) -> IntArray:
    """How much of `whole`, which takes `all_seconds`, is done after `seconds`; all of it where its end was reached."""
    share = np.divide(seconds, all_seconds, out=np.zeros_like(seconds), where=all_seconds > 0)
    return np.where(np.isfinite(end), whole, np.floor(share * whole)).astype(np.int64)

"""The heterogeneity metrics once more, as plain as possible: one round, client and second after the other."""

from __future__ import annotations

import math

import numpy as np

from fedarena.core import streams
from fedarena.fleet import ClientFleet
from fedarena.fleet.heterogeneity import METRICS, HeterogeneityOptions

LONGEST = 1_000_000  # rounds in which nobody comes


class PlainWorld:
    """The same phones as lists: what happens in every second of the period, and speeds to choose from."""

    def __init__(self, phones: ClientFleet, clients: int, options: HeterogeneityOptions, draws: bool = False):
        self.options, self.draws = options, draws
        availability, self.devices = phones.fleet.availability, phones.fleet.devices
        self.seconds: list[list[bool]] = []
        self.rows: list[int] = []
        for client in range(clients):
            row = int(phones.availability_of[client])
            self.rows.append(int(phones.device_of[client]))
            there = [False] * int(availability.periods[row])
            for interval in range(availability.offsets[row], availability.offsets[row + 1]):
                for second in range(availability.starts[interval], availability.ends[interval]):
                    there[second] = True
            self.seconds.append(there)
        starts = availability.trace_starts
        self.trace_starts = None if starts is None else [int(starts[row]) for row in phones.availability_of[:clients]]

    def second(self, client: int, clock: float) -> float:
        """When a client is looked up: in whole seconds, rounded like the published code does it."""
        if not self.options.whole_seconds:
            return clock
        if self.trace_starts is None:
            return math.ceil(clock)
        return self.trace_starts[client] + int(clock - self.trace_starts[client])

    def is_there(self, client: int, time: float) -> bool:
        there = self.seconds[client]
        return there[math.floor(time) % len(there)]

    def finish(self, client: int, time: float, work: float) -> float:
        second = math.floor(time)
        while work > 0:
            if self.is_there(client, second):
                room = second + 1 - time
                if work <= room:
                    return time + work
                work -= room
            second += 1
            time = second
        return time

    def invited(self, there: list[int], stream: int, round: int, draws: bool) -> list[int]:
        number, seed = self.options.cohort, self.options.seed
        if draws:
            found: list[int] = []
            for draw in range(len(self.seconds) // 2):
                client = int(streams.bits(seed, "heterogeneity/draw", stream, round, draw)) % len(self.seconds)
                if client in there and client not in found:
                    found.append(client)
                if len(found) == number:
                    return found
        if len(there) <= number:
            return there
        return sorted(
            there, key=lambda client: int(streams.bits(seed, "heterogeneity/invitation", stream, round, client))
        )[:number]

    def device_seconds(self, client: int, stream: int, round: int) -> float:
        options, row = self.options, self.rows[client]
        bits = int(streams.bits(options.seed, "heterogeneity/speeds", stream, round, client))
        seconds = 0.0
        for mean, measured, choice in (
            (self.devices.download_bits_per_second[row], self.devices.measured_download, bits % 2**32),
            (self.devices.upload_bits_per_second[row], self.devices.measured_upload, bits // 2**32),
        ):
            speeds = [] if measured is None else measured.values[measured.offsets[row] : measured.offsets[row + 1]]
            speed = speeds[choice % len(speeds)] if len(speeds) else mean
            seconds += 8 * options.model_bytes / speed
        flops = self.devices.flops_per_second[row]
        if math.isnan(flops):
            return seconds + options.samples * self.devices.seconds_per_sample[row]
        return seconds + options.samples * options.flops_per_sample / flops

    def simulate(
        self, stream: int, cost: float | None, with_deadline: bool, leaving: bool = True
    ) -> tuple[list[int], float]:
        """How often clients are in time, and the time in the end; `cost` is what all take, None what devices take."""
        options, everybody = self.options, range(len(self.seconds))
        in_time = [0] * len(self.seconds)
        clock, round, trips = 0.0, 0, 0
        while (round < options.rounds) if with_deadline else (trips < options.trips):
            if round == LONGEST:
                return in_time, math.inf
            clock += options.break_seconds
            there = [client for client in everybody if not leaving or self.is_there(client, self.second(client, clock))]
            draws = self.draws if leaving else len(self.seconds) > 2 * options.cohort
            chosen = self.invited(there, stream, round, draws)
            ends = []
            for client in chosen:
                taken = self.device_seconds(client, stream, round) if cost is None else cost
                if leaving:
                    work = math.ceil(taken) if options.whole_seconds else taken
                    second = self.second(client, clock)
                    taken = self.finish(client, second, work) - second
                is_in_time = (
                    taken <= options.deadline_seconds
                    if options.inclusive_deadline
                    else taken < options.deadline_seconds
                )
                if with_deadline:
                    in_time[client] += is_in_time
                    taken = min(taken, options.deadline_seconds)
                ends.append(taken)
            if ends:
                clock += max(ends) if with_deadline else float(np.quantile(ends, options.ready_share))
            trips += len(chosen)
            round += 1
        return in_time, clock

    def metrics(self, repetition: int) -> dict[str, float]:
        options = self.options
        ideal = options.cohort / len(self.seconds) * options.rounds
        drawn: dict[str, list[float | None]] = {
            "StatMC-R": list(options.deadline_costs(repetition)),
            "StatMC-T": list(options.readiness_costs(repetition)),
        }
        found = dict.fromkeys(METRICS, 0.0)
        stream = repetition * 1_000_000
        for name in ("DevMC-R", "DevMC-T", "StatMC-R", "InterMC-R", "StatMC-T", "InterMC-T"):
            values = []
            for cost in drawn.get(name, [None]):
                in_time, clock = self.simulate(stream, cost, name.endswith("R"), leaving=not name.startswith("Dev"))
                if name.endswith("R"):
                    clipped = sum(min(times, ideal) for times in in_time)
                    values.append(math.log(1 + clipped) / math.log(1 + len(in_time) * ideal))
                else:
                    values.append(clock / (options.trips / options.cohort * options.break_seconds))
                stream += 1
            found[name] = sum(values) / len(values)
        return found

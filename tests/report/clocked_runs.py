"""Virtual time for made-up runs: phones of different speed that sometimes leave; the rounds follow from the jobs."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.fleet import describe_fleet, load_fleet
from fedarena.metrics import summarize_participation
from fedarena.storage.recorder import table_schemas
from fedarena.storage.run_data import RunData

MODEL_BYTES = 1_300_000
PHASES = ("downloading", "training", "uploading")


def with_clock(
    run: RunData, protocol: str = "synchronous", *, phones: int = 400, energy: bool = False, start_hour: float = 8.0
) -> RunData:
    """The same run in a world with a clock: `synchronous` (26 invited, 20 used) or `buffered` (10 updates a round)."""
    random = np.random.default_rng([int(run.config["seed"]), sum(map(ord, run.label))])
    world = _World(random, phones, energy)
    rounds = run.rounds.num_rows - 1
    jobs, ends = (world.buffered if protocol == "buffered" else world.synchronous)(rounds, start_hour * 3600)
    world.joules(jobs)
    schemas = table_schemas(())
    rows = run.rounds.to_pylist()
    by_round: dict[int, list[dict[str, Any]]] = {}
    for job in jobs:
        by_round.setdefault(job["round"], []).append(job)
    for row, end in zip(rows, ends, strict=True):
        mine = by_round.get(row["round"], [])
        failed = [job for job in mine if job["outcome"] != "used"]
        used = [job for job in mine if job["outcome"] == "used"]
        row |= {
            "invited": len(mine),
            "failed": len(failed),
            "end_seconds": end,
            "wasted_seconds": sum(job["end_seconds"] - job["begin_seconds"] for job in failed),
            "wasted_bytes": sum(job["bytes_down"] + job["bytes_up"] for job in failed),
            "joules": sum(job["joules"] for job in mine) if energy else None,
            "staleness": float(np.mean([job["staleness"] for job in used])) if used else None,
            "succeeded": bool(used),
            "bytes_down": sum(job["bytes_down"] for job in mine),
            "bytes_up": sum(job["bytes_up"] for job in mine),
        }
    clients = np.array([job["index"] for job in jobs], dtype=np.int64)
    used = np.array([job["outcome"] == "used" for job in jobs], dtype=bool)
    return replace(
        run,
        config={**run.config, "fleet": {"name": "fedscale"}, "protocol": {"name": protocol}},
        rounds=pa.Table.from_pylist(rows, schema=run.rounds.schema),
        jobs=pa.Table.from_pylist(jobs, schema=schemas["jobs"]),
        summary={**run.summary, "participation": summarize_participation(clients, used, phones)},
        fleet=fleet_statistics(phones),
    )


@cache
def fleet_statistics(phones: int, source: str = "fedscale") -> dict[str, Any]:
    """What ``fleet.json`` says of a fleet for so many clients."""
    clients = np.arange(phones)
    return describe_fleet(load_fleet(source, phones).match(clients, None, 0), clients, 0)


class _World:
    def __init__(self, random: np.random.Generator, phones: int, energy: bool):
        self.random, self.phones, self.energy = random, phones, energy
        self.durations = random.lognormal((3.0, 5.0, 3.6), (0.8, 0.9, 0.8), (phones, 3))
        self.numbers = itertools.count()

    def synchronous(self, rounds: int, time: float) -> tuple[list[dict[str, Any]], list[float]]:
        jobs, ends = [], [time]
        for number in range(1, rounds + 1):
            cohort = self.random.choice(self.phones, 26, replace=False)
            invited = [self.job(number - 1, int(client), time) for client in cohort]
            done = sorted(job["uploaded_seconds"] for job in invited if job["outcome"] == "used")
            time = done[min(20, len(done)) - 1]
            for job in invited:
                if job["uploaded_seconds"] is not None and job["uploaded_seconds"] > time:
                    self.cut(job, time)
                    job["outcome"] = "late"
                job["round"] = number
            jobs += sorted(invited, key=lambda job: job["end_seconds"])
            ends.append(time)
        return jobs, ends

    def buffered(self, rounds: int, time: float) -> tuple[list[dict[str, Any]], list[float]]:
        jobs, ends, running, buffer = [], [time], [], 0
        while len(ends) <= rounds:
            while len(running) < 26:
                job = self.job(len(ends) - 1, int(self.random.integers(self.phones)), time)
                heapq.heappush(running, (job["end_seconds"], job["job"], job))
            time, _, job = heapq.heappop(running)
            job["round"] = len(ends)
            job["staleness"] = len(ends) - 1 - job["start_version"]
            if job["outcome"] == "used" and job["staleness"] > 15:
                job["outcome"] = "stale"
            job["weight"] = 1 / np.sqrt(1 + job["staleness"]) if job["outcome"] == "used" else None
            jobs.append(job)
            buffer += job["outcome"] == "used"
            if buffer == 10:
                ends.append(time)
                buffer = 0
        return jobs, ends

    def job(self, version: int, client: int, begin: float) -> dict[str, Any]:
        ends = begin + np.cumsum(self.durations[client] * self.random.lognormal(0, 0.2, 3))
        job: dict[str, Any] = {
            "job": next(self.numbers),
            "client": f"client-{client}",
            "index": client,
            "start_version": version,
            "staleness": 0,
            "begin_seconds": begin,
            "downloaded_seconds": ends[0],
            "trained_seconds": ends[1],
            "uploaded_seconds": ends[2],
            "end_seconds": ends[2],
            "outcome": "used",
            "samples": 140,
            "bytes_down": MODEL_BYTES,
            "bytes_up": MODEL_BYTES,
        }
        luck = self.random.random()
        if luck < 0.16:
            phase = int(luck * 100) % 3
            self.cut(job, float(self.random.uniform([begin, *ends][phase], ends[phase])))
            job["outcome"] = "crashed" if luck < 0.02 else f"left while {PHASES[phase]}"
        return job

    def joules(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            job["worked_seconds"] = job["end_seconds"] - job["begin_seconds"]
            job["joules"] = 2.5 * job["worked_seconds"] if self.energy else None

    @staticmethod
    def cut(job: dict[str, Any], time: float) -> None:
        """Ends a job before it is done."""
        names = [f"{name}_seconds" for name in ("downloaded", "trained", "uploaded")]
        job["bytes_up"] = 0 if job["trained_seconds"] > time else MODEL_BYTES // 2
        job["bytes_down"] = MODEL_BYTES if job["downloaded_seconds"] <= time else MODEL_BYTES // 3
        job |= {name: job[name] if job[name] <= time else None for name in names}
        job["end_seconds"] = time

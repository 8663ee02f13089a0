"""FLAIR's work on one GPU: a cohort of users with pictures of 256 pixels, ResNet-18 at 224, beside central training.

    python benchmarks/gpu_flair.py [--work flair fedscale] [--precision tf32] [--output gpu_flair.json]

Needs torch and NumPy alone, like gpu_speed.py; pfl-research is measured where it can be imported. *flair*: 200 users
with as many pictures as FLAIR's (median 2, mean about 8, at most 512), 2 epochs in batches of 16, random crops and
flips. *fedscale*: rounds like those of FedScale's Table 6, MobileNet-V2, 20 steps of 32 pictures for each of 10, 100
and 1,000 participants (or ``--participants 10 10000 --rounds 1``); the paper does not say how large pictures are.
Pictures are random numbers. *central* trains
the same model on as many samples in batches of 512 with plain torch; *pfl* trains user after user with its own loop
and its own crops.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.models import DataSpec, build_model
from fedarena.models.augmentation import CropAndFlip
from fedarena.models.tasks import task_class
from fedarena.simulate import Simulation, simulate
from fedarena.simulate.selectors import Shuffled, Uniform
from fedarena.train import CohortEngine, LocalTraining

SEED = 0
STORED, SEEN = 256, 224
CENTRAL_BATCH = 512
FEDSCALE_MINUTES = {10: 0.03, 100: 0.16, 1_000: 1.14, 10_000: 10.9}  # of a round on 20 GPUs
MOST_PICTURES = 4096  # that differ; more users have the same ones
LEAST_OF_CENTRAL, LEAST_TIMES_PFL = 0.6, 3.0


@dataclass(frozen=True)
class Work:
    """Users, and what they do."""

    model: str
    kind: str
    classes: int
    sizes: np.ndarray
    local: LocalTraining

    @property
    def processed(self) -> int:
        """Samples in a round."""
        if self.local.steps is not None:
            return self.local.steps * self.local.batch_size * len(self.sizes)
        return int(self.local.epochs or 1) * int(self.sizes.sum())


def flair(users: int) -> Work:
    """A cohort of FLAIR's."""
    drawn = np.random.default_rng(SEED).lognormal(np.log(2), 1.69, users)
    sizes = np.clip(np.round(drawn), 1, 512).astype(np.int64)
    return Work(
        "resnet18_imagenet", "multi_label", 17, sizes, LocalTraining(epochs=2, batch_size=16, lr=0.1, clip_norm=10.0)
    )


def fedscale(users: int) -> Work:
    """Participants of FedScale's Table 6, with as many pictures as iNature's have on average."""
    local = LocalTraining(epochs=None, steps=20, batch_size=32, lr=0.04)
    return Work("mobilenet_v2", "classification", 1010, np.full(users, 84, dtype=np.int64), local)


class RandomPictures:
    """Users with pictures of random numbers."""

    def __init__(self, work: Work):
        random = np.random.default_rng(SEED)
        self.bounds = np.concatenate([[0], np.cumsum(work.sizes)])
        rows = min(int(self.bounds[-1]), MOST_PICTURES)
        self.columns: dict[str, Any] = {
            "x": random.integers(0, 256, (rows, 3, STORED, STORED), dtype=np.uint8),
            "y": (random.random((rows, work.classes)) < 0.16).astype(np.uint8)
            if work.kind == "multi_label"
            else random.integers(work.classes, size=rows),
        }

    def counts(self, clients: Any, part: str) -> Any:
        """How many pictures each has."""
        return np.diff(self.bounds)[np.asarray(clients)]

    def samples(self, clients: Any, part: str) -> Any:
        """The pictures of these users."""
        rows = np.concatenate([np.arange(self.bounds[c], self.bounds[c + 1]) for c in np.asarray(clients)])
        rows %= len(self.columns["y"])
        offsets = np.concatenate([[0], np.cumsum(self.counts(clients, part))])
        return SimpleNamespace(columns={name: values[rows] for name, values in self.columns.items()}, offsets=offsets)


def make_task(work: Work) -> Any:
    """The model that sees crops, with its loss."""
    stored, seen = (DataSpec(work.kind, work.classes, (3, side, side)) for side in (STORED, SEEN))  # type: ignore[arg-type]
    task = task_class("auto", stored)(build_model(work.model, seen, {}, SEED), stored)
    task.augmentation = CropAndFlip(size=SEEN)
    return task


def make_engine(work: Work, data: RandomPictures, options: dict[str, Any]) -> CohortEngine:
    """What trains the users."""
    algorithm = FedAvg()
    algorithm.prepare(len(work.sizes), work.local)
    return CohortEngine(make_task(work), algorithm, work.local, data, SEED, device="cuda", **options)


def make_rounds(
    engine: CohortEngine, users: int, cohort: int | None = None, rounds: int = 10**6
) -> Callable[[int], None]:
    """A simulation of so many users that goes on for as many rounds as it is told.

    All of them take part in every round, or with a `cohort` so many, until everybody had a turn. If there are more
    `rounds` to come, a GPU begins with the next one before anybody has seen what the last one came to.
    """
    everybody = np.arange(users)
    simulation = Simulation(
        seed=SEED,
        rounds=rounds,
        cohort=cohort or users,
        task=engine.task,
        algorithm=engine.algorithm,
        engine=engine,
        training_clients=everybody,
        evaluation_clients=everybody[:1],
        evaluation_part="train",
        evaluate_every=10**6,
        flops_per_sample=0,
        client_ids=lambda clients: [str(client) for client in clients],
        selector=Shuffled() if cohort else Uniform(),
    )
    outcomes = simulate(simulation)
    next(outcomes)

    def run(rounds: int) -> None:
        for _ in itertools.islice(outcomes, rounds):
            pass

    return run


def make_central(work: Work, precision: str, tuned: bool) -> Callable[[int], None]:
    """Plain torch on one large batch, in the layout that is fastest; if `tuned`, with convolutions it has tried."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    task = make_task(work)
    module = task.module.cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x = torch.rand(CENTRAL_BATCH, 3, SEEN, SEEN, device="cuda").contiguous(memory_format=torch.channels_last)
    if work.kind == "multi_label":
        loss, y = F.binary_cross_entropy_with_logits, torch.zeros(CENTRAL_BATCH, work.classes, device="cuda")
    else:
        loss, y = F.cross_entropy, torch.zeros(CENTRAL_BATCH, dtype=torch.long, device="cuda")

    def run(steps: int) -> None:
        torch.backends.cudnn.benchmark = tuned
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                value = loss(module(x).float(), y)
            value.backward()
            optimizer.step()
        torch.backends.cudnn.benchmark = False

    return run


def make_pfl(work: Work, data: RandomPictures) -> Callable[[int], None] | None:
    """pfl-research's FLAIR training of the same network on the same pictures; None where it is not installed."""
    try:
        from peers.pfl_flair import make_flair_run
    except ImportError as error:
        print(f"without pfl-research: {error}")
        return None
    task = make_task(work)
    block = data.samples(np.arange(len(work.sizes)), "train")
    pictures, targets = (torch.from_numpy(block.columns[name]).cuda() for name in ("x", "y"))
    bounds = itertools.pairwise(block.offsets.tolist())
    users = [(pictures[first:last], task.targets(targets[first:last])) for first, last in bounds]
    return make_flair_run(task.module, users, work.local, SEEN)


def timed(run: Callable[[int], None], times: int) -> float:
    """Seconds of one of so many."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    run(times)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def central_speed(work: Work, precision: str, tuned: bool) -> float:
    """Samples per second of central training."""
    central = make_central(work, precision, tuned)
    central(2)
    speed = CENTRAL_BATCH / timed(central, 8)
    say(f"central{', tuned' if tuned else ''}: {speed:,.0f} samples/s")
    return speed


def measure_flair(users: int, options: dict[str, Any], repetitions: int, with_pfl: bool) -> Iterator[dict[str, Any]]:
    """Samples per second of all, as soon as they are known; medians."""
    work = flair(users)
    data = RandomPictures(work)
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    engine = make_engine(work, data, options)
    say(f"flair: {engine.choices}")
    ours = make_rounds(engine, users)
    ours(1)
    first = time.perf_counter() - began
    ours(1)
    speeds = {"ours": statistics.median(work.processed / timed(ours, 3) for _ in range(repetitions))}
    row: dict[str, Any] = {
        "users": users,
        "samples": work.processed,
        "samples_per_second": speeds,
        "first_round_seconds": first,
        "peak_bytes": torch.cuda.max_memory_reserved(),
        "engine": {**engine.choices, "notes": engine.notes},
    }
    say(f"flair: {speeds['ours']:,.0f} samples/s; first round {first:.0f} s, {row['peak_bytes'] / 2**30:.1f} GiB")
    yield row
    pfl = make_pfl(work, data) if with_pfl else None
    if pfl is not None:
        with contextlib.redirect_stdout(None):
            speeds["pfl"] = statistics.median(work.processed / timed(pfl, 1) for _ in range(repetitions))
        row["times_pfl"] = speeds["ours"] / speeds["pfl"]
        verdict = "ok" if row["times_pfl"] >= LEAST_TIMES_PFL else "MISSED"
        say(f"flair: {row['times_pfl']:.1f} times pfl ({speeds['pfl']:,.0f}); {verdict}")
        yield row
    for tuned in (False, True):
        speeds["central"] = max(speeds.get("central", 0), central_speed(work, options["precision"], tuned))
        row["of_central"] = speeds["ours"] / speeds["central"]
        say(f"flair: {row['of_central']:.0%} of central; {'ok' if row['of_central'] >= LEAST_OF_CENTRAL else 'MISSED'}")
        yield row


def measure_fedscale(participants: list[int], rounds: int, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Minutes of rounds, after one that makes the programs, and samples per second beside central training.

    Some rounds in a row are timed together, since they overlap. In the first of them, most users' pictures are new to
    the GPU.
    """
    work = fedscale(max(participants))
    torch.cuda.reset_peak_memory_stats()
    engine = make_engine(work, RandomPictures(work), options)
    say(f"fedscale: {engine.choices}")
    make_rounds(engine, min(participants))(1)
    row: dict[str, Any] = {"rounds": {}, "fedscale_minutes": FEDSCALE_MINUTES}
    row["engine"] = {**engine.choices, "notes": engine.notes}
    speed = 0.0
    for users in sorted(participants):
        seconds = timed(make_rounds(engine, users, rounds=rounds), rounds)
        speed = fedscale(users).processed / seconds
        row["rounds"][str(users)] = {"minutes": seconds / 60, "samples_per_second": speed}
        row["peak_bytes"] = torch.cuda.max_memory_reserved()
        say(
            f"fedscale: {users:,} participants {seconds / 60:.3f} minutes ({speed:,.0f} samples/s, "
            f"{row['peak_bytes'] / 2**30:.1f} GiB); FedScale on 20 GPUs: {FEDSCALE_MINUTES.get(users)}"
        )
        yield row
    for tuned in (False, True):
        limit = max(row.get("central_samples_per_second", 0), central_speed(work, options["precision"], tuned))
        row |= {"central_samples_per_second": limit, "of_central": speed / limit}
        say(f"fedscale: {speed / limit:.0%} of central; {'ok' if speed / limit >= LEAST_OF_CENTRAL else 'MISSED'}")
        yield row


BEGAN = time.perf_counter()


def say(line: str) -> None:
    """Prints a line at once, with the seconds since the beginning."""
    print(f"[{time.perf_counter() - BEGAN:4.0f} s] {line}", flush=True)


def main() -> None:
    """Measures the work that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", nargs="+", choices=("flair", "fedscale"), default=["flair", "fedscale"])
    parser.add_argument("--users", type=int, default=200, help="of FLAIR")
    parser.add_argument("--participants", type=int, nargs="+", default=[10, 100, 1000], help="of FedScale's rounds")
    parser.add_argument("--rounds", type=int, default=2, help="of FedScale's that are timed together")
    parser.add_argument("--precision", choices=("full", "tf32", "bf16"), default="tf32")
    parser.add_argument("--lanes", type=int, help="clients beside each other; by default, as the engine chooses")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--without-pfl", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    options: dict[str, Any] = {"precision": arguments.precision}
    if arguments.lanes:
        options |= {"lanes": arguments.lanes, "plan": "apart"}
    asked_for = [argument for argument in sys.argv[1:] if argument not in ("--output", str(arguments.output))]
    about = {
        "command": " ".join(["python benchmarks/gpu_flair.py", *asked_for]),
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "precision": arguments.precision,
    }
    measured: dict[str, Iterator[dict[str, Any]]] = {}
    if "flair" in arguments.work:
        measured["flair"] = measure_flair(arguments.users, options, arguments.repetitions, not arguments.without_pfl)
    if "fedscale" in arguments.work:
        measured["fedscale"] = measure_fedscale(arguments.participants, arguments.rounds, options)
    rows: dict[str, Any] = {}
    # What is tuned comes last, as it takes long; all is written at once, in case somebody does not want to wait.
    for name, row in itertools.chain(untuned(measured), ((n, row) for n, rest in measured.items() for row in rest)):
        rows[name] = row
        if arguments.output:
            arguments.output.write_text(json.dumps({**about, **rows}, indent=1) + "\n")


def untuned(measured: dict[str, Iterator[dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each work, what is known until central training is to be tuned."""
    for name, found in measured.items():
        for row in found:
            yield name, row
            if "of_central" in row:
                break


if __name__ == "__main__":
    main()

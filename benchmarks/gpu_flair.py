"""FLAIR's work on one GPU: a cohort of users with pictures of 256 pixels, ResNet-18 at 224, beside central training.

    python benchmarks/gpu_flair.py [--work flair fedscale] [--precision tf32] [--output gpu_flair.json]

Needs torch and NumPy alone, like gpu_speed.py; pfl-research is measured where it can be imported. *flair*: 200 users
with as many pictures as FLAIR's (median 2, mean about 8, at most 512), 2 epochs in batches of 16, random crops and
flips. *fedscale*: the setting of FedScale's Table 6, MobileNet-V2, 20 steps of 32 pictures for each of 10,000
participants, of whom some are trained and the others extrapolated. Pictures are random numbers. *central* trains the
same model on as many samples in batches of 512 with plain torch; *pfl* trains user after user with its own loop and
its own crops.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import platform
import time
from collections.abc import Callable
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
from fedarena.train import CohortEngine, LocalTraining

SEED = 0
STORED, SEEN = 256, 224
CENTRAL_BATCH = 512
FEDSCALE_PARTICIPANTS = 10_000
FEDSCALE_MINUTES = 10.9  # on 20 GPUs
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
        rows = int(self.bounds[-1])
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
        offsets = np.concatenate([[0], np.cumsum(self.counts(clients, part))])
        return SimpleNamespace(columns={name: values[rows] for name, values in self.columns.items()}, offsets=offsets)


def make_task(work: Work) -> Any:
    """The model that sees crops, with its loss."""
    stored, seen = (DataSpec(work.kind, work.classes, (3, side, side)) for side in (STORED, SEEN))  # type: ignore[arg-type]
    task = task_class("auto", stored)(build_model(work.model, seen, {}, SEED), stored)
    task.augmentation = CropAndFlip(size=SEEN)
    return task


def make_ours(
    work: Work, data: RandomPictures, options: dict[str, Any]
) -> tuple[Callable[[int], None], dict[str, Any]]:
    """A simulation that goes on for as many rounds as it is told, and how its engine computes."""
    task, algorithm, users = make_task(work), FedAvg(), len(work.sizes)
    everybody = np.arange(users)
    algorithm.prepare(users, work.local)
    engine = CohortEngine(task, algorithm, work.local, data, SEED, device="cuda", **options)
    simulation = Simulation(
        seed=SEED,
        rounds=10**6,
        cohort=users,
        task=task,
        algorithm=algorithm,
        engine=engine,
        training_clients=everybody,
        evaluation_clients=everybody[:1],
        evaluation_part="train",
        evaluate_every=10**6,
        flops_per_sample=0,
        client_ids=lambda clients: [str(client) for client in clients],
    )
    outcomes = simulate(simulation)
    next(outcomes)

    def run(rounds: int) -> None:
        for _ in itertools.islice(outcomes, rounds):
            pass

    return run, {**engine.choices, "notes": engine.notes}


def make_central(work: Work, precision: str) -> Callable[[int], None]:
    """Plain torch on one large batch, in the layout that it is fastest in."""
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
        torch.backends.cudnn.benchmark = True
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
    pictures, targets = (torch.from_numpy(data.columns[name]).cuda() for name in ("x", "y"))
    bounds = itertools.pairwise(data.bounds.tolist())
    users = [(pictures[first:last], task.targets(targets[first:last])) for first, last in bounds]
    return make_flair_run(task.module, users, work.local, SEEN)


def timed(run: Callable[[int], None], times: int) -> float:
    """Seconds of one of so many."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    run(times)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def measure(work: Work, options: dict[str, Any], repetitions: int, with_pfl: bool) -> dict[str, Any]:
    """Samples per second of all, taking turns; medians."""
    data = RandomPictures(work)
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    ours, choices = make_ours(work, data, options)
    ours(1)
    first = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated()
    central, pfl = make_central(work, options["precision"]), make_pfl(work, data) if with_pfl else None
    central(3)
    found: dict[str, list[float]] = {"ours": [], "central": [], "pfl": []}
    for _ in range(repetitions):
        found["ours"].append(work.processed / timed(ours, 2))
        found["central"].append(CENTRAL_BATCH / timed(central, 6))
        if pfl is not None:
            with contextlib.redirect_stdout(None):
                found["pfl"].append(work.processed / timed(pfl, 1))
    speeds = {name: float(np.median(values)) for name, values in found.items() if values}
    return {
        "users": len(work.sizes),
        "samples": work.processed,
        "samples_per_second": speeds,
        "of_central": speeds["ours"] / speeds["central"],
        "times_pfl": speeds["ours"] / speeds["pfl"] if "pfl" in speeds else None,
        "first_round_seconds": first,
        "peak_bytes": peak,
        "engine": choices,
    }


def main() -> None:
    """Measures the work that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", nargs="+", choices=("flair", "fedscale"), default=["flair", "fedscale"])
    parser.add_argument("--users", type=int, default=200, help="of FLAIR")
    parser.add_argument("--participants", type=int, default=256, help="of FedScale who are really trained")
    parser.add_argument("--precision", choices=("full", "tf32", "bf16"), default="tf32")
    parser.add_argument("--lanes", type=int, help="clients beside each other; by default, as the engine chooses")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--without-pfl", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    rows: dict[str, Any] = {}
    for name in arguments.work:
        work = flair(arguments.users) if name == "flair" else fedscale(arguments.participants)
        options = {"precision": arguments.precision}
        if arguments.lanes:
            options |= {"lanes": arguments.lanes, "plan": "apart"}
        row = measure(work, options, arguments.repetitions, name == "flair" and not arguments.without_pfl)
        speeds = row["samples_per_second"]
        reached = row["of_central"] >= LEAST_OF_CENTRAL and (row["times_pfl"] or LEAST_TIMES_PFL) >= LEAST_TIMES_PFL
        verdict = "ok" if reached else "MISSED"
        print(
            f"{name}: {speeds['ours']:,.0f} samples/s, {row['of_central']:.0%} of central ({speeds['central']:,.0f}); "
            + (f"{row['times_pfl']:.1f} times pfl ({speeds['pfl']:,.0f}); " if row["times_pfl"] else "")
            + f"{verdict}; first round {row['first_round_seconds']:.0f} s, {row['peak_bytes'] / 2**30:.1f} GiB; "
            f"{row['engine']}",
            flush=True,
        )
        if name == "fedscale":
            row["minutes_extrapolated"] = FEDSCALE_PARTICIPANTS * 20 * 32 / speeds["ours"] / 60
            print(f"  10,000 participants: {row['minutes_extrapolated']:.1f} minutes; FedScale: {FEDSCALE_MINUTES}")
        rows[name] = row
        torch.cuda.empty_cache()
    if arguments.output:
        about = {
            "command": f"python benchmarks/gpu_flair.py --precision {arguments.precision}",
            "date": datetime.date.today().isoformat(),
            "gpu": torch.cuda.get_device_name(),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "precision": arguments.precision,
        }
        arguments.output.write_text(json.dumps({**about, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Hyperparameter search: how much faster are trials as lanes than one trial at a time?

    python benchmarks/hpo.py [--output result.json] [--tasks 53 …] [--folder FOLDER] [--device cuda]
    python benchmarks/hpo.py --save-arrays tables.npz     # on a machine with everything, …
    python benchmarks/hpo.py --arrays tables.npz          # … for one that has torch and numpy alone

Regenerates FedHPO-Bench's tables of logistic regression on OpenML's seven tables: all 672 configurations of Table 8
with 1 to 5 of 5 clients in a round and three seeds are 10,080 courses, of 250 rounds. All are trained as lanes; of one
at a time, with the cohort engine and two workers on the CPU, some are drawn and trained in the same process, and the
time for all is extrapolated from them. Both compute the validation loss after every round, and all scores on all parts
of the samples after some. Losses of both must agree. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpo_courses import Arrays, Courses, Samples, environment, grid, read_arrays, write_arrays
from targets import Measurement, conclude, show_targets

TASKS = (31, 53, 3917, 10101, 146818, 146821, 146822)
ROUNDS, SEEDS, CLIENTS = 250, 3, 5
_WORKERS_ALONE = 2
_TIMES_FASTER = {"cpu": 50, "cuda": 500}
_MINUTES_FOR_ALL = {"cpu": 30, "cuda": 5}
_MAY_DIFFER = {"float32": 1e-3, "float64": 1e-10}  # of losses, which are sums in another order


def load_arrays(tasks: list[int], folder: Path | None) -> dict[str, Arrays]:
    """The tables as federations of five clients, divided as in the paper."""
    from fedarena.data import load_federation
    from fedarena.runs.observer import Observer

    found = {}
    for task in tasks:
        options: dict[str, Any] = {"task": task, "clients": CLIENTS, "alpha": 0.5}
        federation = load_federation(
            "openml", options | ({"folder": str(folder)} if folder else {}), Observer().preparing
        )
        everybody = federation.clients("all")
        parts = {part: federation.samples(everybody, part) for part in ("train", "validation", "test")}
        found[str(task)] = Arrays({name: Samples(dict(part.columns), part.offsets) for name, part in parts.items()})
    return found


def measure(name: str, data: Arrays, arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """One table."""
    every = np.arange(arguments.note_every, arguments.rounds + 1, arguments.note_every)
    courses = Courses(data, arguments.rounds, every, arguments.dtype, device)
    all_courses = grid(arguments.seeds, len(courses.clients))[:: arguments.thinned]
    begin = time.process_time()
    seconds, curves = courses.lanes(all_courses)
    lanes_cpu_seconds, begin = time.process_time() - begin, time.process_time()
    drawn = np.random.default_rng(0).choice(len(all_courses), arguments.alone, replace=False)
    alone, differences = [], []
    for number in drawn.tolist():
        took, losses = courses.alone(all_courses[number], "cpu", _WORKERS_ALONE)
        alone.append(took)
        differences.append(float(np.abs(curves.losses[number] - losses).max()))
    alone_cpu_seconds = (time.process_time() - begin) / len(alone)
    facts = {
        "courses": len(all_courses),
        "rounds": arguments.rounds,
        "lanes_seconds": seconds,
        "lanes_cpu_seconds": lanes_cpu_seconds,
        "alone_seconds_each": alone,
        "alone_cpu_seconds_each": alone_cpu_seconds,
        "alone_seconds_extrapolated": float(np.mean(alone)) * len(all_courses),
        "times_faster": float(np.mean(alone)) * len(all_courses) / seconds,
        "largest_difference": max(differences),
    }
    mean, all_alone = float(np.mean(alone)), facts["alone_seconds_extrapolated"]
    by_cpu = alone_cpu_seconds * len(all_courses) / lanes_cpu_seconds
    print(
        f"{name}: {len(all_courses):,} courses of {arguments.rounds} rounds as lanes in {seconds:.1f} s; one at a time "
        f"{mean:.2f} s each (mean of {len(alone)}), {all_alone / 60:.0f} minutes for all (extrapolated): "
        f"{facts['times_faster']:.0f} times faster ({by_cpu:.0f} by time of the CPU); losses differ by "
        f"{max(differences):.1e} at most",
        flush=True,
    )
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS), help="of OpenML")
    parser.add_argument("--folder", type=Path, help="where the tables' files are; else where federations look for them")
    parser.add_argument("--arrays", type=Path, help="take the federations from this file of --save-arrays")
    parser.add_argument("--save-arrays", type=Path, help="write the federations to this file, and measure nothing")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--note-every", type=int, default=10, help="rounds; all scores are computed after these")
    parser.add_argument("--alone", type=int, default=6, help="courses of each table that are trained one at a time")
    parser.add_argument("--thinned", type=int, default=1, help="train every so manieth course only")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    arguments = parser.parse_args()
    if arguments.save_arrays:
        write_arrays(arguments.save_arrays, load_arrays(arguments.tasks, arguments.folder))
        return 0
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.arrays:
        stored = read_arrays(arguments.arrays)
        data = {str(task): stored[str(task)] for task in arguments.tasks if str(task) in stored}
    else:
        data = load_arrays(arguments.tasks, arguments.folder)
    facts = {name: measure(name, arrays, arguments, device) for name, arrays in data.items()}
    total = sum(one["lanes_seconds"] for one in facts.values())
    slowest = min(one["times_faster"] for one in facts.values())
    wanted = _TIMES_FASTER[device]
    largest = max(one["largest_difference"] for one in facts.values())
    targets = [
        Measurement("a table as lanes, as a share of one course at a time (the worst)", 1 / slowest, 1 / wanted, "x"),
        Measurement(f"{len(facts)} tables", total / 60, _MINUTES_FOR_ALL[device], "min"),
        Measurement("difference of losses", largest, _MAY_DIFFER[arguments.dtype], ""),
    ]
    show_targets(
        "Trials as lanes",
        targets,
        f"One at a time: the cohort engine with {_WORKERS_ALONE} workers on the CPU, {arguments.alone} courses of each "
        "table drawn at random, extrapolated to all.",
    )
    return conclude(targets, facts, environment(device), arguments.output)


if __name__ == "__main__":
    sys.exit(main())

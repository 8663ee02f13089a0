"""Defences over many clients: how long do they take beside `numpy.median`, and how much memory beside the rows?

    python benchmarks/defences.py [--output result.json] [--clients 1000] [--parameters 1000000]

Rows lie in pieces, as an engine leaves them. First every defence that has a target works on them alone, which shows
what memory it takes; then it takes turns with `numpy.median` on the same matrix, and must come to the same values. The
others are measured once, on a tenth of the parameters. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fedarena.train import Groups, Job, JobArrays, JobContext, Work
from fedarena.transforms import Rows
from fedarena.transforms.aggregators import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    NormBound,
    ServerStep,
    SignMajority,
    TrimmedMean,
)
from store import environment, peak_resident_bytes
from targets import Measurement, conclude, show_targets

CLIENTS, PARAMETERS, REPETITIONS = 1000, 1_000_000, 3
PIECE = 16  # clients
MOST_TIMES, MOST_GIGABYTES = 3.0, 1.5


def rows_of(matrix: np.ndarray) -> list[Rows]:
    """The matrix as the updates of clients, in pieces."""
    found = []
    for first in range(0, len(matrix), PIECE):
        some = matrix[first : first + PIECE]
        jobs = JobArrays.of([Job(first + place, 1) for place in range(len(some))])
        ones = np.ones(len(some))
        found.append(Rows({"params": {"w": torch.from_numpy(some)}}, jobs, Work(ones, ones, ones), ones, ("params",)))
    return found


def concluded(aggregator: Aggregator, matrix: np.ndarray) -> np.ndarray:
    """What a defence makes of the rows of a matrix."""
    example: Groups = {"params": {"w": torch.from_numpy(matrix[0])}}
    total = None
    for rows in rows_of(matrix):
        partial = aggregator.add_up(rows)
        total = partial if total is None else aggregator.merge(total, partial)
    assert total is not None
    step = ServerStep(JobContext(1.0, 1, 0, False, torch.tensor(0)), trusted=example)
    update, _ = aggregator.conclude(total, aggregator.server_init(example), step)
    found: np.ndarray = update["params"]["w"].numpy()
    return found


def seconds_of(aggregator: Aggregator, matrix: np.ndarray) -> float:
    begin = time.perf_counter()
    concluded(aggregator, matrix)
    return time.perf_counter() - begin


def resident_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="medians count")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    arguments = parser.parse_args()
    shape = (arguments.clients, arguments.parameters)
    matrix = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    judged: dict[str, Aggregator] = {"median": Median(), "trimmed_mean": TrimmedMean(share=0.2)}
    seconds: dict[str, list[float]] = {"numpy.median": [], **{name: [] for name in judged}}
    for aggregator in judged.values():
        concluded(aggregator, matrix[:, :1000])  # with everything that the first use imports
    before, gigabytes = resident_bytes(), {}
    for name, aggregator in judged.items():
        seconds[name].append(seconds_of(aggregator, matrix))
        gigabytes[name] = (peak_resident_bytes() - before) / 1e9  # the later ones' include the earlier ones'
    for repetition in range(arguments.repetitions):
        begin = time.perf_counter()
        expected = np.median(matrix, axis=0)
        seconds["numpy.median"].append(time.perf_counter() - begin)
        if not np.allclose(concluded(Median(), matrix[:, :1000]), expected[:1000], rtol=1e-6, atol=1e-7):
            raise SystemExit("The median is not that of NumPy")
        if repetition:
            for name, aggregator in judged.items():
                seconds[name].append(seconds_of(aggregator, matrix))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    fewer = np.ascontiguousarray(matrix[:, : max(1, arguments.parameters // 10)])
    del matrix
    others: dict[str, Aggregator] = {
        "norm_bound": NormBound(),
        "krum": Krum(),
        "bulyan": Bulyan(),
        "geometric_median": GeometricMedian(),
        "centered_clipping": CenteredClipping(),
        "sign_majority": SignMajority(),
        "fl_trust": FLTrust(),
        "fools_gold": FoolsGold(layers="all", memory_bytes=1 << 32),
    }
    of_fewer = {name: seconds_of(aggregator, fewer) for name, aggregator in others.items()}
    targets = []
    for name in judged:
        times = medians[name] / medians["numpy.median"]
        targets.append(Measurement(f"{name}: time, in times of numpy.median", times, MOST_TIMES, "x"))
        targets.append(Measurement(f"{name}: memory beside the rows", gigabytes[name], MOST_GIGABYTES, "GB"))
    shown = ", ".join(f"{name} {value:.1f} s" for name, value in medians.items())
    more = ", ".join(f"{name} {value:.1f} s" for name, value in of_fewer.items())
    size = f"{shape[0]:,} clients x {shape[1]:,} parameters"
    show_targets(f"Defences, {size}", targets, f"{shown}. On a tenth of the parameters: {more}.")
    facts = {
        "clients": shape[0],
        "parameters": shape[1],
        "seconds": medians,
        "seconds_on_a_tenth_of_the_parameters": of_fewer,
    }
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())

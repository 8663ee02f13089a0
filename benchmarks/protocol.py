"""How a tool is measured: the same for all, in its own environment, with one line of JSON as the answer.

The first rounds are not measured: they compile, start workers and fill caches. The training loss after them is part of
the answer: all tools start from the same parameters, so it shows that nobody left work out.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import time
from collections.abc import Callable
from importlib.metadata import version

from workloads import CLIENTS, NAMES, SAMPLES, Workload, make_workload

WARM_UP_ROUNDS = 3
MIN_ROUNDS = 3
MARK = "SPEED "  # begins the line with the answer, since tools print much of their own


def read_arguments(description: str | None, **options: str) -> argparse.Namespace:
    """What every script is told; `options` are further ones with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=NAMES, required=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="measure about that long (and at least 3 rounds)")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of a client, on average")
    for option, default in options.items():
        parser.add_argument(f"--{option}", default=default)
    return parser.parse_args()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workload_of(arguments: argparse.Namespace) -> Workload:
    """The work that the arguments ask for."""
    return make_workload(arguments.workload, arguments.clients, arguments.samples)


def measure(
    tool: str,
    package: str,
    workload: Workload,
    seconds: float,
    run_rounds: Callable[[int], None],
    loss: Callable[[], float],
    agree: Callable[[int], int] = lambda rounds: rounds,
) -> dict[str, object]:
    """Runs the rounds and measures them.

    `run_rounds` does so many more rounds and returns when their results are there; `loss` is that of the present model
    on all samples; `agree` lets several processes decide alike how many are next.
    """
    initial_loss = loss()
    run_rounds(WARM_UP_ROUNDS - 1)
    round_seconds = _seconds(lambda: run_rounds(1))
    final_loss = loss()
    rounds, elapsed = 0, 0.0
    while more := agree(_rounds_to_go(rounds, elapsed, round_seconds, seconds)):
        elapsed += _seconds(functools.partial(run_rounds, more))
        rounds += more
        round_seconds = elapsed / rounds
    return {
        "peer": tool,
        "version": version(package),
        "workload": workload.name,
        "clients_per_second": rounds * len(workload.clients) / elapsed,
        "samples_per_second": rounds * int(workload.sizes.sum()) / elapsed,
        "initial_loss": initial_loss,
        "final_loss": final_loss,
        "rounds": rounds,
        "seconds": elapsed,
    }


def _seconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _rounds_to_go(rounds: int, elapsed: float, round_seconds: float, wanted_seconds: float) -> int:
    """How many more rounds should be enough; none when they are."""
    missing = math.ceil((wanted_seconds - elapsed) / round_seconds)
    return max(missing, MIN_ROUNDS - rounds, 0)


def answer(result: dict[str, object]) -> None:
    """Prints the one line that counts."""
    print(MARK + json.dumps(result), flush=True)


def read_answer(output: str) -> dict[str, object]:
    """The result in what a script printed."""
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        raise ValueError(f"Expected one line that begins with {MARK.strip()}, found {len(lines)}")
    result: dict[str, object] = json.loads(lines[0].removeprefix(MARK))
    return result

"""How much of its speed a processor keeps when others of the machine are busy, too: what no engine can do better.

    python benchmarks/machine_speed.py [--processes 1 2 4 8] [--seconds 2]

Processes that know nothing of each other multiply matrices that stay in a core's first cache, so that they share no
memory either. On a machine of its own each keeps all of its speed but for clocks that fall; in a virtual machine,
processors may be halves of a core, or be lent to others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

WIDTH = 64  # of the matrices, of which three take 48 KB
TIMES = 2000  # in which they are multiplied between two looks at the clock


def multiply(seconds: float) -> float:
    """Products a second of one thread, once somebody has told it to begin."""
    import torch

    torch.set_num_threads(1)
    left, right, product = (torch.rand(WIDTH, WIDTH) for _ in range(3))

    def some() -> None:
        for _ in range(TIMES):
            torch.mm(left, right, out=product)

    some()
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        some()
        done += TIMES
    return done / (time.perf_counter() - began)


def products_a_second(processes: int, seconds: float) -> float:
    """Of so many processes together."""
    command = [sys.executable, __file__, "--multiply", "--seconds", str(seconds)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in running)


def efficiencies(counts: list[int], seconds: float = 2.0, repetitions: int = 3) -> dict[int, float]:
    """By the number of processes, how many times as fast as one they are together, for each; medians."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(repetitions):
        alone = products_a_second(1, seconds)
        for count in counts:
            found[count].append(products_a_second(count, seconds) / (count * alone))
    return {count: sorted(shares)[len(shares) // 2] for count, shares in found.items()}


def main() -> int:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="of every measurement")
    parser.add_argument("--repetitions", type=int, default=3, help="of which the median counts")
    parser.add_argument("--multiply", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.multiply:
        print(multiply(arguments.seconds))
        return 0
    for count, share in efficiencies(arguments.processes, arguments.seconds, arguments.repetitions).items():
        print(f"{count} processes: each keeps {share:.2f} of the speed of one alone", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

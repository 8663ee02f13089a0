"""``python -m fedarena.profiling``: the measurement without anything but torch and numpy, in plain text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, TextIO

from fedarena.core.errors import FedArenaError
from fedarena.core.outside_text import harmless
from fedarena.profiling.arguments import notes_on, port_of, serve
from fedarena.profiling.profile import DEFAULT_BATCH_SIZE, DEFAULT_OUTPUT, ProfilePlan, profile_device
from fedarena.profiling.server import THIS_MACHINE


def main(arguments: list[str] | None = None) -> int:
    """Measures or serves, and returns the exit code."""
    given = vars(_parser().parse_args(arguments))
    try:
        if given.pop("serve"):
            serve(port_of(given["models"]), given["address"], _say)
            return 0
        del given["address"]
        plan = ProfilePlan.make(given.pop("models"), **given)
        progress = _Lines()
        record = profile_device(plan, progress)
    except FedArenaError as error:
        _say(f"Error: {error}", sys.stderr)
        return error.exit_code
    except OSError as error:
        _say(f"Error: {error}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for line in summary(record):
        _say(line)
    for note in notes_on(record):
        _say(f"Warning: {note}", sys.stderr)
    _say(f"Record: {plan.output}")
    return 0


def _say(sentence: str, stream: TextIO | None = None) -> None:
    print(harmless(sentence), file=stream, flush=True)


class _Lines:
    """One line for everything that begins."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._said:
            _say(what, sys.stderr)
            self._said = what


def summary(record: dict[str, Any]) -> list[str]:
    """The record in a few lines."""
    lines = []
    for entry in record["models"]:
        step, speed = entry["seconds_per_step"], entry["flops_per_second"]
        spread = "" if step["std"] is None else f" ± {1000 * step['std']:.3g}"
        line = f"{entry['model']}: {1000 * step['mean']:.3g}{spread} ms a step of {entry['batch_size']} samples"
        if speed is not None:
            line += f", {speed / 1e9:.3g} GFLOP/s"
        if entry["watts"] is not None:
            line += f", {entry['watts']:.3g} W"
        lines.append(line)
    network = record["network"]
    if network is not None:
        down, up = (network[direction][-1]["bits_per_second"] / 1e6 for direction in ("download", "upload"))
        latency = 1000 * network["latency_seconds"]["median"]
        lines.append(f"network: {down:.3g} Mbit/s down, {up:.3g} Mbit/s up, latency {latency:.3g} ms")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedarena.profiling", description="Measure this device.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models to measure; with --serve, the port")
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--batch-size", type=int, default=DEFAULT_BATCH_SIZE)
    parser.add_argument("--warmup", type=int, help="steps before those that count (10)")
    parser.add_argument("--iterations", type=int, help="steps that count (100)")
    parser.add_argument("--power-seconds", type=float, help="how long power is measured (10); 0: not at all")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="threads of the CPU (as many as torch takes)")
    parser.add_argument("--server", metavar="URL", help="measure the network against this server")
    parser.add_argument("--serve", action="store_true", help="be that server")
    parser.add_argument(
        "--address",
        default=THIS_MACHINE,
        help="with --serve: where to listen; 127.0.0.1 is reached from this machine alone, another address of it "
        "from that network, 0.0.0.0 from everywhere (127.0.0.1)",
    )
    parser.add_argument("--name", help="what the record calls this device")
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT_OUTPUT, help="the file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The command that says how long a round takes with many workers."""

from __future__ import annotations

from typing import Annotated

import typer

from fedarena.cli.base import NumbersFile, screen, settings_command
from fedarena.core.errors import BadInputError
from fedarena.core.words import counted


@settings_command
def estimate(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] [KEY=VALUE]...", help="The run: a configuration file, and settings."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Workers at most. [gpus, or 64]")] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs of all machines together: a worker each.")
    ] = None,
    machines: Annotated[
        int | None, typer.Option("--machines", min=1, help="Machines that they are on. [one for 16 cores or 8 GPUs]")
    ] = None,
    gigabits: Annotated[float, typer.Option("--gigabits", min=0.001, help="Gbit/s of the driver's link.")] = 10.0,
    speed: Annotated[
        float, typer.Option("--speed", min=1e-6, help="How many times as fast as this machine a worker is.")
    ] = 1.0,
    json: NumbersFile = None,
) -> None:
    """Say how long a round would take with 1, 2, 4, … workers (engine=ray), and what it waits for."""
    from dataclasses import asdict

    from rich.table import Table

    from fedarena.core.files import write_json
    from fedarena.display.drawing.units import BYTES, SECONDS, quantity
    from fedarena.runs.cluster.estimate import WAITS, estimate_round, measure_round
    from fedarena.runs.config import parse_overrides, read_run_file, resolve_settings
    from fedarena.runs.observer import Observer

    arguments = list(settings or [])
    has_file = bool(arguments) and "=" not in arguments[0] and not arguments[0].startswith("-")
    from_file = read_run_file(arguments.pop(0), arguments) if has_file else None
    config = resolve_settings(from_file, parse_overrides(arguments))
    if json is not None and (json.is_dir() or not json.parent.is_dir()):
        why = "is a folder" if json.is_dir() else "is in no folder that is there"
        raise BadInputError(f"Numbers cannot be written to {str(json)!r}, which {why}; name a file")
    if workers is not None and gpus is not None and workers > gpus:
        raise BadInputError(
            f"{counted(workers, 'worker')} cannot share {counted(gpus, 'GPU')}: a worker has one to itself"
        )
    most = workers or gpus or 64
    per_machine = 8 if gpus is not None else 16
    cost = measure_round(config, Observer(), for_gpus=gpus is not None)
    screen.say(
        f"Measured here: {counted(len(cost.steps), 'shard')} of {int(cost.steps.sum()):,} steps in a round, "
        f"{quantity(cost.seconds_per_step, SECONDS)} a step; {quantity(cost.down_bytes, BYTES)} down to every machine, "
        f"{quantity(cost.up_bytes, BYTES)} up for every shard, {quantity(cost.merging_seconds, SECONDS)} to add it"
        + (f"; {quantity(cost.kept_bytes, BYTES)} of each are what its clients keep" if cost.kept_bytes else "")
    )
    if gpus is not None and cost.device == "cpu" and speed == 1.0:
        screen.say("This machine has no GPU, so a step is that of a core; --speed says how many times as fast a GPU is")
    counts = sorted({*(2**power for power in range(most.bit_length()) if 2**power < most), most})
    found = [estimate_round(cost, count, machines or -(-count // per_machine), gigabits, speed) for count in counts]
    table = Table("workers", "a round", "speedup", "busy", "waits for", box=None, padding=(0, 2, 0, 0))
    for one in found:
        row = (
            str(one.workers),
            quantity(one.seconds, SECONDS),
            f"{one.speedup:.1f}x",
            f"{one.busy:.0%}",
            one.waits_for,
        )
        table.add_row(*row)
    screen.print(table)
    last = found[-1]
    screen.say(
        f"With {counted(last.workers, 'worker')} a round waits for the {last.waits_for}: {WAITS[last.waits_for]}"
    )
    waiting = next((one for one in found if one.busy < 0.5), None)
    if waiting is not None:
        screen.say(f"From {counted(waiting.workers, 'worker')} on, they wait more than they train")
    if json is not None:
        write_json(
            json, {"cost": asdict(cost) | {"steps": cost.steps.tolist()}, "rounds": [asdict(one) for one in found]}
        )

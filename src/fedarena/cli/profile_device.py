"""The command that measures the machine it runs on."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedarena.cli.base import Output, command, messages, screen


@command
def profile_device(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Models to measure, for example: cnn resnet18. With --serve, the port to listen at."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little of everything, to see that it works.")] = False,
    batch_size: Annotated[int, typer.Option(help="Samples of a training step.")] = 16,
    warmup: Annotated[int | None, typer.Option(help="Steps before those that count.", show_default="10")] = None,
    iterations: Annotated[int | None, typer.Option(help="Steps that count.", show_default="100")] = None,
    power_seconds: Annotated[
        float | None, typer.Option(help="How long power is measured; 0: not at all.", show_default="10")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Threads of the CPU.", show_default="as many as torch takes")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Also measure the network against this server.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Be the server that other devices measure their network against.")
    ] = False,
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="With --serve: where to listen. 127.0.0.1 is reached from this machine alone, another address of it "
            "from that network, 0.0.0.0 from everywhere.",
        ),
    ] = "127.0.0.1",
    name: Annotated[str | None, typer.Option(help="What the record calls this device.")] = None,
    output: Output = None,
) -> None:
    """Measure this machine: how fast it trains, what it draws, how fast its network is; for the fleet 'profiles'."""
    from fedarena.cli.device_table import models_table, other_lines
    from fedarena.profiling import ProfilePlan
    from fedarena.profiling import profile_device as measure
    from fedarena.profiling.arguments import notes_on, port_of
    from fedarena.profiling.arguments import serve as answer

    def say(sentence: str) -> None:
        screen.say(sentence)

    if serve:
        answer(port_of(models or []), address, say)
        return
    plan = ProfilePlan.make(
        models or [],
        quick=quick,
        batch_size=batch_size,
        warmup=warmup,
        iterations=iterations,
        power_seconds=power_seconds,
        device=device,
        threads=threads,
        server=server,
        name=name,
        output=output,
    )
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeElapsedColumn())
    # Drawing rarely, because the machine that draws is the one that is measured.
    with Progress(*columns, console=messages, disable=not messages.is_terminal, refresh_per_second=2) as bars:
        bar = bars.add_task("", total=None)
        record = measure(
            plan, lambda what, done, total: bars.update(bar, description=what, completed=done, total=total)
        )
    screen.print(models_table(record))
    for line in other_lines(record):
        say(line)
    for note in notes_on(record):
        messages.say(f"Warning: {note}", "yellow")
    say(f"Record: {plan.output}")

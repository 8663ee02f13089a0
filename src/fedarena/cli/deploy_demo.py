"""``fedarena deploy demo``: a whole deployment on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import messages, screen
from fedarena.cli.deploy import Transport, deploy_command, need_packages
from fedarena.cli.start_up import import_for_runs, without_collecting
from fedarena.core.errors import RunFailedError
from fedarena.core.words import counted


@deploy_command
def demo(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the run, for example: rounds=10 algorithm=fedavg"),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, max=64, help="How many clients are started.")] = 4,
    at: Annotated[Path, typer.Option("--at", metavar="FOLDER", help="Where all of it goes; must be new.")] = Path(
        "deploy-demo"
    ),
    transport: Transport = "grpc",
) -> None:
    """Try a deployment on this machine: a server, and clients that are processes of their own."""
    need_packages()
    with without_collecting():
        from fedarena.runs.config import parse_overrides
    import_for_runs()
    from fedarena.deploy.demo import LocalClients, differing_tensors, set_up
    from fedarena.display.deploying import serve_with_report

    made = set_up(at, clients, parse_overrides(list(settings or [])), transport)
    screen.say(f"{counted(clients, 'client')} and a server at {made.folder.address}; what they say: {at}/clients/*/log")
    with LocalClients(made) as started:
        data = serve_with_report(made.folder, made.config, messages)
        started.wait()
    screen.say(f"Run: {data.path}")
    differing, numbers = differing_tensors(data.path, made.config)
    if differing:
        raise RunFailedError(f"The model is not that of the simulation: {', '.join(differing[:3])} differ")
    screen.say(f"Equal to the simulation of the same settings: all {numbers:,} numbers of the server, bit for bit")

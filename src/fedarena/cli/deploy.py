"""Commands about runs on a real network: an authority, invitations, and the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedarena.cli.base import Output, command_of, main, messages, screen
from fedarena.cli.start_up import import_for_serving, without_collecting
from fedarena.core.console import plain
from fedarena.core.errors import BadInputError
from fedarena.core.words import counted

if TYPE_CHECKING:
    from fedarena.deploy.folder import DeployFolder

group = typer.Typer(help="Runs on a real network: invite devices, and train with them.", no_args_is_help=True)
main.add_typer(group, name="deploy")
deploy_command = command_of(group)
DeployedAt = Annotated[
    Path, typer.Option("--at", metavar="FOLDER", help="The deploy folder: authority, invitations and runs.")
]
Transport = Annotated[
    str, typer.Option(help="What devices speak: grpc, or https, for which they need no grpcio, and can use proxies.")
]
_HERE = Path("deploy")


def _folder(path: Path) -> DeployFolder:
    need_packages()
    from fedarena.deploy.folder import DeployFolder

    return DeployFolder(path)


def need_packages() -> None:
    """Says which package is missing, if one is."""
    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
        import h11  # noqa: F401
    except ImportError as error:
        raise BadInputError(
            f"Runs on a network need the package {error.name}; install them with: pip install 'fedarena[deploy]'"
        ) from None


@deploy_command
def init(
    address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where devices reach this server; with 127.0.0.1, this machine alone."),
    ],
    at: DeployedAt = _HERE,
    transport: Transport = "grpc",
) -> None:
    """Make a deploy folder with a certificate authority of its own."""
    need_packages()
    from fedarena.deploy.folder import Address, DeployFolder

    folder = DeployFolder.create(at, Address.parse(address), transport)
    screen.say(f"Made {folder.path}, whose server is at {folder.address} ({folder.transport})")
    screen.say(f"Whoever has {folder.path}/authority/ca.key can invite anybody: keep it to yourself")
    screen.say(f"Next: fedarena deploy invite NAME --at {folder.path}")


@deploy_command
def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the device is called.")],
    at: DeployedAt = _HERE,
    days: Annotated[float, typer.Option(min=0.001, max=3650, help="How long the invitation is valid.")] = 365,
    output: Output = None,
) -> None:
    """Invite a device: writes the one file that it needs."""
    folder = _folder(at)
    path = output or Path(f"{name}.zip")
    if path.exists():
        raise BadInputError(f"{path} exists already; choose another file with -o")
    from fedarena.deploy.authority import write_secret

    member, content = folder.invite(name, days)
    write_secret(path, content)
    screen.say(f"{member.name} is client {member.number}; its invitation is {path}, which nobody else should get")
    screen.say(f"On the device: python -m fedarena.client {path.name} --data mydata.py:load")


@deploy_command
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device that may not take part any more.")],
    at: DeployedAt = _HERE,
    reason: Annotated[str, typer.Option(help="Why, for the list of clients.")] = "no reason was given",
) -> None:
    """Take an invitation back, also while a run goes on."""
    member = _folder(at).members.revoke(name, reason)
    screen.say(f"{member.name} may not take part any more; inviting it again gives it another key")


@deploy_command
def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.yaml] [KEY=VALUE]...",
            help="A configuration file, and settings that override it, for example: rounds=10 protocol=deadline",
        ),
    ] = None,
    at: DeployedAt = _HERE,
) -> None:
    """Be the server of a run; after a stop or a crash, the same command goes on with it."""
    with without_collecting():
        from fedarena.runs.config import parse_overrides, read_run_file, resolve_settings

    folder, arguments = _folder(at), list(settings or [])
    has_file = bool(arguments) and "=" not in arguments[0] and not arguments[0].startswith("-")
    from_file = read_run_file(arguments.pop(0), arguments) if has_file else {}
    config = resolve_settings(from_file, parse_overrides(arguments))
    import_for_serving()
    from fedarena.display.deploying import serve_with_report

    data = serve_with_report(folder, config, messages)
    screen.say(f"Run: {data.path}")


@deploy_command
def records(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a deployed run.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="A new folder for the records.")],
) -> None:
    """Write what a deployed run measured of its devices, for simulations that tell what its next rounds would take."""
    from fedarena.deploy.measured import write_records

    found = write_records(run, output)
    screen.say(f"Wrote {counted(found.devices, 'device record')} to {output}, from {counted(found.jobs, 'job')}")
    if found.without:
        screen.say(f"{counted(found.without, 'device')} had no job that was used, and got what is usual for the others")
    screen.say(
        f"Simulate with: fleet=profiles fleet.files={output} fleet.model={found.model} fleet.in_order=true "
        f"clock.overhead_seconds={found.overhead_seconds:.3g}"
    )


@deploy_command
def status(at: DeployedAt = _HERE) -> None:
    """Show who is invited, and how far the present run is."""
    from rich.table import Table

    from fedarena.deploy.ledger import spent_lines
    from fedarena.deploy.state import progress_of

    folder = _folder(at)
    screen.say(
        f"{folder.path}: {counted(len(folder.members), 'client')}, server at {folder.address} ({folder.transport})"
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("client", "number", "valid until", "state"):
        table.add_column(head)
    for member in folder.members:
        state = "invited" if member.excluded is None else member.excluded.partition(" ")[2]
        table.add_row(*map(plain, (member.name, str(member.number), member.not_after[:10], state)))
    screen.print(table)
    for line in [*progress_of(folder), *spent_lines(folder.path)]:
        screen.say(line)

"""Commands that show what there is: federations, fleets, and everything that can be chosen."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import Output, command, messages, screen
from fedarena.cli.federations import FederationName, FederationSettings, show_federation
from fedarena.cli.fleets import Clients, FleetName, FleetSettings, open_fleet
from fedarena.cli.start_up import without_collecting
from fedarena.core.console import plain
from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name

# So many are made to look at, unless somebody asks for more.
DEFAULT_PHONES = 2_000


@command
def describe(
    federation: FederationName,
    settings: FederationSettings = None,
    output: Output = None,
    verify: Annotated[bool, typer.Option("--verify", help="Also check every byte against its checksum.")] = False,
) -> None:
    """Show who is in a federation: a table, and a picture of clients' sizes, labels and pictures."""
    show_federation(federation, settings, output, verify)


@command
def fleet(
    name: FleetName,
    settings: FleetSettings = None,
    clients: Clients = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FOLDER", help="Also write the fleet to this folder.")
    ] = None,
    output: Output = None,
) -> None:
    """Show a fleet of phones: a table, and a picture of how fast they are, when they are available and for how long."""
    import numpy as np

    from fedarena.display import fleet_figure, write_picture
    from fedarena.display.terminal import fleet_table
    from fedarena.fleet import describe_fleet

    if save is not None and save.exists():
        raise BadInputError(f"{save} exists; give --save another name, or remove it")
    phones = open_fleet(name, settings, clients or DEFAULT_PHONES)
    everybody = np.arange(clients or max(len(phones.devices), len(phones.availability)))
    with messages.status(plain(f"Describing {name}")):
        description = describe_fleet(phones.match(everybody, None, seed=0), everybody, seed=0)
    screen.print(fleet_table(description))
    if save is not None:
        phones.save(save)
        screen.say(f"Fleet: {save}")
    path = write_picture(fleet_figure(description), output or Path(f"{as_file_name(phones.name)}.html"))
    screen.say(f"Picture: {path}")


@command
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="federations, fleets, models, algorithms, and so on"),
    ] = None,
) -> None:
    """Show what there is to choose from, with options and defaults."""
    with without_collecting():
        from fedarena.core.registry import nearest
        from fedarena.data import PARTITIONERS
        from fedarena.display.terminal import names_table, parts_table
        from fedarena.metrics import METRICS
        from fedarena.runs.model_sizes import model_sizes
        from fedarena.runs.parts import NAMED_PARTS
        from fedarena.runs.suite import builtin_suites
        from fedarena.track import TRACKERS

    plurals = {
        "privacy": "mechanisms",
        "policy": "policies",
        "edges": "edges",
        "secure_aggregation": "secure aggregations",
    }
    registries = {plurals.get(name, f"{name}s"): part for name, part in NAMED_PARTS.items()}
    registries |= {"metrics": METRICS, "partitioners": PARTITIONERS, "trackers": TRACKERS}
    kinds = [*registries, "suites"]
    if kind is not None and kind not in kinds:
        raise BadInputError(f"There is nothing of the kind {kind!r} to list; {nearest(kind, kinds)}")
    for shown in kinds if kind is None else [kind]:
        if shown == "suites":
            rows = [
                (name, path.read_text().partition("\n")[0].strip("# "), "") for name, path in builtin_suites().items()
            ]
            screen.print(names_table(shown, rows))
        else:
            # Sizes take seconds to compute the first time, so they are told to those alone who ask about models.
            with messages.status(plain("Counting parameters")) if kind == "models" else nullcontext():
                sizes = model_sizes() if kind == "models" else {}
            screen.print(parts_table(shown, registries[shown], sizes))

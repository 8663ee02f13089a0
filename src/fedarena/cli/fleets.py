"""A fleet as commands name it: by its name with options, or by the folder of a saved one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedarena.cli.base import messages
from fedarena.core.console import plain

if TYPE_CHECKING:
    from fedarena.fleet import Fleet

FleetName = Annotated[str, typer.Argument(metavar="FLEET", help="A fleet's name, or the folder of a saved one.")]
FleetSettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fleet, for example: training_factor=2 seed=1"),
]
Clients = Annotated[
    int | None,
    typer.Option("--clients", min=1, help="How many clients have a phone; otherwise as many as there are phones."),
]


def open_fleet(name: str, settings: Sequence[str] | None, phones: int) -> Fleet:
    """The fleet for so many clients; what its source has to say is shown."""
    from fedarena.fleet import FLEETS, load_fleet_with_notes
    from fedarena.runs.config import parse_overrides
    from fedarena.runs.merging import merge

    is_folder = Path(name).is_dir() and name not in FLEETS.names()
    part = {"name": "file", "path": name} if is_folder else {"name": name}
    # As in a run's settings, where an option may be called like another part of a run.
    options = {f"fleet.{key}": value for key, value in parse_overrides(settings or []).items()}
    with messages.status(plain(f"Making {name}")):
        fleet, notes = load_fleet_with_notes(merge({"fleet": part}, options)["fleet"], phones)
    for note in notes:
        messages.say(f"Warning: {note}", "yellow")
    return fleet

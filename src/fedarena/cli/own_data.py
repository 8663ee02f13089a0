"""What the commands share that make a store of somebody's own files."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedarena.cli.base import messages
from fedarena.cli.data_prepare import described
from fedarena.cli.federations import progress_bar, say
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.data import Federation

StoreFolder = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The store to make; default: stores/NAME.")
]
Clients = Annotated[str | None, typer.Option("--client", metavar="COLUMN", help="The column that says whose a row is.")]
MoreOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Other options, for example: train_fraction=0.9 partition=dirichlet"),
]


def import_data(
    command: str,
    make: Callable[..., Federation],
    source: Path,
    given: Mapping[str, Any],
    more: Sequence[str] | None,
    output: Path | None,
) -> None:
    """Makes a store with a function of the Python interface, whose keywords are the options; says what to do next."""
    from fedarena.core.options import resolve_options
    from fedarena.data.own.stores import name_of
    from fedarena.runs.config import parse_overrides
    from fedarena.runs.merging import merge

    if not source.exists():
        raise BadInputError(f"There is no file or folder {source}")
    options = merge({name: value for name, value in given.items() if value is not None}, parse_overrides(more or []))
    for name, instead in (("path", "-o says where the store goes"), ("progress", "it is always shown")):
        if name in options:
            raise BadInputError(f"{name} is no option here; {instead}")
    resolved = resolve_options(make, options, command, f"command {command!r}")
    path = output or Path("stores") / name_of(source, resolved["name"], "own")
    with warnings.catch_warnings(record=True) as notes, progress_bar() as advance:
        warnings.simplefilter("always", UserWarning)
        federation = make(
            source, **resolved | {"path": path, "progress": lambda fraction, text: advance(fraction, 1.0, text)}
        )
    for note in notes:
        messages.say(f"Note: {note.message}")
    say(f"Imported: {described(federation)}")
    say(f"Next: fedarena run federation={shlex.quote(str(path))}")

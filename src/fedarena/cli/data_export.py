"""The command that writes a federation for LEAF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import data_command
from fedarena.cli.federations import FederationName, FederationSettings, federation_options, progress_bar, say
from fedarena.core.errors import BadInputError


@data_command
def export(
    name: FederationName,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    settings: FederationSettings = None,
    users_per_file: Annotated[
        int, typer.Option("--users-per-file", min=1, metavar="N", help="How many users a file holds.")
    ] = 1_000,
) -> None:
    """Write a federation as LEAF's JSON: folders train and test, and val if there is validation."""
    from fedarena.data import load_federation
    from fedarena.data.leaf.writing import export_leaf
    from fedarena.display.drawing.units import count

    if folder.exists():  # before anything is built
        raise BadInputError(f"{folder} exists; choose another folder, or remove it")
    source, options = federation_options(name, settings)
    with progress_bar() as advance:
        federation = load_federation(source, options, lambda fraction, text: advance(fraction, 1.0, text))
        export_leaf(federation, folder, users_per_file, lambda fraction, text: advance(fraction, 1.0, text))
    files = len(list(folder.rglob("*.json")))
    clients, samples = count(federation.num_clients, "client"), count(federation.num_samples, "sample")
    say(f"Exported: {folder} has {federation.name} with {clients} and {samples} in {count(files, 'file')}")

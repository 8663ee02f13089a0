"""The command that builds a federation's store, from files that it may fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedarena.cli.base import data_command
from fedarena.cli.federations import (
    FederationName,
    FederationSettings,
    federation_options,
    folder_bytes,
    progress_bar,
    say,
)
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.data import Federation


@data_command
def prepare(
    name: FederationName,
    settings: FederationSettings = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch files that are missing and have a known address.")
    ] = False,
) -> None:
    """Build a federation's store, once for all runs; a second call finds it done."""
    from fedarena.data import load_federation
    from fedarena.data.raw.download import download_missing
    from fedarena.data.raw.files import raw_files_of
    from fedarena.data.registry import cached_path

    source, options = federation_options(name, settings)
    path = cached_path(source, options)
    if path is None:
        raise BadInputError(f"{name} is opened where it is; there is nothing to prepare")
    if path.is_dir():
        say(f"Nothing to do: {described(load_federation(source, options))}")
        return
    if (files := raw_files_of(source)) is not None:
        if download:
            with progress_bar() as advance:
                fetched = download_missing(files, options["folder"], advance)
            for file in fetched:
                say(f"Fetched {file}")
        files.find(options["folder"])
    with progress_bar() as advance:
        federation = load_federation(source, options, lambda fraction, text: advance(fraction, 1.0, text))
    say(f"Prepared: {described(federation)}")


def described(federation: Federation) -> str:
    """What a store holds, and how large it is."""
    from fedarena.data.statistics.describe import clients_without_test
    from fedarena.display.drawing.units import BYTES, count, quantity

    size = quantity(folder_bytes(federation.path), BYTES)
    clients, samples = count(federation.num_clients, "client"), count(federation.num_samples, "sample")
    untested = clients_without_test(federation)
    note = f"; {untested:,} of the clients have no test samples" if untested else ""
    return f"{federation.path} has {federation.name} with {clients} and {samples}, {size}{note}"

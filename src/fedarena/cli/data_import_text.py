"""The command that makes a store of somebody's own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import data_command
from fedarena.cli.own_data import Clients, MoreOptions, StoreFolder, import_data


@data_command
def import_text(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A table: CSV, Parquet or JSON lines.")],
    text: Annotated[str, typer.Option("--text", metavar="COLUMN", help="The column of texts.")],
    more: MoreOptions = None,
    client: Clients = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", metavar="COLUMN", help="The column of labels; without it, the next token is predicted."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="words (default), characters, bytes, or a file of Hugging Face's tokenizers."),
    ] = None,
    output: StoreFolder = None,
) -> None:
    """Make a federation of your own texts: a table with a row for every text."""
    from fedarena.data.text.own import from_texts

    given = {"text": text, "client": client, "label": label, "tokenizer": tokenizer}
    import_data("data import-text", from_texts, source, given, more, output)

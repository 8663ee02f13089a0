"""The command that makes a store of somebody's own pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import data_command
from fedarena.cli.own_data import Clients, MoreOptions, StoreFolder, import_data

_SIDES = re.compile(r"size=(\d+),(\d+)")


@data_command
def import_images(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder, a .zip, or a table of paths.")],
    more: MoreOptions = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", help='What names in a folder mean: "{client}/{label}", "{label}/*_{client}", …'),
    ] = None,
    client: Clients = None,
    label: Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="The column of labels.")] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="COLUMN", help="The column of paths.")] = None,
    output: StoreFolder = None,
) -> None:
    """Make a federation of your own pictures: a folder by a pattern of names, or a table of paths."""
    from fedarena.data.images.own import from_images

    given = {"pattern": pattern, "client": client, "label": label, "image": image}
    import_data("data import-images", from_images, source, given, [_with_list(option) for option in more or []], output)


def _with_list(option: str) -> str:
    """Height and width as a list, also where somebody left out the brackets."""
    sides = _SIDES.fullmatch(option)
    return option if sides is None else f"size=[{sides[1]},{sides[2]}]"

"""The command that shows how large clients are and how much they differ, in one federation or in several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import NumbersFile, Output, check_numbers_path, data_command, screen
from fedarena.cli.federations import find_statistics, say, show_federation, write_statistics
from fedarena.core.errors import BadInputError


@data_command
def stats(
    federations: Annotated[
        list[str],
        typer.Argument(
            metavar="FEDERATION [KEY=VALUE]...",
            help="A federation or the folder of a store, and its options; others with theirs may follow.",
        ),
    ],
    output: Output = None,
    json: NumbersFile = None,
) -> None:
    """Show samples per client, label and pixel skew: of one federation, or of several side by side (LEAF's Table 1)."""
    from fedarena.cli.federation_tables import differences_table, sizes_table
    from fedarena.display import check_picture_path, comparison_figure, write_picture

    asked = by_federation(federations)
    if len(asked) == 1:
        show_federation(*asked[0], output, json=json)
        return
    path = output or Path("federations.html")
    check_picture_path(path)
    check_numbers_path(json)
    titles = titles_of(asked)
    found = [find_statistics(name, settings) for name, settings in asked]
    rows = [
        (title, federation.source, statistics) for title, (federation, statistics) in zip(titles, found, strict=True)
    ]
    screen.print(sizes_table(rows))
    screen.print(differences_table({title: one for title, _, one in rows}))
    if json is not None:
        write_statistics(found, json)
    say(f"Picture: {write_picture(comparison_figure({title: one for title, _, one in rows}), path)}")


def titles_of(asked: Sequence[tuple[str, list[str]]]) -> list[str]:
    """A title for each, with its settings; where files are is named only if nothing else tells two apart."""
    full = [" ".join([name, *settings]) for name, settings in asked]
    if len(set(full)) < len(full):
        twice = next(title for title in full if full.count(title) > 1)
        raise BadInputError(f"{twice} was asked for twice; give one of them other settings, or leave it out")
    short = [" ".join([name, *(one for one in settings if not one.startswith("folder="))]) for name, settings in asked]
    return [brief if short.count(brief) == 1 else title for brief, title in zip(short, full, strict=True)]


def by_federation(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Federations in the order given, each with the settings that follow it."""
    asked: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word or Path(word).is_dir():
            asked.append((word, []))
        elif not asked:
            raise BadInputError(f"The setting {word!r} must follow the federation that it belongs to")
        else:
            asked[-1][1].append(word)
    return asked

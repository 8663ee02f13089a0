"""A federation as commands name it: by its name with options, or by the folder of a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedarena.cli.base import check_numbers_path, messages, screen, write_numbers
from fedarena.core.console import plain
from fedarena.core.outside_text import as_file_name

if TYPE_CHECKING:
    from fedarena.data import Federation
    from fedarena.data.statistics.describe import FederationStatistics

FederationName = Annotated[
    str, typer.Argument(metavar="FEDERATION", help="A federation's name, or the folder of a store.")
]
FederationSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Options of the federation, for example: partition=dirichlet partition.alpha=0.1",
    ),
]
# What is done, of how much (None: nobody knows), and a few words on what it is.
Advance = Callable[[float, float | None, str], None]
_SECONDS_BETWEEN_LINES = 10.0


def federation_options(name: str, settings: Sequence[str] | None) -> tuple[str, dict[str, Any]]:
    """The name of the source and all its options."""
    from fedarena.core.options import resolve_part
    from fedarena.data import FEDERATIONS
    from fedarena.runs.config import parse_overrides
    from fedarena.runs.merging import merge

    # As in a run's settings, where an option may be called like another part of a run.
    given = parse_overrides([setting.removeprefix("federation.") for setting in settings or []])
    overrides = {f"federation.{key}": value for key, value in given.items()}
    options = resolve_part(FEDERATIONS, merge({"federation": {"name": name}}, overrides)["federation"], "federation")
    return options.pop("name"), options


def find_statistics(
    name: str, settings: Sequence[str] | None, verify: bool = False
) -> tuple[Federation, FederationStatistics]:
    """A federation, which is built first where it has never been used, and what it looks like."""
    from fedarena.data import describe, load_federation

    source, options = federation_options(name, settings)
    with messages.status(plain(f"Reading {name}")) as status:
        opened = load_federation(source, options, lambda fraction, text: status.update(plain(f"{text} {fraction:.0%}")))
        if verify:
            opened.verify()
        return opened, describe(opened)


def show_federation(
    name: str, settings: Sequence[str] | None, output: Path | None, verify: bool = False, json: Path | None = None
) -> None:
    """Prints the statistics of a federation and draws them."""
    from fedarena.cli.federation_tables import statistics_table
    from fedarena.display import check_picture_path, federation_figure, write_picture

    if output is not None:
        check_picture_path(output)
    check_numbers_path(json)
    federation, statistics = find_statistics(name, settings, verify)
    screen.print(statistics_table(statistics, federation.source))
    for note in federation.notes:
        say(f"Note: {note}")
    if json is not None:
        write_statistics([(federation, statistics)], json)
    path = output or Path(f"{as_file_name(federation.name)}.html")
    say(f"Picture: {write_picture(federation_figure(statistics), path)}")


def write_statistics(found: Sequence[tuple[Federation, FederationStatistics]], path: Path) -> None:
    """Everything that was found as JSON: a list with an entry for each federation, and what LEAF published."""
    from dataclasses import asdict

    from fedarena.data.statistics.describe import as_json
    from fedarena.data.statistics.table1 import published_sizes

    entries = []
    for federation, statistics in found:
        published = published_sizes(federation.source)
        entries.append(
            {
                "source": federation.source.model_dump(mode="json"),
                "fingerprint": federation.fingerprint,
                **as_json(statistics),
                **{
                    key: None if published is None or published.paper != paper else asdict(published)
                    for key, paper in (("leaf_table_1", "LEAF"), ("fedscale_table_5", "FedScale"))
                },
            }
        )
    write_numbers(path, entries)


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def say(text: str) -> None:
    """Prints a line as it is."""
    screen.say(text)


@contextmanager
def progress_bar() -> Iterator[Advance]:
    """A bar on a terminal, which is gone when the work is done; elsewhere a line now and then, if it takes long."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task("Looking", total=None)
        said = time.monotonic()
        before: float = 0
        all_before: float | None = None

        def advance(done: float, total: float | None, text: str) -> None:
            nonlocal task, before, all_before, said
            if not messages.is_terminal and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                share = f" {done / total:.0%}" if total else ""
                messages.say(f"{text}{share}")
            if done < before or total != all_before:  # other work, which takes another time
                bar.remove_task(task)
                task = bar.add_task(text, total=total)
            bar.update(task, description=text, completed=done, total=total)
            before, all_before = done, total

        yield advance

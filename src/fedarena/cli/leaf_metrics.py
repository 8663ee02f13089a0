"""Commands for LEAF's metrics files: writing those of a run, and drawing them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import Output, command
from fedarena.cli.federations import say
from fedarena.core.errors import BadInputError


class Columns(StrEnum):
    """Those that LEAF's code writes, or those of the files of its baselines."""

    released = "released"
    baseline = "baseline"


@command
def leaf_metrics(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the two files.")],
    columns: Annotated[
        Columns, typer.Option("--columns", help="Without the columns set and loss, those of LEAF's baselines.")
    ] = Columns.released,
    hierarchy: Annotated[
        str | None, typer.Option("--hierarchy", metavar="ATTRIBUTE", help="What LEAF's column hierarchy is to hold.")
    ] = None,
) -> None:
    """Write a run's metrics as LEAF's stat_metrics.csv and sys_metrics.csv."""
    from fedarena.analysis.leaf_metrics import SYSTEMS, write_leaf_metrics
    from fedarena.storage.run_data import load_run

    if folder.exists() and not folder.is_dir():
        raise BadInputError(f"{folder} is a file; name a folder")
    loaded = load_run(run)
    for path in write_leaf_metrics(loaded, folder, columns.value, hierarchy):
        rows = len(loaded.jobs) if path.name == SYSTEMS else len(loaded.clients)
        say(f"Written: {path} with {rows:,} rows")


@command
def leaf_plot(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="LEAF's metrics files (.csv, .csv.gz) or runs, or folders of either."),
    ],
    output: Output = None,
) -> None:
    """Draw LEAF's metrics files: accuracy by round and by what was spent, its spread over clients, bytes and FLOPs."""
    from fedarena.display.leaf.page import write_leaf_page
    from fedarena.display.leaf.sources import load_leaf_results

    path = output or Path("leaf-metrics.html")
    if path.suffix.lower() != ".html":
        raise BadInputError(f"The page cannot be written as {path.name!r}; end the name with .html")
    results = load_leaf_results(files, lambda sentence: say(f"Left out: {sentence}"))
    say(f"Page: {write_leaf_page(results, path)}")

"""The command that asks whether metrics of heterogeneity tell how training goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedarena.cli.base import Output, command, left_out, screen
from fedarena.cli.federations import progress_bar
from fedarena.core.console import as_markup, titled_table
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.analysis.correlation import Group


@command
def correlate(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of runs, such as those of suites.")
    ],
    output: Output = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            help="The score, in the metric that runs lead with, to which hours are counted; "
            "otherwise one that all runs of a group reach.",
        ),
    ] = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=1, help="How often each metric is estimated; the mean counts.")
    ] = 1,
) -> None:
    """Correlate metrics of runs' fleets with scores and time: a table, a page of scatter plots, and JSON."""
    from fedarena.analysis.correlation import reasons, study_correlations, write_study
    from fedarena.display.correlation import write_correlations
    from fedarena.storage.run_data import load_runs

    path = output or Path("correlations.html")
    if path.suffix.lower() != ".html":
        raise BadInputError(f"The page cannot be written as {path.name!r}; end the name with .html")
    runs = load_runs(folders, left_out)
    with progress_bar() as advance:
        study = study_correlations(runs, target, repetitions, lambda done, of: advance(done, of, "Measuring fleets"))
    for note in study.notes:
        left_out(note)
    for group in study.groups:
        screen.print(_table(group))
        for sentence in reasons(group):
            screen.say(sentence, "dim")
    written = write_correlations(study, path)
    write_study(study, path.with_suffix(".json"))
    for name, file in (("Page", written), ("Numbers", path.with_suffix(".json"))):
        screen.say(f"{name}: {file}")


def _table(group: Group) -> Table:
    """Every coefficient."""
    from fedarena.display.correlation import coefficient_text, outcome_text

    title = as_markup(f"{group.title}: {outcome_text(group)}")
    table = titled_table(title)
    table.add_column("metric", style="bold", no_wrap=True)
    for heading in ("fleets", "Pearson r", "Spearman ρ"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in group.correlations:
        coefficients = coefficient_text(found.pearson), coefficient_text(found.spearman)
        table.add_row(found.metric, str(len(found.x)), *coefficients)
    return table

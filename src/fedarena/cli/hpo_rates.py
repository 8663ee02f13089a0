"""The command that asks whether more clients in a round or more rounds are worth their time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedarena.cli.base import Output, hpo_command, screen
from fedarena.cli.federations import progress_bar
from fedarena.cli.hpo import DataFolder, ProblemName
from fedarena.core.errors import BadInputError


@hpo_command
def rates(
    name: ProblemName,
    output: Output = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="Which one searches.")] = "hyperband",
    courses: Annotated[
        float, typer.Option("--courses", min=0.1, help="The budget, in whole courses with the largest rate.")
    ] = 5.0,
    repetitions: Annotated[int, typer.Option("--repetitions", min=1, help="Searches with different seeds.")] = 5,
    mode: Annotated[
        Literal["tabular", "surrogate", "raw"], typer.Option("--mode", help="Where answers come from.")
    ] = "tabular",
    table: Annotated[Path | None, typer.Option("--table", help="A table of your own.")] = None,
    folder: DataFolder = None,
) -> None:
    """Search with every client sample rate in the same simulated time, with a bad and a good network (Figure 7)."""
    from rich import box
    from rich.table import Table

    from fedarena.display.hpo.rates import rate_rows, rates_headline, write_rates
    from fedarena.hpo.analysis.ranks import budget_shares
    from fedarena.hpo.analysis.sample_rates import NETWORKS, study_sample_rates
    from fedarena.hpo.opening import open_problem

    path = output or Path("rates.html")
    if path.suffix.lower() != ".html":
        raise BadInputError(f"The page cannot be written as {path.name!r}; end the name with .html")
    options: dict[str, Any] = {key: value for key, value in (("table", table), ("folder", folder)) if value is not None}
    conditions = {
        network: open_problem(name, mode, {**options, "system": system}) for network, system in NETWORKS.items()
    }
    shares = budget_shares()
    with progress_bar() as advance:
        outcomes = study_sample_rates(
            conditions,
            shares,
            optimizer=optimizer,
            courses=courses,
            repetitions=repetitions,
            progress=lambda done, total: advance(done, total, "Searching"),
        )
    heads, rows = rate_rows(outcomes)
    shown = Table(box=box.SIMPLE_HEAD)
    for head in heads:
        shown.add_column(head, justify="right")
    for row in rows:
        shown.add_row(*row)
    screen.print(shown)
    screen.say(rates_headline(outcomes))
    screen.say(f"Page: {write_rates(name, outcomes, shares, path)}")

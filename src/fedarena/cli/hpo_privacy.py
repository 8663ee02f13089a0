"""The command that asks which configuration is best under which privacy budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import hpo_command, screen
from fedarena.cli.federations import progress_bar, say
from fedarena.cli.hpo import DataFolder, GridValues, ProblemName, ProblemSettings, grid_of, numbers_of
from fedarena.core.errors import BadInputError


@hpo_command
def privacy(
    name: ProblemName,
    epsilons: Annotated[str, typer.Option("--epsilons", help="Privacy budgets, with commas.")] = "1,10,20",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds to average over, with commas.")] = "0,1,2",
    rate: Annotated[float | None, typer.Option("--rate", help="Client sample rate. [the usual one]")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How long is trained. [all rounds]")] = None,
    grid: GridValues = None,
    objective: Annotated[str, typer.Option("--objective", help="The score to be best in.")] = "validation_loss",
    folder: DataFolder = None,
    settings: ProblemSettings = None,
    runs: Annotated[
        Path, typer.Option("--runs", help="Where the runs lie; the same command goes on with them.")
    ] = Path("runs"),
) -> None:
    """Train the grid with NbAFL under several privacy budgets, and show the best configuration of each (Table 10)."""
    from dataclasses import replace

    from rich import box
    from rich.table import Table

    from fedarena.display.hpo.privacy import budget_rows
    from fedarena.hpo.analysis.privacy import best_under_budgets, private_problems
    from fedarena.runs.config import parse_overrides

    budgets = numbers_of(epsilons, "--epsilons")
    if not budgets:
        raise BadInputError("There is no privacy budget; name some, such as --epsilons 1,10,20")
    problems = private_problems(
        name,
        budgets,
        grid=grid_of(grid),
        objective=objective,
        folder=folder,
        settings=parse_overrides(settings or []),
        rounds=rounds,
        runs_folder=runs,
    )
    fidelity = next(iter(problems.values())).full
    fidelity = fidelity if rate is None else replace(fidelity, client_sample_rate=rate)
    with progress_bar() as advance:
        found = best_under_budgets(
            problems,
            numbers_of(seeds, "--seeds") or [0],
            fidelity,
            lambda done, total: advance(done, total, f"Training {done:,} of {total:,} courses"),
        )
    heads, rows = budget_rows(found, objective)
    shown = Table(box=box.SIMPLE_HEAD)
    for place, head in enumerate(heads):
        is_score = place > len(found[0].configuration)  # which is not to be torn apart
        shown.add_column(head, justify="right", no_wrap=is_score, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    screen.print(shown)
    say(f"ε is what NbAFL claims with FedHPO-Bench's formula, for {fidelity.rounds} rounds; no proof stands behind it")

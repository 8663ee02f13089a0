"""The command that plans private training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedarena.cli.base import NumbersFile, Output, check_numbers_path, command, screen, write_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from fedarena.privacy import PrivacyPlan


@command
def privacy(
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The privacy that may be spent (ε).")] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="The probability that ε does not hold (δ). [population^-1.1, as in FLAIR]"),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option("--noise", help="Deviation of the noise in the sum of updates, in clipping norms (multiplier)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds of training.")] = None,
    cohort: Annotated[int | None, typer.Option("--cohort", help="Clients in a round, on average.")] = None,
    population: Annotated[int | None, typer.Option("--population", help="Clients who may be invited.")] = None,
    sampling: Annotated[
        Literal["poisson", "uniform", "shuffled"],
        typer.Option("--sampling", help="How cohorts are drawn: the selector of the run."),
    ] = "poisson",
    accountant: Annotated[
        Literal["rdp", "pld"], typer.Option("--accountant", help="Which bound: by Rényi divergences, or the tighter.")
    ] = "rdp",
    output: Output = None,
    json: NumbersFile = None,
) -> None:
    """Solve for one of ε, δ, noise, rounds, cohort and population from the others, and draw ε over the rounds."""
    from fedarena.display import check_picture_path, privacy_figure, write_picture
    from fedarena.privacy import plan_privacy

    if output is not None:
        check_picture_path(output)
    check_numbers_path(json)
    plan = plan_privacy(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise,
        rounds=rounds,
        cohort=cohort,
        population=population,
        sampling=sampling,
        accountant=accountant,
    )
    screen.print(_table(plan))
    if json is not None:
        curve = [{"round": round, "epsilon": spent} for round, spent in plan.epsilon_over_rounds()]
        write_numbers(json, {**plan.as_dict(), "epsilon_over_rounds": curve})
    path = write_picture(privacy_figure(plan), output or Path("privacy.html"))
    screen.say(f"Picture: {path}")


def _table(plan: PrivacyPlan) -> Table:
    """The whole plan; what was solved for stands out."""
    from rich import box
    from rich.table import Table

    from fedarena.privacy.accounting import BOUNDS, NEIGHBOURS

    values = {
        "epsilon": ("ε", f"{plan.epsilon:.4g}"),
        "delta": ("δ", f"{plan.delta:.4g}"),
        "noise_multiplier": ("noise multiplier", f"{plan.noise_multiplier:.5g}"),
        "rounds": ("rounds", f"{plan.rounds:,}"),
        "cohort": ("cohort", f"{plan.cohort:,}"),
        "population": ("population", f"{plan.population:,}"),
    }
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, (label, text) in values.items():
        table.add_row(label, f"[bold green]{text}[/]" if name == plan.solved else text)
    table.add_row("cohorts", f"selector={plan.sampling}")
    table.add_row("bound", BOUNDS[plan.accountant])
    table.add_row("protected", NEIGHBOURS[plan.sampling])
    return table

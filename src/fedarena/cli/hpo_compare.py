"""The command that compares optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedarena.cli.base import fail, hpo_command, screen
from fedarena.cli.hpo import DataFolder, Epsilon, ProblemSettings
from fedarena.core.errors import BadInputError
from fedarena.core.files import write_text

if TYPE_CHECKING:
    from fedarena.hpo.comparison import OptimizerComparison

RESULTS_FILE = "results.csv"


@hpo_command
def compare(
    problems: Annotated[
        list[str],
        typer.Argument(metavar="PROBLEM...", help="Names such as lr@31, or configuration files with search:."),
    ],
    optimizers: Annotated[
        str,
        typer.Option(
            "--optimizers",
            help="Names with commas, options in brackets: random,hyperband(eta=4); all: the paper's ten.",
        ),
    ] = "all",
    budget: Annotated[
        float | None, typer.Option("--budget", help="Simulated seconds of every search. [the problem's]")
    ] = None,
    repetitions: Annotated[int, typer.Option("--repetitions", min=1, help="Searches with different seeds.")] = 5,
    mode: Annotated[
        Literal["tabular", "surrogate", "raw"], typer.Option("--mode", help="Where answers come from.")
    ] = "tabular",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder for searches and report. [comparison]")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="So many searches at a time, each with its share of the cores.")
    ] = 1,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Client sample rate of all training. [the largest]")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="The largest fidelity. [the problem's]")] = None,
    objective: Annotated[str, typer.Option("--objective", help="The score that is searched for.")] = "validation_loss",
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system", metavar="KEY=VALUE", help="A parameter of the costs, such as client_s=0.5; repeatable."
        ),
    ] = None,
    table: Annotated[Path | None, typer.Option("--table", help="A table of your own, or a folder of them.")] = None,
    surrogate: Annotated[
        Path | None, typer.Option("--surrogate", help="A surrogate of your own, or a folder of them.")
    ] = None,
    folder: DataFolder = None,
    epsilon: Epsilon = None,
    settings: ProblemSettings = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where the runs of mode raw lie.")] = Path("runs"),
) -> None:
    """Compare optimizers under a budget of simulated time: a table, a report, and every search as a file.

    What is complete in the folder is kept; the same command goes on with what was stopped.
    """
    from fedarena.display.hpo.page import REPORT_FILE, write_comparison
    from fedarena.hpo.comparison import compare as compare_optimizers
    from fedarena.runs.config import parse_overrides

    for file, option in ((table, "--table"), (surrogate, "--surrogate")):
        if file is not None and len(problems) > 1 and not file.is_dir():
            raise BadInputError(f"{option} is a file of a single problem; for several, name the folder of theirs")
    place = output or Path("comparison")
    if place.exists() and not place.is_dir():
        raise BadInputError(f"{place} is a file; searches and report need a folder")
    options: dict[str, Any] = {}
    given = {"table": table, "surrogate": surrogate, "folder": folder, "epsilon": epsilon, "rounds": rounds}
    options |= {key: value for key, value in given.items() if value is not None}
    if objective != "validation_loss":
        options["objective"] = objective
    if system:
        options["system"] = parse_overrides(system)
    if settings:
        options["settings"] = parse_overrides(settings)
    if mode == "raw":
        options["runs_folder"] = runs
    found = compare_optimizers(
        problems,
        optimizers,
        budget_s=budget,
        repetitions=repetitions,
        mode=mode,
        folder=place,
        jobs=jobs,
        client_sample_rate=rate,
        **options,
    )
    _show(found)
    write_text(place / RESULTS_FILE, found.table().to_csv(index=False))
    screen.say(f"Report: {write_comparison(found, place / REPORT_FILE)}")
    screen.say(f"Numbers: {place / RESULTS_FILE}")
    for name, sentence in found.failures.items():
        fail("Failed", f"{name}: {sentence}")
    if found.failures:
        raise typer.Exit(2 if found.refused else 1)


def _show(found: OptimizerComparison) -> None:
    from fedarena.display.hpo.page import headline
    from fedarena.display.hpo.tables import finals_on_terminal, signs_on_terminal

    screen.print(finals_on_terminal(found))
    if tests := found.sign_tests():
        screen.print(signs_on_terminal(tests))
    screen.say(headline(found))
    for note in found.notes():
        screen.say(f"Note: {note}")

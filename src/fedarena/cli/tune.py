"""The command that searches the hyperparameters of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedarena.cli.base import Cluster, RunsFolder, messages, screen, settings_command
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.display.tuning.running import TuneOutcome


@settings_command
def tune(
    file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="A configuration with ranges under search:.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings that override the file's, for example: rounds=10 tune.score=best"
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="How many trials the study has in the end.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            help="What trials are judged by: a metric, worst_decile, std, variance, epsilon, virtual_hours, "
            "bytes_up, …; several make a Pareto front.",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option("--constraint", help="What the best trial must keep, such as 'epsilon <= 8'; may be repeated."),
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="Who proposes: tpe, random, gp, cmaes or nsga2.")
    ] = None,
    pruner: Annotated[
        str | None, typer.Option("--pruner", help="Who ends trials early: none, median, hyperband or asha.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Runs of each trial; their mean counts.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the search; runs have their own.")] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Real hours after which trials are paused; the command goes on.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="So many trials at a time, in processes.")] = None,
    cluster: Cluster = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="sqlite:///FILE instead of the journal in the study's folder.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the study and its folder; else the file's.")] = None,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Search the hyperparameters of a configuration; the same command goes on with a study that was stopped."""
    from fedarena.hpo.tune.library import require_optuna
    from fedarena.runs.config import parse_overrides, read_run_file

    require_optuna()
    from fedarena.display.tuning.running import tune_with_report
    from fedarena.hpo.tune.checking import make_plan

    if "=" in file:
        raise BadInputError(f"Name the configuration file before settings: fedarena tune FILE.yaml {file}")
    content = read_run_file(file, settings or [])
    overrides = parse_overrides(settings or [])
    given: dict[str, Any] = {
        "trials": trials,
        "objective": objective or None,
        "constraints": constraint or None,
        "sampler": sampler,
        "pruner": pruner,
        "seeds": seeds,
        "seed": seed,
        "hours": hours,
        "jobs": jobs,
        "storage": storage,
    }
    options = {key: value for key, value in given.items() if value is not None}
    study = name or content.get("name") or Path(file).stem
    outcome = tune_with_report(
        lambda observer: make_plan(content, runs, observer, overrides, options, study), messages, cluster
    )
    _show(outcome)


def _show(outcome: TuneOutcome) -> None:
    """The end of a search: the best settings, and where to look."""
    from rich.table import Table

    from fedarena.core.console import plain
    from fedarena.display.drawing.units import ABSENT
    from fedarena.display.tuning.page import headline, range_text, state_counts, value_text

    tuned = outcome.tuned
    screen.say(headline(tuned))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("setting", "best", "searched"):
        table.add_column(heading)
    for one in tuned.plan.space:
        best = tuned.best_trial.configuration.get(one.name, ABSENT)
        table.add_row(*map(plain, (one.name, value_text(best), range_text(one))))
    screen.print(table)
    if len(tuned.objectives) > 1:
        front = Table(box=None, padding=(0, 2, 0, 0), title="Pareto front", title_justify="left")
        for heading in ("trial", *(one.info.label for one in tuned.objectives)):
            front.add_column(heading)
        for trial in tuned.pareto:
            values = (one.info.text(value) for one, value in zip(tuned.objectives, trial.values or (), strict=True))
            front.add_row(str(trial.number), *values)
        screen.print(front)
    screen.say(f"Trials: {state_counts(tuned)}, in {tuned.path}")
    screen.say(f"Best settings: {outcome.best}; run them with: fedarena run {outcome.best}")
    screen.say(f"Report: {outcome.report}")

"""Commands about runs: start, resume, compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedarena.cli.base import (
    Cluster,
    Output,
    RunsFolder,
    Settings,
    command,
    fail,
    left_out,
    messages,
    screen,
    settings_command,
)
from fedarena.cli.start_up import import_for_runs, without_collecting
from fedarena.core.console import plain
from fedarena.core.errors import BadInputError
from fedarena.core.words import counted

if TYPE_CHECKING:
    from fedarena.runs.suite_plan import PlannedRun, StalePolicy
    from fedarena.storage.run_data import RunData


_MOST_CLASSES = 40  # on the screen, unless all are asked for


@settings_command
def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.yaml] [KEY=VALUE]...",
            help="A configuration file, and settings that override it, for example: rounds=10 algorithm=fedprox",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Show the complete configuration with every default, and stop."),
    ] = False,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Run one experiment; without a file, the built-in quickstart."""
    with without_collecting():
        from fedarena.runs.config import parse_overrides, read_run_file, resolve_settings

    arguments = list(settings or [])
    has_file = bool(arguments) and "=" not in arguments[0] and not arguments[0].startswith("-")
    from_file = read_run_file(arguments.pop(0), arguments) if has_file else None
    config = resolve_settings(from_file, parse_overrides(arguments))
    if print_config:
        from fedarena.runs.observer import Observer
        from fedarena.runs.opening import open_federation

        _, complete = open_federation(config, Observer())
        screen.print(complete.to_yaml(), end="", highlight=False, markup=False, soft_wrap=True)
        return
    import_for_runs()
    from fedarena.display.running import run_with_report

    _show(run_with_report(config, runs))


@command
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[rounds=NUMBER] [engine.workers=NUMBER]...",
            help="How many rounds it shall have, if more; with engine=ray, who goes on (engine=cohort: this process).",
        ),
    ] = None,
) -> None:
    """Go on with a run that was stopped, or give it more rounds; the result is the same as in one go."""
    with without_collecting():
        from fedarena.runs.config import parse_overrides
        from fedarena.runs.merging import merge

    overrides = parse_overrides(settings or [])
    for key in overrides:
        if key.partition(".")[0] not in ("rounds", "engine"):
            raise BadInputError(f"{key} of a run that is there cannot be changed, only rounds; start a new run")
        if overrides[key] is None and "." not in key:  # engine.workers= is as many as find room
            raise BadInputError(f"{key}= says nothing; give it a value, or leave it out")
    given = merge({}, overrides)
    import_for_runs()
    if (folder / "deploy").is_dir():  # its clients are real
        from fedarena.display.deploying import resume_serving_with_report

        if given:
            raise BadInputError(f"{', '.join(overrides)} of a run with real devices cannot be changed; start a new run")
        _show(resume_serving_with_report(folder, messages))
        return
    from fedarena.display.running import resume_with_report

    _show(resume_with_report(folder, rounds=given.get("rounds"), elsewhere=given.get("engine")))


@settings_command
def suite(
    source: Annotated[str, typer.Argument(metavar="SUITE", help="A suite file, or the name of a built-in suite.")],
    settings: Settings = None,
    runs: RunsFolder = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, what is kept and how long it would take, and stop.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            help="So many runs at a time, each with its share of cores; else 1, or all that a cluster has room for.",
        ),
    ] = None,
    cluster: Cluster = None,
    rerun_stale: Annotated[
        bool,
        typer.Option("--rerun-stale", help="Run again whose own source has changed; old results are moved aside."),
    ] = False,
    keep_stale: Annotated[
        bool, typer.Option("--keep-stale", help="Keep finished runs even though their own source has changed.")
    ] = False,
) -> None:
    """Run a matrix of settings and seeds; runs that are finished already are kept, stopped ones go on."""
    with without_collecting():
        from fedarena.display.running import run_suite_with_report
        from fedarena.runs.config import parse_overrides
        from fedarena.runs.suite import read_suite
        from fedarena.runs.suite_plan import plan_suite

    if rerun_stale and keep_stale:
        raise BadInputError("Give --rerun-stale or --keep-stale, not both")
    chosen = read_suite(source, parse_overrides(settings or []))
    planned = plan_suite(chosen, runs)
    stale: StalePolicy = "rerun" if rerun_stale else "keep" if keep_stale else "refuse"
    screen.say(f"Suite {chosen.name}: {counted(len(chosen.runs), 'run')} in {runs / chosen.name}")
    if dry_run:
        _show_plan(planned, jobs or 1, stale)
        return
    import_for_runs()
    outcome = run_suite_with_report(chosen.name, planned, jobs, stale, messages, left_out, cluster)
    if not outcome.has_single_reports:
        screen.say(f"Of single runs, `fedarena report {runs / chosen.name}/…` makes a report")
    _print_scores(outcome.results)
    screen.say(f"Report: {outcome.report}")
    for failure in outcome.failures:
        fail("Failed", failure)
    if outcome.failures:
        raise typer.Exit(1)


def _show_plan(planned: Sequence[PlannedRun], jobs: int, stale: StalePolicy) -> None:
    """What a suite would do with every run."""
    from rich.table import Table

    from fedarena.display.drawing.units import SECONDS, quantity
    from fedarena.runs.suite_plan import expected_seconds, stale_sentence

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for run in planned:
        table.add_row(*map(plain, (run.name, *_what_happens(run, stale))))
    screen.print(table)
    if stale == "refuse" and any(run.is_stale for run in planned):
        screen.say(stale_sentence(planned))
    to_do = [run for run in planned if run.is_to_run or (run.is_stale and stale == "rerun")]
    if not to_do:
        screen.say("Nothing is left to run")
        return
    seconds = expected_seconds(planned, to_do, jobs)
    how_long = (
        "how long that takes is known when the first one has done some rounds"
        if seconds is None
        else f"by the rounds that are done, that takes about {quantity(seconds, SECONDS)}"
    )
    screen.say(f"{counted(len(to_do), 'run')} to do; {how_long}")


def _what_happens(run: PlannedRun, stale: StalePolicy) -> tuple[str, str]:
    """What a suite would do with a run, and why."""
    if run.is_stale:
        kept = "is kept" if run.state == "finished" else "cannot go on"
        return f"stale, {'runs again' if stale == 'rerun' else kept}", f"changed: {', '.join(run.changed)}"
    return {"new": "runs", "begun": "goes on", "finished": "is kept"}[run.state], counted(run.config.rounds, "round")


@command
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    output: Output = None,
    level: Annotated[
        list[float] | None,
        typer.Option(
            help="A value of the metric that the runs lead with, to tell the cost of reaching it; "
            "may be given several times."
        ),
    ] = None,
) -> None:
    """Compare runs in one self-contained HTML file."""
    from fedarena.display import write_report
    from fedarena.storage.run_data import load_runs

    if output is not None and (output.is_dir() or not output.name):
        raise BadInputError(f"The report cannot be written to {str(output)!r}, which is a folder; name a file")
    results = load_runs(folders, left_out)
    _print_scores(results, level or None)
    place = output or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    path = write_report(results, place, levels=level or None)
    screen.say(f"Report: {path}")


@command
def classes(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Which score: average_precision, f1, recall, precision, auc, as far as runs have it."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every class; otherwise, of many, the most and the least frequent ones.")
    ] = False,
) -> None:
    """Show how methods do on every class: frequent ones, rare ones."""
    from fedarena.display.report.classes.table import check_tells_classes
    from fedarena.display.terminal import class_tables_of
    from fedarena.storage.run_data import load_runs

    results = load_runs(folders, left_out)
    check_tells_classes(results)
    for table in class_tables_of(results, screen.width, metric, None if everything else _MOST_CLASSES):
        screen.print(table)


@command
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run; for trackers, or of runs.")],
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE.safetensors]", help="The file to write the model to.")
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="TRACKER",
            help="Show the run in a tracker: tensorboard, wandb, mlflow, with options '{name: wandb, project: mine}'; "
            "may be given several times.",
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best model by the leading metric, in a run with keep=best.")
    ] = False,
    client: Annotated[
        str | None, typer.Option(metavar="ID", help="A client's own model, of a method that has such.")
    ] = None,
) -> None:
    """Write the model that a run has trained (its weights under torch's names), or show the run in a tracker."""
    if (path is None) == (not to):
        raise BadInputError("Say what to export: a file for the model (model.safetensors), or a tracker (--to)")
    if to:
        _export_to_trackers(folder, to)
        return
    from fedarena.runs.trained_model import export_model

    assert path is not None
    module = export_model(folder, path, "best" if best else "last", client)
    numbers = sum(p.numel() for p in module.parameters())
    screen.say(f"Exported: {path} has the {numbers:,} parameters of {type(module).__name__}")


def _export_to_trackers(folder: Path, to: list[str]) -> None:
    from fedarena.core.options import resolve_part
    from fedarena.runs.config import parse_overrides
    from fedarena.storage.run_data import find_runs
    from fedarena.track import TRACKERS, check_trackers, export_run

    trackers = [resolve_part(TRACKERS, parse_overrides([f"to={one}"])["to"], "--to") for one in to]
    check_trackers(trackers)
    for run in find_runs([folder]):
        for tracker in trackers:
            number = export_run(run, tracker)
            new = "nothing new" if number == 0 else "1 round" if number == 1 else f"{number:,} rounds"
            screen.say(f"Exported: {run} to {tracker['name']}, {new}")


def _show(result: RunData) -> None:
    """The end of a single run: its scores, and where to look."""
    _print_scores([result])
    screen.say(f"Run folder: {result.path}")
    screen.say(f"Report: {result.path / 'report.html'}")


def _print_scores(results: Sequence[RunData], levels: Sequence[float] | None = None) -> None:
    from fedarena.display.terminal import (
        baselines,
        caution_lines,
        clients_tables,
        difference_lines,
        policy_lines,
        scores_tables,
    )

    for table in [*scores_tables(results, screen.width, levels), *clients_tables(results, screen.width)]:
        screen.print(table)
    for line in caution_lines(results):
        screen.say(line, "yellow")
    for line in [*difference_lines(results), *baselines(results), *policy_lines(results)]:
        screen.say(line)

"""Commands about runs: start, resume, compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedarena.cli.base import Output, RunsFolder, Settings, command, fail, messages, screen
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.storage.run_data import RunData

# Each takes megabytes; a suite of hundreds of runs would be more reports than results.
_MOST_SINGLE_REPORTS = 30


@command
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
    from fedarena.runs.config import parse_overrides, read_settings, resolve_settings

    arguments = list(settings or [])
    from_file = read_settings(Path(arguments.pop(0))) if arguments and "=" not in arguments[0] else None
    config = resolve_settings(from_file, parse_overrides(arguments))
    if print_config:
        from fedarena.runs.building import open_federation
        from fedarena.runs.observer import Observer

        _, complete = open_federation(config, Observer())
        screen.print(complete.to_yaml(), end="", highlight=False, markup=False, soft_wrap=True)
        return
    from fedarena.display.running import run_with_report

    _show(run_with_report(config, runs))


@command
def resume(folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")]) -> None:
    """Go on with a run that was stopped; the result is the same as if it never had been."""
    from fedarena.display.running import resume_with_report

    _show(resume_with_report(folder))


@command
def suite(
    source: Annotated[str, typer.Argument(metavar="SUITE", help="A suite file, or the name of a built-in suite.")],
    settings: Settings = None,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Run a matrix of settings and seeds; runs that are finished already are kept, stopped ones go on."""
    from fedarena.display import write_report
    from fedarena.display.progress import ProgressBars
    from fedarena.runs.config import parse_overrides
    from fedarena.runs.suite import read_suite, run_suite
    from fedarena.storage.run_data import load_runs

    chosen = read_suite(source, parse_overrides(settings or []))
    folder = runs / chosen.name
    screen.say(f"Suite {chosen.name}: {len(chosen.runs)} runs in {folder}")
    with ProgressBars(messages) as bars:
        failures = run_suite(chosen, runs, bars, bars.announce)
    results = load_runs([folder / name for name in chosen.runs], _notice)
    if len(results) <= _MOST_SINGLE_REPORTS:
        for result in results:
            write_report([result], result.path / "report.html")
    else:
        screen.say(f"Of single runs, `fedarena report {folder}/…` makes a report")
    _print_scores(results)
    path = write_report(results, folder / "report.html", title=chosen.name)
    screen.say(f"Report: {path}")
    for failure in failures:
        fail("Failed", failure)
    if failures:
        raise typer.Exit(1)


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
    results = load_runs(folders, _notice)
    _print_scores(results)
    place = output or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    path = write_report(results, place, levels=level or None)
    screen.say(f"Report: {path}")


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
) -> None:
    """Write the model that a run has trained (its weights under torch's names), or show the run in a tracker."""
    if (path is None) == (not to):
        raise BadInputError("Say what to export: a file for the model (model.safetensors), or a tracker (--to)")
    if to:
        _export_to_trackers(folder, to)
        return
    from fedarena.runs.trained_model import export_model

    assert path is not None
    module = export_model(folder, path)
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


def _notice(sentence: str) -> None:
    messages.say(f"Left out: {sentence}", "yellow")


def _print_scores(results: Sequence[RunData]) -> None:
    from fedarena.display.terminal import baselines, scores_tables

    for table in scores_tables(results, screen.width):
        screen.print(table)
    for line in baselines(results):
        screen.say(line)

"""The command line."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from fedarena import __version__
from fedarena.errors import BadInputError, FedArenaError

if TYPE_CHECKING:
    from fedarena.api import Result
    from fedarena.rundata import RunData

main = typer.Typer(
    name="fedarena",
    help="How would a federated learning method really do? Benchmarks on real users' data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
screen = Console()
messages = Console(stderr=True)

# So many are made to look at, unless somebody asks for more.
DEFAULT_PHONES = 2_000

Command = TypeVar("Command", bound=Callable[..., Any])
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="The file to write.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings, for example: rounds=10 algorithm=fedprox algorithm.mu=0.1"
    ),
]


class _Terminated(KeyboardInterrupt):
    """The process was asked to end; treated like Ctrl-C, but the exit code tells the difference."""


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def command(function: Command) -> Command:
    """Registers a command whose errors end as one sentence and an exit code."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, _raise_terminated)
        try:
            function(*args, **kwargs)
        except FedArenaError as error:
            messages.print(f"[bold red]Error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            messages.print(f"[bold red]Error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt as error:
            raise typer.Exit(143 if isinstance(error, _Terminated) else 130) from None

    main.command(function.__name__.rstrip("_"))(wrapped)
    return function


@main.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        screen.print(f"fedarena {__version__}", highlight=False)
        raise typer.Exit()


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
    from fedarena.config import parse_overrides, read_settings, resolve_settings

    arguments = list(settings or [])
    from_file = read_settings(Path(arguments.pop(0))) if arguments and "=" not in arguments[0] else None
    config = resolve_settings(from_file, parse_overrides(arguments))
    if print_config:
        from fedarena.experiment import Observer, open_federation

        _, complete = open_federation(config, Observer())
        screen.print(complete.to_yaml(), end="", highlight=False, markup=False, soft_wrap=True)
        return
    from fedarena import api

    _show(api.run(config.to_dict(), runs_folder=runs))


@command
def resume(folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")]) -> None:
    """Go on with a run that was stopped; the result is the same as if it never had been."""
    from fedarena import api

    _show(api.resume(folder))


@command
def suite(
    source: Annotated[str, typer.Argument(metavar="SUITE", help="A suite file, or the name of a built-in suite.")],
    settings: Settings = None,
    runs: RunsFolder = Path("runs"),
) -> None:
    """Run a matrix of settings and seeds; runs that are finished already are kept, stopped ones go on."""
    from fedarena.config import parse_overrides
    from fedarena.progress import ProgressBars
    from fedarena.report import write_report
    from fedarena.rundata import load_runs
    from fedarena.suite import read_suite, run_suite

    plan = read_suite(source, parse_overrides(settings or []))
    folder = runs / plan.name
    screen.print(f"Suite [bold]{escape(plan.name)}[/]: {len(plan.runs)} runs in {escape(str(folder))}", highlight=False)
    with ProgressBars(messages) as bars:
        failures = run_suite(plan, runs, bars, bars.announce)
    results = load_runs([folder / name for name in plan.runs], _notice)
    for result in results:
        write_report([result], result.path / "report.html")
    _print_scores(results)
    path = write_report(results, folder / "report.html", title=plan.name)
    screen.print(f"Report: {path}", highlight=False, markup=False, soft_wrap=True)
    for failure in failures:
        messages.print(f"[bold red]Failed:[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)


@command
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    output: Output = None,
) -> None:
    """Compare runs in one self-contained HTML file."""
    from fedarena.report import write_report
    from fedarena.rundata import load_runs

    if output is not None and (output.is_dir() or not output.name):
        raise BadInputError(f"The report cannot be written to {str(output)!r}, which is a folder; name a file")
    results = load_runs(folders, _notice)
    _print_scores(results)
    path = write_report(results, output or (folders[0] if len(folders) == 1 else Path()) / "report.html")
    screen.print(f"Report: {path}", highlight=False, markup=False, soft_wrap=True)


@command
def describe(
    federation: Annotated[
        str, typer.Argument(metavar="FEDERATION", help="A federation's name, or the folder of a store.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options of the federation, for example: partition=dirichlet partition.alpha=0.1",
        ),
    ] = None,
    output: Output = None,
    verify: Annotated[bool, typer.Option("--verify", help="Also check every byte against its checksum.")] = False,
) -> None:
    """Show who is in a federation: a table, and a picture of clients' sizes and label mixes."""
    from fedarena.config import NAMED_PARTS, merge, parse_overrides
    from fedarena.data import load_federation
    from fedarena.data.statistics import describe as find_statistics
    from fedarena.options import resolve_part
    from fedarena.report import federation_figure, write_picture
    from fedarena.screen import statistics_table

    is_store = Path(federation).is_dir() and federation not in NAMED_PARTS["federation"].names()
    part = {"name": "store", "path": federation} if is_store else {"name": federation}
    options = resolve_part(NAMED_PARTS["federation"], merge(part, parse_overrides(settings or [])), "federation")
    name = options.pop("name")
    with messages.status(f"Reading {federation}") as status:
        opened = load_federation(name, options, lambda fraction, text: status.update(f"{text} {fraction:.0%}"))
        if verify:
            opened.verify()
        statistics = find_statistics(opened)
    screen.print(statistics_table(statistics))
    path = write_picture(federation_figure(statistics), output or Path(f"{opened.name}.html"))
    screen.print(f"Picture: {path}", highlight=False, markup=False, soft_wrap=True)


@command
def fleet(
    name: Annotated[str, typer.Argument(metavar="FLEET", help="A fleet's name, or the folder of a saved one.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fleet, for example: training_factor=2 seed=1"),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, help="How many clients have a phone; otherwise as many as there are phones."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FOLDER", help="Also write the fleet to this folder.")
    ] = None,
    output: Output = None,
) -> None:
    """Show a fleet of phones: a table, and a picture of how fast they are, when they are available and for how long."""
    import numpy as np

    from fedarena.config import merge, parse_overrides
    from fedarena.fleet import FLEETS, describe_fleet, load_fleet_with_remarks
    from fedarena.report import fleet_figure, write_picture
    from fedarena.screen import fleet_table

    is_folder = Path(name).is_dir() and name not in FLEETS.names()
    part = {"name": "file", "path": name} if is_folder else {"name": name}
    if save is not None and save.exists():
        raise BadInputError(f"{save} exists; give --save another name, or remove it")
    with messages.status(f"Making {escape(name)}"):
        options = merge(part, parse_overrides(settings or []))
        phones, remarks = load_fleet_with_remarks(options, clients or DEFAULT_PHONES)
        everybody = np.arange(clients or max(len(phones.devices), len(phones.availability)))
        description = describe_fleet(phones.match(everybody, None, seed=0), everybody, seed=0)
    for remark in remarks:
        messages.print(f"Warning: {remark}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    screen.print(fleet_table(description))
    if save is not None:
        phones.save(save)
        screen.print(f"Fleet: {save}", highlight=False, markup=False, soft_wrap=True)
    path = write_picture(fleet_figure(description), output or Path(f"{phones.name}.html"))
    screen.print(f"Picture: {path}", highlight=False, markup=False, soft_wrap=True)


@command
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="federations, fleets, models, algorithms, and so on"),
    ] = None,
) -> None:
    """Show what there is to choose from, with options and defaults."""
    from fedarena.config import NAMED_PARTS
    from fedarena.data import PARTITIONERS
    from fedarena.registry import nearest
    from fedarena.screen import names_table, parts_table
    from fedarena.suite import builtin_suites

    registries = {f"{name}s": registry for name, registry in NAMED_PARTS.items()} | {"partitioners": PARTITIONERS}
    kinds = [*registries, "suites"]
    if kind is not None and kind not in kinds:
        raise BadInputError(f"There is nothing of the kind {kind!r} to list; {nearest(kind, kinds)}")
    for shown in kinds if kind is None else [kind]:
        if shown == "suites":
            rows = [
                (name, path.read_text().partition("\n")[0].strip("# "), "") for name, path in builtin_suites().items()
            ]
            screen.print(names_table(shown, rows))
        else:
            screen.print(parts_table(shown, registries[shown]))


def _show(result: Result) -> None:
    """The end of a single run: its scores, and where to look."""
    _print_scores([result])
    screen.print(
        f"Run folder: {result.path}\nReport: {result.path / 'report.html'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _notice(sentence: str) -> None:
    messages.print(f"Left out: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _print_scores(results: Sequence[RunData]) -> None:
    from fedarena.screen import baselines, scores_table

    screen.print(scores_table(results, screen.width))
    for line in baselines(results):
        screen.print(line, highlight=False, markup=False)

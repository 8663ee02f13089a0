"""What all commands share: the application, the two consoles, and how errors end."""

from __future__ import annotations

import errno
import functools
import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from fedarena.cli.start_up import end_quickly
from fedarena.core.console import Screen, as_markup
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.version import VERSION

main = typer.Typer(
    name="fedarena",
    help="How would a federated learning method really do? Benchmarks on real users' data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Federations on disk: get, check, describe and share them.", no_args_is_help=True)
main.add_typer(data, name="data")
hpo = typer.Typer(
    help="Problems of hyperparameter search: list, describe and ask them, and make their tables.", no_args_is_help=True
)
main.add_typer(hpo, name="hpo")
screen = Screen()
messages = Screen(stderr=True)

Command = TypeVar("Command", bound=Callable[..., Any])
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Do whole runs on the machines of a Ray cluster: auto, or the host:port of its head.",
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="The file to write.")]
NumbersFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers as JSON.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings, for example: rounds=10 algorithm=fedprox algorithm.mu=0.1"
    ),
]

# What somebody gave does not exist, is something else or not theirs; all other errors are a machine's.
_WRONG_PATHS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENXIO, errno.ENODEV),
}


class _Terminated(KeyboardInterrupt):
    """The process was asked to end; treated like Ctrl-C, but the exit code tells the difference."""


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def fail(what: str, sentence: str) -> None:
    """Says what went wrong."""
    messages.print(f"[bold red]{what}:[/] {as_markup(sentence)}", highlight=False, soft_wrap=True)


def left_out(sentence: str) -> None:
    """Says what is not among what is shown."""
    messages.say(f"Left out: {sentence}", "yellow")


def check_numbers_path(path: Path | None) -> None:
    """Refuses what cannot be a file of numbers, before the work that finds them."""
    if path is not None and path.is_dir():
        raise BadInputError(f"Numbers cannot be written to {str(path)!r}, which is a folder; name a file")


def write_numbers(path: Path, numbers: Any) -> None:
    """Writes what was found as JSON, and says where."""
    from fedarena.core.files import write_json

    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, numbers)
    screen.say(f"Numbers: {path}")


def command(function: Command) -> Command:
    """Registers a command whose errors end as one sentence and an exit code."""
    return _register(main, function)


def settings_command(function: Command) -> Command:
    """Registers a command that takes settings; what looks like an option but is none gets to it among these."""
    return _register(main, function, {"ignore_unknown_options": True})


def data_command(function: Command) -> Command:
    """Registers a command of the group ``fedarena data``."""
    return _register(data, function)


def hpo_command(function: Command) -> Command:
    """Registers a command of the group ``fedarena hpo``."""
    return _register(hpo, function)


def command_of(group: typer.Typer) -> Callable[[Command], Command]:
    """What registers commands of a group of its own; unknown options get to them among their settings."""
    return lambda function: _register(group, function)


def _register(group: typer.Typer, function: Command, context: dict[str, Any] | None = None) -> Command:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, _raise_terminated)
        try:
            function(*args, **kwargs)
        except FedArenaError as error:
            fail("Error", str(error))
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            fail("Error", reason if error.filename is None else f"{reason}: {error.filename2 or error.filename}")
            raise typer.Exit(2 if error.errno in _WRONG_PATHS else 1) from None
        except MemoryError as error:
            fail("Error", f"This takes more memory than there is. {error}".strip())
            raise typer.Exit(1) from None
        except KeyboardInterrupt as error:
            if group in (data, hpo):  # runs speak for themselves
                messages.say("Stopped; nothing half-written was left, the same command goes on or begins again")
            raise typer.Exit(143 if isinstance(error, _Terminated) else 130) from None

    group.command(function.__name__.rstrip("_").replace("_", "-"), context_settings=context)(wrapped)
    return function


@main.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    end_quickly()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where not all characters can be shown, others still can
            stream.reconfigure(errors="backslashreplace")
    if version:
        screen.say(f"fedarena {VERSION}")
        raise typer.Exit()

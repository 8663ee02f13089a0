"""The command that shows a live page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.base import command, screen
from fedarena.core.errors import BadInputError

DEFAULT_FOLDER = Path("runs")


@command
def watch(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNS]...", help="Run folders, or folders of runs; by default runs.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="By default 7007, or any other if that is taken.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Show a live page about runs: curves, phones at work, progress; while they go on and after."""
    import webbrowser

    from fedarena.display.watch.server import WatchServer

    for folder in folders or []:
        if not folder.is_dir():
            raise BadInputError(f"There is no run folder {folder}")
    server = WatchServer(folders or [DEFAULT_FOLDER], port)  # the default may come into being later
    screen.say(f"Watching {', '.join(map(str, folders or [DEFAULT_FOLDER]))} at {server.url} (Ctrl-C ends it)")
    try:
        if not no_browser:
            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        screen.say("Stopped watching; runs are not affected")
    finally:
        server.server_close()

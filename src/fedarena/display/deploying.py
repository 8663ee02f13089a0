"""A server as whoever runs it sees it: a bar for the rounds, a line about devices, and a report in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedarena.core.console import Screen
from fedarena.core.errors import BadInputError
from fedarena.deploy.folder import DeployFolder
from fedarena.deploy.serving import DeployedServer, deploy_folder_of, open_server, reopen_server, serve
from fedarena.display.progress import ProgressBars
from fedarena.display.running import ending_with_report
from fedarena.runs.config import RunConfig
from fedarena.runs.observer import Observer
from fedarena.storage.run_data import RunData, is_finished, load_run


def serve_with_report(folder: DeployFolder, config: RunConfig, console: Screen) -> RunData:
    """Serves a new run, or goes on with one of these settings, and writes its report."""
    return _serve(lambda observer: open_server(folder, config, observer), console)


def resume_serving_with_report(run_folder: Path, console: Screen) -> RunData:
    """Goes on with a run whose server was stopped."""
    if is_finished(run_folder):
        return load_run(run_folder)
    folder = deploy_folder_of(run_folder)
    if folder is None:
        raise BadInputError(f"{run_folder} has no record of who may take part; start a new run: fedarena deploy run")
    return _serve(lambda observer: reopen_server(folder, run_folder, observer), console)


def _serve(open_: Callable[[Observer], DeployedServer], console: Screen) -> RunData:
    bars = ProgressBars(console)

    def served(observer: Observer) -> RunData:
        server = open_(observer)
        server.notice = console.say
        return serve(server)

    return ending_with_report(served, bars)

"""Python processes that start in milliseconds, because a server that they are forked from has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

OUTPUTS = ("stdout", "stderr")
subprocess_run = subprocess.run
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("fedarena.cli", "fedarena.display.running", "fedarena.runs.run", "fedarena.fleet.statistics"),
        *("pandas", "pyarrow.dataset", "pyarrow.pandas_compat", "pytest", "sklearn.datasets"),
    ]
)


class WarmProcess:
    """What `python SCRIPT ARGUMENTS`, `python -m MODULE ARGUMENTS` or `python -c CODE ARGUMENTS` would do."""

    def __init__(self, command: Sequence[str], cwd: str | Path | None = None, env: dict[str, str] | None = None):
        assert command[0] == sys.executable
        self.command = [*command]
        self._folder = Path(tempfile.mkdtemp())
        environment = dict(os.environ if env is None else env)
        arguments = (self.command[1:], self._folder, cwd or Path.cwd(), environment)
        self.process: BaseProcess = CONTEXT.Process(target=_execute, args=arguments)
        self.process.start()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def finish(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired(self.command, timeout)
        texts = [(self._folder / name).read_text() for name in OUTPUTS]
        shutil.rmtree(self._folder)
        return subprocess.CompletedProcess(self.command, self.process.exitcode, *texts)


def run(command: Sequence[str], *, check: bool = False, timeout: float = 300, **options: Any) -> Any:
    """Stands for `subprocess.run`; the output of Python is always captured."""
    if command[0] != sys.executable:
        return subprocess_run(command, check=check, timeout=timeout, **options)
    where = {name: options.pop(name) for name in ("cwd", "env") if name in options}
    assert options.keys() <= {"capture_output", "stdout", "text"}
    finished = WarmProcess(command, **where).finish(timeout)
    if check:
        finished.check_returncode()
    return finished


def _execute(command: list[str], folder: Path, cwd: str | Path, environment: dict[str, str]) -> None:
    for number, name in enumerate(OUTPUTS, start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # as if started by hand, also in the background of a script
    kind, *arguments = command
    if kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "-c", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = [*arguments]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")

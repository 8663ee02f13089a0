"""What all tests share: a cache folder of their own, what makes them faster, and small federations to work with."""

from __future__ import annotations

import functools
import gc
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Processes of the tests share the cores already; set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What Python compiles once serves all processes and the next time, also where it was told to forget it: that would
# compile the tests, whose assertions pytest rewrites, anew in every worker, and the package in every process.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

import hypothesis
import numpy as np
import pytest
import typer.testing

import warm_processes
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.models import zoo

sys.dont_write_bytecode = False  # which Python has read from the environment already
gc.disable()  # until the tests are known, see below
# How long an example takes depends on who else is at work, and says nothing about what it shows.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is ``sampled(n)``, the first and others spread evenly are fast; the rest is slow.

    All run in ``make test-slow``; a law that holds for every part needs no proof for each of them after every edit.
    """
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (mark := item.get_closest_marker("sampled")) and len(mark.args) == 1:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in families.values():
        wanted = cases[0].get_closest_marker("sampled").args[0]
        chosen = {place * len(cases) // wanted for place in range(wanted)}
        for place, case in enumerate(cases):
            if place not in chosen:
                case.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Modules and thousands of tests are no garbage: looking for some among them took a tenth of the tests' time."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Federations are built once for all test processes, and never in the user's own cache."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDARENA_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Nothing here survives a power cut anyway. Tests of when files are made durable put their own `os.fsync`."""

    def fsync(file: int) -> None:
        os.fstat(file)  # a file that is closed is an error as before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_are_read_once() -> Iterator[None]:
    """Most of the time of a short command goes into making a parser of all commands, which is always the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def our_models_are_tried_out_once() -> Iterator[None]:
    """Hundreds of tests make the same few models of ours; whether such a model can be trained is found out once."""

    def once(check: Callable[..., None], place: int) -> Callable[..., None]:
        passed = set()

        def checked(*arguments: Any) -> None:
            task = arguments[place]
            parts = [task, *task.metrics, *task.module.modules()]
            if any(type(part).__module__.partition(".")[0] not in ("fedarena", "torch") for part in parts):
                check(*arguments)  # a test's own
                return
            tensors = [*task.module.named_parameters(), *task.module.named_buffers()]
            form = [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in tensors]
            others = [argument for argument in arguments if argument is not task]
            metrics = [(type(metric), vars(metric)) for metric in task.metrics]
            key = repr((others, type(task), task.spec, metrics, task.module, form))
            if key not in passed:
                check(*arguments)
                passed.add(key)

        return checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "_try_out", once(zoo._try_out, 1))
        patch.setattr(zoo, "check_scores_apart", once(zoo.check_scores_apart, 0))
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C works here and in processes that are started here, also when a script runs the tests in the background.

    There SIGINT arrives ignored, Python leaves it so, and children inherit it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of `benchmarks/` in this process, and in warm ones what it does in fresh processes."""

    def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        monkeypatch.setattr(subprocess, "run", warm_processes.run)
        monkeypatch.syspath_prepend(str(script.parent))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        output, errors = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), output, errors)

    return run


@pytest.fixture
def make_federation(tmp_path: Path):
    """Writes a store of classification clients from ``{client: (x, y)}``; all samples train and test."""

    def make(clients: dict[str, tuple[np.ndarray, np.ndarray]], classes: int, name: str = "made") -> Federation:
        some_x, _ = next(iter(clients.values()))
        path = tmp_path / name
        with FederationWriter(
            path,
            name=name,
            task=TaskSpec(kind="classification", classes=classes),
            columns={
                "x": ColumnSpec(dtype=str(some_x.dtype), shape=some_x.shape[1:]),
                "y": ColumnSpec(dtype="int64", shape=()),
            },
            source=SourceSpec(name=name, version=1, options={}),
        ) as writer:
            for client, (x, y) in clients.items():
                columns = {"x": x, "y": y.astype(np.int64)}
                writer.add_client(client, train=columns, test=columns)
        return Federation.open(path)

    return make

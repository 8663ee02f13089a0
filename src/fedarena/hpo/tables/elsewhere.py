"""Training the trials of a table on a machine that has torch and numpy alone, such as one that is lent for its GPU.

``fedarena hpo table lr@31 --carry work.npz`` writes the trials and their samples to a file; on the other machine,
``python -m fedarena.hpo.tables.elsewhere work.npz trained.npz`` trains them; and the first command with
``--trained trained.npz`` in place of ``--carry …`` makes the table of it. What was trained is written whenever a block
of trials is done; with the same file for it, what was cut short goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedarena.core.array_archives import read_arrays
from fedarena.core.errors import BadInputError, DamagedFileError, FedArenaError
from fedarena.core.files import replacing
from fedarena.core.outside_text import harmless
from fedarena.hpo.lanes.carried import CarriedTrials
from fedarena.hpo.scores import marked_where_failed
from fedarena.hpo.tables.rounding import rounded
from fedarena.train.hardware import DeviceName, Precision

AnyArray = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]  # rounds of trials that are done, and of all
_TABLE, _TRAINED, _CELLS, _VALUES = "table", "trained", "cells", "values"
_SECONDS_BETWEEN_FILES = 5.0


@dataclass(frozen=True)
class TableWork:
    """The trials of a table: those of the seeds of a cell, which is a configuration and a sample rate, are adjacent."""

    trials: CarriedTrials
    problem: str
    made_for: str  # fingerprints of recipe and federation
    scores: tuple[str, ...]
    noted: tuple[int, ...]
    bits: int
    seeds: int  # of a cell

    @property
    def cells(self) -> int:
        """How many there are."""
        return len(self.trials.settings) // self.seeds

    def write(self, path: Path) -> None:
        """Writes all of it to a file."""
        about = {name: getattr(self, name) for name in _NAMES}
        _write(path, {**self.trials.arrays(), _TABLE: np.array(json.dumps(about))})

    @classmethod
    def read(cls, path: Path) -> TableWork:
        """What was written."""
        arrays = _read(path, "trials to train; fedarena hpo table … --carry FILE writes them")
        try:
            about = json.loads(str(arrays.pop(_TABLE)))
            about |= {name: tuple(about[name]) for name in ("scores", "noted")}
            return cls(trials=CarriedTrials.of_arrays(arrays), **about)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{path} holds no trials to train, or is damaged ({error})") from None


_NAMES = ("problem", "made_for", "scores", "noted", "bits", "seeds")


@dataclass
class TrainedCells:
    """The scores of cells that are done: means over seeds, rounded as in the table."""

    made_for: str
    values: dict[int, FloatArray]  # by cell, ``[scores, rounds]``
    where: dict[str, Any]  # they were trained

    def write(self, path: Path) -> None:
        """Writes all of it to a file."""
        cells = np.array(sorted(self.values), dtype=np.int64)
        about = {"made_for": self.made_for, "where": self.where}
        stacked = np.stack([self.values[cell] for cell in cells.tolist()]) if len(cells) else np.zeros(0, np.float32)
        _write(path, {_CELLS: cells, _VALUES: stacked, _TRAINED: np.array(json.dumps(about))})

    @classmethod
    def read(cls, path: Path, wanted: str) -> TrainedCells:
        """What was written for this table; one that was made for another is refused."""
        arrays = _read(path, "trained trials; python -m fedarena.hpo.tables.elsewhere writes them")
        try:
            about = json.loads(str(arrays[_TRAINED]))
            found = dict(zip(arrays[_CELLS].tolist(), arrays[_VALUES].astype(np.float32), strict=True))
            made_for, where = about["made_for"], dict(about["where"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{path} holds no trained trials, or is damaged ({error})") from None
        if made_for != wanted:
            raise BadInputError(
                f"{path} was trained for another table, or other samples; give the options that it was carried with, "
                "or another file"
            )
        return cls(made_for, found, where)


def train_elsewhere(
    work_path: Path,
    output: Path,
    *,
    device: DeviceName = "auto",
    precision: Precision | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TrainedCells:
    """Trains what is carried in a file, or what is missing of it in `output`, and writes it there."""
    work = TableWork.read(work_path)
    where = _where(device, precision or work.trials.precision)
    found = TrainedCells(work.made_for, {}, where)
    if output.exists():
        found = TrainedCells.read(output, work.made_for)
    missing = [cell for cell in range(work.cells) if cell not in found.values]
    if not missing:
        return found
    numbers = [cell * work.seeds + seed for cell in missing for seed in range(work.seeds)]
    noted = np.array(work.noted, dtype=np.int64)
    trainer = work.trials.trainer(numbers, noted, device, precision=precision, workers=workers)
    waiting: dict[int, dict[int, AnyArray]] = {}
    written = time.monotonic()
    try:
        for places, curves in trainer.run(progress):
            scores = marked_where_failed({name: curves.metrics[name] for name in work.scores})
            values = np.stack([scores[name] for name in work.scores], axis=1)
            for place, one in zip(places, values, strict=True):
                cell, seed = divmod(numbers[place], work.seeds)
                of_seeds = waiting.setdefault(cell, {})
                of_seeds[seed] = one
                if len(of_seeds) == work.seeds:
                    found.values[cell] = mean_over_seeds([of_seeds[seed] for seed in range(work.seeds)], work.bits)
                    del waiting[cell]
            if time.monotonic() - written > _SECONDS_BETWEEN_FILES:
                found.write(output)
                written = time.monotonic()
    finally:  # also of what is interrupted
        found.write(output)
    return found


def mean_over_seeds(values: Sequence[AnyArray], bits: int) -> FloatArray:
    """What a table has of a cell."""
    with np.errstate(over="ignore"):
        return rounded(np.stack(values).mean(0), bits)


def _where(device: str, precision: str) -> dict[str, Any]:
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "hardware": {
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "gpus": [torch.cuda.get_device_name()] if on_gpu else [],
        },
        "precision": precision,
    }


def _write(path: Path, arrays: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def _read(path: Path, what: str) -> dict[str, AnyArray]:
    if not path.is_file():
        raise BadInputError(f"There is no file {path} with {what}")
    if not zipfile.is_zipfile(path):
        raise DamagedFileError(f"{path} cannot be read, or is damaged (it is no archive of arrays)")
    return read_arrays(path)


def main(arguments: list[str] | None = None) -> int:
    """Trains what a file carries, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedarena.hpo.tables.elsewhere", description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path, help="the file of fedarena hpo table … --carry")
    parser.add_argument("output", type=Path, help="the file to write; if it is there, what it lacks is trained")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("full", "tf32"), help="of products of matrices [as the problem says]")
    parser.add_argument("--workers", type=int, help="blocks that a CPU trains at a time [all cores]")
    given = vars(parser.parse_args(arguments))
    begin, said = time.monotonic(), -1

    def progress(done: int, total: int) -> None:
        nonlocal said
        if (percent := 100 * done // max(total, 1)) // 5 > said // 5:
            said = percent
            _say(f"{percent} % after {time.monotonic() - begin:.0f} s", sys.stderr)

    try:
        found = train_elsewhere(given.pop("work"), output := given.pop("output"), progress=progress, **given)
    except FedArenaError as error:
        _say(f"Error: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    _say(f"Trained: {output} ({len(found.values):,} cells) in {time.monotonic() - begin:.0f} s")
    return 0


def _say(sentence: str, stream: Any = None) -> None:
    print(harmless(sentence), file=stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())

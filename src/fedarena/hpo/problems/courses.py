"""Courses: one configuration, sample rate and seed each, trained by a run that is advanced when more rounds are asked.

A course lies in a folder of its own, under a name that follows from its settings; so another process finds it and goes
on where it was. Beside the run lies a file with its scores on the parts of the samples that the run does not evaluate.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import DamagedFileError, DivergedError
from fedarena.core.sealed_json import CHECKSUM_KEY, checksum_of
from fedarena.hpo.scores import EPSILON, PARTS, VARIANCE, FloatArray, score_name
from fedarena.metrics import PERSONAL, summary_names
from fedarena.runs.building import Experiment
from fedarena.runs.config import RunConfig, read_settings
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run
from fedarena.simulate import RoundOutcome, Snapshot
from fedarena.storage.run_data import RunData, load_run
from fedarena.storage.run_files import CONFIG_FILE, SUMMARY_FILE, RunFiles
from fedarena.train import ClientScores
from fedarena.train.engine import Part

EVALUATED: Part = "validation"  # by the runs themselves
_SCORES_END = ".scores.jsonl"


_MOST_OPEN = 4  # courses that are not let go of until others are asked for
_open: OrderedDict[Path, Course] = OrderedDict()  # those of this process; problems that ask for the same share it


def open_course(config: RunConfig, folder: Path) -> Course:
    """The course of a configuration in a folder, which may have begun long ago."""
    assert config.name is not None
    folder = folder.absolute()  # a process may go to another folder between two questions
    path = folder / config.name
    course = _open.pop(path, None)
    if course is None or course.config.rounds < config.rounds:
        if course is not None:
            course.pause()
        course = Course(config, folder)
    while len(_open) >= _MOST_OPEN:
        _open.popitem(last=False)[1].pause()
    _open[path] = course
    return course


def pause_courses(folder: Path) -> None:
    """Lets go of all courses in a folder; what was trained is on disk."""
    for path in [path for path in _open if path.parent == folder.absolute()]:
        _open.pop(path).pause()


class Course:
    """Training that can be paused and go on."""

    def __init__(self, config: RunConfig, folder: Path):
        assert config.name is not None
        self.config, self.folder = config, folder / config.name
        self._scored = ScoredParts(folder / f"{config.name}{_SCORES_END}")
        self._run: Run | None = None
        self._ended: str | None = None  # how the run ended, if there is nothing to go on with

    def advance(self, rounds: int) -> None:
        """Trains until so many rounds are done, or until it ends sooner: it diverged, or may not go on."""
        if self._ended is not None or self._rounds_on_disk_are(rounds):
            return
        run = self._open()
        if run is None or run.round >= rounds:
            return
        try:
            run.advance(rounds - run.round)
        except DivergedError:
            self._run, self._ended = None, "diverged"
            return
        except BaseException:
            self._run = None  # whatever it was, the run has let go of its folder
            raise
        if run.is_over:
            self.pause()

    def pause(self) -> None:
        """Lets go of the run; what was trained is on disk."""
        if self._run is not None:
            run, self._run = self._run, None
            if run.close().status == "finished":
                self._ended = "finished"

    def scores(self, rounds: int) -> dict[str, FloatArray]:
        """Scores after the rounds 1, 2, … up to the one given; NaN where the course did not come so far."""
        data = self._table().to_pydict()
        done = min(rounds, len(data["round"]) - 1)
        personal = PERSONAL if f"{PERSONAL}loss" in data else ""
        metrics = [name for name in data if name.endswith("_by_client") and name.startswith(personal)]
        found: dict[str, FloatArray] = {}
        for metric in (name.removesuffix("_by_client").removeprefix(personal) for name in metrics):
            if metric.startswith(PERSONAL):
                continue
            for name in summary_names(metric):
                found[score_name(EVALUATED, name)] = _padded(data[personal + name][1 : done + 1], rounds)
        if any(value is not None for value in data[EPSILON]):
            found[EPSILON] = _padded(data[EPSILON][1 : done + 1], rounds)
        for name, values in self._scored.columns(done).items():
            found[name] = _padded(values, rounds)
        return found

    def virtual_seconds(self, rounds: int) -> FloatArray:
        """The virtual clock after the rounds 1, 2, … since the start; that of the last round where it ended sooner."""
        ends = np.array(self._table()["end_seconds"].to_pylist(), dtype=np.float64)
        since = ends[1 : rounds + 1] - ends[0]
        last = since[-1] if len(since) else 0.0
        return np.concatenate([since, np.full(rounds - len(since), last)])

    def _table(self) -> pa.Table:
        return self._recorded().rounds if self._run is None else self._run.rounds

    def _recorded(self) -> RunData:
        data = load_run(self.folder)
        self._check_name(data.name)
        return data

    def _check_name(self, name: str) -> None:
        """Refuses the run of another course, whose settings its name stands for."""
        if name != self.config.name:
            raise DamagedFileError(
                f"{self.folder} holds another course, {name}; put back what was there, or remove that folder and the "
                "file of scores beside it, and the course is trained again"
            )

    def _rounds_on_disk_are(self, rounds: int) -> bool:
        """Whether all that was asked lies on disk, so that nothing has to be built."""
        if self._run is not None:
            return self._run.round >= rounds
        if not (self.folder / SUMMARY_FILE).exists():
            return False
        data = self._recorded()
        if data.status == "diverged":
            self._ended = "diverged"
            return True
        done = len(data.rounds) - 1
        return done >= rounds and self._scored.last_round() >= rounds

    def _open(self) -> Run | None:
        if self._run is None and not self.folder.exists():
            self._scored.forget()
            self._run = Run.create(self.config, self.folder.parent, self._scored)
        elif self._run is None:
            self._run = self._reopen()
        return self._run

    def _reopen(self) -> Run:
        RunFiles.open(self.folder).read(CONFIG_FILE)  # which nobody may have changed
        settings = read_settings(self.folder / CONFIG_FILE)
        self._check_name(settings["name"])
        wanted, had = self.config.rounds, settings["rounds"]
        run = Run.reopen(self.folder, self._scored, rounds=wanted if had < wanted else None)
        try:
            self._scored.complete(run)
        except BaseException:
            run.close()
            raise
        return run


class ScoredParts(Observer):
    """Scores a model after every round on the parts that the run does not evaluate, and writes that down at once.

    A line is on disk before the next round begins. A run that was killed goes on from a round at or after which it was
    last committed, so what is written twice is the same twice; only the very last committed round may have no line.
    """

    def __init__(self, path: Path):
        self._path, self._course = path, path.name.removesuffix(_SCORES_END)
        self._experiment: Experiment | None = None

    def warned(self, message: str) -> None:
        """Warnings of a thousand courses are all the same; they are in the logs of the runs."""

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        """Remembers with what to score."""
        super().started(run, folder, rounds_done)
        self._experiment = run

    def finished_round(self, outcome: RoundOutcome) -> None:
        """Scores the model of the round."""
        assert self._experiment is not None
        if outcome.snapshot.round > 0:
            validation = outcome.personal_scores or outcome.scores
            self._note(self._experiment, outcome.snapshot, validation)

    def complete(self, run: Run) -> None:
        """Scores the round in which a killed run was committed, if that did not come to be written."""
        snapshot = run.snapshot
        if snapshot is not None and snapshot.round > self.last_round():
            self._known(snapshot.round - 1)
            self._note(run.experiment, snapshot.placed(run.experiment.simulation.engine.place), None)

    def forget(self) -> None:
        """What is left of a course that is gone."""
        self._path.unlink(missing_ok=True)

    def last_round(self) -> int:
        """The last round of which there are scores."""
        return max(self._lines(), default=0)

    def columns(self, rounds: int) -> dict[str, list[float]]:
        """Scores after the rounds 1, 2, … by name."""
        lines = self._known(rounds)
        names = dict.fromkeys(name for line in lines for name in line if name not in ("round", CHECKSUM_KEY))
        return {name: [line.get(name, np.nan) for line in lines] for name in names}

    def _note(self, experiment: Experiment, snapshot: Snapshot, validation: ClientScores | None) -> None:
        scored: dict[Part, ClientScores | None] = {
            part: validation if part == EVALUATED and validation is not None else _score(experiment, snapshot, part)
            for part in PARTS
        }
        line: dict[str, Any] = {"round": snapshot.round}
        for part, scores in scored.items():
            for name, found in () if scores is None else scores.metrics.items():
                values = found.values[np.isfinite(found.values)]
                line[score_name(part, name) + VARIANCE] = float(values.var()) if len(values) else np.nan
                if part != EVALUATED:
                    line[score_name(part, name)] = float(found.total) if found.total is not None else np.nan
        with open(self._path, "a", encoding="utf-8") as file:
            # The line break also ends a line that a killed process has left half-written.
            file.write("\n" + _sealed(line, self._course))

    def _known(self, rounds: int) -> list[Mapping[str, Any]]:
        """The lines of the rounds 1, 2, …; refuses where one of them is not there."""
        lines = self._lines()
        if lacking := next((round for round in range(1, rounds + 1) if round not in lines), None):
            raise DamagedFileError(
                f"{self._path} lacks the scores of round {lacking}, or is damaged; put back what was there, or remove "
                "both the file and the folder of its run beside it, which is then trained again"
            )
        return [lines[round] for round in range(1, rounds + 1)]

    def _lines(self) -> dict[int, Mapping[str, Any]]:
        """By round, all lines that are whole; a killed process may have left half of one, before the round's next."""
        found: dict[int, Mapping[str, Any]] = {}
        are_sealed = False  # as those of earlier versions are not
        for text in self._path.read_bytes().splitlines() if self._path.exists() else ():
            line = _unsealed(text, self._course)
            if line is not None and (CHECKSUM_KEY in line or not are_sealed):
                are_sealed = CHECKSUM_KEY in line
                found[line["round"]] = line
        return found


def _sealed(line: Mapping[str, Any], course: str) -> str:
    """A line that carries a checksum of itself and of whose it is."""
    return json.dumps({**line, CHECKSUM_KEY: checksum_of(f"{course} {json.dumps(line)}".encode())})


def _unsealed(text: bytes, course: str) -> dict[str, Any] | None:
    """What a line says; None unless it is as it was written for that course, as far as it has a checksum."""
    try:
        line: dict[str, Any] = json.loads(text)
        numbers = {name: value for name, value in line.items() if name != CHECKSUM_KEY}
        is_whole = all(type(value) in (int, float) for value in numbers.values()) and type(numbers["round"]) is int
        if CHECKSUM_KEY in line:
            of_itself = checksum_of(json.dumps(numbers).encode())  # alone, as earlier versions wrote it
            is_whole &= text in (
                _sealed(numbers, course).encode(),
                json.dumps({**numbers, CHECKSUM_KEY: of_itself}).encode(),
            )
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    return line if is_whole else None


def _score(experiment: Experiment, snapshot: Snapshot, part: Part) -> ClientScores | None:
    """The scores of a model on all clients that have samples of a part; None if nobody has."""
    federation, simulation = experiment.federation, experiment.simulation
    clients = federation.clients("train" if part == "train" else "all")
    clients = clients[federation.counts(clients, part) > 0]
    if len(clients) == 0:
        return None
    if simulation.algorithm.personalizes:
        broadcast = simulation.broadcast(snapshot)
        return simulation.engine.evaluate_personal(broadcast, snapshot.client_states, clients, part, snapshot.round)
    return simulation.engine.evaluate(simulation.algorithm.evaluation_params(snapshot.state), clients, part)


def _padded(values: list[Any], length: int) -> FloatArray:
    numbers = [np.nan if value is None else value for value in values]
    return np.array(numbers + [np.nan] * (length - len(numbers)), dtype=np.float64)

"""Raw mode: every answer comes from training, which goes on where it was when more rounds are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name
from fedarena.data import Federation
from fedarena.hpo.cost import RoundWork, SystemModel
from fedarena.hpo.problem import Curve, Fidelity, Problem, Result
from fedarena.hpo.problems.courses import EVALUATED, Course, open_course, pause_courses
from fedarena.hpo.problems.declared import Declared, settings_digest
from fedarena.hpo.problems.made_of import MadeOf, Silent
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.scores import best_so_far
from fedarena.runs.building import build_task, prepare
from fedarena.runs.config import NOT_DECISIVE, RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.runs.opening import open_federation
from fedarena.train import Algorithm
from fedarena.train.engine import IntArray
from fedarena.train.systems_hooks import FORWARD_SHARE

Scored = Callable[[IntArray], IntArray]  # clients → of how many samples they compute losses beside their training

# Settings that change nothing about what clients download and upload, which is found out once for all others.
_NOT_SENT = (*NOT_DECISIVE, "name", "seed", "rounds", "cohort", "local")


class RawProblem(Problem):
    """A problem whose courses are FedArena runs in `runs_folder`."""

    mode = "raw"

    def __init__(
        self,
        declared: Declared,
        runs_folder: Path,
        objective: Objective,
        system: SystemModel | None,
        rounds: int | None = None,
    ):
        self.declared, self.runs_folder, self._objective = declared, runs_folder, objective
        self.name, self.space, self.budget_s = declared.name, declared.space, declared.budget_s
        self.max_rounds = declared.rounds if rounds is None else rounds
        self.objective, self.maximize = objective.score, objective.maximize
        self.sample_rates = ()
        self.system = system  # None: the virtual clock of the runs
        # Bytes down and up, who knows the steps, how often clients take them in a round, and what they score beside.
        self._work: dict[str, tuple[int, int, Algorithm, int, Scored | None]] = {}
        self.federation, config = open_federation(self._base(), Silent())
        self.metrics = tuple(metric.name for metric in build_task(config, self.federation).metrics)
        self._made_of = MadeOf()
        self.made_of = self._made_of.courses(self.settings, self.space)
        made_of = f" {settings_digest(self.made_of)}" if self.made_of else ""
        self.fingerprint = f"{declared.fingerprint} {self.federation.fingerprint} {system} {objective}{made_of}"
        self.clients = training_clients(self.federation)
        self._usual_rate = max(declared.sample_rates, default=(config.cohort or self.clients) / self.clients)
        if system is None and config.fleet["name"] == "ideal":
            raise BadInputError(
                f"The devices of {self.name} are ideal and take no time; name a fleet in its settings "
                "(settings={'fleet': …}) to have their virtual clock as the cost"
            )
        if system is not None and config.download["name"] != "none":
            raise BadInputError(
                f"What a compressed download of {self.name} takes depends on when a client was last there, which costs "
                "by a system do not know; leave download out, or have the virtual clock of a fleet as the cost "
                "(mode=raw, system=fleet)"
            )

    @property
    def full(self) -> Fidelity:
        """The whole training, with as many clients as is usual for the problem."""
        return Fidelity(self.max_rounds, self._usual_rate)

    def cohort(self, client_sample_rate: float) -> int:
        """How many clients that is in a round."""
        return max(1, round(client_sample_rate * self.clients))

    def config(self, configuration: Mapping[str, Any], client_sample_rate: float, seed: int) -> RunConfig:
        """The configuration of the run that trains a course."""
        changes = {"cohort": self.cohort(client_sample_rate), "seed": seed, **configuration}
        config = resolve(merge(self.settings, changes))
        decisive = {key: value for key, value in config.to_dict().items() if key not in (*NOT_DECISIVE, "rounds")}
        made_of = self._made_of.course(config)
        digest = settings_digest([decisive, self.federation.fingerprint, *([made_of] if made_of else [])])
        return config.model_copy(update={"name": f"{as_file_name(self.name)}-{digest}"})

    def round_work(self, configuration: Mapping[str, Any], client_sample_rate: float) -> RoundWork:
        """What a round asks of the system."""
        config = self.config(configuration, client_sample_rate, seed=0)
        key = settings_digest([{name: value for name, value in config.to_dict().items() if name not in _NOT_SENT}])
        if key not in self._work:
            simulation = prepare(config, Silent()).simulation
            load, secure = simulation.load(), simulation.secure_rounds
            up = load.upload_bytes if secure is None else secure.update_bytes
            times = simulation.edges.rounds
            self._work[key] = load.download_bytes, up, simulation.algorithm, times, load.scored_samples
        down, up, algorithm, times, scored = self._work[key]
        steps = times * self._steps(config, algorithm)
        if scored is not None:
            steps += FORWARD_SHARE * float(np.ceil(scored(self._training_clients) / config.local.batch_size).mean())
        return RoundWork(self.cohort(client_sample_rate), down, up, steps)

    def pause(self) -> None:
        """Lets go of all courses; what was trained is on disk, and goes on when it is asked for."""
        pause_courses(self.runs_folder)

    def course(self, configuration: Mapping[str, Any], client_sample_rate: float, seed: int) -> Course:
        """The training of a configuration, which may have begun long ago."""
        return open_course(self.config(configuration, client_sample_rate, seed), self.runs_folder)

    def _answer(self, configuration: dict[str, Any], fidelity: Fidelity, seed: int) -> Result:
        course = self.course(configuration, fidelity.client_sample_rate, seed)
        course.advance(fidelity.rounds)
        scores = best_so_far(course.scores(fidelity.rounds))
        self._objective.check_known(scores, self.name)
        rounds = np.arange(1, fidelity.rounds + 1)
        if self.system is None:
            cost_s = course.virtual_seconds(fidelity.rounds)
        else:
            round_s = float(self.system.round_s(self.round_work(configuration, fidelity.client_sample_rate)))
            cost_s = np.asarray(rounds * round_s, dtype=np.float64)
        metrics = {name: float(values[-1]) for name, values in scores.items()}
        curve = Curve(rounds, scores, cost_s)
        return Result(self._objective.value(metrics), metrics, float(cost_s[-1]), fidelity, curve)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of all runs, without what is searched."""
        evaluation = {"evaluation.every": 1, "evaluation.part": EVALUATED}
        return merge(self.declared.settings, {**evaluation, "rounds": self.max_rounds})

    def _base(self) -> RunConfig:
        """The configuration of the middle of the space, to see what all have in common."""
        return resolve(merge(self.settings, self.space.at([0.5] * len(self.space))))

    def _steps(self, config: RunConfig, algorithm: Algorithm) -> float:
        """Local steps of a client, on average over those who train."""
        samples = self.federation.counts(self._training_clients, "train")
        return float(algorithm.local_steps(samples, config.local).mean())

    @property
    def _training_clients(self) -> IntArray:
        """Those who can train."""
        clients = self.federation.clients("train")
        return clients[self.federation.counts(clients, "train") > 0]


def usual_rate(declared: Declared) -> float:
    """The sample rate that the cohort of a problem's settings comes to."""
    config = resolve(merge(declared.settings, declared.space.at([0.5] * len(declared.space))))
    federation, config = open_federation(config, Silent())
    clients = training_clients(federation)
    return (config.cohort or clients) / clients


def training_clients(federation: Federation) -> int:
    """How many clients can train."""
    clients = federation.clients("train")
    return int((federation.counts(clients, "train") > 0).sum())

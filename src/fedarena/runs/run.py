"""A run: opened, advanced by some rounds, looked at, forked, closed. One go and many pieces give the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import nn

from fedarena.core.errors import BadInputError, DivergedError, RunFailedError
from fedarena.core.interrupts import deferring_interrupts
from fedarena.metrics.info import MetricInfo
from fedarena.models import constant_tensors
from fedarena.models.copying import copy_of
from fedarena.runs.attacked import attack_sentence
from fedarena.runs.building import Experiment, GivenParts, prepare
from fedarena.runs.callbacks import Callback, OnRound, Stop, check_reachable
from fedarena.runs.cluster import Elsewhere, RayCrew, hire_crew, workplace_of
from fedarena.runs.config import RunConfig, read_settings, resolve
from fedarena.runs.deciding import describe_policy
from fedarena.runs.deployed import refuse_to_simulate_devices
from fedarena.runs.forking import forked_config
from fedarena.runs.identity import check_same_experiment, check_same_form, describe_run, free_name
from fedarena.runs.more_rounds import give_more_rounds, is_other_length, with_more_rounds
from fedarena.runs.observer import Observer
from fedarena.runs.plain_torch import plain_torch
from fedarena.runs.predictions import predictions_of
from fedarena.runs.recorded import described_fleet, evaluated_attributes, evaluated_ids, more_columns, reopen_recorder
from fedarena.runs.secure import describe_secure, secure_warning
from fedarena.runs.summary_of_run import summary_of
from fedarena.simulate import RoundOutcome, Simulation, Snapshot, evaluate_now, simulate
from fedarena.storage.recorder import Recorder, check_new
from fedarena.storage.run_data import RunData, is_finished, load_run
from fedarena.storage.run_files import CONFIG_FILE, RunFiles
from fedarena.track import Tracking, check_trackers
from fedarena.train import CohortEngine


class Run:
    """A run that is open; its folder belongs to it until `close`. Made by `create` and `reopen`."""

    def __init__(
        self,
        experiment: Experiment,
        recorder: Recorder,
        snapshot: Snapshot | None,
        observer: Observer,
        callbacks: Sequence[Callback | OnRound] = (),
        crew: RayCrew | None = None,
    ):
        self._crew = crew
        self.experiment, self.folder = experiment, recorder.folder
        self._recorder, self._observer, self._snapshot = recorder, observer, snapshot
        self._callbacks = [*experiment.callbacks, *callbacks]
        self._stopped: Stop | None = None
        self._closed = self._advancing = False
        self._outcomes: Iterator[RoundOutcome] | None = None
        best = recorder.best_round
        self._best_score = None if best is None else self.rounds[self.leading_metric.name][best].as_py()
        self._tracking: Tracking | None = None
        if snapshot is not None:  # whether a budget is spent is asked before the first further round
            clients = (feedback.clients for _, feedback in recorder.feedback())
            self._simulation.recount_participation(clients, snapshot.clock.version)

    @classmethod
    @plain_torch()
    def create(
        cls,
        config: RunConfig,
        runs_folder: Path,
        observer: Observer | None = None,
        given: GivenParts | None = None,
        callbacks: Sequence[Callback | OnRound] = (),
    ) -> Self:
        """A new run in the folder ``runs_folder/<name>``; whatever does not fit is refused before that is made."""
        observer = observer or Observer()
        given = given or GivenParts()
        name = config.name or free_name(config, runs_folder, given.federation)
        folder = runs_folder / name
        check_new(folder)  # before building the experiment, which may take a while
        check_trackers(config.track)
        experiment = prepare(given.named_in(config, folder).model_copy(update={"name": name}), observer, given)
        cls.check_possible(experiment)
        check_reachable(callbacks, experiment.simulation.leading_metric)
        run: Self | None = None
        with _crew_of(experiment, observer) as crew:
            try:
                with deferring_interrupts():
                    recorder = Recorder.create(
                        folder,
                        experiment.config.to_yaml(),
                        describe_run(experiment),
                        experiment.simulation.metrics,
                        experiment.config.client_states_ram_bytes,
                        described_fleet(experiment),
                        evaluated_attributes(experiment),
                        constant_tensors(experiment.simulation.task.module),
                        more_columns(experiment.simulation),
                    )
                    given.save(folder)
                    run = cls(experiment, recorder, None, observer, callbacks, crew)
            except KeyboardInterrupt:
                if run is not None:
                    run._end()
                    observer.stopped(folder)
                raise
            return run

    @classmethod
    def check_possible(cls, experiment: Experiment) -> None:
        """Refuses what a run of another kind cannot do, before its folder is made."""

    @classmethod
    @plain_torch()
    def reopen(
        cls,
        folder: Path,
        observer: Observer | None = None,
        given: GivenParts | None = None,
        callbacks: Sequence[Callback | OnRound] = (),
        rounds: int | None = None,
        elsewhere: Elsewhere = None,
    ) -> Self:
        """Goes on with a run that was stopped before its end, or that has so many `rounds` from now on.

        A run with ``engine=ray`` may go on `elsewhere`: with other workers, or in this process alone.
        """
        observer = observer or Observer()
        if rounds is None and is_finished(folder):
            raise BadInputError(f"The run {folder} is finished; fedarena.load reads it, and rounds=… gives it more")
        if given is None or given.devices is None:
            refuse_to_simulate_devices(folder)
        RunFiles.open(folder).check_first_files()
        experiment = prepare(resolve(read_settings(folder / CONFIG_FILE)), observer, given)
        check_same_experiment(experiment, folder)
        before = experiment
        if rounds is not None and is_other_length(before.config, rounds):
            experiment = prepare(with_more_rounds(before, folder, rounds), observer, given)
            experiment.mechanism.check_goes_on(before.mechanism)
        with _crew_of(experiment, observer, elsewhere) as crew:
            if experiment is not before:  # only now, as nothing is left that could be refused
                give_more_rounds(before.config, experiment.config, folder)
            return cls(experiment, *reopen_recorder(experiment, folder), observer, callbacks, crew)

    @property
    def config(self) -> RunConfig:
        """The complete configuration."""
        return self.experiment.config

    @property
    def round(self) -> int:
        """The last round that is done; 0 before the first."""
        return 0 if self._snapshot is None else self._snapshot.round

    @property
    def snapshot(self) -> Snapshot | None:
        """Where the run stands: the server's tensors and what clients keep; None before it has begun."""
        return self._snapshot

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to advance to."""
        if self._stopped is not None and self._stopped.for_good:
            return True
        return self._snapshot is not None and self._simulation.is_over(self._snapshot.round, self._snapshot.clock)

    @property
    def rounds(self) -> pa.Table:
        """The table of rounds so far."""
        return self._recorder.read_tables()["rounds"]

    @property
    def leading_metric(self) -> MetricInfo:
        """The metric that the run is judged by."""
        return self._simulation.leading_metric

    def scores(self) -> list[float]:
        """The leading metric after every evaluation so far."""
        column = self.rounds[self.leading_metric.name]
        scores: list[float] = column.filter(pc.is_valid(column)).to_pylist()
        return scores

    def model(self) -> nn.Module:
        """A copy of the model with the parameters that it has now."""
        return self._model_after(self._snapshot)

    @plain_torch()
    def _model_after(self, snapshot: Snapshot | None) -> nn.Module:
        simulation = self._simulation
        module = copy_of(simulation.task.module).cpu().eval()
        if snapshot is not None:
            params = simulation.algorithm.evaluation_params(snapshot.state)
            module.load_state_dict({name: p.cpu() for name, p in params.items()}, strict=False)
        return module

    @plain_torch()
    def advance(self, rounds: int | None = None) -> Run:
        """Plays so many further rounds, or all that are left; ends sooner if a callback says so."""
        self._check_open()
        if rounds is not None and (not isinstance(rounds, int | np.integer) or rounds < 0):
            raise BadInputError(f"A run can be advanced by 0 rounds or more, a whole number, not by {rounds!r:.40}")
        if self._advancing:
            raise BadInputError("A callback cannot advance or close the run that calls it; it may return a Stop")
        last = self.config.rounds if rounds is None else min(self.round + rounds, self.config.rounds)
        self._advancing = True
        try:
            if self._outcomes is None:
                self._outcomes = self._begin()
            if self._stopped is not None and not self._stopped.for_good:
                self._stopped = None  # a pause is over
            while self._snapshot is None or (self._snapshot.round < last and not self.is_over):
                self._record(next(self._outcomes))
                if self._stopped is not None:
                    break
            if self._stopped is None and self.is_over:
                next(self._outcomes, None)  # has a look at how all of it went
            if self._stopped is not None and self._stopped.for_good:
                self._score_last_round()
            self._recorder.commit()
        except (KeyboardInterrupt, SystemExit):
            self._finish("interrupted", "stopped by the user")
            self._observer.stopped(self.folder)
            raise
        except BaseException as error:  # also of somebody's own algorithm: the rounds before it are worth keeping
            if self._recorder.writable and isinstance(error, Exception):
                diverged = isinstance(error, DivergedError)
                self._finish("diverged" if diverged else "failed", str(error) or repr(error))
            else:
                self._let_go()
            raise
        finally:
            self._advancing = False
        return self

    def result(self) -> RunData:
        """What lies on disk so far."""
        if not self._closed:
            self._recorder.commit()
        return load_run(self.folder)

    def close(self, reason: str = "closed") -> RunData:
        """Writes the tables and the summary, and lets others have the folder; a run that is not over can be resumed.

        Of such a run, the summary says the `reason`.
        """
        self._end(reason)
        return load_run(self.folder)

    def _end(self, reason: str = "closed") -> None:
        if self._advancing:
            raise BadInputError("A callback cannot advance or close the run that calls it; it may return a Stop")
        if self._closed:
            return
        if self.is_over:
            self._finish("finished", self._why_early())
        elif self._snapshot is None:  # there is nothing to tell yet, but it can be resumed
            self._let_go()
        else:
            reason = reason if self._stopped is None else self._stopped.reason
            self._finish("interrupted", f"{reason} after round {self.round} of {self.config.rounds}")

    @plain_torch()
    def fork(self, settings: Mapping[str, Any] | None = None, name: str | None = None) -> Run:
        """Another run that goes on from here with other hyperparameters, in a folder beside this one.

        It has the same model, what clients keep, and the rounds so far; this run stays open and as it is. Settings
        that would make what was trained meaningless (another model, federation or protocol, say) are refused.
        """
        self._check_open()
        if self._snapshot is None:
            self.advance(0)
        assert self._snapshot is not None
        config = forked_config(self.experiment, settings or {}, name)
        name = config.name or free_name(config, self.folder.parent, self.experiment.federation)
        folder = self.folder.parent / name
        check_new(folder)
        config = config.model_copy(update={"name": name})
        handed_in = GivenParts(fleet=self.experiment.fleet)
        has_own_fleet = self.config.fleet == handed_in.named_in(self.config, self.folder).fleet
        if has_own_fleet:  # it lies in the folder of this run, which may be gone one day
            config = handed_in.named_in(config, folder)
        given = GivenParts(self.experiment.federation, self.experiment.fleet)
        experiment = prepare(config, self._observer, given)
        experiment.mechanism.check_goes_on(self.experiment.mechanism)
        fresh = experiment.simulation.algorithm.server_init(experiment.simulation.engine.initial_params())
        check_same_form(self._snapshot.state, fresh)
        if describe_policy(experiment.simulation) != describe_policy(self._simulation):
            raise BadInputError(
                "A fork of a run with a policy goes on with what that has learned, so it cannot change the seed or the "
                "settings that the policy decides on"
            )
        environment = describe_run(experiment)
        environment["forked_from"] = {"run": str(self.folder.absolute()), "round": self.round}
        with _crew_of(experiment, self._observer) as crew:
            self._recorder.fork(
                folder,
                experiment.config.to_yaml(),
                environment,
                described_fleet(experiment),
                evaluated_attributes(experiment),
                constant_tensors(experiment.simulation.task.module),
            )
            if has_own_fleet:
                handed_in.save(folder)
            return Run(experiment, *reopen_recorder(experiment, folder), self._observer, (), crew)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()

    @property
    def _simulation(self) -> Simulation:
        return self.experiment.simulation

    def _begin(self) -> Iterator[RoundOutcome]:
        self._recorder.log(f"started after round {self.round} of {self.config.rounds}")
        for warning in self.experiment.warnings:
            self._warn(warning)
        if (sentence := attack_sentence(self._simulation)) is not None:
            self._recorder.log(sentence)
        self._observer.started(self.experiment, self.folder, self.round)
        if self.config.track:
            self._tracking = Tracking(self.folder, self.config.track, self._warn)
        if isinstance(engine := self._simulation.engine, CohortEngine):
            engine.do_meanwhile(self._use_waiting_time)
        evaluated = self._simulation.evaluation_clients
        self._ids = np.array(evaluated_ids(self.experiment, evaluated))
        if self._snapshot is not None:  # a run that was killed after it was told to stop stays where it is
            row = self.rounds.slice(len(self.rounds) - 1).to_pylist()[0]
            for callback in self.experiment.callbacks:
                self._note(callback.on_round(self, row))
        return simulate(self._simulation, self._snapshot, self._recorder.feedback() if self._snapshot else ())

    def _use_waiting_time(self) -> None:
        """What a round leaves to do while the next one is computed."""
        if self._snapshot is not None:
            self._simulation.epsilon(self._snapshot.clock.version + 1)  # will be asked for, and is known then

    def _keep_if_best(self, outcome: RoundOutcome) -> None:
        """Keeps the model if its score is better than all before; the first of several that are equally good."""
        lead = self.leading_metric
        score = outcome.row.get(lead.name)
        if score is not None and (self._best_score is None or lead.is_better(score, than=self._best_score)):
            self._best_score = score
            self._recorder.keep_best(self._model_after(outcome.snapshot).state_dict(), outcome.snapshot.round)

    def _record(self, outcome: RoundOutcome) -> None:
        if self.config.keep == "best":
            self._keep_if_best(outcome)
        self._recorder.record(outcome, self._scored_ids(outcome))
        self._snapshot = outcome.snapshot
        self._observer.finished_round(outcome)
        if self._tracking is not None:
            self._tracking.notice()
        for callback in self._callbacks:
            on_round = callback.on_round if isinstance(callback, Callback) else callback
            self._note(on_round(self, self._recorder.complete_row(outcome.row)))

    def _score_last_round(self) -> None:
        """A callback ended the run: its last model is evaluated like that of any other run, though it was not due."""
        assert self._snapshot is not None
        if self.rounds["eval_clients"][-1].as_py() is not None:
            return
        outcome = evaluate_now(self._simulation, self._snapshot)
        if self.config.keep == "best":
            self._keep_if_best(outcome)
        self._recorder.record_scores(outcome, self._scored_ids(outcome))

    def _scored_ids(self, outcome: RoundOutcome) -> list[str]:
        evaluated = self._simulation.evaluation_clients
        scored = evaluated[:0] if outcome.scores is None else outcome.scores.clients
        ids: list[str] = self._ids[np.searchsorted(evaluated, scored)].tolist()
        return ids

    def _note(self, stop: Stop | None) -> None:
        """What a callback said; an end for good counts more than a pause."""
        if stop is not None and not isinstance(stop, Stop):
            raise BadInputError(f"A callback must return nothing or a Stop, not {stop!r:.60}")
        if stop is not None and (self._stopped is None or (stop.for_good and not self._stopped.for_good)):
            self._stopped = stop

    def _why_early(self) -> str | None:
        """Why a run that is over has not had all its rounds; None if there is nothing to say."""
        if self._stopped is not None:
            return f"stopped early: {self._stopped.reason}"
        simulation, snapshot = self._simulation, self._snapshot
        if snapshot is None or snapshot.round >= simulation.rounds or not simulation.has_spent_budget(snapshot.clock):
            return None
        return (
            f"stopped early: another round would spend more than the privacy budget ε = {simulation.epsilon_budget:g} "
            f"({simulation.epsilon(snapshot.clock.version):.4g} is spent)"
        )

    @plain_torch()
    def _finish(self, status: str, message: str | None) -> None:
        if self._crew is not None:
            self._recorder.log(f"trained by {self._crew.describe()}")
        self._recorder.log(status if message is None else f"{status}: {message}")
        tables = self._recorder.read_tables()
        secure = describe_secure(self.config, tables["rounds"])
        warning = None if secure is None else secure_warning(secure)
        if warning is not None:
            self._warn(warning)
        said = [*self.experiment.warnings, *([] if warning is None else [warning])]
        summary = summary_of(self.experiment, self._snapshot, tables, status, message, said, secure)
        try:
            wanted = status == "finished" and self.config.evaluation.predictions and self._snapshot is not None
            self._recorder.close(summary, self._predictions() if wanted else None)
        finally:
            self._let_go()

    def _predictions(self) -> pa.Table:
        """What the model that was evaluated last answers for every sample."""
        assert self._snapshot is not None
        engine, algorithm = self._simulation.engine, self._simulation.algorithm
        evaluated = {"params": algorithm.evaluation_params(self._snapshot.state)}
        return predictions_of(self.experiment, engine.place(evaluated)["params"])

    def _let_go(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._recorder.release()
        self._closed = True
        if self._tracking is not None:
            self._tracking.finish(self._observer.report(self.folder))

    def _warn(self, warning: str) -> None:
        with suppress(RunFailedError):  # the disk may be full
            self._recorder.log(f"warning: {warning}")
        self._observer.warned(warning)

    def _check_open(self) -> None:
        if self._closed:
            raise BadInputError(f"The run {self.folder} is closed; fedarena.open goes on with one that is not finished")


def start_run(
    config: RunConfig,
    runs_folder: Path,
    observer: Observer | None = None,
    given: GivenParts | None = None,
    callbacks: Sequence[Callback | OnRound] = (),
) -> RunData:
    """Runs a configuration to its end in the new folder ``runs_folder/<name>`` and returns what it left there."""
    return Run.create(config, runs_folder, observer, given, callbacks).advance().close()


def resume_run(
    folder: Path,
    observer: Observer | None = None,
    rounds: int | None = None,
    elsewhere: Elsewhere = None,
) -> RunData:
    """Goes on with a run that stopped; the result is the same as if it never had.

    A finished run is only read, unless it is to have more `rounds`. A run with ``engine=ray`` may go on
    `elsewhere`: with other workers, or in this process alone.
    """
    if is_finished(folder):
        if rounds is None and elsewhere is None:
            return load_run(folder)
        config = resolve(read_settings(folder / CONFIG_FILE))
        workplace_of(config.engine, elsewhere)  # or a sentence, as of a run that goes on
        if rounds is None or not is_other_length(config, rounds):
            return load_run(folder)
    return Run.reopen(folder, observer, rounds=rounds, elsewhere=elsewhere).advance().close()


@contextmanager
def _crew_of(experiment: Experiment, observer: Observer, elsewhere: Elsewhere = None) -> Iterator[RayCrew | None]:
    """Those who work for a run, if its engine has such; they are sent home if the run cannot be made after all."""
    crew = hire_crew(experiment, observer.warned, elsewhere)
    try:
        yield crew
    except BaseException:
        if crew is not None:
            crew.close()
        raise

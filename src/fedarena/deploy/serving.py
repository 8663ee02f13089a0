"""A run on a real network, from its configuration to its end: the server's side."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedarena.client import codec
from fedarena.core.errors import BadInputError
from fedarena.core.files import write_bytes
from fedarena.core.options import resolve_part
from fedarena.core.sealed_json import read_sealed, seal_json
from fedarena.core.words import counted
from fedarena.deploy.admission import Admission
from fedarena.deploy.calls import Calls, Offer
from fedarena.deploy.clocks import RunClock
from fedarena.deploy.coordinator import Coordinator
from fedarena.deploy.devices import DeviceCrew, Joined
from fedarena.deploy.folder import DeployFolder
from fedarena.deploy.ledger import Account, PrivacyLedger, new_account
from fedarena.deploy.live import DeployedSimulation, Deployment
from fedarena.deploy.members import Members
from fedarena.deploy.rules import live_rule
from fedarena.deploy.scoring import DeviceScoring
from fedarena.deploy.secure_rounds import SecureDeployment
from fedarena.deploy.service import Credentials, Service, service_kind
from fedarena.deploy.settings import check_deployable, constants, device_settings
from fedarena.deploy.tasks import EXCLUDED, REFUSED, ROUND_FILE, Journal, Task
from fedarena.deploy.update_form import UpdateForm
from fedarena.profiling.memory import give_back_unused
from fedarena.runs.building import Experiment, GivenParts
from fedarena.runs.config import USUAL_COHORT, RunConfig
from fedarena.runs.deployed import DEPLOYED
from fedarena.runs.identity import free_name
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run
from fedarena.simulate import RoundOutcome, Simulation
from fedarena.simulate.secure_aggregation import SECURE_AGGREGATIONS
from fedarena.storage.run_data import RunData, is_finished
from fedarena.train import ClientData, JobArrays, JobResults, Shard, Work, flatten_groups, map_groups
from fedarena.train.engine import ClientSamples, IntArray, Part
from fedarena.train.examples import example_update
from fedarena.train.jobs import Job
from fedarena.transforms.packing import packing_of
from fedarena.transforms.wire import PARAMS

_LINGERING_SECONDS = 10.0  # in which devices can hear that a run is over
_RECORD, _CURRENT = "run.json", "current.json"


class DeviceClients:
    """Real devices as those who train: their samples stay with them, and evaluation reads the server's federation."""

    def __init__(self, names: dict[int, str]):
        self._names = names
        self._federation: ClientData | None = None
        self.joined: Joined | None = None  # which lies in the folder of the run

    def evaluate_on(self, federation: ClientData | None) -> None:
        """What is not about training is read from there; None: devices evaluate, too."""
        self._federation = federation

    @property
    def clients(self) -> IntArray:
        """The numbers of all that may take part."""
        return np.array(sorted(self._names), dtype=np.int64)

    def client_ids(self, clients: Sequence[int]) -> list[str]:
        """Their names."""
        return [self._names[int(client)] for client in clients]

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples devices said they have to train on; else, how many the server has."""
        if part != "train" and self._federation is not None:
            return self._federation.counts(clients, part)
        names = (self._names[client] for client in clients.tolist())
        found = (None if self.joined is None else self.joined.samples(name, part) for name in names)
        return np.array([1 if samples is None else samples for samples in found], dtype=np.int64)

    def samples(self, clients: IntArray, part: Part) -> ClientSamples:
        """Those that the server has."""
        if part == "train" or self._federation is None:
            raise BadInputError("Training samples are on devices, where the server cannot read them")
        return self._federation.samples(clients, part)


class DeployedRun(Run):
    """A run whose clients are real."""

    coordinator: Coordinator
    account: Account | None = None  # of the privacy that it spends

    @classmethod
    def check_possible(cls, experiment: Experiment) -> None:
        """Refuses what exists in simulations only."""
        check_deployable(experiment)
        live_rule(experiment.simulation.protocol)
        evaluation = experiment.config.evaluation
        if evaluation.predictions and experiment.federation.num_samples == 0:
            raise BadInputError(
                "Samples are on devices, and so are predictions for them; set evaluation.predictions=false"
            )
        if evaluation.training_set or evaluation.part == "train":
            raise BadInputError(
                "Training samples are on devices, where the server cannot read them; set evaluation.training_set=false "
                "and evaluation.part=test"
            )

    def _record(self, outcome: RoundOutcome) -> None:
        """Every round is on disk before the next one begins, so that no device trains for nothing.

        What it spends of its members' privacy is on disk before that: nobody sees a model that was not paid for.
        """
        if self.account is not None:
            self.account.spend(outcome.snapshot.clock.version)
        super()._record(replace(outcome, jobs=self._in_words(outcome.jobs)))
        self._recorder.commit()

    def _in_words(self, jobs: dict[str, Any]) -> dict[str, Any]:
        """The columns of jobs, in which those that failed at the server's door say why."""
        course = self.coordinator.course
        if course is None or not jobs:
            return jobs
        by_job = {task.job: task for task in course.tasks}
        outcomes = [
            _words(by_job.get(job), found) for job, found in zip(jobs["job"].tolist(), jobs["outcome"], strict=True)
        ]
        told = [by_job[job].report.get("joules") if job in by_job else None for job in jobs["job"].tolist()]
        joules = np.array([np.nan if value is None else value for value in told], dtype=np.float64)
        return jobs | {"outcome": outcomes, "joules": joules}

    def log(self, sentence: str) -> None:
        """Adds a line to ``log.txt``."""
        self._recorder.log(sentence)


def _words(task: Task | None, otherwise: str) -> str:
    if task is None or task.outcome not in (REFUSED, EXCLUDED):
        return otherwise
    return f"refused: {task.reason}" if task.outcome == REFUSED else "excluded"


class DeployedServer:
    """Everything about one run at the server. Made by `open_server`; `start`, then `run.advance`, then `close`."""

    def __init__(
        self,
        folder: DeployFolder,
        run: DeployedRun,
        record: dict[str, Any],
        joined: Joined,
        account: Account | None = None,
        secret_noise: bool = True,
    ):
        """Without `secret_noise` the server's noise is that of a simulation, which everybody can draw again."""
        self.folder, self.run, self._run_id = folder, run, record["id"]
        names = _names(record)
        self.clock = clock = RunClock(record["began"], run.config.clock.start_seconds)
        place = run.folder / DEPLOYED
        simulation, options = run.experiment.simulation, run.config.deploy
        run.account = account
        if account is not None:
            noise = account.noise if secret_noise else None
            simulation = replace(simulation, epsilon_after=account.epsilon, server_noise=noise)
        is_secure = simulation.path.sums is not None
        if simulation.always_steps and options.norm_factor is not None and not is_secure:  # noise is for the sum
            options = replace(options, norm_factor=None)
            run.experiment.warnings.append(
                "Privacy: deploy.norm_factor is left aside, since whether an update counts must not depend on others; "
                "deploy.norm_bound may be set instead"
            )
        form = UpdateForm({}) if is_secure else update_form(simulation)
        admission = Admission(form, simulation.algorithm, run.config.local, options, is_secure)
        self.coordinator = Coordinator(place, Members(folder.path), admission, clock, joined.samples)
        self.coordinator.log = self._note
        self.notice: Callable[[str], None] = lambda sentence: None  # whoever sits at the server is told
        fewest = options.min_clients or min(simulation.cohort, len(names))
        secure = self._secure(simulation)
        deployment = Deployment(self.coordinator, names, fewest, clock.seconds, secure)
        run.coordinator = self.coordinator
        if simulation.algorithm.personalizes:
            run.experiment.warnings.append(
                "Devices keep their own models to themselves, so only the global one is scored"
            )
        run.experiment = replace(run.experiment, simulation=DeployedSimulation.of(simulation, deployment))
        scoring = None
        if run.experiment.federation.num_samples == 0:
            known = (names, joined.samples, options, fewest, clock.seconds)
            scoring = DeviceScoring(self.coordinator, simulation.engine, *known)
            if secure is not None:
                run.experiment.warnings.append(
                    "Devices tell one by one how well the model does on their test samples; only updates are hidden"
                )
        path, place_groups = run.experiment.simulation.path, simulation.engine.place
        simulation.engine.crew = DeviceCrew(  # type: ignore[attr-defined]
            path, place_groups, self.coordinator, scoring, secure
        )
        self.calls = Calls(self.coordinator, joined, self._offer(frozenset(names)))
        self.service: Service | None = None

    def _secure(self, simulation: Simulation) -> SecureDeployment | None:
        """What leads devices through secure sums, in runs that have them."""
        if simulation.secure_rounds is None:
            return None
        patience, authority = self.run.config.deploy.secure_seconds, self.folder.authority.certificate
        rounds, path, run = simulation.secure_rounds, simulation.path, self._run_id
        return SecureDeployment(self.coordinator, rounds, path, authority, run, patience, self.clock.seconds)

    def _note(self, sentence: str) -> None:
        self.run.log(sentence)
        self.notice(sentence)

    def _offer(self, clients: frozenset[int]) -> Offer:
        experiment = self.run.experiment
        settings = device_settings(experiment)
        fixed = constants(experiment)
        settings["fixed"] = None
        if fixed:
            data = codec.encode(fixed)
            digest = hashlib.sha256(data).hexdigest()
            write_bytes(self.coordinator.blobs / digest, data)
            self.coordinator.kept_blobs.add(digest)
            settings["fixed"] = {"blob": digest, "bytes": len(data)}
        columns = {name: (column.dtype, tuple(column.shape)) for name, column in experiment.federation.columns.items()}
        most = self.run.config.deploy.max_samples
        return Offer(self._run_id, settings, columns, clients, most)

    def start(self, address: str | None = None) -> None:
        """Begins to answer devices."""
        key, certificate = self.folder.server_credentials()
        where = address or self.folder.address.listening()
        credentials = Credentials(key, certificate, self.folder.authority.certificate)
        self.service = service_kind(self.folder.transport)(self.calls, credentials, where)
        self.service.start()
        give_back_unused()  # by building everything

    def close(self, sentence: str | None) -> None:
        """Ends; with a sentence, devices are told that the run is over."""
        if self.service is None:
            return
        if sentence is not None:
            self.coordinator.end(sentence, _LINGERING_SECONDS)
        self.service.stop()
        self.service = None


def open_server(
    folder: DeployFolder, config: RunConfig, observer: Observer | None = None, *, secret_noise: bool = True
) -> DeployedServer:
    """The server of a new run, or of the one with these settings that is not finished yet."""
    folder.server_credentials()
    record = _read(folder.path / _CURRENT)
    current = None if record is None else folder.runs / record["run"]
    if record is None or current is None or not current.exists() or is_finished(current):
        record = _new_record(folder, config)
        _write(folder.path / _CURRENT, record)  # from here on, whoever is killed goes on with this run
    elif record["asked"] != config.to_dict():
        raise BadInputError(
            f"The run {current} is not finished, and has other settings; go on with it: fedarena resume {current}, "
            "or move its folder away"
        )
    run_folder, clients = folder.runs / record["run"], DeviceClients(_names(record))
    if run_folder.exists():
        return reopen_server(folder, run_folder, observer, secret_noise=secret_noise)
    given = GivenParts(devices=clients)
    config = _as_deployed(config, len(clients.clients), observer).model_copy(update={"name": record["run"]})
    return _server(folder, DeployedRun.create(config, folder.runs, observer, given), record, clients, secret_noise)


def reopen_server(
    folder: DeployFolder, run_folder: Path, observer: Observer | None = None, *, secret_noise: bool = True
) -> DeployedServer:
    """The server of a run that was stopped or killed."""
    record = _read(run_folder / DEPLOYED / _RECORD) or _read(folder.path / _CURRENT)
    if record is None or record["run"] != run_folder.name:
        raise BadInputError(f"{run_folder} is no run of the deploy folder {folder.path}")
    clients = DeviceClients(_names(record))
    run = DeployedRun.reopen(run_folder, observer, GivenParts(devices=clients))
    return _server(folder, run, record, clients, secret_noise)


def serve(server: DeployedServer, address: str | None = None) -> RunData:
    """Plays all rounds that are left, with whatever devices come."""
    run = server.run
    server.start(address)
    invited = counted(len(run.experiment.simulation.training_clients), "device")
    server.notice(f"Listening at {server.folder.address} for {invited}; Ctrl-C stops, the same command goes on")
    try:
        run.advance()
        server.close(f"The run {run.config.name} is finished")
    finally:
        server.close(None)
    return run.close()


def current_run(folder: DeployFolder) -> Path | None:
    """The folder of the run that was begun last."""
    record = _read(folder.path / _CURRENT)
    return None if record is None else folder.runs / record["run"]


def deploy_folder_of(run_folder: Path) -> DeployFolder | None:
    """The deploy folder that a run belongs to; None: it was not deployed."""
    is_deployed = (run_folder / DEPLOYED / _RECORD).exists()
    return DeployFolder(run_folder.absolute().parent.parent) if is_deployed else None


def update_form(simulation: Simulation) -> UpdateForm:
    """The names, types and shapes of what a device uploads: an update of zeros, after all that devices do to it."""
    path, params = simulation.path, simulation.engine.initial_params()
    update = example_update(simulation.algorithm, params)
    jobs, number = JobArrays.of([Job(0, 1)]), np.ones(1, dtype=np.int64)
    rows = map_groups(lambda t: torch.zeros_like(t).unsqueeze(0), update)
    result = JobResults(jobs, rows, {}, Work(number, number, number, np.ones(1)), np.zeros(1))
    sent = path.send(result, Shard(jobs, {}, {}, 1), path.server_init(update), path.on_devices)
    one = map_groups(lambda t: t[0], sent.rows.update)
    packing = packing_of(path.transforms[: path.on_devices], one.get(PARAMS, {}))
    return UpdateForm(codec.form_of(flatten_groups(one)), packing)


def _server(
    folder: DeployFolder, run: DeployedRun, record: dict[str, Any], clients: DeviceClients, secret_noise: bool
) -> DeployedServer:
    place = run.folder / DEPLOYED
    place.mkdir(exist_ok=True)
    _write(place / _RECORD, record)
    joined = clients.joined = Joined(place / "devices")
    return DeployedServer(folder, run, record, joined, _account(folder, run, record), secret_noise)


def _account(folder: DeployFolder, run: DeployedRun, record: dict[str, Any]) -> Account | None:
    """The privacy account of a run; None: it is not private."""
    mechanism = run.experiment.mechanism
    if run.experiment.simulation.epsilon_after is None:
        return None
    ledger, snapshot = PrivacyLedger(folder.path), run.snapshot
    version, round = (0, 0) if snapshot is None else (snapshot.clock.version, snapshot.round)
    course = Journal(run.folder / DEPLOYED / ROUND_FILE).read()
    is_again = course is not None and course.round == round + 1 and course.closed is not None
    if ledger.steps(record["account"]) > version + int(is_again):
        # Steps that were seen by somebody are gone from the folder. They would be made again, of other updates: with
        # the same noise, which would tell the difference. So this is another account, and all steps are spent anew.
        record["account"] = new_account()
        _write(run.folder / DEPLOYED / _RECORD, record)
    account = Account(ledger, record["account"], str(run.config.name), mechanism)
    if round == 0:
        account.check_budget(0)
    return account


def _new_record(folder: DeployFolder, config: RunConfig) -> dict[str, Any]:
    """What must not change as long as a run goes on: who may take part, and since when."""
    names = [[member.number, member.name] for member in folder.members if member.excluded is None]
    if not names:
        raise BadInputError(f"Nobody is invited; invite devices with: fedarena deploy invite NAME --at {folder.path}")
    name = config.name or free_name(config, folder.runs)
    # Devices keep what they learned under an id that no other run will ever have, whatever that is called.
    run_id, account = f"{name}-{secrets.token_hex(4)}", new_account()
    began = RunClock().began
    return {
        "run": name,
        "id": run_id,
        "account": account,  # of the privacy ledger
        "asked": config.to_dict(),
        "began": began,
        "clients": names,
    }


def _names(record: dict[str, Any]) -> dict[int, str]:
    return {int(number): str(name) for number, name in record["clients"]}


def _read(path: Path) -> dict[str, Any] | None:
    return read_sealed(path, "run", "id", "account", "asked", "began", "clients")


def _write(path: Path, record: dict[str, Any]) -> None:
    write_bytes(path, seal_json(record))


def _as_deployed(config: RunConfig, clients: int, observer: Observer | None) -> RunConfig:
    """The configuration of a run with so many real devices: they train as the reference engine does."""
    if config.fleet["name"] != "ideal":
        (observer or Observer()).warned(f"fleet={config.fleet['name']} is left aside: the devices of this run are real")
    cohort = min(USUAL_COHORT, clients) if config.cohort is None else config.cohort
    if cohort > clients:
        raise BadInputError(
            f"cohort is {cohort}, and {counted(clients, 'device')} may take part; invite more, or choose a smaller one"
        )
    secure = config.secure_aggregation
    if config.deploy.secure_aggregation and secure["name"] == "none":
        secure = resolve_part(SECURE_AGGREGATIONS, "bonawitz", "secure_aggregation")
    kept = ("device", "threads", "dtype", "precision")
    engine = {"name": "reference", **{key: config.engine[key] for key in kept if key in config.engine}}
    changed = {"cohort": cohort, "fleet": {"name": "ideal"}, "engine": engine, "secure_aggregation": secure}
    return config.model_copy(update=changed)

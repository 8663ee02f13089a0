"""Devices in this process: what a deployed run sends becomes bytes and numbers on the way, but there is no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedarena.client import codec, messages
from fedarena.client.building import build, data_spec, put_constants
from fedarena.client.device import Device
from fedarena.client.samples import OwnSamples, RawSamples
from fedarena.core.secret_noise import SecretSource
from fedarena.deploy.serving import update_form
from fedarena.deploy.settings import constants, device_settings
from fedarena.runs.building import Experiment, prepare
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.simulate import simulate
from fedarena.train import flatten_groups

PARTS = ("train", "validation", "test")
SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 6, "min_samples": 5}},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "cohort": 3,
    "local": {"steps": 2, "batch_size": 4},
    "evaluation": {"every": 2, "max_clients": 2},
    "engine": {"name": "reference"},
}


def small_experiment(**settings: Any) -> Experiment:
    return prepare(resolve(merge({}, SMALL | settings)), Observer())


def samples_of(experiment: Experiment, client: int, settings: dict[str, Any]) -> OwnSamples:
    """What the user of this client's device would load."""
    federation = experiment.federation
    own = {part: dict(federation.samples(np.array([client]), part).columns) for part in PARTS}
    form = {name: (dtype, tuple(shape)) for name, (dtype, shape) in settings["data"]["columns"].items()}
    return OwnSamples.given(RawSamples(own, "load"), form, data_spec(settings))


class DevicesWithoutNetwork:
    """Stands in for those who train the shards of an engine; see `fedarena.train.crew.Crew`."""

    def __init__(self, experiment: Experiment, allow: tuple[str, ...] = (), noise: SecretSource | None = None):
        self.path = experiment.simulation.path
        self.settings = json.loads(json.dumps(device_settings(experiment)))
        fixed = codec.encode(constants(experiment))
        self.experiment, self.allow, self.noise, self.fixed = experiment, allow, noise, fixed
        self.devices: dict[int, Device] = {}
        self.kept: dict[int, bytes] = {}

    def device(self, client: int) -> Device:
        if client not in self.devices:
            data = samples_of(self.experiment, client, self.settings)
            parts = build(self.settings, data, allow=self.allow, device="cpu", noise=self.noise)
            put_constants(parts.task, codec.decode(self.fixed), "What is not trained")
            self.devices[client] = Device(parts, client)
        return self.devices[client]

    def measures(self, other) -> bool:
        return False  # the server has samples to evaluate on

    def collect(self, shards, kept) -> Iterator[Any]:
        for shard in shards:
            yield self.path.add_up(self._received(shard, position, kept) for position in range(len(shard.jobs)))

    def _received(self, shard, position: int, kept):
        job = shard.jobs.take([position])
        client, number = int(job.clients[0]), self.path.on_devices
        broadcast = shard.broadcasts[int(job.versions[0])]
        blob = codec.encode_groups(messages.model_groups(broadcast, self.path.transforms[:number], kept))
        task = json.loads(json.dumps(messages.task_of(job)))
        own = self.kept.get(client)
        trained = self.device(client).train(
            task, codec.decode_groups(blob), None if own is None else codec.decode_groups(own)
        )
        if trained.kept is not None:
            self.kept[client] = codec.encode_groups(trained.kept)
        update = codec.decode_groups(codec.encode_groups(trained.update))
        packing = update_form(self.experiment.simulation).packing
        if packing is not None:
            sent = sum(t.numel() * t.element_size() for t in flatten_groups(update).values())
            assert sent == trained.report["uploaded_bytes"]  # as the simulator counts
            update = packing.unpacked(update)
        report = json.loads(json.dumps(trained.report))
        received = self.path.receive(messages.arrived_results(job, update, report), kept, number)
        sizes = None if report["uploaded_bytes"] is None else np.array([report["uploaded_bytes"]])
        return replace(received, observed=received.observed | report["observed"], uploaded_bytes=sizes)


def played(experiment: Experiment) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """All bits of the server after the last round, and the rows of all rounds."""
    rows = []
    for outcome in simulate(experiment.simulation):
        rows.append(outcome.row)
    states = {"": outcome.snapshot.state, **{f"{n}:": s for n, s in enumerate(outcome.snapshot.transform_states)}}
    return {
        prefix + name: t.numpy().tobytes()
        for prefix, state in states.items()
        for name, t in flatten_groups(state).items()
    }, rows


def check_same_as_simulation(allow: tuple[str, ...] = (), **settings: Any) -> DevicesWithoutNetwork:
    """Plays a run in both ways, and compares."""
    wanted, rows = played(small_experiment(**settings))
    experiment = small_experiment(**settings)
    devices = DevicesWithoutNetwork(experiment, allow)
    experiment.simulation.engine.crew = devices  # type: ignore[attr-defined]
    found, own_rows = played(experiment)
    assert found == wanted
    assert devices.devices  # who has trained
    # Personal models stay on devices, where a server cannot score them; what it clips on arrival was sent as it was.
    theirs = ("personal_", "real_bytes_up")
    for own_row, row in zip(own_rows, rows, strict=True):
        assert {name: own_row[name] for name in row if not name.startswith(theirs)} == {
            name: value for name, value in row.items() if not name.startswith(theirs)
        }
    return devices

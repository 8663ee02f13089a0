"""One job on a device: exactly what the reference engine of a simulation does for this client, and its transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedarena.client.building import DeviceParts
from fedarena.client.messages import job_of, report_of, sent_update, split_model, without_what_was_learned
from fedarena.client.scores import measured
from fedarena.core.errors import BadInputError
from fedarena.train import Groups, Shard, map_groups, take_row
from fedarena.transforms.fixed_point import Words


@dataclass(frozen=True)
class Trained:
    """What came of a job."""

    update: Groups  # to be uploaded
    kept: Groups | None  # what the device keeps from now on, if the update is accepted; None: what it had
    report: dict[str, Any]  # numbers to be sent beside the update
    words: Words | None = None  # what goes into a secure sum instead; then nothing is uploaded before


class Device:
    """Trains and evaluates for one client, under the number that the server knows it by."""

    def __init__(self, parts: DeviceParts, client: int):
        self.parts, self.client = parts, client

    def do(self, task: Mapping[str, Any], model: Groups, kept: Groups | None) -> Trained:
        """Does what a task wants: a job, or scores of a model."""
        if task.get("kind", "train") == "train":
            return self.train(task, model, kept)
        self._check(model)
        states, samples = measured(self.parts, model["params"], self.client, task["part"])
        return Trained(states, None, {"samples": samples})

    def train(self, task: Mapping[str, Any], model: Groups, kept: Groups | None) -> Trained:
        """Does a job that begins with a downloaded model and with what was kept from the last one."""
        engine, path = self.parts.engine, self.parts.path
        jobs = job_of(task, self.client)
        broadcast, told = split_model(model, len(path.transforms))
        self._check(broadcast)
        version = int(jobs.versions[0])
        states = {} if kept is None else {self.client: kept}
        shard = Shard(jobs, {version: engine.place(broadcast)}, states, engine.local.batch_size)
        (result,) = engine.train(shard)
        if engine.hardware.device.type == "mps":  # which has no doubles, and transforms need some
            on_cpu = map_groups(torch.Tensor.cpu, result.update), map_groups(torch.Tensor.cpu, result.client_states)
            result = replace(result, update=on_cpu[0], client_states=on_cpu[1])
        else:
            told = [engine.place(state) for state in told]
        sent = path.send(result, shard, told, packs=path.sums is None)
        rows = [state for _, state in sent.client_states]
        state, report = take_row(rows[0], 0) if rows else None, report_of(sent)
        if path.sums is not None:
            return Trained({}, state, without_what_was_learned(report), path.sums.words(path.secure_term(sent)))
        return Trained(sent_update(sent), state, report)

    def _check(self, broadcast: Groups) -> None:
        """A model of another form would be trained in some other way without a word, or end in a riddle."""
        own = self.parts.engine.initial_params()
        found = broadcast.get("params", {})
        if {n: (t.shape, t.dtype) for n, t in found.items()} != {n: (t.shape, t.dtype) for n, t in own.items()}:
            raise BadInputError("The downloaded model is not of the form that the run's settings describe")

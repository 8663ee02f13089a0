"""Devices that score a model for a server without samples: what they send is checked like everything else."""

from __future__ import annotations

import math

import pytest
import torch
from real_clients import RealClient, data_of, invitation_at
from small_deployments import bits_of, deploy_folder, serving, simulated_bits, small_config

from fedarena.client import codec
from fedarena.deploy.coordinator import Upload
from fedarena.deploy.scoring import ScoringRule
from fedarena.deploy.tasks import Course

FORM_ONLY = {"name": "devices", "shape": [1, 8, 8], "classes": 10}


def test_real_clients_score_for_a_server_without_samples(tmp_path):
    on_devices = small_config(rounds=1, evaluation={"every": 1})
    config = small_config(rounds=1, evaluation={"every": 1}, federation=FORM_ONLY)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        port = server.service.port
        clients = [
            RealClient(invitation_at(zipped, port, tmp_path), data_of(on_devices, number))
            for number, zipped in enumerate(invitations.values())
        ]
        for client in clients:
            client.start()
        server.run.advance()
        server.close("The run is finished")
        for client in clients:
            client.join(20)
            assert client.failure is None
    row = server.run.result().rounds.to_pylist()[-1]
    assert bits_of(server.run.snapshot.state) == simulated_bits(on_devices)
    assert row["eval_clients"] == 4
    assert 0 <= row["accuracy"] <= 1
    server.run.close()


@pytest.mark.parametrize(
    ("states", "samples", "word"),
    [
        ({}, 3, None),
        ({"states/loss": torch.tensor(math.nan, dtype=torch.float64)}, 3, "not finite"),
        ({"states/loss": torch.tensor(1.0)}, 3, "form"),
        ({"states/loss": torch.zeros(2, dtype=torch.float64)}, 3, "form"),
        ({"states/more": torch.zeros((), dtype=torch.float64)}, 3, "form"),
        ({}, 0, "samples"),
        ({}, 10**9, "samples"),
        ({}, None, "samples"),
    ],
)
def test_scores_that_make_no_sense_are_refused(states, samples, word, tmp_path):
    config = small_config(federation=FORM_ONLY)
    folder, _ = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        coordinator, scoring = server.coordinator, server.run.experiment.simulation.engine.crew._scoring
        form = scoring._admission.form.tensors
        good = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in form.items()}
        body = codec.encode(good | states)
        member = coordinator.members.get("phone0")
        task = _task(member)
        course = Course(0, 0.0, 0, [task])
        coordinator.score(course, ScoringRule(60.0), scoring._admission)
        from tiny_office import header_of

        begun = coordinator.begin_upload(member, header_of(task, body) | {"report": {"samples": samples}})
        if isinstance(begun, Upload):
            coordinator.write(member, begun, body)
            begun = coordinator.finish_upload(member, begun)
        assert ("accepted" in begun) == (word is None)
        assert task.reason == word
        assert course.closed is not None
    server.run._let_go()


def _task(member):
    from fedarena.deploy.tasks import Task, new_task_id

    spec = {"kind": "evaluate", "part": "test", "blob": "", "bytes": 0, "version": 0, "most_samples": 5}
    return Task(new_task_id(), member.number, member.name, 0, 0, spec, 0, 0.0)

"""Real clients and a real server on this machine: the simulator's bits, also after kills."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from real_clients import RealClient, data_of, invitation_at, play
from small_deployments import bits_of, deploy_folder, serving, simulated_bits, small_config

from fedarena.client.conditions import Conditions
from fedarena.client.link import Link
from fedarena.core.errors import BadInputError
from fedarena.deploy import calls
from fedarena.deploy.rules import DeadlineRule


@pytest.mark.parametrize(
    ("settings", "transport"),
    [
        ({"algorithm": "scaffold"}, "grpc"),
        ({"algorithm": "scaffold"}, "https"),
        ({"transforms": [{"name": "top_k", "error_feedback": True}, "clip"], "adaptation": "head_only"}, "grpc"),
    ],
    ids=["scaffold", "https", "transforms"],
)
def test_clients_give_the_bits_of_the_simulation(settings, transport, tmp_path):
    config = small_config(**settings)
    server, lives = play(config, tmp_path, transport=transport)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert all(client.said[-1] == "The run is finished" for (client,) in lives)
    said = [sentence for (client,) in lives for sentence in client.said]
    assert sum("accepted" in sentence for sentence in said) == 9


class KilledError(BaseException):
    """The process of a client ends here, whatever it was doing."""


def mortal(after: int, moments: itertools.count) -> type[Link]:
    """Connections whose client is killed when so much has happened: before a call, or when its answer has come."""

    class MortalLink(Link):
        def call_once(self, name, message, seconds=60.0):
            self._perhaps_killed()
            answer = super().call_once(name, message, seconds)
            self._perhaps_killed()
            return answer

        def _upload_rest(self, *arguments):
            self._perhaps_killed()
            answer = super()._upload_rest(*arguments)
            self._perhaps_killed()
            return answer

        def _perhaps_killed(self):
            if next(moments) % after == after - 1:
                raise KilledError

    return MortalLink


@pytest.mark.parametrize("after", [7, 8, 9])
def test_clients_may_be_killed_at_any_moment(after, tmp_path):
    config = small_config(algorithm="scaffold", transforms=[{"name": "top_k", "error_feedback": True}])
    moments = itertools.count()

    def make_client(path, raw):
        return RealClient(path, raw, mortal(after, moments))

    server, lives = play(config, tmp_path, make_client)
    deaths = [client.failure for one in lives for client in one if client.failure is not None]
    assert deaths
    assert {type(death) for death in deaths} == {KilledError}, deaths
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    trained = [what for one in lives for client in one for what in client.shown if what.endswith(": training")]
    assert len(trained) <= 9 + len(deaths)


def test_what_devices_keep_does_not_move_in_rounds_that_fail(tmp_path, monkeypatch):
    config = small_config(algorithm="scaffold", rounds=3, protocol={"name": "deadline", "seconds": 60})
    uses, failed = DeadlineRule.used, 2
    monkeypatch.setattr(DeadlineRule, "used", lambda rule, course: [] if course.round <= failed else uses(rule, course))
    server, lives = play(config, tmp_path)
    assert server.run.snapshot.clock.version == 1  # the last round alone made a step
    took_part = {task.name for task in server.coordinator.course.used()}
    kept = {path.relative_to(tmp_path).parts[0].removesuffix(".state") for path in tmp_path.rglob("runs/*/current")}
    assert kept == took_part
    said = [sentence for (client,) in lives for sentence in client.said]
    assert sum("accepted" in sentence for sentence in said) == 9
    assert sum("was not used" in sentence for sentence in said) >= 3
    assert not [path for path in tmp_path.rglob("memory.*") if path.parents[2].stem in took_part]


def test_a_device_that_may_not_work_says_why_and_is_not_invited(tmp_path):
    class OnBattery(Conditions):
        def why_not(self):
            return "on battery"

    config = small_config(cohort=2, rounds=1)
    numbers = itertools.count()

    def make_client(path, raw):
        return RealClient(path, raw, conditions=OnBattery() if next(numbers) == 0 else Conditions())

    server, lives = play(config, tmp_path, make_client)
    resting = next(client for (client,) in lives if "not working: on battery" in client.shown)
    assert not any("accepted" in sentence for sentence in resting.said)
    assert len(server.run.result().jobs) == 2


def test_a_job_that_is_no_longer_wanted_ends_before_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "BUSY_SECONDS", 0.05)
    more = {"protocol": {"name": "synchronous", "over_commit": 1.34}, "deploy": {"min_clients": 4}}
    config = small_config(rounds=1, cohort=3, local={"steps": 40, "batch_size": 2}, **more)

    class SlowClient(RealClient):
        lock = threading.Lock()  # others do not wait for it

        def prepare(self, device):
            task = device.parts.task
            loss = task.loss

            def slow_loss(params, batch):
                time.sleep(0.5)
                return loss(params, batch)

            task.loss = slow_loss

    kinds = iter([SlowClient, RealClient, RealClient, RealClient])
    _, lives = play(config, tmp_path, lambda path, raw: next(kinds)(path, raw))
    slow = next(client for (client,) in lives if isinstance(client, SlowClient))
    assert slow.said[1:] == ["Round 1: no longer wanted", "The run is finished"]
    steps = [int(shown.rpartition(" ")[2]) for shown in slow.shown if "step" in shown]
    assert max(steps) < 40


def test_samples_that_do_not_fit_are_refused_on_the_device(tmp_path):
    config = small_config()
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1)
    with serving(folder, small_config(cohort=1)) as server:
        path = invitation_at(invitations["phone0"], server.service.port, tmp_path)
        for change, sentence in [
            (lambda columns: columns | {"x": columns["x"][:, :, :4]}, r"'x' of a sample has the shape \[1, 4, 8\]"),
            (lambda columns: columns | {"y": columns["y"] + 10}, "y must hold whole numbers from 0 to 9, not from 10"),
        ]:
            raw = data_of(config, 0)
            raw.parts["train"] = change(raw.parts["train"])
            client = RealClient(path, raw)
            client.start()
            client.join(20)
            with pytest.raises(BadInputError, match=sentence):
                raise client.failure


def test_a_revoked_device_is_told(tmp_path):
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=2)
    folder.members.revoke("phone1", "it was stolen")
    with serving(folder, small_config(cohort=1)) as server:
        path = invitation_at(invitations["phone1"], server.service.port, tmp_path)
        client = RealClient(path, data_of(small_config(), 1))
        client.start()
        client.join(20)
    with pytest.raises(BadInputError, match="does not want this device: phone1 was revoked: it was stolen"):
        raise client.failure

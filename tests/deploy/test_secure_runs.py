"""Secure sums over the network: the simulator's bits, whoever leaves, and a server that is killed between phases."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("cryptography")
import numpy as np
import small_deployments
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import load_der_x509_certificate
from real_clients import RealClient, data_of, invitation_at
from secure_groups import authority, credentials, make_group
from small_deployments import bits_of, deploy_folder, serving, simulated_bits, small_config

from fedarena.client.identity import Invitation
from fedarena.client.link import Link, StoppedError
from fedarena.client.secure_device import SecureDevice
from fedarena.client.secure_sum import Session
from fedarena.core.errors import BadInputError, SecureSumError
from fedarena.deploy.secure_rounds import SecureDeployment
from fedarena.deploy.serving import open_server
from fedarena.deploy.unmasking import PHASES
from fedarena.runs.building import prepare
from fedarena.runs.observer import Observer
from fedarena.simulate import simulate

SECURE = {"name": "bonawitz", "largest_weight": 600.0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "scaffold", "secure_aggregation.rounding": "stochastic", "secure_aggregation.bits": 64},
    ],
    ids=["fedavg", "scaffold"],
)
def test_secure_sums_give_the_bits_of_the_simulation(settings, tmp_path):
    config = small_config(secure_aggregation=SECURE, **settings)
    server = play_with(config, tmp_path)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    result = server.run.result()
    assert result.rounds["secure_groups"].to_pylist()[1:] == [1, 1, 1]
    assert result.jobs["outcome"].to_pylist() == ["used"] * 9
    assert not any(np.isfinite(result.jobs["loss"].to_numpy()))  # what single devices learned stays with them


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Privacy")
@pytest.mark.parametrize(
    "privacy",
    [
        {"name": "distributed_gaussian", "noise_multiplier": 1.0},
        {"name": "gaussian", "noise_multiplier": 0.2, "clipping": "adaptive", "quantile_noise": 1.0},
    ],
    ids=["by devices", "by the server"],
)
def test_private_secure_sums_give_the_bits_of_the_simulation(privacy, tmp_path, monkeypatch):
    """Devices and server draw from the seed of the run here; see the ledger for secrets."""
    monkeypatch.setattr(small_deployments, "open_server", partial(open_server, secret_noise=False))
    config = small_config(secure_aggregation=SECURE, privacy=privacy, selector="shuffled", cohort=4, rounds=2)
    server = play_with(config, tmp_path)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert server.run.result().rounds["epsilon"].to_pylist()[-1] > 0


def test_no_body_that_comes_before_the_masks_has_anything_of_an_update(tmp_path, monkeypatch):
    """What the server gets: jobs without tensors, and answers in phases."""
    seen = []
    original = Link.upload

    def upload(self, pending, path, progress):
        seen.append((pending.report, path.read_bytes()))
        return original(self, pending, path, progress)

    monkeypatch.setattr(Link, "upload", upload)
    config = small_config(secure_aggregation=SECURE, rounds=1)
    play_with(config, tmp_path)
    jobs = [(report, body) for report, body in seen if "samples" in report]
    assert len(jobs) == 3
    assert len(seen) == 3 + 3 * len(PHASES)
    for report, body in jobs:
        assert len(body) < 64
        assert report["loss"] is None
        assert report["observed"] == {}


class Leaving(Link):
    """The connection of a device that is gone before it hears of a phase."""

    phase = ""

    def call(self, name, message, seconds=60.0):
        answer = super().call(name, message, seconds)
        task = answer.get("task")
        if isinstance(task, dict) and task.get("phase") == self.phase and "phone3" in self.invitation.name:
            raise StoppedError
        return answer


def expected_without(config, client):
    """The simulation of one round without a client."""
    simulation = prepare(config, Observer()).simulation
    others = np.array([number for number in range(4) if number != client])
    *_, last = simulate(replace(simulation, training_clients=others, cohort=3))
    return bits_of(last.snapshot.state)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("phase", PHASES)
def test_devices_may_leave_in_every_phase(phase, tmp_path, monkeypatch):
    """One of four: its update is missing if it leaves before it is masked, and counts if it leaves later."""
    monkeypatch.setattr(Leaving, "phase", phase)
    settings = {"rounds": 1, "cohort": 4, "deploy.secure_seconds": 0.7}
    config = small_config(secure_aggregation=SECURE, **settings)
    server = play_with(config, tmp_path, Leaving)
    found = bits_of(server.run.snapshot.state)
    is_in = phase in ("confirm", "unmask")
    assert found == (simulated_bits(config) if is_in else expected_without(config, 3))
    outcomes = dict(zip(*(server.run.result().jobs[name].to_pylist() for name in ("client", "outcome")), strict=True))
    assert outcomes["phone3"] == ("used" if is_in else "left while uploading")
    assert [outcomes[f"phone{n}"] for n in range(3)] == ["used"] * 3


def play_with(config, tmp_path, link=Link):
    folder, invitations = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        clients = start(invitations, server, config, tmp_path, link)
        server.run.advance()
        server.close("The run is finished" if link is Link else None)  # nobody waits to tell those who are gone
        for client in clients:
            if link is not Link:
                client.stop.set()
            client.join(20)
    server.run.close()
    return server


def start(invitations, server, config, tmp_path, link=Link):
    clients = [
        RealClient(invitation_at(zipped, server.service.port, tmp_path), data_of(config, number), link)
        for number, zipped in enumerate(invitations.values())
    ]
    for client in clients:
        client.start()
    return clients


def test_a_group_of_which_too_few_are_left_is_lost_and_the_run_goes_on(tmp_path, monkeypatch):
    """With three devices all must stay; the round's updates are lost when one of them leaves once."""
    monkeypatch.setattr(Leaving, "phase", "unmask")
    left = threading.Event()

    class LeavingOnce(Leaving):
        def call(self, name, message, seconds=60.0):
            try:
                return super().call(name, message, seconds)
            except StoppedError:
                if left.is_set():
                    raise AssertionError("it leaves once") from None
                left.set()
                monkeypatch.setattr(Leaving, "phase", "none")
                self._stop.wait(1.5)
                return {"wait": 0.0}

    settings = {"rounds": 3, "cohort": 4, "deploy.secure_seconds": 0.7, "secure_aggregation.threshold": 0.9}
    config = small_config(secure_aggregation=SECURE, **settings)
    server = play_with(config, tmp_path, LeavingOnce)
    rounds = server.run.result().rounds.to_pylist()[1:]
    assert [row["lost_groups"] for row in rounds] == [1, 0, 0]
    assert [row["secure_groups"] for row in rounds] == [0, 1, 1]
    assert [row["succeeded"] for row in rounds] == [False, True, True]
    assert "lost" in (server.run.folder / "log.txt").read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("phase", "answer", "word"),
    [("share", b"nonsense", "secure sum"), ("mask", bytes(10**6), "size"), ("confirm", bytes(64), "secure sum")],
    ids=["share", "mask", "confirm"],
)
def test_nonsense_is_refused_and_the_others_go_on(phase, answer, word, tmp_path, monkeypatch):
    original = SecureDevice.answer

    def answered(self, task, message):
        right = original(self, task, message)
        return answer if self._number == 3 and task["phase"] == phase else right

    monkeypatch.setattr(SecureDevice, "answer", answered)
    config = small_config(secure_aggregation=SECURE, rounds=1, cohort=4)
    server = play_with(config, tmp_path)
    is_in = phase == "confirm"  # its masked update is there already
    expected = simulated_bits(config) if is_in else expected_without(config, 3)
    assert bits_of(server.run.snapshot.state) == expected
    assert f"refused of phone3: {word}" in (server.run.folder / "log.txt").read_text()


def test_no_update_is_masked_for_two_sums(tmp_path):
    """Not even by a device that was started again meanwhile."""
    certificate, key = credentials(0)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    known = [
        load_der_x509_certificate(one).public_bytes(Encoding.PEM) for one in (certificate, authority().certificate)
    ]
    invitation = Invitation(tmp_path / "x.zip", "x", "127.0.0.1", 1, pem, *known)
    vector = np.arange(4, dtype=np.uint32)

    def device():
        made = SecureDevice(invitation, 0, tmp_path)
        made.keep("job", vector)
        return made

    def up_to_masks(made, name):
        session = Session(name, 3, 4)
        group, members = make_group(session, [0, 1, 2])
        task = {"of": "job", "session": vars(session)}
        group.take(0, made.answer({**task, "phase": "advertise"}, b""))
        for number in (1, 2):
            group.take(number, members[number].advertise())
        messages = group.close()
        group.take(0, made.answer({**task, "phase": "share"}, messages[0]))
        for number in (1, 2):
            group.take(number, members[number].share(messages[number]))
        return made.answer({**task, "phase": "mask"}, group.close()[0])

    first = device()
    assert len(up_to_masks(first, "one")) == 16
    with pytest.raises(SecureSumError, match="in another sum already, and goes into one only"):
        up_to_masks(first, "two")
    with pytest.raises(SecureSumError, match="was masked for another sum before, and goes into one only"):
        up_to_masks(device(), "two")
    later = SecureDevice(invitation, 0, tmp_path)
    later.keep("another job", vector)
    with pytest.raises(SecureSumError, match="has no update for this sum any more"):
        up_to_masks(later, "three")
    (tmp_path / "masked.json").write_bytes(b"{}")
    with pytest.raises(SecureSumError, match=r"masked.json is damaged: this update may be in a sum already"):
        up_to_masks(device(), "two")


class Killed(BaseException):
    """The server is no more."""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.sampled(1)
def test_a_server_that_is_killed_in_a_phase_goes_on_with_it(phase, moment, tmp_path, monkeypatch):
    """Nobody masks an update twice, so it must go on with the very sums that it began."""
    config = small_config(secure_aggregation=SECURE, rounds=2)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    original, killed = SecureDeployment._play_phase, threading.Event()

    def play_phase(self, course, name):
        if name == phase and moment == "before" and not killed.is_set():
            killed.set()
            self._coordinator.give_errands(self._tasks(course, name))
            raise Killed
        original(self, course, name)
        if name == phase and moment == "after" and not killed.is_set():
            killed.set()
            raise Killed

    monkeypatch.setattr(SecureDeployment, "_play_phase", play_phase)
    with serving(folder, config) as server:
        port = server.service.port
        clients = start(invitations, server, config, tmp_path)
        with pytest.raises(Killed):
            server.run.advance()
        server.close(None)
        server.run._recorder.release()
    server = open_server(folder, config, Observer())
    server.start(f"127.0.0.1:{port}")
    try:
        server.run.advance()
        server.close("The run is finished")
        for client in clients:
            client.join(20)
            assert client.failure is None
    finally:
        server.close(None)
    server.run.close()
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_a_device_may_insist_on_secure_sums(tmp_path):
    config = small_config(rounds=1)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        zipped = next(iter(invitations.values()))
        path = invitation_at(zipped, server.service.port, tmp_path)
        client = RealClient(path, data_of(config, 0), only_secure=True)
        client.start()
        client.join(20)
        server.run._recorder.release()
    assert isinstance(client.failure, BadInputError)
    assert "not only a secure sum of many" in str(client.failure)


def test_how_much_the_largest_device_counts_must_be_known(tmp_path):
    folder, _ = deploy_folder(tmp_path / "deploy")
    with pytest.raises(BadInputError, match=r"set deploy.max_samples, or secure_aggregation.largest_weight"):
        open_server(folder, small_config(**{"deploy.secure_aggregation": True}), Observer())
    folder, _ = deploy_folder(tmp_path / "other")
    config = small_config(**{"deploy.secure_aggregation": True, "deploy.max_samples": 700})
    server = open_server(folder, config, Observer())
    assert server.run.config.secure_aggregation["largest_weight"] == 700
    server.run._recorder.release()

"""Whole runs over gRPC on this machine."""

from __future__ import annotations

import errno
import threading
from contextlib import closing, contextmanager

import pytest
from cutting_proxy import CuttingProxy
from small_deployments import (
    Phone,
    Swarm,
    Trainer,
    bits_of,
    deploy_folder,
    free_port,
    play,
    serving,
    simulated_bits,
    small_config,
)

import fedarena
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.deploy.inbox import Receiving
from fedarena.deploy.serving import open_server
from fedarena.display.report.page import write_report
from fedarena.runs.building import prepare
from fedarena.runs.observer import Observer
from fedarena.runs.run import start_run
from fedarena.simulate import simulate


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_over_the_network_gives_the_bits_of_the_simulation(algorithm, tmp_path):
    config = small_config(algorithm=algorithm)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, swarm = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert sum(phone.uploads for phone in swarm.phones) == 9
    jobs = server.run.result().jobs.to_pydict()
    assert jobs["outcome"] == ["used"] * 9
    assert set(jobs["client"]) <= set(invitations)


def test_what_stays_on_devices_is_not_scored_and_said_so(tmp_path, recwarn):
    config = small_config(algorithm="ditto", rounds=1)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    row = server.run.result().rounds.to_pylist()[-1]
    assert row["accuracy"] is not None
    assert "personal_accuracy" not in row
    assert any("only the global one is scored" in str(one.message) for one in recwarn)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"protocol": {"name": "synchronous", "over_commit": 1.0}, "cohort": 4},
        {"protocol": {"name": "deadline", "seconds": 60, "minimum_invited": 4}, "cohort": 4},
        {"protocol": {"name": "readiness", "share": 1.0}, "cohort": 4},
        {"transforms": [{"name": "top_k", "share": 0.2}, {"name": "clip", "bound": 0.05}]},
        {"client_lr_schedule": {"name": "cosine"}, "aggregator": "median"},
        {"selector": "by_size", "algorithm": "fedprox", "local": {"epochs": 1, "batch_size": 8}},
    ],
    ids=["synchronous", "deadline", "readiness", "transforms", "schedule and defence", "selector"],
)
def test_other_settings_give_the_bits_of_the_simulation_too(settings, tmp_path):
    config = small_config(rounds=2, **settings, deploy={"min_clients": 4})
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def play_before_anybody_is_there(folder, config, invitations):
    """A run whose devices come when its first round has begun."""
    with serving(folder, config) as server:
        trainer, port = Trainer(config), server.service.port
        swarm = Swarm(lambda: [Phone(*one, port, trainer) for one in invitations])
        coming = threading.Timer(0.3, swarm.start)
        coming.start()
        server.run.advance()
        coming.join()
        server.close("The run is finished")
        swarm.join(20)
    return server


@pytest.mark.parametrize("selector", ["by_size", {"name": "power_of_choice", "oversample": 2, "losses": "latest"}])
def test_a_selector_that_draws_by_size_waits_until_all_devices_have_told_theirs(selector, tmp_path):
    sizes = {"name": "lognormal", "clients": 4, "sigma": 2.0, "min_samples": 5}
    config = small_config(federation={"name": "digits", "partition": sizes}, selector=selector, cohort=1, rounds=6)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    devices = [(name, number, zipped) for number, (name, zipped) in enumerate(invitations.items())]
    server = play_before_anybody_is_there(folder, config, devices)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert "waiting for 4 devices to join" in (server.run.folder / "log.txt").read_text()


def test_who_may_not_take_part_any_more_is_not_asked_for_a_size(tmp_path):
    config = small_config(selector="by_size", cohort=3, rounds=1)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    devices = [(name, number, zipped) for number, (name, zipped) in enumerate(invitations.items())][:3]
    threading.Timer(0.2, folder.members.revoke, ["phone3", "lost"]).start()
    assert play_before_anybody_is_there(folder, config, devices).run.round == 1


@contextmanager
def stopped_after(folder, config):
    """A server that is started, and stopped in the end, so that another one may go on."""
    with serving(folder, config) as server, closing(server.run):
        yield server


def advanced(folder, config, invitations, rounds=None):
    """What has played some rounds with devices that come anew."""
    with stopped_after(folder, config) as server:
        trainer, port = Trainer(config), server.service.port
        swarm = Swarm(lambda: [Phone(*one, port, trainer) for one in invitations])
        swarm.start()
        server.run.advance(rounds)
        server.close("Enough")
        swarm.join(20)
    return server


def test_a_run_with_real_devices_does_not_go_on_as_a_simulation(tmp_path):
    config = small_config(rounds=2, name="run")
    folder, invitations = deploy_folder(tmp_path / "deploy")
    devices = [(name, number, zipped) for number, (name, zipped) in enumerate(invitations.items())]
    run = advanced(folder, config, devices, 1).run.folder
    for go_on in (fedarena.open, fedarena.resume):
        with pytest.raises(BadInputError, match=r"run is a run with real devices, .*: fedarena resume .*run$"):
            go_on(run)
    advanced(folder, config, devices)
    assert fedarena.load(run).status == "finished"
    for go_on in (fedarena.open, fedarena.resume):
        with pytest.raises(BadInputError, match="is a run with real devices"):
            go_on(run, rounds=3)


@pytest.mark.parametrize("older", [False, True])
def test_a_journal_of_another_round_is_not_gone_on_with(older, tmp_path):
    """Devices that wait to hear whether their update was used would be told that it was not."""
    config = small_config(rounds=4, algorithm="scaffold", name="run")
    folder, invitations = deploy_folder(tmp_path / "deploy")
    devices = [(name, number, zipped) for number, (name, zipped) in enumerate(invitations.items())]
    journal = folder.runs / "run" / "deploy" / "round.json"
    advanced(folder, config, devices, 1)
    kept = journal.read_bytes()
    with stopped_after(folder, config) as server:
        server.coordinator.course.round = 3
        with pytest.raises(DamagedFileError, match="rounds up to 1 are over, and it is that of round 3"):
            server.run.advance()
    advanced(folder, config, devices, 2)
    journal.write_bytes(kept) if older else journal.unlink()
    with (
        stopped_after(folder, config) as server,
        pytest.raises(DamagedFileError, match=r"round.json is not what was written last: rounds up to 3 are over"),
    ):
        server.run.advance()


def test_a_model_that_was_damaged_while_the_server_was_down_is_made_anew(tmp_path):
    config = small_config(rounds=2, name="run")
    folder, invitations = deploy_folder(tmp_path / "deploy")
    devices = [(name, number, zipped) for number, (name, zipped) in enumerate(invitations.items())]
    advanced(folder, config, devices, 1)

    def killed(seconds):
        raise KeyboardInterrupt

    with stopped_after(folder, config) as server:
        server.coordinator.wait = killed
        with pytest.raises(KeyboardInterrupt):
            server.run.advance()
    (model,) = (folder.runs / "run" / "deploy" / "blobs").iterdir()
    model.write_bytes(b"something else")
    server = advanced(folder, config, devices)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_buffered_goes_on_while_devices_come_and_go(tmp_path):
    config = small_config(rounds=4, protocol={"name": "buffered", "buffer_size": 2}, cohort=3)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config)
    jobs = server.run.result().jobs.to_pydict()
    assert server.run.round == 4
    assert jobs["outcome"].count("used") == 8
    assert len(set(jobs["job"])) == len(jobs["job"])
    assert set(jobs["staleness"]) <= {0, 1, 2}


def test_a_connection_that_is_cut_every_200_kilobytes_is_enough(tmp_path):
    config = small_config(rounds=1, cohort=2, model={"name": "mlp", "hidden": [4000]}, evaluation={"max_clients": 1})
    folder, invitations = deploy_folder(tmp_path / "deploy", 2)
    with serving(folder, config) as server:
        proxy = CuttingProxy(server.service.port, 200_000)
        trainer = Trainer(config)
        swarm = Swarm(
            lambda: [Phone(name, n, given, proxy.port, trainer) for n, (name, given) in enumerate(invitations.items())]
        )
        swarm.start()
        server.run.advance()
        server.close("The run is finished")
        swarm.join(60)
        assert swarm.failure is None
    bytes_up = server.run.result().rounds.to_pylist()[-1]["bytes_up"]
    assert bytes_up > 2 * 1_000_000
    assert proxy.cuts > 2 * bytes_up / 200_000  # updates and models alike
    server.run.close()


def test_a_stopped_server_goes_on_where_it_was(tmp_path):
    config = small_config(rounds=3, algorithm="scaffold")
    folder, invitations = deploy_folder(tmp_path / "deploy")
    trainer, port = Trainer(config), free_port()
    swarm = Swarm(lambda: [Phone(name, n, given, port, trainer) for n, (name, given) in enumerate(invitations.items())])
    swarm.start()
    for rounds in (1, None):
        server = open_server(folder, config, Observer())
        server.start(f"127.0.0.1:{port}")
        server.run.advance(rounds)
        server.close(None if rounds else "The run is finished")
        server.run.close()
    swarm.join(20)
    assert swarm.failure is None
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_a_server_without_samples_has_devices_score_its_model(tmp_path):
    on_devices = small_config(evaluation={"every": 1}, rounds=2)
    config = small_config(
        federation={"name": "devices", "shape": [1, 8, 8], "classes": 10}, evaluation={"every": 1}, rounds=2
    )
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config, on_devices)
    found = server.run.result()
    *_, wanted = simulate(prepare(on_devices, Observer()).simulation)
    assert bits_of(server.run.snapshot.state) == bits_of(wanted.snapshot.state)
    row = found.rounds.to_pylist()[-1]
    for name in ("accuracy", "loss", "eval_clients", "eval_samples"):
        assert row[name] == pytest.approx(wanted.row[name], rel=1e-12)
    assert set(found.clients.to_pydict()["client"]) == set(invitations)


def test_samples_that_nobody_has_cannot_be_simulated():
    config = small_config(federation={"name": "devices", "shape": [1, 8, 8], "classes": 10})
    with pytest.raises(BadInputError, match="only their form"):
        prepare(config, Observer())


def test_a_full_disk_is_told_to_who_sits_at_the_server_and_nothing_is_lost(tmp_path, monkeypatch):
    config = small_config(rounds=2)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    write, refusals = Receiving.write, iter(range(3))

    def full(self: Receiving, chunk: bytes) -> bool:
        if next(refusals, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device", str(self._path))
        return write(self, chunk)

    monkeypatch.setattr(Receiving, "write", full)
    server, _ = play(folder, invitations, config)
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
    assert "No space left on device" in (server.run.folder / "log.txt").read_text()


def test_a_report_shows_a_deployed_run_beside_a_simulated_one(tmp_path):
    config = small_config(rounds=1, name="same")
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, config)
    simulated = start_run(config, tmp_path / "runs")
    write_report([server.run.result(), simulated], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    real, made_up = (run.rounds.to_pylist()[-1] for run in (server.run.result(), simulated))
    assert {**real, "end_seconds": 0, "bytes_down": 0, "bytes_up": 0} == {
        **made_up,
        "end_seconds": 0,
        "bytes_down": 0,
        "bytes_up": 0,
    }
    assert real["end_seconds"] > 0
    assert real["bytes_up"] > made_up["bytes_up"]  # headers are real, too

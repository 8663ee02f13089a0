"""Simulated against real: records made of a deployed run's jobs, and a simulation of the same devices."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("cryptography")
from small_deployments import deploy_folder, play, small_config

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.deploy.measured import write_records
from fedarena.fleet import Availability, Devices, Fleet
from fedarena.runs.building import prepare
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A run over the network, in which the last of four devices never takes part."""
    folder, invitations = deploy_folder(tmp_path_factory.mktemp("deploy") / "deploy")
    server, _ = play(folder, invitations, small_config(algorithm="fedavg", rounds=3))
    return server.run.folder


def test_records_are_what_jobs_took(deployed, tmp_path):
    found = write_records(deployed, tmp_path / "records")
    jobs = [job for job in fedarena.load(deployed).jobs.to_pylist() if job["outcome"] == "used"]
    assert (found.devices, found.jobs, found.model) == (4, len(jobs), "mlp")
    assert found.overhead_seconds >= 0
    paths = sorted((tmp_path / "records").iterdir())
    assert [path.name for path in paths] == [f"{n:06d}-phone{n}.json" for n in range(4)]
    own = [job for job in jobs if job["client"] == "phone0"]
    assert own
    record = json.loads(paths[0].read_text())
    seconds = sum(max(job["trained_seconds"] - job["downloaded_seconds"], 1e-6) for job in own)
    mean = record["models"][0]["seconds_per_sample"]["mean"]
    assert mean == pytest.approx(seconds / sum(job["samples"] for job in own))
    took = [transfer["seconds"] for transfer in record["network"]["upload"]]
    uploads = [max(job["uploaded_seconds"] - job["trained_seconds"], 1e-6) for job in own]
    np.testing.assert_allclose(took, uploads)


@pytest.mark.parametrize("algorithm", ["ditto", "qfedavg"])
def test_records_of_a_method_that_computes_more_are_of_plain_training(algorithm, tmp_path):
    """As simulations take them, in which two models take twice as long as that, and a loss alone a third."""
    folder, invitations = deploy_folder(tmp_path / "deploy")
    server, _ = play(folder, invitations, small_config(algorithm=algorithm, rounds=2))
    found = write_records(server.run.folder, tmp_path / "records")
    jobs = [job for job in fedarena.load(server.run.folder).jobs.to_pylist() if job["outcome"] == "used"]
    first = min(job["index"] for job in jobs)
    own = [job for job in jobs if job["index"] == first]
    fleet = {"name": "profiles", "files": str(tmp_path / "records"), "model": found.model, "in_order": True}
    simulation = prepare(small_config(algorithm=algorithm, rounds=2, fleet=fleet), Observer()).simulation
    planned = simulation.world(None).phones.plan(np.array([first]), np.array([0]), np.zeros(1), 0)
    seconds = sum(max(job["trained_seconds"] - job["downloaded_seconds"], 1e-6) for job in own)
    each = seconds / sum(job["samples"] for job in own)
    assert planned.compute_seconds[0] == pytest.approx(each * planned.samples[0])


def test_a_simulation_of_the_same_devices_takes_about_as_long(deployed, tmp_path):
    """Only that it is of the same order: this machine has other things to do."""
    found = write_records(deployed, tmp_path / "records")
    fleet = {"name": "profiles", "files": str(tmp_path / "records"), "model": found.model, "in_order": True}
    config = small_config(algorithm="fedavg", rounds=3, fleet=fleet).to_dict()
    result = fedarena.run(
        merge(config, {"clock": {"overhead_seconds": found.overhead_seconds}}),
        name="simulated",
        runs_folder=tmp_path,
        progress=False,
    )
    real = fedarena.load(deployed)
    assert result.jobs["index"].to_pylist() == real.jobs["index"].to_pylist()  # the same are invited
    ends = [run.rounds["end_seconds"].to_pylist() for run in (real, result)]
    lengths = [end[3] - end[1] for end in ends]
    assert lengths[1] == pytest.approx(lengths[0], rel=3)


def test_one_report_shows_both(deployed, tmp_path):
    from fedarena.display import write_report
    from fedarena.storage.run_data import load_runs

    fedarena.run(
        small_config(algorithm="fedavg", rounds=3).to_dict(), name="simulated", runs_folder=tmp_path, progress=False
    )
    path = write_report(load_runs([deployed, tmp_path / "simulated"], print), tmp_path / "report.html")
    assert path.stat().st_size > 10_000


def test_only_deployed_runs_have_measured_devices(deployed, tmp_path):
    fedarena.run(small_config(rounds=1).to_dict(), name="simulated", runs_folder=tmp_path, progress=False)
    with pytest.raises(BadInputError, match="simulated is not the folder of a deployed run"):
        write_records(tmp_path / "simulated", tmp_path / "records")
    with pytest.raises(BadInputError, match="has no job that was used"):
        write_records(deployed, tmp_path / "records", rounds=[99])


def test_devices_in_order_are_those_of_the_clients(tmp_path):
    devices = Devices.from_columns(
        seconds_per_sample=np.arange(1.0, 5.0),
        download_bits_per_second=np.ones(4),
        upload_bits_per_second=np.ones(4),
    )
    fleet = Fleet("own", devices, Availability.always(4), paired=True, in_order=True)
    for seed in (1, 2):
        matched = fleet.match(np.array([7, 3, 9, 5]), None, seed)
        assert matched.device_of[[3, 5, 7, 9]].tolist() == [0, 1, 2, 3]
    with pytest.raises(BadInputError, match="has the devices of 4 clients, one after the other, and there are 3"):
        fleet.match(np.arange(3), None, 0)
    fleet.save(tmp_path / "fleet")
    opened = Fleet.open(tmp_path / "fleet")
    opened.verify()
    assert opened.in_order
    drawn = Fleet("own", devices, Availability.always(4), paired=True)
    assert opened.fingerprint == fleet.fingerprint != drawn.fingerprint

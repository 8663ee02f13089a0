"""The connection of a client: it goes on wherever it was cut, and its process ends as it should."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest
import torch
from cutting_proxy import CuttingProxy
from real_clients import RealClient, data_of, invitation_at
from small_deployments import bits_of, deploy_folder, serving, simulated_bits, small_config

import fedarena
from fedarena.client import codec, link, transport
from fedarena.client.identity import read_invitation
from fedarena.deploy.authority import Authority, invitation
from fedarena.deploy.demo import LocalClients, differing_tensors, set_up
from fedarena.deploy.serving import open_server, serve
from fedarena.runs.building import prepare
from fedarena.runs.observer import Observer
from fedarena.simulate import simulate

WIDE = {"model": {"name": "mlp", "hidden": [800]}, "rounds": 1, "cohort": 1, "deploy": {"min_clients": 4}}


@pytest.mark.slow
def test_connections_that_are_cut_again_and_again(tmp_path):
    config = small_config(**WIDE)
    folder, invitations = deploy_folder(tmp_path / "deploy")
    with serving(folder, config) as server:
        proxy = CuttingProxy(server.service.port, cut_after=100_000)
        clients = [
            RealClient(invitation_at(zipped, proxy.port, tmp_path), data_of(config, number))
            for number, zipped in enumerate(invitations.values())
        ]
        for client in clients:
            client.start()
        server.run.advance()
        server.close("The run is finished")
        for client in clients:
            client.stop.set()
            client.join(20)
    server.run.close()
    assert proxy.cuts >= 4  # of the 240 kB of a model, down and up
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_a_damaged_download_is_fetched_again(tmp_path):
    config = small_config(rounds=1, cohort=1)
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1)
    with serving(folder, config) as server:
        client = RealClient(invitation_at(invitations["phone0"], server.service.port, tmp_path), data_of(config, 0))
        blobs = tmp_path / "phone0.state" / "blobs"
        blobs.mkdir(parents=True)
        begin = server.coordinator.begin

        def begin_with_rubbish_on_the_device(course, rule):
            for task in course.tasks:
                (blobs / f"{task.spec['blob']}.part").write_bytes(b"rubbish")
            begin(course, rule)

        server.coordinator.begin = begin_with_rubbish_on_the_device
        client.start()
        server.run.advance()
        server.close("The run is finished")
        client.join(20)
    server.run.close()
    assert "A download was damaged; trying again" in client.shown
    assert client.said[-1] == "The run is finished"


def test_a_server_that_comes_later_is_waited_for(tmp_path):
    config = small_config(rounds=1, cohort=1)
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = RealClient(invitation_at(invitations["phone0"], port, tmp_path), data_of(config, 0))
    client.start()
    while not client.shown or "Nobody listens" not in client.shown[-1]:
        time.sleep(0.02)
        assert client.is_alive()
    server = open_server(folder, config)
    server.start(f"127.0.0.1:{port}")
    server.run.advance()
    server.close("The run is finished")
    client.join(20)
    server.run.close()
    assert client.said[-1] == "The run is finished"


def start(place: Path, *more: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(Path(fedarena.__file__).parents[1])}
    command = [sys.executable, "-m", "fedarena.client", f"{place.name}.zip", "--data", "mydata.py:load", *more]
    return subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_client_that_waits_can_be_stopped(number, code, connected, tmp_path, interruptible):
    demo = set_up(tmp_path / "demo", 2, {})
    process = start(demo.clients[0])
    address = demo.folder.address
    assert process.stderr.readline() == f"client0: connecting to {address}\n"
    assert process.stderr.readline() == f"Nobody listens at {address}: the server does not run now; trying again\n"
    if connected:
        server = open_server(demo.folder, demo.config)
        server.start()
        while not (line := process.stderr.readline()).startswith("Takes part in the run "):
            assert line.endswith("; trying again\n")
        time.sleep(1)  # then it asks for a task
    process.send_signal(number)
    assert process.wait(20) == code
    assert process.stderr.read() == "Stopped; start again to go on\n"
    if connected:
        server.close(None)


def test_a_demo_with_other_clients_than_the_federation_has(tmp_path):
    with pytest.raises(fedarena.BadInputError, match=r"has 3 training clients, and 2 were asked for; say --clients 3"):
        set_up(tmp_path / "demo", 2, {"federation.partition.clients": 3})
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_the_demo(tmp_path):
    demo = set_up(tmp_path / "demo", 3, {"rounds": 2})
    with LocalClients(demo) as clients:
        server = open_server(demo.folder, demo.config)
        data = serve(server)
        clients.wait()
    assert differing_tensors(data.path, demo.config) == ([], 4820)
    logs = [(place / "log").read_text() for place in demo.clients]
    assert all(log.endswith("is finished\n") for log in logs)


def test_a_transfer_that_stands_still_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "SILENCE_SECONDS", 0.3)
    authority = Authority.create(tmp_path)
    body, calls, done = os.urandom(100_000), [], threading.Event()

    def download(request: bytes, _: object):
        offset = json.loads(request)["offset"]
        calls.append(offset)
        yield body[offset : offset + 50_000]
        if offset == 0:
            done.wait(30)  # the network is dead, and nobody is told
        yield body[offset + 50_000 :]

    handlers = {"Download": grpc.unary_stream_rpc_method_handler(download)}
    issued = authority.issue_server(["127.0.0.1"])
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedarena.v1", handlers),))
    credentials = grpc.ssl_server_credentials([(issued.key, issued.certificate)], authority.certificate, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    (tmp_path / "a.zip").write_bytes(invitation(authority, authority.issue_client("a"), "a", f"127.0.0.1:{port}"))
    connection = link.Link(read_invitation(tmp_path / "a.zip"), threading.Event(), lambda what: None)
    digest = hashlib.sha256(body).hexdigest()
    path = connection.download(digest, len(body), tmp_path / "blobs", lambda done: None)
    done.set()
    connection.close()
    server.stop(0)
    assert path.read_bytes() == body
    assert calls == [0, 50_000]


def test_only_what_gets_much_smaller_is_packed(tmp_path):
    dense, sparse = torch.randn(50_000), torch.zeros(50_000)
    sparse[::100] = 1.0 + torch.rand(500)
    for name, update in (("dense", dense), ("sparse", sparse)):
        codec.save_groups(tmp_path / name, {"params": {"w": update}})
    assert [link.is_worth_packing(tmp_path / name) for name in ("dense", "sparse")] == [False, True]
    (tmp_path / "nothing").write_bytes(b"")
    assert not link.is_worth_packing(tmp_path / "nothing")


def test_a_compressed_update_travels_in_its_encoding(tmp_path):
    more = {"transforms": [{"name": "top_k", "share": 0.01}], "deploy": {"min_clients": 1}}
    config = small_config(**WIDE | more)
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1)
    with serving(folder, config) as server:
        proxy = CuttingProxy(server.service.port, cut_after=10**9)
        client = RealClient(invitation_at(invitations["phone0"], proxy.port, tmp_path), data_of(config, 0))
        client.start()
        server.run.advance()
        server.close("The run is finished")
        client.join(20)
    server.run.close()
    (real,) = server.run.result().rounds["bytes_up"].to_pylist()[1:]
    (accepted,) = [said for said in client.said if "accepted" in said]
    assert f"({real:,} bytes)" in accepted
    *_, simulated = simulate(prepare(config, Observer()).simulation)
    assert 2_000 < simulated.row["bytes_up"] < 4_000  # of 240,000
    assert 0 < real - simulated.row["bytes_up"] < 128  # the header of the file
    assert proxy.passed < 265_000  # a model down, and little up

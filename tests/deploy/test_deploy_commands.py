"""The commands: from an empty folder to a server, and one sentence for everything that can be wrong."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small_deployments import CLIENTS, SMALL, deploy_folder, files_of
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.client.identity import read_invitation
from fedarena.core.errors import DamagedFileError
from fedarena.deploy.authority import Authority
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.deploy.measured import _names


def command(*arguments: str | Path):
    result = CliRunner().invoke(main, ["deploy", *map(str, arguments)])
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def refused(*arguments: str | Path) -> str:
    code, text = command(*arguments)
    assert code == 2, text
    assert text.startswith("Error: ")
    assert text.count("Error: ") == 1
    assert "Traceback" not in text
    return text


@pytest.fixture
def at(tmp_path) -> Path:
    deploy_folder(tmp_path / "deploy")
    return tmp_path / "deploy"


@pytest.fixture
def settings(tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def test_from_init_to_an_invitation_and_back(tmp_path):
    at, zipped = tmp_path / "d", tmp_path / "alice.zip"
    assert command("init", "--address", "127.0.0.1:7443", "--at", at)[0] == 0
    assert "client 0" in command("invite", "alice", "--at", at, "-o", zipped)[1]
    assert zipped.stat().st_mode & 0o077 == 0
    assert set(files_of(zipped.read_bytes())) == {"invitation.json", "client.key", "client.crt", "ca.crt"}
    code, text = command("status", "--at", at)
    assert code == 0
    assert "alice" in text
    assert "No run yet" in text
    assert command("revoke", "alice", "--at", at, "--reason", "lost")[0] == 0
    assert "was revoked: lost" in command("status", "--at", at)[1]
    zipped.unlink()
    assert "client 0" in command("invite", "alice", "--at", at, "-o", zipped)[1]


@pytest.mark.parametrize("transport", ["grpc", "https"])
def test_an_invitation_says_what_the_server_speaks(transport, tmp_path):
    at, zipped = tmp_path / "d", tmp_path / "alice.zip"
    more = [] if transport == "grpc" else ["--transport", transport]
    assert f"127.0.0.1:7443 ({transport})" in command("init", "--address", "127.0.0.1:7443", "--at", at, *more)[1]
    command("invite", "alice", "--at", at, "-o", zipped)
    assert read_invitation(zipped).transport == transport
    assert f"127.0.0.1:7443 ({transport})" in command("status", "--at", at)[1]


@pytest.mark.parametrize("address", ["nowhere", "host:", ":80", "host:0", "host:99999", "host:port"])
def test_an_address_is_a_host_and_a_port(address, tmp_path):
    assert "a host and a port" in refused("init", "--address", address, "--at", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_invited_or_revoked(at, tmp_path):
    unknown = refused("init", "--address", "127.0.0.1:7443", "--at", tmp_path / "d", "--transport", "smoke")
    assert "grpc or https, not 'smoke'" in unknown
    assert not (tmp_path / "d").exists()
    assert "not empty" in refused("init", "--address", "127.0.0.1:7443", "--at", at)
    assert "no deploy folder" in refused("invite", "bob", "--at", tmp_path / "nothing")
    assert "cannot be a client's name" in refused("invite", "a/b", "--at", at, "-o", tmp_path / "x.zip")
    assert "invited already" in refused("invite", "phone0", "--at", at, "-o", tmp_path / "x.zip")
    assert "Nobody called 'bob'" in refused("revoke", "bob", "--at", at)
    (tmp_path / "x.zip").write_text("mine")
    assert "exists already" in refused("invite", "bob", "--at", at, "-o", tmp_path / "x.zip")
    members = (at / "clients.json").read_text()
    assert members.count('"number": 0') == 1
    (at / "clients.json").write_text(members.replace('"number": 0', '"number": 7'))
    assert "damaged" in refused("status", "--at", at)


def test_a_server_that_cannot_begin_says_why(at, settings, tmp_path):
    assert "no deploy folder" in refused("run", settings, "--at", tmp_path / "nothing")
    assert f"{CLIENTS} devices may take part" in refused("run", settings, "cohort=9", "--at", at)
    for setting, sentence in (
        ("training=iid", "training=iid"),
        ("attack=sign_flip", "attack=sign_flip cannot be deployed"),
        ("protocol=staleness_aware", "virtual time only"),
        ("protocol={name: asynchronous, updates_per_round: 2}", "updates_per_round=1"),
        ("evaluation.training_set=true", "on devices"),
        ("nonsense=1", "nonsense"),
        ("deploy.min_clients=0", "min_clients"),
    ):
        assert sentence in refused("run", settings, setting, "--at", at)
        assert not (at / "runs").exists() or not list((at / "runs").glob("*"))
    for member in DeployFolder(at).members:
        DeployFolder(at).members.revoke(member.name, "gone")
    assert "Nobody is invited" in refused("run", settings, "--at", at)


def test_a_port_that_is_in_use_is_named(settings, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        folder = DeployFolder.create(tmp_path / "d", Address("127.0.0.1", port))
        for name in ("a", "b", "c"):
            folder.invite(name, 1)
        code, text = command("run", settings, "--at", tmp_path / "d")
    assert code == 2
    assert f"127.0.0.1:{port} cannot be listened at" in text


def test_an_authority_that_expired_is_named(at, settings, monkeypatch):
    import datetime

    monkeypatch.setattr(Authority, "not_after", datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC))
    assert "expired on 2020-01-02" in refused("run", settings, "--at", at)


def test_a_certificate_of_the_server_that_ends_soon_is_renewed(at):
    folder = DeployFolder(at)
    before = folder.server_credentials()
    assert folder.server_credentials() == before
    (at / "server.crt").write_bytes(folder.authority.issue_server(["127.0.0.1"], days=3).certificate)
    after = folder.server_credentials()
    assert after[0] != before[0]
    assert DeployFolder(at).server_credentials() == after


def test_another_run_is_not_begun_before_the_present_one_is_finished(at, settings):
    from small_deployments import small_config

    from fedarena.deploy.serving import open_server
    from fedarena.runs.observer import Observer

    server = open_server(DeployFolder(at), small_config(name="first"), Observer())
    server.run._let_go()
    text = refused("run", settings, "name=second", "--at", at)
    assert "is not finished, and has other settings" in text
    assert "runs/first" in text
    assert "finished 0 rounds" in command("status", "--at", at)[1]


LEAN = """
import os, sys, threading, time
from pathlib import Path
from fedarena.cli.start_up import import_for_serving
import_for_serving()
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.deploy.measured import _names
from fedarena.deploy.serving import open_server
from fedarena.runs.config import read_run_file, resolve_settings
from fedarena.runs.observer import Observer
from fedarena.storage.checkpoint import read_state

server = open_server(DeployFolder(Path(sys.argv[1])), resolve_settings(read_run_file(sys.argv[2], []), {}), Observer())
server.start("127.0.0.1:0")
threading.Thread(target=server.run.advance, daemon=True).start()
while read_state(server.run.folder) is None:  # the model it begins with is evaluated and recorded
    time.sleep(0.01)
print(sorted({"pandas", "torch._dynamo", "sympy", "plotly", "ray"} & sys.modules.keys()), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_server_does_without_libraries_that_it_does_not_need(at, settings):
    """Torch's compiler and pandas alone would take 150 MB."""
    done = subprocess.run([sys.executable, "-c", LEAN, at, settings], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", ["ca.key", "ca.crt"])
def test_an_authority_of_two_folders_is_none(at, name, tmp_path):
    """Nobody could use what it signs, and nobody would be told."""
    deploy_folder(tmp_path / "other")
    (at / "authority" / name).write_bytes((tmp_path / "other" / "authority" / name).read_bytes())
    assert "ca.key is not the key of" in refused("invite", "bob", "--at", at, "-o", tmp_path / "bob.zip")


@pytest.mark.parametrize("name", ["server.key", "server.crt"])
def test_a_server_does_not_begin_with_a_key_or_a_certificate_that_is_not_its_own(at, name, tmp_path):
    """As after a kill while both are made anew."""
    deploy_folder(tmp_path / "other")
    folder = DeployFolder(at)
    for content in (None, b"", (tmp_path / "other" / name).read_bytes()):
        (at / name).unlink()
        if content is not None:
            (at / name).write_bytes(content)
        issued = folder.server_credentials()
        assert folder.authority.has_issued(*issued)
        assert issued == ((at / "server.key").read_bytes(), (at / "server.crt").read_bytes())
        assert (at / "server.key").stat().st_mode & 0o077 == 0
        assert folder.server_credentials() == issued
    for each in ("server.key", "server.crt"):
        (at / each).write_bytes((tmp_path / "other" / each).read_bytes())
    assert folder.authority.has_issued(*folder.server_credentials())


def test_a_sealed_file_of_another_kind_is_refused_and_a_pipe_is_not_waited_for(at):
    current, members = at / "current.json", at / "clients.json"
    current.write_bytes(members.read_bytes())
    code, text = command("status", "--at", at)
    assert (code, "current.json is damaged: it is not what was written" in text) == (2, True)
    for path in (current, members):
        path.unlink()
        os.mkfifo(path)
        code, text = command("status", "--at", at)
        assert (code, f"{path.name} cannot be read: it is neither a file nor a folder" in text) == (2, True)


def test_records_of_a_run_whose_list_of_devices_was_changed(tmp_path):
    record = tmp_path / "run" / "deploy" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"clients": [[0, "alice"]]}')
    with pytest.raises(DamagedFileError, match=r"run.json is damaged: it is not what was written"):
        _names(tmp_path / "run")

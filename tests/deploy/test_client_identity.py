"""Invitations, and a sentence for each mistake of TLS, on the side that can mend it."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import socket
import ssl
import struct
import threading
import zipfile
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedarena.client import identity
from fedarena.client.identity import NotReachableError, read_invitation
from fedarena.core.errors import BadInputError
from fedarena.deploy.authority import Authority, Issued, invitation
from fedarena.deploy.https_service import HttpsService
from fedarena.deploy.service import Credentials

DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory) -> list[Authority]:
    return [Authority.create(tmp_path_factory.mktemp(name)) for name in ("ours", "others")]


def invited(
    authority: Authority,
    path,
    port: int,
    issued: Issued | None = None,
    host: str = "127.0.0.1",
    transport: str = "grpc",
):
    issued = issued or authority.issue_client("alice")
    (path / "alice.zip").write_bytes(invitation(authority, issued, "alice", f"{host}:{port}", transport))
    return read_invitation(path / "alice.zip")


@contextlib.contextmanager
def grpc_server(issued: Issued, authority: Authority):
    """The port of a server that shows this certificate and asks for one of the authority's."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(issued.key, issued.certificate)], authority.certificate, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(0)


@contextlib.contextmanager
def https_server(issued: Issued, authority: Authority):
    """The same over HTTPS."""
    calls: Any = SimpleNamespace(coordinator=SimpleNamespace())
    service = HttpsService(calls, Credentials(issued.key, issued.certificate, authority.certificate), "127.0.0.1:0")
    service.start()
    try:
        yield service.port
    finally:
        service.stop(0)


SERVERS = {"grpc": grpc_server, "https": https_server}


@contextlib.contextmanager
def listener(answer: bytes | None):
    """A port at which something else listens; None: it says nothing for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(10)
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        for connection in kept:
            connection.close()


@pytest.mark.parametrize("transport", SERVERS)
def test_a_good_invitation_is_accepted(transport, authorities, tmp_path):
    ours, _ = authorities
    with SERVERS[transport](ours.issue_server(["127.0.0.1", "localhost"]), ours) as port:
        for host in ("127.0.0.1", "localhost"):
            found = invited(ours, tmp_path, port, host=host, transport=transport)
            found.check_dates()
            found.check_server()
    assert (found.name, found.address) == ("alice", f"localhost:{port}")


@pytest.mark.parametrize("transport", SERVERS)
@pytest.mark.parametrize(
    ("of_server", "of_client", "sentence"),
    [
        ({"by": 1}, {}, "certified by another authority than the one of .*alice.zip: this is not the server"),
        ({"days": -2}, {}, "The certificate of the server at .* has expired.*whoever runs the server has to renew it"),
        ({"hosts": ["fl.example.org"]}, {}, "has a certificate for another name than 127.0.0.1; whoever runs it"),
        ({}, {"by": 1}, "does not accept the certificate of .*alice.zip: it was issued by another authority"),
        ({}, {"days": -2}, "alice.zip: .* or it has expired by the server's clock; ask for a new invitation"),
        ({}, {"as_server": True}, "does not accept the certificate of .*, or not for a device, or it has"),
    ],
    ids=["foreign server", "expired server", "other host", "foreign client", "expired client", "no client"],
)
def test_a_handshake_that_fails_has_a_sentence(of_server, of_client, sentence, transport, authorities, tmp_path):
    ours = authorities[0]
    signer = authorities[of_server.get("by", 0)]
    shown = signer.issue_server(of_server.get("hosts", ["127.0.0.1"]), of_server.get("days", 30))
    mine = authorities[of_client.get("by", 0)]
    own = (
        mine.issue_server(["x"])
        if of_client.get("as_server")
        else mine.issue_client("alice", of_client.get("days", 30))
    )
    with SERVERS[transport](shown, ours) as port, pytest.raises(BadInputError, match=sentence):
        invited(ours, tmp_path, port, own, transport=transport).check_server()


@pytest.mark.parametrize("transport", SERVERS)
def test_a_server_that_resets_the_connection_after_the_handshake_does_not_accept_it(transport, authorities, tmp_path):
    ours = authorities[0]
    shown = ours.issue_server(["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(shown.key + shown.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection = context.wrap_socket(server.accept()[0], server_side=True)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(BadInputError, match="does not accept the certificate of"):
            invited(ours, tmp_path, server.getsockname()[1], transport=transport).check_server()


def test_who_does_not_speak_tls_is_found_out(authorities, tmp_path):
    sentence = "does not speak TLS, so it is not the server"
    with listener(b"HTTP/1.0 400 Bad Request\r\n\r\n") as port, pytest.raises(BadInputError, match=sentence):
        invited(authorities[0], tmp_path, port).check_server()


def test_what_may_be_better_later_is_told_apart(authorities, tmp_path, monkeypatch):
    ours = authorities[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotReachableError, match=f"Nobody listens at 127.0.0.1:{port}: the server does not run now"):
        invited(ours, tmp_path, port).check_server()
    with listener(b"") as port, pytest.raises(NotReachableError, match="hangs up"):
        invited(ours, tmp_path, port).check_server()
    monkeypatch.setattr(identity, "_SECONDS", 0.1)
    with listener(None) as port, pytest.raises(NotReachableError, match="does not answer"):
        invited(ours, tmp_path, port).check_server()
    with pytest.raises(NotReachableError, match=r"The name nowhere.invalid of the server is not known"):
        invited(ours, tmp_path, 1, host="nowhere.invalid").check_server()


def test_dates_and_clocks(authorities, tmp_path):
    ours = authorities[0]
    now = datetime.datetime.now(datetime.UTC)
    fresh = invited(ours, tmp_path, 1, ours.issue_client("alice", 30))
    fresh.check_dates(now)
    with pytest.raises(BadInputError, match=r"alice.zip has expired on .* \(fedarena deploy invite alice\)$"):
        fresh.check_dates(now + 31 * DAY)
    with pytest.raises(BadInputError, match=r"the clock of this device says 1970-01-02 .*; set the clock"):
        fresh.check_dates(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC))
    with pytest.raises(BadInputError, match="has expired"):
        invited(ours, tmp_path, 1, ours.issue_client("alice", -2)).check_dates()


def test_a_key_of_another_certificate_is_refused(authorities, tmp_path):
    ours = authorities[0]
    mixed = Issued(ours.issue_client("bob").key, ours.issue_client("alice").certificate, "", datetime.datetime.now())
    with listener(b"") as port, pytest.raises(BadInputError, match="its certificates and key do not fit together"):
        invited(ours, tmp_path, port, mixed).check_server()


def test_files_that_are_no_invitations(authorities, tmp_path):
    path = tmp_path / "alice.zip"
    with pytest.raises(BadInputError, match="There is no invitation"):
        read_invitation(path)
    ours = authorities[0]
    good = invitation(ours, ours.issue_client("alice"), "alice", "127.0.0.1:8443")
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(files["invitation.json"])

    def refused(sentence: str, **changed: bytes | None) -> None:
        names = {"about": "invitation.json", "key": "client.key", "certificate": "client.crt"}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (files | {names[key]: value for key, value in changed.items()}).items():
                if content is not None:
                    archive.writestr(name, content)
        with pytest.raises(BadInputError, match=sentence):
            read_invitation(path).check_dates()

    refused("no item named 'client.key'", key=None)
    refused("client.key is too large", key=b"x" * 100_000)
    refused("does not say who is invited", about=b"[]")
    refused("does not say who is invited", about=b"{")
    refused("an invitation of version 2", about=json.dumps(about | {"version": 2}).encode())
    refused("names 'nowhere', which is no address", about=json.dumps(about | {"address": "nowhere"}).encode())
    refused("names 'a:99999', which is no address", about=json.dumps(about | {"address": "a:99999"}).encode())
    refused("a server that speaks 'smoke', which", about=json.dumps(about | {"transport": "smoke"}).encode())
    for certificate in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        refused("it holds no certificate that can be read", certificate=certificate)
    for content in (b"", b"nothing", good[:300], good[:-40]):
        path.write_bytes(content)
        with pytest.raises(BadInputError, match="is not an invitation, which `fedarena deploy invite NAME` writes"):
            read_invitation(path)
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        with contextlib.suppress(BadInputError):
            assert read_invitation(path).key == files["client.key"]

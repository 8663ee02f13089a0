"""HTTPS as devices speak it, and as others try to: whatever comes is answered or refused, and the server goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from real_clients import RealClient, data_of, invitation_at
from small_deployments import bits_of, deploy_folder, files_of, serving, simulated_bits, small_config
from test_tls import STRANGERS, Server, foreign, issued
from tiny_office import body_of, header_of
from tunnelling_proxy import TunnellingProxy

import fedarena
from fedarena.client import https_transport, transport
from fedarena.client.identity import Invitation, NotReachableError, read_invitation
from fedarena.client.link import Link
from fedarena.client.transport import CallFailedError, Failure, open_transport
from fedarena.core.errors import BadInputError
from fedarena.deploy import https_service
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.deploy.serving import open_server

FEDERATION = {"name": "digits", "partition": {"name": "iid", "clients": 1}}
ALONE = {"federation": FEDERATION, "rounds": 1, "cohort": 1, "algorithm": "scaffold"}
ASKING = json.dumps({"run": "none"}).encode()


class HttpsServer(Server):
    """A server that answers, and those who come to it."""

    def __init__(self, path):
        super().__init__(path, "https")

    def context(self, credentials=None, authority: bytes | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=(authority or self.folder.authority.certificate).decode())
        if credentials is not None:
            for name, content in zip(("key", "crt"), credentials, strict=True):
                (self.path / f"own.{name}").write_bytes(content)
            context.load_cert_chain(self.path / "own.crt", self.path / "own.key")
        return context

    def own(self, name: str = "phone0") -> tuple[bytes, bytes]:
        return self.invitations[name]["client.key"], self.invitations[name]["client.crt"]

    @contextlib.contextmanager
    def connected(self, credentials=None):
        context = self.context(credentials or self.own())
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            yield secured

    def say(self, words: bytes) -> bytes:
        """All that is said to these words."""
        with self.connected() as secured:
            with contextlib.suppress(OSError):  # it may hang up before the end
                secured.sendall(words)
            return heard(secured)

    def call(self, credentials=None, host: str = "127.0.0.1", authority: bytes | None = None) -> str:
        context = self.context(credentials, authority)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            connection.request("POST", "/v1/Next", ASKING)
            response = connection.getresponse()
            return f"{response.status}: {response.read().decode()}"
        except (OSError, http.client.HTTPException) as error:
            return f"no connection: {error}"
        finally:
            connection.close()

    def invitation(self, path: Path) -> Invitation:
        return read_invitation(invitation_at(self.zipped["phone0"], self.port, path))

    def is_well(self) -> bool:
        return "join it first" in self.call(self.own())


def heard(secured: ssl.SSLSocket) -> bytes:
    answer = b""
    with contextlib.suppress(OSError):
        while piece := secured.recv(65_536):
            answer += piece
    return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = HttpsServer(tmp_path_factory.mktemp("https"))
    yield made
    made.service.stop(0)


@pytest.mark.parametrize("what", STRANGERS)
def test_strangers_do_not_get_an_answer(what, server, tmp_path, monkeypatch):
    made, failures = https_service._Connection.made, []

    async def noted(accepted, tls):
        try:
            return await made(accepted, tls)
        except BaseException as error:
            failures.append(error)
            raise

    monkeypatch.setattr(https_service._Connection, "made", noted)
    assert server.call(STRANGERS[what](server, tmp_path)).startswith("no connection")
    assert server.is_well()
    assert [type(error) for error in failures] == [
        ssl.SSLCertVerificationError if what != "no certificate" else ssl.SSLError
    ]


def test_who_may_not_take_part_is_told_so(server):
    assert server.call(issued(server.folder.authority.issue_client("x"))) == "403: Nobody called x is invited"
    server.folder.members.revoke("phone1", "lost in a taxi")
    assert server.call(server.own("phone1")) == "403: phone1 was revoked: lost in a taxi"
    server.folder.members.quarantine("phone2", "3 uploads were refused")
    assert server.call(server.own("phone2")) == "403: phone2 is in quarantine: 3 uploads were refused"
    assert server.is_well()


def test_other_servers_and_old_versions_of_tls_are_refused(server, tmp_path):
    assert server.call(server.own(), authority=foreign(tmp_path).certificate).startswith("no connection")
    context = server.context(server.own())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    with plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 4096, b"\x16\x03"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain:
            plain.sendall(noise)
    assert server.is_well()


HEAD = b"POST /v1/Next HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/Upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
HOSTILE = {
    "noise": (b"\0\xff" * 500 + b"\r\n\r\n", 400),
    "a request that is HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
    "a header that is too long": (HEAD + b"A: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    "headers without an end": (HEAD + b"A: a\r\n" * 10_000, 431),
    "a request line that is too long": (b"POST /" + b"a" * 40_000, 431),
    "a message that is too long": (HEAD + b"Content-Length: 70000\r\n\r\n" + b" " * 70_000, 413),
    "chunks without an end": (CHUNKED.replace(b"Upload", b"Join") + CHUNK * 80, 413),
    "chunks of an upload without an end": (CHUNKED + CHUNK * 80, 400),
    "a chunk that is no chunk": (CHUNKED + b"zzzz\r\n", 400),
    "a length that is negative": (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
    "a length that is huge": (HEAD + b"Content-Length: 9999999999999\r\n\r\n" + b" " * 70_000, 413),
    "a length that is no length": (HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
    "no JSON": (HEAD + b"Content-Length: 5\r\n\r\nhello", 400),
    "JSON that is no object": (HEAD + b"Content-Length: 4\r\n\r\n[17]", 400),
    "JSON that is deep": (HEAD + b"Content-Length: 60000\r\n\r\n" + b"[" * 60_000, 400),
    "another method": (HEAD.replace(b"POST", b"GET") + b"\r\n", 405),
    "a method with a body": (HEAD.replace(b"POST", b"PUT") + b"Content-Length: 2\r\n\r\n{}", 405),
    "a tunnel": (b"CONNECT localhost:22 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "only the head": (HEAD.replace(b"POST", b"HEAD") + b"\r\n", 405),
    "another path": (HEAD.replace(b"/v1/Next", b"/v1/../etc/passwd") + b"\r\n", 404),
    "a file that is not there": (HEAD.replace(b"Next", b"Download") + b"Content-Length: 2\r\n\r\n{}", 410),
    "an upload without a head": (HEAD.replace(b"Next", b"Upload") + b"Content-Length: 0\r\n\r\n", 400),
    "an upload with a long head": (CHUNKED + CHUNK * 2 + b"0\r\n\r\n", 400),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_requests_are_refused(what, server):
    words, status = HOSTILE[what]
    assert server.say(words).startswith(f"HTTP/1.1 {status} ".encode())
    assert server.is_well()


def test_a_path_outside_of_the_files_is_no_file(server):
    message = json.dumps({"blob": "../../deploy/authority/ca.key", "offset": 0}).encode()
    said = server.say(HEAD.replace(b"Next", b"Download") + f"Content-Length: {len(message)}\r\n\r\n".encode() + message)
    assert said.startswith(b"HTTP/1.1 410 ")


def test_who_is_slow_or_silent_is_given_up(server, monkeypatch):
    monkeypatch.setattr(https_service, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(https_service, "_SENDING_SECONDS", 0.3)
    for words in (b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"):
        began = time.monotonic()
        assert server.say(words) == b""
        assert time.monotonic() - began < 3
    assert server.is_well()


def test_strangers_that_never_shake_hands_keep_nobody_out_for_long(server, monkeypatch):
    monkeypatch.setattr(https_service, "_HANDSHAKE_SECONDS", 0.5)
    with contextlib.ExitStack() as many:
        for _ in range(https_service._HANDSHAKES + 20):
            many.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert server.is_well()


def test_a_device_has_so_many_connections_and_the_latest_count(server):
    with contextlib.ExitStack() as many:
        opened = [many.enter_context(server.connected()) for _ in range(https_service._CONNECTIONS_EACH + 2)]
        with contextlib.suppress(OSError):
            assert opened[0].recv(1) == b""
        opened[-1].sendall(HEAD + f"Content-Length: {len(ASKING)}\r\n\r\n".encode() + ASKING)
        assert opened[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert len(server.service._connected["phone0"]) == https_service._CONNECTIONS_EACH


def test_there_is_an_end_to_connections(server, monkeypatch):
    monkeypatch.setattr(https_service, "_CONNECTIONS", 0)
    assert server.call(server.own()).startswith("no connection")
    monkeypatch.undo()
    assert server.is_well()


def test_a_device_that_calls_too_often_has_to_wait(server):
    server.service._buckets._left["phone0"] = 0.0, time.monotonic() + 0.5
    assert server.call(server.own()) == "429: Too many calls; wait a second"
    server.service._buckets._left.clear()
    assert server.is_well()


def test_requests_follow_each_other_on_one_connection(server):
    request = HEAD + f"Content-Length: {len(ASKING)}\r\n\r\n".encode() + ASKING
    said = server.say(request * 3 + HEAD.replace(b"POST", b"GET") + b"Connection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200") == 3
    assert said.count(b"HTTP/1.1 405") == 1


def test_short_answers_are_sent_at_once(server, monkeypatch):
    made, without_delay = https_service._Connection.made, []

    async def noted(accepted, tls):
        connection = await made(accepted, tls)
        without_delay.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return connection

    monkeypatch.setattr(https_service._Connection, "made", noted)
    assert server.is_well()
    assert len(without_delay) == 1
    assert without_delay[0] != 0


def test_a_full_disk_is_told_on_both_sides(server, monkeypatch):
    def full(member, request):
        raise OSError(28, "No space left on device", "inbox/x")

    monkeypatch.setattr(server.service._calls, "next", full)
    said: list[str] = []
    monkeypatch.setattr(server.office.coordinator, "log", said.append)
    assert server.call(server.own()) == "503: The server cannot write to its disk; it was told so"
    assert said == ["cannot write inbox/x: No space left on device"]


def test_an_answer_that_comes_before_the_end_of_an_upload_is_read(server, tmp_path):
    task = type("T", (), {"id": "0" * 32})()
    head = json.dumps(header_of(task, body_of(0))).encode()
    speaking = open_transport(server.invitation(tmp_path))
    answer = speaking.upload(head, iter([b"x" * 65_536] * 100), packs=False)  # of which one request takes 32
    speaking.close()
    assert json.loads(answer) == {"late": "The round of this task is over"}


def test_connections_that_are_cut_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(https_transport, "_UPLOAD_BYTES", 100_000)  # a model has 240,000
    config = small_config(**ALONE | {"model": {"name": "mlp", "hidden": [800]}, "algorithm": "fedavg"})
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1, transport="https")
    with serving(folder, config) as server:
        proxy = CuttingProxy(server.service.port, cut_after=70_000)
        client = RealClient(invitation_at(invitations["phone0"], proxy.port, tmp_path), data_of(config, 0))
        client.start()
        server.run.advance()
        server.close("The run is finished")
        client.join(20)
    server.run.close()
    assert proxy.cuts >= 6
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_a_run_goes_on_among_hostile_requests(tmp_path):
    config = small_config(**ALONE | {"rounds": 3})
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1, transport="https")
    with serving(folder, config) as server:
        client = RealClient(invitation_at(invitations["phone0"], server.service.port, tmp_path), data_of(config, 0))
        hostile = object.__new__(HttpsServer)
        hostile.path, hostile.folder, hostile.port = tmp_path, folder, server.service.port
        hostile.invitations = {"phone0": files_of(invitations["phone0"])}  # stolen
        attack = threading.Thread(target=lambda: [hostile.say(words) for words, _ in HOSTILE.values()])
        attack.start()
        client.start()
        server.run.advance()
        attack.join(20)
        server.close("The run is finished")
        client.join(20)
    server.run.close()
    assert client.said[-1] == "The run is finished"
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)


def test_a_server_that_was_stopped_is_found_again(tmp_path):
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1, transport="https")
    server = open_server(folder, small_config(**ALONE))
    server.start("127.0.0.1:0")
    port = server.service.port
    shown: list[str] = []
    link = Link(read_invitation(invitation_at(invitations["phone0"], port, tmp_path)), threading.Event(), shown.append)
    assert link.call("Status", {"task": "x"}) == {"receipt": {"late": "The round of this task is over"}}
    server.close(None)
    server.start(f"127.0.0.1:{port}")
    assert link.call("Status", {"task": "x"}) == {"receipt": {"late": "The round of this task is over"}}
    assert shown == ["The connection was interrupted; trying again"]
    link.close()
    server.close(None)


def test_a_port_that_is_taken(tmp_path):
    folder, _ = deploy_folder(tmp_path / "deploy", clients=1, transport="https")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = open_server(folder, small_config(**ALONE))
        with pytest.raises(BadInputError, match=f"{address} cannot be listened at: another program does so"):
            server.start(address)


@pytest.mark.parametrize("account", ["", "ann:se%20cret@"])
def test_a_proxy_is_asked_for_a_tunnel(account, server, tmp_path, monkeypatch):
    proxy = TunnellingProxy()
    monkeypatch.setenv("https_proxy", f"http://{account}127.0.0.1:{proxy.port}")
    invitation = server.invitation(tmp_path)
    speaking = open_transport(invitation)
    assert b"join it first" in speaking.ask("Next", ASKING, 5.0)
    invitation.check_server()
    speaking.close()
    assert [asked[0].split()[:2] for asked in proxy.asked] == [["CONNECT", f"127.0.0.1:{server.port}"]] * 2
    credentials = ["Proxy-Authorization: Basic YW5uOnNlIGNyZXQ="] if account else []
    assert [line for asked in proxy.asked for line in asked if "Authorization" in line] == credentials * 2
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    open_transport(invitation).ask("Next", ASKING, 5.0)
    assert len(proxy.asked) == 2


def test_a_proxy_that_does_not_work_is_named(server, tmp_path, monkeypatch):
    invitation = server.invitation(tmp_path)
    proxy = TunnellingProxy("407 Proxy Authentication Required")
    for port, reason in ((proxy.port, "Tunnel connection failed: 407 Proxy"), (1, "connection refused")):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(NotReachableError, match=f"cannot be reached through the proxy 127.0.0.1:{port}: {reason}"):
            invitation.check_server()
        with pytest.raises(CallFailedError) as caught:
            open_transport(invitation).ask("Next", ASKING, 5.0)
        assert caught.value.failure is Failure.NO_CONNECTION
    for wrong in ("https://127.0.0.1:3", "http://", "http://127.0.0.1:x"):
        monkeypatch.setenv("https_proxy", wrong)
        with pytest.raises(BadInputError, match="https_proxy must name a proxy as http://host:port"):
            invitation.check_server()


def test_a_server_that_stands_still_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(server.service, "_file", lambda request: time.sleep(1))
    speaking = open_transport(server.invitation(tmp_path))
    with pytest.raises(CallFailedError, match="time is up"):
        next(speaking.download(b"{}"))


def test_grpcio_is_needed_for_grpc_alone(server, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "fedarena.client.grpc_transport", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    speaking = open_transport(server.invitation(tmp_path))
    assert b"join it first" in speaking.ask("Next", ASKING, 5.0)
    speaking.close()
    zipped = DeployFolder.create(tmp_path / "other", Address("127.0.0.1", 1)).invite("phone9", 30)[1]
    with pytest.raises(BadInputError, match=r"grpcio is missing .* pip install grpcio, or in Termux: pkg install"):
        open_transport(read_invitation(invitation_at(zipped, 1, tmp_path)))


@pytest.mark.slow
def test_a_client_without_grpcio(tmp_path):
    config = small_config(**ALONE)
    folder, invitations = deploy_folder(tmp_path / "deploy", clients=1, transport="https")
    columns = {name: t.tolist() for name, t in data_of(config, 0).parts["train"].items()}
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    (tmp_path / "mydata.py").write_text(
        "import json, numpy\n\n\ndef load():\n    columns = json.load(open('columns.json'))\n"
        "    return numpy.array(columns['x'], dtype='float32'), numpy.array(columns['y'])\n"
    )
    program = (
        "import sys\nfor name in ('grpc', 'h11', 'cryptography', 'pydantic', 'pyarrow', 'safetensors', 'scipy'):\n"
        "    sys.modules[name] = None\nfrom fedarena.client.__main__ import main\n"
        "sys.exit(main(['phone0.zip', '--data', 'mydata.py:load', '--device', 'cpu']))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(fedarena.__file__).parents[1])}
    with serving(folder, config) as server:
        invitation_at(invitations["phone0"], server.service.port, tmp_path)
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        server.run.advance()
        server.close("The run is finished")
        _, said = process.communicate(timeout=30)
    server.run.close()
    assert process.returncode == 0
    assert said.count("accepted") == 1
    assert said.endswith("The run is finished\n")
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)

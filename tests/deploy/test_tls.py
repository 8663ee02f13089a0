"""Who is not invited, or not any more, does not get in; and the server goes on whatever knocks at its port."""

from __future__ import annotations

import datetime
import json
import socket
import ssl

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from small_deployments import files_of
from tiny_office import Office

from fedarena.deploy.authority import Authority, Issued
from fedarena.deploy.calls import Calls, Offer
from fedarena.deploy.devices import Joined
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.deploy.service import Credentials, service_kind


class Server:
    """A server that answers, and those who come to it."""

    def __init__(self, path, transport: str = "grpc"):
        self.path = path
        self.folder = DeployFolder.create(path / "deploy", Address("127.0.0.1", 1), transport)
        self.zipped = {name: self.folder.invite(name, 30)[1] for name in ("phone0", "phone1", "phone2")}
        self.invitations = {name: files_of(zipped) for name, zipped in self.zipped.items()}
        self.office = Office(path / "office", clients=0)
        self.office.coordinator.members = self.folder.members
        calls = Calls(self.office.coordinator, Joined(path / "joined"), Offer("run", {}, {}, frozenset(range(9))))
        key, certificate = self.folder.server_credentials()
        credentials = Credentials(key, certificate, self.folder.authority.certificate)
        self.service = service_kind(self.folder.transport)(calls, credentials, "127.0.0.1:0")
        self.service.start()
        self.port = self.service.port

    def call(self, credentials=None, host: str | None = None, authority: bytes | None = None) -> str:
        """The answer to a call, or how it was refused."""
        root = self.folder.authority.certificate if authority is None else authority
        key, certificate = credentials or (None, None)
        tls = grpc.ssl_channel_credentials(root, key, certificate)
        options = [] if host is None else [("grpc.ssl_target_name_override", host)]
        with grpc.secure_channel(f"127.0.0.1:{self.port}", tls, options=options) as channel:
            return answer_of(channel)

    def is_well(self) -> bool:
        good = self.invitations["phone0"]
        return "join it first" in self.call((good["client.key"], good["client.crt"]))


def answer_of(channel) -> str:
    try:
        request = json.dumps({"run": "none"}).encode()
        return channel.unary_unary("/fedarena.v1/Next")(request, timeout=5).decode()
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("tls"))
    yield made
    made.service.stop(0)


def issued(found: Issued) -> tuple[bytes, bytes]:
    return found.key, found.certificate


def foreign(tmp_path, name: str = "other") -> Authority:
    (tmp_path / name).mkdir()
    return Authority.create(tmp_path / name)


def self_signed(name: str, signer: tuple[bytes, bytes] | None = None, days: tuple[int, int] = (-1, 30)):
    """A certificate of one's own making, signed with whatever key one has."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing = key
    if signer is not None:
        signing = serialization.load_pem_private_key(signer[0], None)
        issuer = x509.load_pem_x509_certificate(signer[1]).subject
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .sign(signing, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, certificate.public_bytes(serialization.Encoding.PEM)


def authority_pair(server: Server) -> tuple[bytes, bytes]:
    folder = server.folder.path / "authority"
    return (folder / "ca.key").read_bytes(), (folder / "ca.crt").read_bytes()


STRANGERS = {
    "no certificate": lambda server, path: None,
    "a certificate of another authority": lambda server, path: issued(foreign(path).issue_client("phone0")),
    "a certificate that has expired": lambda server, path: issued(server.folder.authority.issue_client("phone0", -1)),
    "a certificate that is not valid yet": lambda server, path: self_signed("phone0", authority_pair(server), (5, 9)),
    "a certificate for servers": lambda server, path: issued(server.folder.authority.issue_server(["phone0"])),
    "a certificate signed by itself": lambda server, path: self_signed("phone0"),
    "a certificate signed by another client": lambda server, path: self_signed(
        "phone1", (server.invitations["phone0"]["client.key"], server.invitations["phone0"]["client.crt"])
    ),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_strangers_do_not_get_a_connection(what, server, tmp_path):
    assert server.call(STRANGERS[what](server, tmp_path)).startswith("UNAVAILABLE")
    assert server.is_well()


def test_a_key_that_does_not_belong_to_its_certificate_gets_no_connection(server):
    pair = server.invitations["phone0"]["client.key"], server.invitations["phone1"]["client.crt"]
    try:
        answer = server.call(pair)
    except Exception as error:  # which the library may notice itself
        answer = f"UNAVAILABLE: {error}"
    assert not answer.startswith("{")
    assert server.is_well()


def test_a_name_that_was_never_invited_is_told_so(server):
    answer = server.call(issued(server.folder.authority.issue_client("stranger")))
    assert answer == "PERMISSION_DENIED: Nobody called stranger is invited"


def test_a_revoked_certificate_is_told_so_and_a_new_one_takes_its_place(server):
    def pair(files):
        return files["client.key"], files["client.crt"]

    old = server.invitations["phone1"]
    assert server.call(pair(old)).startswith("{")
    server.folder.members.revoke("phone1", "lost in a taxi")
    assert server.call(pair(old)) == "PERMISSION_DENIED: phone1 was revoked: lost in a taxi"
    member, again = server.folder.invite("phone1", 30)
    assert member.number == 1
    assert server.call(pair(old)).startswith("PERMISSION_DENIED: phone1 has a newer certificate")
    assert server.call(pair(files_of(again))).startswith("{")


def test_a_device_in_quarantine_is_told_so(server):
    files = server.invitations["phone2"]
    server.folder.members.quarantine("phone2", "3 uploads were refused")
    answer = server.call((files["client.key"], files["client.crt"]))
    assert answer == "PERMISSION_DENIED: phone2 is in quarantine: 3 uploads were refused"


def test_a_device_does_not_speak_to_another_server(server, tmp_path):
    files = server.invitations["phone0"]
    pair = files["client.key"], files["client.crt"]
    assert server.call(pair, authority=foreign(tmp_path).certificate).startswith("UNAVAILABLE")
    assert server.call(pair, host="fl.example.org").startswith("UNAVAILABLE")
    assert server.is_well()


def test_what_is_not_encrypted_gets_no_answer(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert answer_of(channel).startswith("UNAVAILABLE")
    for noise in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0" * 4096,
        b"\x16\x03\x01",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(noise)
    assert server.is_well()


def test_old_versions_of_tls_are_refused(server, tmp_path):
    files = server.invitations["phone0"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "ca.crt")
    context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert server.is_well()


def test_keys_are_for_their_owner_alone(server):
    for name in ("authority/ca.key", "server.key"):
        assert (server.folder.path / name).stat().st_mode & 0o077 == 0

"""The invitation of a device: who it is, whom it trusts, where the server is; and what is wrong when they do not meet.

gRPC says the same word for every mistake of TLS. So before it connects, the client looks at its certificate and its
clock, and shakes hands once by itself, to have a sentence for whoever can mend it.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import http.client
import json
import os
import re
import socket
import ssl
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedarena.client.proxies import proxy_for
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.outside_text import quoted

GRPC, HTTPS = "grpc", "https"
TRANSPORTS = (GRPC, HTTPS)
_FORMAT, _VERSION = "fedarena invitation", 1
_MOST_BYTES = 64 * 1024  # of a file in an invitation
_SECONDS, _BETWEEN_SECONDS = 10.0, 0.2  # within which a server must shake hands, and before it is tried again
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
# What OpenSSL calls what is wrong with the server's certificate.
_EXPIRED, _NOT_YET, _HOST, _ADDRESS = 10, 9, 62, 64
_PROTOCOLS = {GRPC: "h2", HTTPS: "http/1.1"}  # of TLS
# A server of gRPC speaks first, and one of HTTPS when it is spoken to.
_FIRST_WORDS = {GRPC: b"", HTTPS: b"GET / HTTP/1.1\r\nHost: fedarena\r\nConnection: close\r\n\r\n"}


class NotReachableError(FedArenaError):
    """The server cannot be reached now; it may be later."""


@dataclass(frozen=True)
class Invitation:
    """What the file holds that a device was invited with."""

    path: Path
    name: str
    host: str
    port: int
    key: bytes  # PEM, as the following
    certificate: bytes
    authority: bytes
    transport: str = GRPC

    @property
    def address(self) -> str:
        """Where the server is."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def check_dates(self, now: datetime.datetime | None = None) -> None:
        """Refuses an invitation that is not valid at this time, or a clock that cannot be right."""
        now = now or datetime.datetime.now(datetime.UTC)
        for pem, what in ((self.certificate, "The invitation"), (self.authority, "The authority of the invitation")):
            begin, end = _validity(pem, self.path)
            if now < begin:
                raise BadInputError(
                    f"{what} {self.path} is valid from {begin:%Y-%m-%d %H:%M} UTC on, and the clock of this device "
                    f"says {now:%Y-%m-%d %H:%M} UTC; set the clock"
                )
            if now > end:
                raise BadInputError(
                    f"{what} {self.path} has expired on {end:%Y-%m-%d %H:%M} UTC, if the clock of this device is right "
                    f"({now:%Y-%m-%d %H:%M} UTC); ask for a new one (fedarena deploy invite {self.name})"
                )

    def check_server(self) -> None:
        """Shakes hands with the server once.

        Raises `NotReachableError` where waiting may help, and `BadInputError` where it does not.
        """
        for last in (False, True):  # a server that is just being stopped hangs up, too
            if self._shakes_hands():
                return
            if not last:
                time.sleep(_BETWEEN_SECONDS)
        raise BadInputError(self._does_not_accept())

    def _shakes_hands(self) -> bool:
        """Whether the server goes on when it has seen this device's certificate."""
        context = self.tls()
        with self._connected() as connection:
            try:
                with context.wrap_socket(connection, server_hostname=self.host) as secured:
                    return self._is_answered(secured)
            except ssl.SSLCertVerificationError as error:
                raise BadInputError(self._distrusts(error)) from error
            except ssl.SSLError as error:
                raise self._refused(error) from error
            except TimeoutError as error:
                raise NotReachableError(f"The server at {self.address} does not answer") from error
            except OSError as error:
                raise NotReachableError(f"What listens at {self.address} hangs up: {_reason(error)}") from error

    def _is_answered(self, secured: ssl.SSLSocket) -> bool:
        # Under TLS 1.3, who is not trusted hears of it only now, and servers just hang up.
        try:
            secured.sendall(_FIRST_WORDS[self.transport])
            return bool(secured.recv(1))
        except (ConnectionError, ssl.SSLEOFError):
            return False

    def connection(self, seconds: float, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        """One to the server that is not open yet, through a proxy if this device needs one for HTTPS."""
        proxy = proxy_for(self.host) if self.transport == HTTPS else None
        host, port = (self.host, self.port) if proxy is None else (proxy.host, proxy.port)
        if tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=tls)
        if proxy is not None:
            connection.set_tunnel(self.host, self.port, proxy.headers)
        return connection

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        connection = self.connection(_SECONDS)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NotReachableError(self._cannot_be_reached(error)) from error
        with connection.sock:
            yield connection.sock

    def _cannot_be_reached(self, error: Exception) -> str:
        proxy = proxy_for(self.host) if self.transport == HTTPS else None
        if proxy is not None:
            return f"{self.address} cannot be reached through the proxy {proxy.host}:{proxy.port}: {_reason(error)}"
        if isinstance(error, socket.gaierror):
            return f"The name {self.host} of the server is not known: there is no network, or the name is wrong"
        if isinstance(error, ConnectionRefusedError):
            return f"Nobody listens at {self.address}: the server does not run now"
        return f"{self.address} cannot be reached: {_reason(error)}"

    def tls(self) -> ssl.SSLContext:
        """How this device and its server make sure of each other."""
        try:
            context = tls_context(ssl.PROTOCOL_TLS_CLIENT, self.key, self.certificate, self.authority)
        except (ssl.SSLError, ValueError) as error:
            raise BadInputError(
                f"The invitation {self.path} is damaged: its certificates and key do not fit together"
            ) from error
        context.set_alpn_protocols([_PROTOCOLS[self.transport]])
        return context

    def _distrusts(self, error: ssl.SSLCertVerificationError) -> str:
        """What is wrong with the server's certificate."""
        if error.verify_code == _EXPIRED:
            return (
                f"The certificate of the server at {self.address} has expired, if the clock of this device is right; "
                "whoever runs the server has to renew it"
            )
        if error.verify_code == _NOT_YET:
            return f"The certificate of the server at {self.address} is not valid yet; set the clock of this device"
        if error.verify_code in (_HOST, _ADDRESS):
            return (
                f"The server at {self.address} has a certificate for another name than {self.host}; whoever runs it "
                "has to name that address when the server is set up (fedarena deploy init), and invite anew"
            )
        return (
            f"The server at {self.address} was certified by another authority than the one of {self.path}: this is not "
            "the server that has invited this device, or it was set up anew; ask for a new invitation"
        )

    def _refused(self, error: ssl.SSLError) -> FedArenaError:
        """What a handshake that failed says."""
        if "ALERT" in (error.reason or ""):
            return BadInputError(self._does_not_accept())
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return NotReachableError(f"What listens at {self.address} hangs up in the middle of the handshake")
        return BadInputError(
            f"What listens at {self.address} does not speak TLS, so it is not the server that has invited this device"
        )

    def _does_not_accept(self) -> str:
        return (
            f"The server at {self.address} does not accept the certificate of {self.path}: it was issued by another "
            "authority, or not for a device, or it has expired by the server's clock; ask for a new invitation "
            f"(fedarena deploy invite {self.name})"
        )


def tls_context(side: int, key: bytes, certificate: bytes, authority: bytes) -> ssl.SSLContext:
    """What shows this certificate, and trusts this authority alone; all of them PEM."""
    context = ssl.SSLContext(side)
    context.load_verify_locations(cadata=authority.decode("ascii"))
    with tempfile.TemporaryDirectory() as folder:  # which its owner alone can read
        both = Path(folder, "both")
        both.write_bytes(key + b"\n" + certificate)
        context.load_cert_chain(both)
    return context


def read_invitation(path: Path) -> Invitation:
    """Reads the file that a device was invited with."""
    try:
        with zipfile.ZipFile(path) as archive:
            contents = {
                name: _content(archive, name) for name in ("invitation.json", "client.key", "client.crt", "ca.crt")
            }
    except FileNotFoundError:
        raise BadInputError(f"There is no invitation {path}") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, RuntimeError) as error:
        raise BadInputError(
            f"{path} is not an invitation, which `fedarena deploy invite NAME` writes: {error}"
        ) from None
    try:
        about = json.loads(contents["invitation.json"])
        form, version, name, address = (about[key] for key in ("format", "version", "name", "address"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInputError(
            f"The invitation {path} is damaged: its invitation.json does not say who is invited"
        ) from None
    if form != _FORMAT or version != _VERSION:
        raise BadInputError(f"{path} is an invitation of version {quoted(version)}; this FedArena reads {_VERSION}")
    if (transport := about.get("transport", GRPC)) not in TRANSPORTS:
        raise BadInputError(f"{path} is for a server that speaks {quoted(transport)}, which this FedArena does not")
    host, port = _parsed_address(address, path)
    key, certificate, authority = (contents[file] for file in ("client.key", "client.crt", "ca.crt"))
    return Invitation(path, str(name), host, port, key, certificate, authority, transport)


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _MOST_BYTES:
        raise ValueError(f"{name} is too large")
    return archive.read(name)


def _parsed_address(address: object, path: Path) -> tuple[str, int]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise BadInputError(f"The invitation {path} names {quoted(address)}, which is no address such as host:8443")
    return host.strip("[]"), int(port)


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    return str(error) if number is None else os.strerror(number).lower()


def _validity(pem: bytes, path: Path) -> tuple[datetime.datetime, datetime.datetime]:
    """From when until when a certificate is valid.

    Python's own functions tell it only of certificates that a server has shown.
    """
    try:
        found = _PEM.search(pem)
        assert found is not None
        body = _Der(base64.b64decode(found[1])).inside().inside()
        if body.tag() == 0xA0:  # the version, which may be missing
            body.skip()
        for _ in range(3):  # serial number, algorithm, issuer
            body.skip()
        dates = body.inside()
        return dates.time(), dates.time()
    except (AssertionError, IndexError, ValueError, binascii.Error):
        raise BadInputError(f"The invitation {path} is damaged: it holds no certificate that can be read") from None


class _Der:
    """As much of the language of certificates as it takes to find two dates."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    def tag(self) -> int:
        return self._data[self._place]

    def _value(self) -> bytes:
        """The next value."""
        length, start = self._data[self._place + 1], self._place + 2
        if length >= 0x80:  # then it says how many bytes the length has
            size = length - 0x80
            length = int.from_bytes(self._data[start : start + size], "big")
            start += size
        if start + length > len(self._data):
            raise ValueError("it is too short")
        self._place = start + length
        return self._data[start : start + length]

    def skip(self) -> None:
        self._value()

    def inside(self) -> _Der:
        return _Der(self._value())

    def time(self) -> datetime.datetime:
        years: dict[int, Callable[[str], str]] = {
            0x17: lambda text: ("20" if int(text[:2]) < 50 else "19") + text,
            0x18: lambda text: text,
        }
        full = years.get(self.tag(), str)(self._value().decode("ascii"))
        return datetime.datetime.strptime(full, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)

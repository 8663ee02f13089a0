"""The deploy folder: the authority, the server's key, who is invited, and the runs."""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.client.identity import GRPC, TRANSPORTS
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import reading, write_bytes, write_json
from fedarena.core.outside_text import quoted
from fedarena.deploy.authority import Authority, expiry, invitation, write_secret
from fedarena.deploy.ledger import begin_ledger
from fedarena.deploy.members import Member, Members, check_name

_ABOUT = "deploy.json"
_KEY, _CERTIFICATE = "server.key", "server.crt"
_RENEW = datetime.timedelta(days=30)  # before its end a certificate of the server gets a successor


@dataclass(frozen=True)
class Address:
    """Where devices reach the server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``host:port``; an address of version 6 is in brackets."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise BadInputError(f"An address is a host and a port, such as fl.example.org:7443, not {quoted(text)}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listening(self) -> str:
        """Where to listen: at this address if it is one of this machine alone, else at all of them."""
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            is_loopback = self.host == "localhost"
        return str(self) if is_loopback else f"[::]:{self.port}"


class DeployFolder:
    """A deploy folder that is there."""

    def __init__(self, path: Path):
        self.path, self.authority = path, Authority.open(path)
        try:
            about: dict[str, Any] = json.loads((path / _ABOUT).read_bytes())
            self.address, self.transport = Address.parse(about["address"]), about.get("transport", GRPC)
            if self.transport not in TRANSPORTS:
                raise ValueError(f"transport {self.transport!r}")
        except FileNotFoundError:
            raise DamagedFileError(f"{path / _ABOUT} is missing") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{path / _ABOUT} is damaged: {error!r:.100}") from None
        self.members = Members(path)

    @classmethod
    def create(cls, path: Path, address: Address, transport: str = GRPC) -> DeployFolder:
        """A new one, with an authority of its own."""
        if transport not in TRANSPORTS:
            raise BadInputError(f"Devices are spoken to by {' or '.join(TRANSPORTS)}, not {quoted(transport)}")
        if path.exists() and any(path.iterdir()):
            raise BadInputError(f"{path} is not empty; a deploy folder must be new")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = Authority.create(path)
        issued = authority.issue_server(_hosts(address))
        write_secret(path / _KEY, issued.key)
        write_bytes(path / _CERTIFICATE, issued.certificate)
        begin_ledger(path)
        write_json(path / _ABOUT, {"address": str(address), "transport": transport})
        return cls(path)

    @property
    def runs(self) -> Path:
        """Where run folders are."""
        return self.path / "runs"

    def invite(self, name: str, days: float) -> tuple[Member, bytes]:
        """A new member, and its invitation."""
        check_name(name)
        issued = self.authority.issue_client(name, days)
        member = self.members.invite(name, issued.serial, issued.not_after.isoformat())
        return member, invitation(self.authority, issued, name, str(self.address), self.transport)

    def server_credentials(self) -> tuple[bytes, bytes]:
        """The server's key and certificate; new ones, if the old one ends soon or they are not those of this folder.

        The latter is so after a kill between the two files, or when one of them was put back from elsewhere.
        """
        now = datetime.datetime.now(datetime.UTC)
        if self.authority.not_after <= now:
            raise BadInputError(
                f"The authority of {self.path} expired on {self.authority.not_after:%Y-%m-%d}, and with it all "
                "invitations; make a new deploy folder with: fedarena deploy init"
            )
        key, certificate = (self._content(name) for name in (_KEY, _CERTIFICATE))
        ends_soon = now + min(_RENEW, (self.authority.not_after - now) / 2)
        if self.authority.has_issued(key, certificate) and expiry(certificate) > ends_soon:
            return key, certificate
        issued = self.authority.issue_server(_hosts(self.address))
        (self.path / _KEY).unlink(missing_ok=True)
        write_secret(self.path / _KEY, issued.key)
        write_bytes(self.path / _CERTIFICATE, issued.certificate)
        return issued.key, issued.certificate

    def _content(self, name: str) -> bytes:
        path = self.path / name
        with reading(path):
            return path.read_bytes() if path.exists() else b""


def _hosts(address: Address) -> list[str]:
    return list(dict.fromkeys([address.host, "localhost", "127.0.0.1"]))

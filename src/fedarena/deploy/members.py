"""Who is invited: the devices of a deployment by name, and whose certificates no longer count.

The list is one file, ``clients.json``. The commands that invite and revoke change it while a server runs, and the
server writes into it whom it put into quarantine; so everybody reads it anew when it has changed, and changes it under
a lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import filelock

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import write_bytes
from fedarena.core.outside_text import quoted
from fedarena.core.sealed_json import read_sealed, seal_json

FILE = "clients.json"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Member:
    """A device that was invited."""

    name: str
    number: int  # in the order of invitation; by it updates are added up and random numbers are drawn
    serial: str  # of its certificate
    not_after: str  # until when that is valid
    revoked: str | None = None  # why it may not take part any more
    quarantined: str | None = None  # what it sent too often

    @property
    def excluded(self) -> str | None:
        """Why it may not take part; None: it may."""
        if self.revoked is not None:
            return f"{self.name} was revoked: {self.revoked}"
        if self.quarantined is not None:
            return f"{self.name} is in quarantine: {self.quarantined}"
        return None


class Members:
    """The devices of a deploy folder."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._lock = filelock.FileLock(folder / f".{FILE}.lock", timeout=_LOCK_SECONDS)
        self._read_at: tuple[int, int] | None = None
        self._members: dict[str, Member] = {}
        self.refresh()

    def __iter__(self) -> Iterator[Member]:
        return iter(sorted(self._members.values(), key=lambda member: member.number))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, name: str) -> Member | None:
        """The member of this name."""
        return self._members.get(name)

    def numbered(self, number: int) -> Member | None:
        """The member of this number."""
        return next((member for member in self._members.values() if member.number == number), None)

    def refresh(self) -> bool:
        """Reads the file if it has changed; says whether it has."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        now = (status.st_mtime_ns, status.st_ino)
        if now == self._read_at:
            return False
        self._members, self._read_at = _read(self._path), now
        return True

    def invite(self, name: str, serial: str, not_after: str) -> Member:
        """Adds a member, or gives one that is excluded another certificate and another chance under its number."""
        check_name(name)
        with self._changing():
            known = self._members.get(name)
            if known is not None and known.excluded is None:
                raise BadInputError(
                    f"{name} is invited already; to give it a new key, revoke it first: fedarena deploy revoke {name}"
                )
            number = max((member.number for member in self._members.values()), default=-1) + 1
            if known is not None:
                number = known.number
            self._members[name] = Member(name, number, serial, not_after)
        return self._members[name]

    def revoke(self, name: str, reason: str) -> Member:
        """From now on, the certificate of this member counts no longer."""
        return self._exclude(name, "revoked", reason)

    def quarantine(self, name: str, reason: str) -> Member:
        """From now on, nothing of this member is accepted."""
        return self._exclude(name, "quarantined", reason)

    def _exclude(self, name: str, how: Literal["revoked", "quarantined"], reason: str) -> Member:
        with self._changing():
            member = self._members.get(name)
            if member is None:
                invited = ", ".join(sorted(self._members)[:10]) or "nobody is"
                raise BadInputError(f"Nobody called {quoted(name)} is invited; invited: {invited}")
            changed = replace(member, revoked=reason) if how == "revoked" else replace(member, quarantined=reason)
            self._members[name] = changed
        return self._members[name]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._lock:
                self.refresh()
                yield
                write_bytes(self._path, seal_json({"format": _FORMAT, "clients": [asdict(member) for member in self]}))
                status = os.stat(self._path)
                self._read_at = (status.st_mtime_ns, status.st_ino)
        except filelock.Timeout:
            raise BadInputError(f"{self._path} is being changed by another process; try again") from None


def check_name(name: str) -> None:
    """A name stands in certificates, file names and tables."""
    if _NAME.fullmatch(name) is None:
        raise BadInputError(
            f"{quoted(name)} cannot be a client's name: it must begin with a letter or digit, and have at most 63 "
            "letters, digits, dots, hyphens and underscores"
        )


def _read(path: Path) -> dict[str, Member]:
    content = read_sealed(path, "format", "clients")
    if content is None:
        raise DamagedFileError(f"{path} is missing")
    try:
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        members = [Member(**entry) for entry in content["clients"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is damaged: {error!s:.100}") from None
    if len({member.number for member in members}) < len(members):
        raise DamagedFileError(f"{path} is damaged: two clients have the same number")
    return {member.name: member for member in members}

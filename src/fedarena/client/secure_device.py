"""A device in the secure sums of a run: its update stays here until it is masked, and goes into one sum only.

Were the same update in two sums, their difference would tell of those who are in one of them alone. So it is masked at
most once, and that it was is on disk before anybody gets it. Updates and keys are in memory only: a device that is
stopped in the middle has left its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.client.identity import Invitation
from fedarena.client.kept import needing_room
from fedarena.client.masks import Authority, Words, read_certificate, read_key, signing_with
from fedarena.client.secure_sum import Member, Session
from fedarena.core.errors import SecureSumError
from fedarena.core.files import write_bytes
from fedarena.core.sealed_json import seal_json, unseal_json


class SecureDevice:
    """What one device knows of secure sums."""

    def __init__(self, invitation: Invitation, number: int, folder: Path):
        """`folder` is where the device keeps what belongs to the run."""
        self._number, self._masked = number, folder / "masked.json"
        self._certificate = read_certificate(invitation.certificate)
        self._authority = Authority(read_certificate(invitation.authority))
        self._sign = signing_with(read_key(invitation.key))
        self._vector: tuple[str, Words] | None = None  # of which job it is
        self._member: tuple[str, Member] | None = None  # of which session

    def keep(self, job: str, vector: Words) -> None:
        """An update waits for its sum; those before are not wanted any more."""
        self._vector, self._member = (job, vector), None

    def answer(self, task: Mapping[str, Any], message: bytes) -> bytes:
        """What this device answers in a phase of a secure sum."""
        try:
            told = task["session"]
            session = Session(str(told["name"]), int(told["threshold"]), int(told["length"]), int(told["bits"]))
            phase, job = str(task["phase"]), str(task["of"])
        except (KeyError, TypeError, ValueError) as error:
            raise SecureSumError(f"The server's task cannot be understood: {error!r:.200}") from None
        if self._vector is None or self._vector[0] != job:
            raise SecureSumError("This device has no update for this sum any more")
        if self._member is None:
            if phase != "advertise":
                raise SecureSumError("This device was not in this sum from the beginning")
            member = Member(session, self._number, self._certificate, self._sign, self._authority)
            self._member = session.text, member
        if self._member[0] != session.text:
            raise SecureSumError("This update is in another sum already, and goes into one only")
        return self._answered(self._member[1], phase, message, self._vector[1])

    def _note_masked(self) -> None:
        """Writes down that this update is in this sum, unless it is in another one."""
        assert self._vector is not None
        assert self._member is not None
        own = {"job": self._vector[0], "session": self._member[0]}
        try:
            last = unseal_json(self._masked.read_bytes())
        except FileNotFoundError:
            last = {}
        if last is None:
            raise SecureSumError(f"{self._masked} is damaged: this update may be in a sum already; delete the file")
        if last == own:
            return
        if last.get("job") == own["job"]:
            raise SecureSumError("This update was masked for another sum before, and goes into one only")
        with needing_room(self._masked.parent):
            write_bytes(self._masked, seal_json(own))

    def _answered(self, member: Member, phase: str, message: bytes, vector: Words) -> bytes:
        if phase == "advertise":
            return member.advertise()
        if phase == "mask":
            answer = member.mask(vector, message)
            self._note_masked()
            return answer
        answers = {"share": member.share, "confirm": member.confirm, "unmask": member.unmask}
        if phase not in answers:
            raise SecureSumError(f"A secure sum has no phase {phase!r:.40}")
        return answers[phase](message)

"""The connection of a device to its server: calls that are repeated until they succeed, and files that go on.

A device may be offline for hours, and a server may be restarted; neither ends anything here. What ends it is a server
that says that this device is not wanted, and a certificate that will never fit.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from fedarena.client.identity import Invitation, NotReachableError
from fedarena.client.kept import Pending, needing_room
from fedarena.client.transport import CallFailedError, Failure, open_transport
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.outside_text import harmless, quoted

T = TypeVar("T")
Answer = dict[str, Any]
_CALL_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 60.0  # between them 1, 2, 4 … seconds
_TRIED_BYTES, _WORTH_SHARE = 1 << 16, 0.7  # of a file, and what packing must leave of them at most


class StoppedError(Exception):
    """The user wants to stop."""


class GoneError(Exception):
    """The server no longer has what was asked for."""


class Link:
    """What a device can ask of its server. `show` is told in a few words what it waits for."""

    def __init__(self, invitation: Invitation, stop: threading.Event, show: Callable[[str], None]):
        self.invitation, self._stop, self._show = invitation, stop, show
        self._transport = open_transport(invitation)
        self._has_met = False
        self._random = random.Random()  # of its own: that of all is not to be disturbed while a model trains
        self.chunk_bytes = 1 << 20

    def close(self) -> None:
        """Ends all calls."""
        self._transport.close()

    def call(self, name: str, message: Answer, seconds: float = _CALL_SECONDS) -> Answer:
        """The answer to a question, whenever it comes."""
        return self._patiently(lambda: self.call_once(name, message, seconds))

    def call_once(self, name: str, message: Answer, seconds: float = _CALL_SECONDS) -> Answer:
        """The same, if it comes at once."""
        return _parsed(self._transport.ask(name, json.dumps(message).encode(), seconds))

    def download(self, digest: str, size: int, folder: Path, progress: Callable[[int], None]) -> Path:
        """A file of the server by its SHA-256; what is here of it already is not sent again."""
        path, part = folder / digest, folder / f"{digest}.part"
        with needing_room(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size == size and _sha256(path) == digest:
                return path
            part.touch()

        def rest() -> None:
            self._download_rest(digest, size, part, progress)

        while True:
            self._patiently(rest, lambda: part.stat().st_size)
            if _sha256(part) == digest:
                part.replace(path)
                return path
            part.unlink()  # a disk or a server that is not to be trusted; from the beginning
            part.touch()
            self._pause(1.0, "A download was damaged")

    def _download_rest(self, digest: str, size: int, part: Path, progress: Callable[[int], None]) -> None:
        with needing_room(part.parent), open(part, "ab") as file:
            done = file.tell()
            if done > size:
                file.truncate(0)
                done = 0
            if done == size:
                return
            request = json.dumps({"blob": digest, "offset": done}).encode()
            with closing(self._transport.download(request)) as chunks:
                for chunk in chunks:
                    if self._stop.is_set():
                        raise StoppedError
                    file.write(chunk)
                    done += len(chunk)
                    if done > size:
                        raise BadInputError(f"The server sends more than the {size:,} bytes that it announced")
                    progress(done)
            if done < size:
                raise _BrokenOffError

    def upload(self, pending: Pending, path: Path, progress: Callable[[int], None]) -> Answer:
        """Sends what came of a job, from wherever it broke off, until the server has decided about it."""
        there = 0  # bytes that the server has; what was merely sent may be lost

        def rest() -> Answer:
            nonlocal there
            state = self.call_once("Status", {"task": pending.task})
            if isinstance(receipt := state.get("receipt"), dict):
                return receipt
            offset = state.get("bytes")
            while type(offset) is int:
                there = max(there, offset)
                answer = self._upload_rest(pending, path, offset, progress)
                if "offset" not in answer:
                    return answer
                if answer["offset"] == offset:
                    raise _BrokenOffError
                offset = answer["offset"]
            raise FedArenaError(f"The server says that it has {quoted(offset)} bytes, which is not understood")

        return self._patiently(rest, lambda: there)

    def _upload_rest(self, pending: Pending, path: Path, offset: int, progress: Callable[[int], None]) -> Answer:
        head = {
            "task": pending.task,
            "offset": offset,
            "bytes": pending.bytes,
            "sha256": pending.sha256,
            "report": pending.report,
        }

        def chunks() -> Iterator[bytes]:
            with open(path, "rb") as file:
                file.seek(offset)
                while not self._stop.is_set() and (chunk := file.read(self.chunk_bytes)):
                    yield chunk
                    progress(file.tell())

        answer = _parsed(self._transport.upload(json.dumps(head).encode(), chunks(), is_worth_packing(path)))
        if self._stop.is_set():
            raise StoppedError
        return answer

    def _patiently(self, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        """Tries again and again, after pauses that get longer as long as nothing comes of it."""
        failures, before = 0, reached()
        while True:
            if self._stop.is_set():
                raise StoppedError
            try:
                result = attempt()
            except CallFailedError as error:
                sentence = self._judged(error)
            except _BrokenOffError:
                sentence = "The connection was interrupted"
            else:
                self._has_met = True
                return result
            if (now := reached()) > before:  # it goes on, if only bit by bit
                failures, before = 0, now
            seconds = min(_LONGEST_PAUSE, 2.0 ** (failures - 1)) if failures else _FIRST_PAUSE
            self._pause(seconds * self._random.uniform(0.5, 1.0), sentence)
            failures += 1

    def _judged(self, error: CallFailedError) -> str:
        """Why a call failed, if trying again may help; raises if not."""
        failure, details = error.failure, harmless(error.details)
        if failure is Failure.NOT_WANTED:
            raise BadInputError(f"The server does not want this device: {details}")
        if failure is Failure.GONE:
            raise GoneError(details)
        if failure is Failure.NOT_UNDERSTOOD:
            raise FedArenaError(f"The server does not understand this client ({details}); are both of one version?")
        if failure is Failure.NO_ANSWER:
            return f"The server does not answer ({details})"
        try:
            self.invitation.check_dates()
            self.invitation.check_server()
        except NotReachableError as reason:
            return str(reason)
        except BadInputError as reason:
            # Who has been connected before is perhaps in a network that pretends to be the server.
            if not self._has_met:
                raise
            return str(reason)
        return details if details.startswith("The server") else "The connection was interrupted"

    def _pause(self, seconds: float, why: str) -> None:
        self._show(f"{why}; trying again")
        if self._stop.wait(seconds):
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Waits, as the server wants."""
        if self._stop.wait(seconds):
            raise StoppedError


class _BrokenOffError(Exception):
    """A stream ended before its end."""


def is_worth_packing(path: Path) -> bool:
    """Whether a file gets much smaller by packing: updates that a compressor left few numbers of do, others do not."""
    with open(path, "rb") as file:
        file.seek(max(0, (path.stat().st_size - _TRIED_BYTES) // 2))
        tried = file.read(_TRIED_BYTES)
    return len(zlib.compress(tried, 1)) < _WORTH_SHARE * len(tried)


def _parsed(data: bytes) -> Answer:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise FedArenaError(f"The server answers {quoted(data[:80])}, which this client does not understand")
    return answer


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Fetching published files: resumed where it broke off, checked before a file gets its name.

What has arrived is kept beside the file's name, as ``NAME.part.SUFFIX``, with a line that says which version of the
file it is (the server's ETag or date). The next attempt, of this process or of a later one, asks for the rest.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import sync_folder, write_text
from fedarena.data.raw.files import RawFile, RawFiles

# Called with the bytes that are there, how many there will be (None: the server does not say), and what is happening.
ByteProgress = Callable[[int, int | None, str], None]

TIMEOUT_SECONDS = 30.0
ATTEMPTS = 3  # in a row in which nothing arrives
PAUSE_SECONDS = 1.0
BLOCK_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)$")


def download_missing(files: RawFiles, given: str | None, progress: ByteProgress) -> list[Path]:
    """Fetches those of the files that are not there and whose address is known; returns where they are."""
    return [download(file, files.folder(given), progress) for file in files.to_fetch(given)]


def download(file: RawFile, folder: Path, progress: ByteProgress) -> Path:
    """Fetches one file into `folder` and returns its path; nothing has the file's name before it is complete."""
    if file.url is None:
        raise BadInputError(f"No address of {file.name} is known")
    compressed = file.url.endswith(".gz") and not file.name.endswith(".gz")
    target = folder / (f"{file.name}.gz" if compressed else file.name)
    part = target.with_suffix(f".part{target.suffix}")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(part):
        transfer = _Transfer(file.url, part, file.checksum is not None, progress)
        transfer.complete(f"put {file.name} into {folder} by other means")
        try:
            size = part.stat().st_size
            file.check(part, lambda fraction: progress(int(size * fraction), size, f"Checking {target.name}"))
        except DamagedFileError:
            transfer.forget()
            raise DamagedFileError(
                f"What {file.url} sent is not the published {file.name}: its checksum differs; nothing was kept"
            ) from None
        part.replace(target)
        transfer.forget()
        sync_folder(folder)
    return target


class _Transfer:
    """The bytes of one address on their way into a file."""

    def __init__(self, url: str, part: Path, checked: bool, progress: ByteProgress):
        self._url, self._part, self._progress = url, part, progress
        self._version_file = part.with_name(f"{part.name}.version")
        self._checked = checked

    def complete(self, advice: str) -> None:
        """Goes on until everything is there."""
        failures = 0
        while True:
            before = self._kept()
            try:
                if self._fetch():
                    return
                reason = "the connection broke off"
            except _RefusedError as error:
                raise BadInputError(f"{self._url} cannot be fetched: {error}; {advice}") from None
            except _NetworkError as error:
                reason = str(error)
            failures = 0 if self._kept() > before else failures + 1
            if failures == ATTEMPTS:
                kept = f"{self._kept():,} bytes are kept, and the same command goes on from there; or "
                raise BadInputError(
                    f"{self._url} cannot be fetched: {reason}; {kept if self._kept() else ''}{advice}"
                ) from None
            time.sleep(PAUSE_SECONDS)

    def forget(self) -> None:
        """Removes what has arrived."""
        self._part.unlink(missing_ok=True)
        self._version_file.unlink(missing_ok=True)

    def _fetch(self) -> bool:
        """Fetches what is missing, or as much of it as comes; whether everything is there."""
        have = self._kept()
        with _opened(self._url, have, self._version()) as response:
            begin, whole = _extent(response)
            if response.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                if whole == have:
                    return True
                self.forget()
                return False
            if begin != have:
                have = 0
            if response.headers.get_content_type() == "text/html" and not self._url.endswith((".html", ".htm")):
                raise _RefusedError("it is a web page instead of the file")
            if have == 0:
                self._begin(response)
            with open(self._part, "ab") as out:
                for block in _blocks(response):
                    out.write(block)
                    have += len(block)
                    self._progress(have, whole, f"Fetching {self._part.name.replace('.part', '')}")
                out.flush()
                os.fsync(out.fileno())
        return whole is None or have == whole

    def _begin(self, response: Any) -> None:
        self.forget()
        version = response.headers.get("ETag") or ""
        if not version or version.startswith("W/"):  # a weak tag does not promise the same bytes
            version = response.headers.get("Last-Modified") or ""
        if version:
            write_text(self._version_file, version)

    def _version(self) -> str | None:
        return self._version_file.read_text(encoding="utf-8") if self._version_file.exists() else None

    def _kept(self) -> int:
        """How many bytes are there that the rest can follow: if neither a checksum nor a version is known, none."""
        if not self._part.exists() or not (self._checked or self._version_file.exists()):
            return 0
        return self._part.stat().st_size


class _NetworkError(Exception):
    """Something that may work the next time."""


class _RefusedError(Exception):
    """Something that will not."""


@contextmanager
def _opened(url: str, begin: int, version: str | None) -> Iterator[Any]:
    """The response to a request for the bytes from `begin` on, of all if they are of another version by now."""
    headers = {"User-Agent": "fedarena", "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
        if version:
            headers["If-Range"] = version
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            kind = _NetworkError if error.code >= http.client.INTERNAL_SERVER_ERROR else _RefusedError
            raise kind(f"{error.code} {error.reason}") from None
        response = error
    except (OSError, http.client.HTTPException) as error:
        raise _NetworkError(_reason(error)) from None
    with response:
        yield response


def _blocks(response: Any) -> Iterator[bytes]:
    while True:
        try:
            block = response.read1(BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _NetworkError(_reason(error)) from None
        if not block:
            return
        yield block


def _extent(response: Any) -> tuple[int, int | None]:
    """With which byte a response begins, and how many the file has, if the server says so."""
    if response.status in (http.client.PARTIAL_CONTENT, http.client.REQUESTED_RANGE_NOT_SATISFIABLE):
        given = _CONTENT_RANGE.match(response.headers.get("Content-Range") or "")
        if given is None and response.status == http.client.PARTIAL_CONTENT:
            raise _RefusedError("the server does not say which part of the file it sends")
        return (0, None) if given is None else (int(given[1] or 0), int(given[2]) if given[2] else None)
    length = response.headers.get("Content-Length") or ""
    return 0, int(length) if length.isdecimal() else None


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer in {TIMEOUT_SECONDS:g} seconds"
    if isinstance(cause, socket.gaierror):
        return "there is no network, or its name cannot be found"
    if isinstance(cause, http.client.IncompleteRead):
        return "the connection broke off"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Refuses to write into a file that another process is writing into."""
    place = part.with_name(f".{part.name}.lock")
    lock = filelock.FileLock(place, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise BadInputError(f"Another process is fetching {part} right now; wait for it") from None
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        lock.release()

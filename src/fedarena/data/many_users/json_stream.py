"""Large JSON files, a value at a time, from any byte on.

A value is parsed by the standard library as soon as it is in memory. Other than with a parser of events, the byte after
it is known, so that reading can go on there after an interruption.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from fedarena.core.errors import BadInputError, DamagedFileError

BLOCK_BYTES = 1 << 22
MAX_VALUE_BYTES = 1 << 26

_SPACE = re.compile(r"[ \t\r\n]*")


class JsonStream:
    """A JSON file that is read forward; `what` says what it should be, for sentences about what is wrong."""

    def __init__(self, path: Path, what: str):
        self.path, self._what = path, what
        self._file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        self._decoder = json.JSONDecoder()
        self.seek(0)

    def __enter__(self) -> JsonStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def seek(self, byte: int) -> None:
        """Goes on at a byte, which must be the beginning of a character."""
        self._file.seek(byte)
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._counted_to, self._counted_byte = 0, byte  # a character of the text, and where it is in the file
        self._ended = False

    @property
    def byte(self) -> int:
        """Where the next character is in the file."""
        # From where it was counted before, so that nothing is counted twice.
        self._counted_byte, self._counted_to = self._byte_of(self._at), self._at
        return self._counted_byte

    def value(self) -> Any:
        """The value that comes next."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                byte = self._byte_of(error.pos)  # reading more changes what positions mean
                if not self._more():
                    self._refuse(byte, ended="Unterminated string" in error.msg)
            except (RecursionError, ValueError):  # nested too deeply; a number with thousands of digits
                self._refuse(self.byte)
            else:
                length = end - self._at
                # A number at the end of what is in memory may have more digits, also after a point, or "e" and a sign.
                if len(self._text) - end > len("e-") or not self._more():
                    self._at += length
                    return value

    def key(self) -> str:
        """The key that comes next in an object, up to and with its colon."""
        key = self.value()
        if not isinstance(key, str):
            self._refuse(self.byte)
        self.mark(":")
        return key

    def mark(self, *marks: str) -> str:
        """The mark that comes next, which must be one of these."""
        if (found := self.peek()) not in marks:
            self._refuse(self.byte)
        self._at += 1
        return found

    def end(self) -> None:
        """Raises unless nothing comes any more."""
        if self.peek():
            self._refuse(self.byte)

    def peek(self) -> str:
        """The next character that is not a space, without going past it; nothing at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Reads at least as much as is waiting already; whether there was more."""
        waiting = len(self._text) - self._at
        if self._ended or waiting > MAX_VALUE_BYTES:
            return False
        self._counted_byte, self._counted_to = self.byte, 0
        self._text, self._at = self._text[self._at :], 0
        block = self._file.read(max(BLOCK_BYTES, waiting))
        self._ended = not block
        before = self._file.tell() - len(block)
        try:
            self._text += self._utf8.decode(block, final=self._ended)
        except UnicodeDecodeError as error:
            raise BadInputError(f"{self.path} is not in UTF-8 at about byte {before + error.start:,}") from None
        return not self._ended

    def _byte_of(self, place: int) -> int:
        """Where a character of what is in memory is in the file."""
        passed = self._text[self._counted_to : place]
        return self._counted_byte + (len(passed) if passed.isascii() else len(passed.encode()))

    def _refuse(self, byte: int, ended: bool = False) -> NoReturn:
        with open(self.path, "rb") as file:
            size, line = file.seek(0, os.SEEK_END), 1
            file.seek(0)
            while (left := byte - file.tell()) > 0 and (block := file.read(min(BLOCK_BYTES, left))):
                line += block.count(b"\n")
        if ended or byte >= size:
            raise DamagedFileError(f"{self.path} ends in line {line:,} in the middle of {self._what}")
        raise BadInputError(f"{self.path} is not {self._what}: line {line:,}, byte {byte:,} cannot be read")

"""Quotation marks in CSV files that swallow rows: a stray one begins a value that goes on to the next mark."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted

_LONGEST_VALUE = 2**31 - 1  # texts may be longer than what Python's csv takes by itself
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_NO_MEANING = "say quotes=false if marks have no meaning in this file"


def check_quotes(lines: Iterable[str], delimiter: str, where: str, may_look_like_rows: bool) -> None:
    """Raises where a value in quotes has swallowed rows, unless values `may_look_like_rows`."""
    with _long_values():
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        columns, done = 0, 0
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                # A mark within a line does not end there; that is untidy, but nothing is swallowed.
                if "unexpected end" in str(error):
                    raise BadInputError(
                        f"{where} ends within a value that begins with a quotation mark, in a row that begins in line "
                        f"{done + 1}; close it, or {_NO_MEANING}."
                    ) from None
                if reader.line_num > done + 1:
                    raise BadInputError(
                        f"{where}: a row that begins in line {done + 1} has a value that begins with a quotation mark "
                        f"and goes on to line {reader.line_num}, where the next mark is not the end of a value; write "
                        f"marks within values twice, or {_NO_MEANING}."
                    ) from None
                row = []
            if row is None:
                return
            columns = columns or len(row)
            if reader.line_num > done + 1 and not may_look_like_rows:
                _check_row(row, columns, delimiter, f"{where}: a row that begins in line {done + 1}")
            done = reader.line_num


def _check_row(row: Sequence[str], columns: int, delimiter: str, where: str) -> None:
    for place, value in enumerate(row):
        lines = [line.count(delimiter) for line in _LINE_BREAK.split(value)]
        if len(lines) == 1 or columns == 1:
            continue
        # The rest of the first row, whole rows, and the beginning of the last one.
        is_swallowed = lines == [columns - 1 - place, *[columns - 1] * (len(lines) - 2), place]
        if is_swallowed or (delimiter == "\t" and any(lines)):
            raise BadInputError(
                f"{where} has a value that begins with a quotation mark and goes on over lines that look like rows, "
                f"{quoted(value)}; {_NO_MEANING}, or line_breaks=true if this is one value."
            )


@contextmanager
def _long_values() -> Iterator[None]:
    former = csv.field_size_limit(_LONGEST_VALUE)
    try:
        yield
    finally:
        csv.field_size_limit(former)

"""Weka's ARFF, which KEEL and OpenML use, too: a header that declares columns, and lines of values."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.tables.raw_table import Columns, named

_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)\s*(.*)""", re.IGNORECASE)
_VALUE = re.compile(r"""\s*(?:(['"])((?:\\.|\1\1|(?!\1)[^\\])*)\1|([^,]*))\s*(?:,|$)""")
_ESCAPED = {mark: re.compile(rf"""\\(['"\\])|({mark}){mark}""") for mark in "'\""}  # within marks of each kind
_MISSING = "?"


def is_arff(text: str) -> bool:
    """Whether a file that begins so is one; comments may come first."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("%")), "").lower().startswith("@relation")


def read_arff(text: str, path: Path) -> Columns:
    """The columns of a file; those that are declared with all their values are categories."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("%")]
    names: list[str] = []
    are_nominal: list[bool] = []
    for number, line in enumerate(lines):
        if line.strip().lower() == "@data":
            return _read_data(lines[number + 1 :], names, are_nominal, path)
        if (found := _ATTRIBUTE.match(line.strip())) is not None:
            names.append(found[1].strip("'\""))
            are_nominal.append(found[2].startswith("{"))
    raise BadInputError(f"{path} is an ARFF file without a line @data.")


def _read_data(lines: list[str], names: list[str], are_nominal: list[bool], path: Path) -> Columns:
    rows = _rows(lines)
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            hint = "; sparse rows cannot be read" if row and row[0].startswith("{") else ""
            raise BadInputError(
                f"{path} has {len(row)} values in row {number:,}, where {len(names)} columns are declared{hint}: "
                f"{quoted(','.join(row))}"
            )
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [_array(values, is_nominal) for values, is_nominal in zip(columns, are_nominal, strict=True)]
    return named(zip(names, arrays, strict=True))


def _rows(lines: list[str]) -> list[list[str]]:
    """The values of every line; both kinds of quotation marks mean the same."""
    marks = [mark for mark in "'\"" if any(mark in line for line in lines)]
    if len(marks) > 1 or any(f"\\{mark}" in line for mark in marks for line in lines):
        return [list(_values(line)) for line in lines]
    return list(csv.reader(lines, quotechar=marks[0] if marks else '"', skipinitialspace=True))


def _values(line: str) -> Iterator[str]:
    place, is_more = 0, True
    while is_more:
        found = _VALUE.match(line, place)
        assert found is not None  # anything is a value
        mark, quoted_value, plain = found.groups()
        yield plain if mark is None else _ESCAPED[mark].sub(lambda escaped: escaped[1] or escaped[2], quoted_value)
        place, is_more = found.end(), found[0].endswith(",")


def _array(values: tuple[str, ...], is_nominal: bool) -> pa.ChunkedArray:
    texts = [None if value.strip() == _MISSING else value.strip() for value in values]
    array = pa.array(texts, pa.string())
    return pa.chunked_array([array.dictionary_encode() if is_nominal else array])

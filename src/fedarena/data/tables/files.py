"""Tables in files: CSV and its relatives, ARFF, Parquet, JSON lines, Arrow; compressed ones, too, if they are text."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import harmless, quoted
from fedarena.data.class_labels import as_number
from fedarena.data.raw.folders import ending_of, files_below, left_out_note
from fedarena.data.tables.arff import is_arff, read_arff
from fedarena.data.tables.raw_table import COMPRESSED, Columns, named, records

_TEXT = (".csv", ".tsv", ".tab", ".txt", ".data", ".dat", ".arff")
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_DELIMITERS = (",", ";", "\t", "|")
BLANKS = " "  # as a delimiter, any number of blanks
_HEAD_BYTES = 1 << 20
_MARKS = {  # with which text in other encodings begins; the first that fits
    codecs.BOM_UTF32_LE: "utf32",
    codecs.BOM_UTF32_BE: "utf32",
    codecs.BOM_UTF16_LE: "utf16",
    codecs.BOM_UTF16_BE: "utf16",
}
_WRONG_WIDTH = re.compile(r"Expected \d+ columns, got (\d+): (.*)", re.DOTALL)  # as Arrow says it


@dataclass(frozen=True)
class TextForm:
    """How text files are written: the names of columns, if they have none, what is between values, and so on."""

    columns: Sequence[str] | None = None
    delimiter: str | None = None
    encoding: str = "utf8"
    multiline: bool = False  # whether values in quotation marks may go on over several lines


def files_in(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The tables in a folder, by name, and a sentence about other files in it and below."""
    known = [path for path in sorted(folder.iterdir()) if not path.is_dir() and _kind(path) is not None]
    for path in known:
        if path.is_symlink() and not path.exists():
            raise BadInputError(f"{path} is a link to a file that is not there; fetch it, or remove the link.")
    known = [path for path in known if path.is_file()]
    if not known:
        raise BadInputError(f"{folder} has no tables: files that end in {_endings()}.")
    names = {path.name for path in known}
    others: Counter[str] = Counter()
    with suppress(BadInputError):  # a folder in it that cannot be read, or leads back, is no reason to refuse tables
        others.update(ending_of(name) for name, _ in files_below(folder) if name not in names)
    return known, left_out_note(others, "table of this folder")


def read_file(path: Path, form: TextForm) -> Columns:
    """The columns of a file."""
    kind = _kind(path)
    if not path.exists():
        raise BadInputError(f"There is no file {path}.")
    if kind is None:
        raise BadInputError(f"{path} is no table that can be read here; tables end in {_endings()}.")
    try:
        if kind in _PARQUET:
            return _as_columns(pyarrow.parquet.read_table(path))
        if kind in _ARROW:
            return _as_columns(pyarrow.feather.read_table(path))
        return _read_json(path) if kind in _JSON else _read_text(path, kind, form)
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = harmless(" ".join(str(error).split()))
        raise DamagedFileError(f"{path} cannot be read: {reason:.300}") from error


def _endings() -> str:
    return ", ".join((*_TEXT, *_JSON, *_PARQUET, *_ARROW))


def _kind(path: Path) -> str | None:
    """How the name of a file ends, without compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_compressed = bool(suffixes) and suffixes[-1] in COMPRESSED
    ending = suffixes[-2] if is_compressed and len(suffixes) > 1 else (suffixes or [""])[-1]
    allowed = (*_TEXT, *_JSON) if is_compressed else (*_TEXT, *_JSON, *_PARQUET, *_ARROW)
    return ending if ending in allowed else None


def _as_columns(table: pa.Table) -> Columns:
    return named(zip(table.column_names, table.columns, strict=True))


def _read_json(path: Path) -> Columns:
    """An object in every line, or a list of objects."""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            return records(_json_objects(io.TextIOWrapper(stream, encoding="utf-8-sig"), path))
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path} is not UTF-8: {error.reason}.") from None


def _json_objects(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    """Objects one by one, so that those in lines are never all in memory."""
    number = 0
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number == 0 and line.lstrip().startswith("["):
            found = _parsed("".join([line, *lines]), path, "")
        else:
            found = [_parsed(line, path, f" in line {line_number:,}")]
        for row in found:
            number += 1
            if not isinstance(row, dict):
                raise BadInputError(f"{path} must hold an object for every sample; number {number:,} is {quoted(row)}.")
            yield row


def _parsed(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_doubles)
    except BadInputError as error:
        raise BadInputError(f"{path}{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInputError(
            f"{path} is not valid JSON{where}, where there must be an object in every line, or a list of objects: "
            f"{error}."
        ) from None


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; raises if it has a name twice, of which Python takes the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInputError(f"an object says twice what its {quoted(twice)} is; rename one of them.")
    return found


def _read_text(path: Path, kind: str, form: TextForm) -> Columns:
    """Everything as text: what a column holds is decided when all of it has been seen."""
    try:
        start = _start(path, form.encoding)
        if is_arff(start):
            return read_arff(_whole_text(path, form.encoding), path)
        first_line = _first_line(start)
    except (LookupError, UnicodeDecodeError) as error:
        raise _not_in(form.encoding, path, error) from None
    if not first_line.strip():
        raise BadInputError(f"{path} begins with an empty line, where the names of its columns must be; remove it.")
    delimiter = form.delimiter or ("\t" if kind in (".tsv", ".tab") else _likely_delimiter(first_line))
    first = _values(first_line, delimiter)
    has_header = form.columns is None or [*form.columns] == first
    names = first if form.columns is None else list(form.columns)
    if form.columns is None and all(as_number(name) is not None for name in names):
        raise BadInputError(
            f"{path} begins with numbers ({quoted(', '.join(names))}) and not with the names of its columns; name them "
            "with columns."
        )
    if form.columns is not None and len(names) != len(first):
        raise BadInputError(f"{path} has {len(first)} columns, but columns names {len(names)}.")
    if delimiter == BLANKS:
        return named(zip(names, _columns_between_blanks(path, form, len(names), has_header), strict=True))
    places = [str(place) for place in range(len(names))]  # so that two columns of a name are noticed later
    try:
        with pa.input_stream(path, compression="detect") as stream:
            content = stream.read_buffer()
            table = pyarrow.csv.read_csv(
                pa.BufferReader(content),
                pyarrow.csv.ReadOptions(
                    column_names=places, skip_rows_after_names=int(has_header), encoding=form.encoding
                ),
                pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False),
            )
    except UnicodeDecodeError as error:
        raise _not_in(form.encoding, path, error) from None
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _not_in(form.encoding, path, error) from None
        if (wrong := _WRONG_WIDTH.search(str(error))) is not None:
            row = _row_of_width(content, form, delimiter, len(names), has_header)
            raise BadInputError(
                f"{path} has {wrong[1]} values in {row}, where there are {len(names)} columns: {quoted(wrong[2])}"
            ) from None
        raise
    found = named(zip(names, table.columns, strict=True))
    _check_quotes(path, found, content, delimiter, form)
    return found


def _row_of_width(content: pa.Buffer, form: TextForm, delimiter: str, width: int, has_header: bool) -> str:
    """Which row has another number of values than there are columns, in words."""
    text = io.StringIO(content.to_pybytes().decode(_python_encoding(form.encoding), errors="replace"), newline="")
    rows = (row for row in csv.reader(text, delimiter=delimiter) if row)
    number = next((number for number, row in enumerate(rows, 0 if has_header else 1) if len(row) != width), None)
    return "a row" if number is None else f"row {number:,}"


def _check_quotes(path: Path, columns: Columns, content: pa.Buffer, delimiter: str, form: TextForm) -> None:
    """Refuses values that have swallowed lines, because what stood at their beginning was just a quotation mark."""
    last = next(reversed(columns.values()))
    before = delimiter if len(columns) > 1 else "\n"
    if len(last):
        ending = f'{before}"' + last[-1].as_py().replace('"', '""')
        if _ends_with(content, ending, form.encoding):
            raise BadInputError(
                f"{path} ends inside quotation marks: the value {quoted(last[-1].as_py())} of row "
                f"{len(last):,} begins with one, and no other follows."
            )
    for name, values in columns.items() if not form.multiline else ():
        has_lines = pc.and_(pc.match_substring_regex(values, "[\r\n]"), pc.match_substring(values, delimiter))
        if (row := pc.index(has_lines, True).as_py()) >= 0:
            raise BadInputError(
                f"{path}: a value of column {quoted(name)} in row {row + 1:,} begins with a quotation mark and goes on "
                f"over several lines, {quoted(values[row].as_py())}; remove the mark, or say that it may (multiline)."
            )


def _ends_with(content: pa.Buffer, ending: str, encoding: str) -> bool:
    if _python_encoding(encoding) == "utf-8-sig":
        as_bytes = ending.encode()
        return bool(content.slice(max(content.size - len(as_bytes), 0)).to_pybytes() == as_bytes)
    # Of other encodings, the mark at the beginning may say the order of bytes, or a byte may depend on those before.
    return bool(content.to_pybytes().decode(encoding).endswith(ending))


def _not_in(encoding: str, path: Path, error: Exception) -> BadInputError:
    if isinstance(error, LookupError):
        return BadInputError(f"There is no encoding {quoted(encoding)}; the usual ones are utf8, latin1 and cp1252.")
    return BadInputError(f"{path} is not text in {encoding}; say which encoding it has, such as latin1 or cp1252.")


def refuse_unsaid_utf16(start: bytes, encoding: str, path: Path) -> None:
    """Raises if a file begins as text in UTF-16 or UTF-32 does, of which nobody said that it is."""
    if any(width in encoding for width in ("16", "32")):
        return
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            raise BadInputError(
                f"{path} is text in UTF-{name[3:]}, as some programs save tables; say so (encoding: {name})."
            )
    if len(start) >= 4 and 0 not in start[:4:2] and not any(start[1:4:2]):  # Latin letters without a mark
        raise BadInputError(f"{path} is text in UTF-16, as some programs save tables; say so (encoding: utf-16-le).")


def _start(path: Path, encoding: str) -> str:
    """How a file begins."""
    with pa.input_stream(path, compression="detect") as stream:
        start = stream.read(_HEAD_BYTES)
    refuse_unsaid_utf16(bytes(start[:4]), encoding, path)
    # A character that is cut in two at the end does not matter, and one that is wrong is found when all is read.
    text = bytes(start).decode(_python_encoding(encoding), errors="replace")
    if not text.strip():
        raise BadInputError(f"{path} is empty.")
    return text


def _first_line(text: str) -> str:
    """The first line, which may go on behind a line break in quotes."""
    lines = io.StringIO(text, newline=None)
    head = lines.readline()
    while head.count('"') % 2 and (more := lines.readline()):
        head += more
    return head.rstrip("\r\n")


def _whole_text(path: Path, encoding: str) -> str:
    with pa.input_stream(path, compression="detect") as stream:
        content = bytes(stream.read())
    return content.decode(_python_encoding(encoding))


def _python_encoding(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower() in ("utf8", "utf-8") else encoding


def _likely_delimiter(line: str) -> str:
    """What occurs most often in the first line; blanks, where there is nothing else."""
    most = max(_DELIMITERS, key=line.count)
    return most if most in line else BLANKS if len(line.split()) > 1 else ","


def _values(line: str, delimiter: str) -> list[str]:
    if delimiter == BLANKS:
        return line.split()
    if len(delimiter) != 1:
        raise BadInputError(f"delimiter must be one character, not {quoted(delimiter)}.")
    return [value.strip() for value in next(csv.reader(io.StringIO(line), delimiter=delimiter), [])]


def _columns_between_blanks(path: Path, form: TextForm, width: int, has_header: bool) -> list[pa.ChunkedArray]:
    try:
        text = _whole_text(path, form.encoding)
    except UnicodeDecodeError as error:
        raise _not_in(form.encoding, path, error) from None
    lines = [line.split() for line in text.splitlines() if line.strip()][int(has_header) :]
    for number, values in enumerate(lines, 1):
        if len(values) != width:
            raise BadInputError(f"{path} has {len(values)} values in row {number:,}, where there are {width} columns.")
    columns = zip(*lines, strict=True) if lines else [()] * width
    return [pa.chunked_array([pa.array(column, pa.string())]) for column in columns]

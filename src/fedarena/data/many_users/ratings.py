"""Tables of ratings, a line for each: MovieLens in its three ways of writing, and the Netflix Prize.

Netflix's files have a line with a movie's number and a colon, and after it a line for everybody who rated it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.many_users.buckets import USER
from fedarena.data.many_users.line_files import LineFile

BLOCK_BYTES = 1 << 22
LOWEST, HIGHEST = 0.5, 5.0
ITEM, RATING = "item", "rating"
_MOST_BYTES_OF_A_LINE = 1 << 12

Way = Literal["csv", "tabs", "colons", "netflix"]
_BETWEEN: dict[Way, bytes] = {"csv": b",", "tabs": b"\t", "colons": b"::", "netflix": b","}
_COLUMNS: dict[Way, tuple[str, ...]] = {
    "csv": (USER, ITEM, RATING, "time"),
    "tabs": (USER, ITEM, RATING, "time"),
    "colons": (USER, ITEM, RATING, "time"),
    "netflix": (USER, RATING, "date"),
}
_NUMBERS = {USER: pa.int64(), ITEM: pa.int64(), RATING: pa.float32()}


@dataclass(frozen=True)
class Ratings:
    """Some ratings, and what must be known to read on."""

    rows: pa.RecordBatch  # user as text, item as a number, rating
    next_byte: int
    next_line: int  # from 0
    item: int  # that the next lines are about, in Netflix's files; elsewhere -1


@dataclass(frozen=True)
class RatingFile(LineFile):
    """A table of ratings in a folder or in a zip archive."""

    way: Way = "csv"
    holds: ClassVar[str] = "ratings"

    def read(self, byte: int, line: int, item: int) -> Iterator[Ratings]:
        """All ratings from a line on, of which it must be said where it begins."""
        for block in self.blocks(byte, BLOCK_BYTES, _MOST_BYTES_OF_A_LINE):
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            parsed = self._parse(block.replace(b"\r\n", b"\n"), line, item)
            if parsed is None:
                raise self._explained(block, line)
            rows, item = parsed
            byte, line = byte + len(block), line + lines
            if rows is not None:
                yield Ratings(rows, byte, line, item)

    def _parse(self, block: bytes, first_line: int, item: int) -> tuple[pa.RecordBatch | None, int] | None:
        """The ratings in whole lines (None: there are none), and the last movie; None alone if a line is wrong."""
        items: npt.NDArray[np.int64] | None = None
        if self.way == "netflix":
            divided = _without_movies(block, item)
            if divided is None:
                return None
            block, items, item = divided
        elif self.way == "csv" and first_line == 0 and not block[:1].isdigit():
            block = block[block.find(b"\n") + 1 :] if b"\n" in block else b""
        if self.way == "colons":
            block = block.replace(b"::", b",")
        if not block:
            return None, item
        table = _table(block, self.way)
        if table is None or (items is not None and len(items) != len(table)):
            return None
        rating = table.column(RATING).combine_chunks()
        if not pc.all(pc.and_(pc.greater_equal(rating, LOWEST), pc.less_equal(rating, HIGHEST))).as_py():
            return None
        numbers = table.column(ITEM).combine_chunks() if items is None else pa.array(items)
        users = table.column(USER).combine_chunks().cast(pa.string())
        return pa.RecordBatch.from_arrays([users, numbers.cast(pa.int32()), rating], names=[USER, ITEM, RATING]), item

    def _explained(self, block: bytes, first_line: int) -> BadInputError:
        """What is wrong with the first line that is; line by line, which is slow."""
        between = _BETWEEN[self.way].decode()
        form = between.join(_COLUMNS[self.way])
        is_movie_known = first_line > 0
        for number, line in enumerate(block.decode("utf-8", "replace").splitlines(), first_line + 1):
            if self.way == "netflix" and line.endswith(":") and line[:-1].isdecimal():
                is_movie_known = True
                continue
            if self.way == "csv" and number == 1 and not line[:1].isdecimal():
                continue
            values = dict(zip(_COLUMNS[self.way], line.split(between), strict=False))
            if not is_movie_known and self.way == "netflix":
                return BadInputError(
                    f"Line {number:,} of {self} must be a movie's number and a colon, not {quoted(line)}"
                )
            are_codes = all(values.get(name, "").isdecimal() for name in (USER, ITEM) if name in _COLUMNS[self.way])
            try:
                is_fine = are_codes and LOWEST <= float(values.get(RATING, "")) <= HIGHEST
            except ValueError:
                is_fine = False
            if not is_fine or len(line.split(between)) != len(_COLUMNS[self.way]):
                return BadInputError(
                    f"Line {number:,} of {self} must be {form}, where user and item are whole numbers and ratings go "
                    f"from {LOWEST:g} to {HIGHEST:g}, not {quoted(line)}"
                )
        return BadInputError(f"{self} is not in the form of a table of ratings after line {first_line:,}")


def _without_movies(block: bytes, item: int) -> tuple[bytes, npt.NDArray[np.int64], int] | None:
    """Lines of ratings alone, the movie of each, and the last movie; None if a movie's line is wrong or missing."""
    if not block.endswith(b"\n"):
        block += b"\n"
    data = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_movie = data[np.maximum(ends - 1, 0)] == ord(":")
    places = np.flatnonzero(is_movie)
    names = [block[starts[place] : ends[place] - 1] for place in places.tolist()]
    if not all(name.isdigit() for name in names):
        return None
    movies = np.array([item, *(int(name) for name in names)], dtype=np.int64)
    of_line = movies[np.cumsum(is_movie)][~is_movie]
    if len(of_line) and of_line[0] < 0:
        return None
    bounds = [0, *np.stack([starts[places], ends[places] + 1], axis=1).ravel().tolist(), len(block)]
    kept = b"".join(block[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    return kept, of_line, int(movies[-1])


def _table(block: bytes, way: Way) -> pa.Table | None:
    """The wanted columns; None if a line has more or fewer, or other things than numbers."""
    wanted = [name for name in _COLUMNS[way] if name in _NUMBERS]
    try:
        table: pa.Table = pyarrow.csv.read_csv(
            pa.BufferReader(block),
            read_options=pyarrow.csv.ReadOptions(
                column_names=_COLUMNS[way], block_size=len(block) + 1, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t" if way == "tabs" else ",", ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: _NUMBERS[name] for name in wanted}, include_columns=wanted, null_values=[]
            ),
        )
    except pa.ArrowInvalid:
        return None
    codes = [table.column(name) for name in wanted if name != RATING]
    are_codes = all(pc.min(column).as_py() >= 0 for column in codes) and len(table) > 0
    fits = ITEM not in wanted or pc.max(table.column(ITEM)).as_py() < 2**31
    return table if are_codes and fits else None

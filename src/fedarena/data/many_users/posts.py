"""Posts of a Stack Exchange site, from ``Posts.xml`` of its dump: read as a stream, with the tags of their questions.

A dump has a row per post: questions (``PostTypeId`` 1) with ``Tags``, and answers (2) with the ``ParentId`` of their
question. Rows are first sorted into buckets by question, where answers get the tags of theirs, and from there into
buckets by owner. So memory is bounded however large the dump is, and reading goes on where it was interrupted.
"""

from __future__ import annotations

import bz2
import gzip
import html
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast
from xml.parsers import expat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.many_users.buckets import USER, Buckets, Piece, Position
from fedarena.data.many_users.texts import TEXT
from fedarena.data.store.schema import AnyArray, IntArray
from fedarena.data.text.words import split_messages

UNPACKERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".xml": lambda file: file,
    ".xz": lambda file: cast(IO[bytes], lzma.LZMAFile(file)),  # noqa: SIM115 (whoever calls it closes it)
    ".gz": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
    ".bz2": lambda file: cast(IO[bytes], bz2.BZ2File(file)),
}
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 1 << 22  # of input
MAX_ROW_BYTES = 1 << 24  # a post has at most 30,000 characters, however they are written
BITS = 63  # tags in a number

PostKind = Literal["both", "questions", "answers"]

_QUESTION, _ANSWER = "1", "2"
_ROOT, _ROW = "posts", "row"
_PROLOGUE = b'<?xml version="1.0" encoding="utf-8"?>\n<posts>'
_TAG = re.compile(r"[^<>|\s]+")  # "<a><b>", or "|a|b|" since 2023
_MARKUP = re.compile(r"<[^>]*>")
_MAX_DIGITS = 19
_EXPANSION = 6  # of a compressed dump, roughly
_SCHEMA = pa.schema(
    {USER: pa.string(), "owner": pa.string(), "post": pa.int64(), "question": pa.bool_(), "tags": pa.string()}
).append(pa.field(TEXT, pa.string()))


class PostReader:
    """Reads a dump; the first `length` words of a post are kept."""

    def __init__(self, path: Path, length: int):
        self._path, self._length = path, length
        self._size = path.stat().st_size
        if self._size == 0:
            raise BadInputError(f"{path} is empty")

    @property
    def total_bytes(self) -> int:
        """How long the dump is, about, unpacked."""
        return self._size * (1 if self._path.suffix == ".xml" else _EXPANSION)

    def read(self, position: Position | None) -> Iterator[Piece]:
        """All posts from one on, each with the number of its question as ``user``."""
        at = position or {"byte": 0, "rows": 0}
        parser = _Parser(self._path, at["byte"], at["rows"])
        with self._reading(parser), open(self._path, "rb") as packed, UNPACKERS[self._path.suffix](packed) as file:
            file.seek(at["byte"])
            while block := file.read(BLOCK_BYTES):
                parser.feed(block)
                if parser.waiting_bytes >= PIECE_BYTES:
                    yield Piece(self._rows(parser.take()), parser.position, packed.tell() / self._size)
            parser.close()
        yield Piece(self._rows(parser.take()), parser.position, 1.0)

    @contextmanager
    def _reading(self, parser: _Parser) -> Iterator[None]:
        try:
            yield
        except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DamagedFileError(f"{self._path} is damaged: it cannot be unpacked ({error})") from None
        except OSError as error:
            if self._path.suffix != ".bz2" or error.errno is not None:
                raise
            raise DamagedFileError(f"{self._path} is damaged: it cannot be unpacked ({error})") from None
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise DamagedFileError(
                f"{self._path} is damaged: after {parser.rows:,} complete rows it is no XML ({problem})"
            ) from None

    def _rows(self, posts: Sequence[_Post]) -> pa.RecordBatch:
        """Posts as rows, with the words of their texts."""
        texts = [_plain_text(post.title, post.body) for post in posts]
        words = (
            [" ".join(text.split(" ", self._length)[: self._length]) for text in split_messages(texts)] if texts else []
        )
        columns = [
            [str(post.question) for post in posts],
            [post.owner for post in posts],
            [post.number for post in posts],
            [post.number == post.question for post in posts],
            [" ".join(post.tags) for post in posts],
            words,
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


@dataclass(frozen=True)
class _Post:
    number: int
    question: int  # the number of the question that it asks or answers
    owner: str  # empty if the account was deleted
    tags: list[str]  # of questions
    title: str
    body: str


class _Parser:
    """Takes blocks of a dump and gives the posts in them; it knows where the first one begins that it has not given."""

    def __init__(self, path: Path, byte: int, rows: int):
        self.rows = rows
        self._path = path
        self._row_byte = byte  # where the last row begins that was seen
        self._fed_bytes = byte
        self._depth = 0
        self._last: dict[str, str] | None = None
        self._posts: list[_Post] = []
        self._posts_byte = byte
        self._expat = expat.ParserCreate()
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = self._refuse_declarations
        self._expat.XmlDeclHandler = self._check_encoding
        self._before = byte
        if byte:
            self._expat.Parse(_PROLOGUE, False)
            self._before -= len(_PROLOGUE)

    @property
    def position(self) -> Position:
        """Where the first row begins that was not given."""
        return {"byte": self._posts_byte, "rows": self.rows}

    @property
    def waiting_bytes(self) -> int:
        """How much of the input the posts take that were not given yet."""
        return self._row_byte - self._posts_byte

    def feed(self, block: bytes) -> None:
        """Reads on."""
        self._expat.Parse(block, False)
        self._fed_bytes += len(block)
        if self._fed_bytes - self._row_byte > MAX_ROW_BYTES:
            raise BadInputError(f"{self._path} is no Posts.xml: what begins after {self.rows:,} rows does not end")

    def close(self) -> None:
        """Makes sure that the dump is complete."""
        self._expat.Parse(b"", True)
        self._complete_row(self._fed_bytes)

    def take(self) -> list[_Post]:
        """The posts that are complete and were not given yet."""
        posts, self._posts, self._posts_byte = self._posts, [], self._row_byte
        return posts

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        wanted = _ROW if self._depth else _ROOT
        if name != wanted or self._depth > 1:
            where = f"<{quoted(name)[1:-1]}> is where <{wanted}> should be" if self._depth < 2 else "a row has content"
            raise BadInputError(f"{self._path} is no Posts.xml of a Stack Exchange site: {where}")
        self._depth += 1
        if name == _ROW:
            # The one before is complete now, and not earlier: what ends it may be in the next block.
            self._complete_row(self._before + self._expat.CurrentByteIndex)
            self._last = attributes

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _complete_row(self, byte: int) -> None:
        self._row_byte = byte
        if self._last is None:
            return
        self.rows += 1
        if (post := self._post(self._last)) is not None:
            self._posts.append(post)
        self._last = None

    def _post(self, row: dict[str, str]) -> _Post | None:
        """A question or an answer; None if the row is something else, such as the description of a tag."""
        kind = row.get("PostTypeId")
        if kind is None:
            raise BadInputError(f"Row {self.rows:,} of {self._path} has no PostTypeId; every post must have one")
        if kind not in (_QUESTION, _ANSWER):
            return None
        number = self._whole_number(row, "Id")
        return _Post(
            number,
            number if kind == _QUESTION else self._whole_number(row, "ParentId"),
            row.get("OwnerUserId", ""),
            _TAG.findall(row.get("Tags", "")) if kind == _QUESTION else [],
            row.get("Title", ""),
            row.get("Body", ""),
        )

    def _whole_number(self, row: dict[str, str], name: str) -> int:
        value = row.get(name)
        if value is None:
            raise BadInputError(f"Row {self.rows:,} of {self._path} has no {name}")
        if not (value.isascii() and value.isdigit() and len(value) < _MAX_DIGITS):
            raise BadInputError(f"Row {self.rows:,} of {self._path} has the {name} {quoted(value)}, which is no number")
        return int(value)

    def _refuse_declarations(self, *declaration: object) -> None:
        """Dumps have none, and entities that are declared there could make a small file endlessly long."""
        raise BadInputError(f"{self._path} declares a document type, which no dump of a Stack Exchange site does")

    def _check_encoding(self, version: str, encoding: str | None, standalone: int) -> None:
        if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii"):
            raise BadInputError(f"{self._path} is in {quoted(encoding)}; dumps of Stack Exchange sites are in UTF-8")


def _plain_text(title: str, body: str) -> str:
    """A post in one line, without markup."""
    return " ".join(html.unescape(_MARKUP.sub(" ", f"{title} {body}")).split())


@dataclass(frozen=True)
class PostCounts:
    """What there is in a dump."""

    tags: Counter[str]  # posts that have each tag
    without_owner: int
    without_question: int  # answers


class TaggedPosts:
    """The posts of a dump in buckets by question, from which they are read with the tags of their questions."""

    def __init__(self, buckets: Buckets, path: Path, posts: PostKind):
        self._buckets, self._path, self._kind = buckets, path, posts

    def count(self, progress: Callable[[float], None]) -> PostCounts:
        """Counts tags, and posts that are left out."""
        tags: Counter[str] = Counter()
        without_owner = without_question = 0
        for bucket in range(self._buckets.count):
            progress(bucket / self._buckets.count)
            if (rows := self._buckets.rows(bucket)) is None:
                continue
            self._check_numbers(rows)
            questions, place = _questions_of(rows)
            wanted = self._wanted(rows)
            owned = pc.not_equal(rows.column("owner"), "").to_numpy(zero_copy_only=False)
            without_owner += int((wanted & ~owned).sum())
            without_question += int((wanted & owned & (place < 0)).sum())
            posts = np.bincount(place[wanted & owned & (place >= 0)], minlength=len(questions))
            for of_question, number in zip(questions.column("tags").to_pylist(), posts.tolist(), strict=True):
                if number:
                    tags.update(dict.fromkeys(of_question.split(), number))
        return PostCounts(tags, without_owner, without_question)

    def reader(self, tags: Sequence[str], keep_untagged: bool) -> Callable[[Position | None], Iterator[Piece]]:
        """Reads posts by owner, with the tags among these as bits of `tag_columns`."""

        def read(position: Position | None) -> Iterator[Piece]:
            for bucket in range((position or {"bucket": 0})["bucket"], self._buckets.count):
                rows = self._buckets.rows(bucket)
                if rows is not None:
                    fraction = (bucket + 1) / self._buckets.count
                    yield Piece(self._owned(rows, tags, keep_untagged), {"bucket": bucket + 1}, fraction)

        return read

    def _owned(self, rows: pa.Table, tags: Sequence[str], keep_untagged: bool) -> pa.RecordBatch:
        questions, place = _questions_of(rows)
        has_bits = tag_bits(questions.column("tags").to_pylist(), tags)
        owned = pc.not_equal(rows.column("owner"), "").to_numpy(zero_copy_only=False)
        chosen = np.flatnonzero(self._wanted(rows) & owned & (place >= 0))
        bits = has_bits[place[chosen]]
        if not keep_untagged:
            tagged = bits.any(axis=1)
            chosen, bits = chosen[tagged], bits[tagged]
        kept = rows.take(pa.array(chosen)).combine_chunks()
        columns = {USER: kept.column("owner"), TEXT: kept.column(TEXT)}
        columns |= {name: pa.array(values) for name, values in zip(tag_columns(len(tags)), bits.T.copy(), strict=True)}
        return pa.Table.from_pydict(columns).combine_chunks().to_batches(max_chunksize=max(len(kept), 1))[0]

    def _wanted(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        is_question: npt.NDArray[np.bool_] = rows.column("question").to_numpy(zero_copy_only=False)
        if self._kind == "both":
            return np.ones(len(rows), dtype=np.bool_)
        return is_question if self._kind == "questions" else ~is_question

    def _check_numbers(self, rows: pa.Table) -> None:
        numbers, times = np.unique(rows.column("post").to_numpy(), return_counts=True)
        if (times > 1).any():
            raise BadInputError(f"{self._path} has the post with Id {numbers[times > 1][0]} twice")


def tag_columns(tags: int) -> list[str]:
    """The names of the columns that have so many tags as bits."""
    return [f"tags{number}" for number in range(-(-tags // BITS))]


def tag_bits(of_posts: Sequence[str], tags: Sequence[str]) -> IntArray:
    """Which of `tags` are among those of each post (separated by spaces), `BITS` in a number."""
    places = {tag: divmod(number, BITS) for number, tag in enumerate(tags)}
    bits = np.zeros((len(of_posts), len(tag_columns(len(tags)))), dtype=np.int64)
    for row, names in enumerate(of_posts):
        for name in names.split():
            if name in places:
                number, bit = places[name]
                bits[row, number] |= 1 << bit
    return bits


def labels_of_bits(columns: Sequence[AnyArray], tags: int) -> AnyArray:
    """The other way round: a 0 or a 1 for each of so many tags, ``[posts, tags]``."""
    shifts = np.arange(BITS)
    bits = [(column[:, None] >> shifts) & 1 for column in columns]
    return np.concatenate(bits, axis=1)[:, :tags].astype(np.uint8)


def _questions_of(rows: pa.Table) -> tuple[pa.Table, IntArray]:
    """The questions among posts, and which of them every post belongs to; -1 if it is not there."""
    questions = rows.filter(rows.column("question")).combine_chunks()
    value_set = questions.column(USER).combine_chunks()
    place = pc.fill_null(pc.index_in(rows.column(USER), value_set=value_set), -1).to_numpy().astype(np.int64)
    return questions, place

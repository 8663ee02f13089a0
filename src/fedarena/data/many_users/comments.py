"""LEAF's files of Reddit comments, read user by user from anywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.many_users.buckets import Piece, Position
from fedarena.data.many_users.json_stream import JsonStream
from fedarena.data.store.schema import PARTS, IntArray

PIECE_BYTES = 1 << 22  # of input
_PADDING = " <PAD> "
_SCHEMA = pa.schema(
    {"user": pa.string(), "text": pa.string(), "subreddit": pa.string(), "part": pa.int8(), "entry": pa.int64()}
)
_USERS_PER_FILE = 1 << 32  # an entry is the number of a file and the number of a user in it, as one number
_START = {"byte": 0, "users": 0, "names": 0, "ended": 0}  # names: see _names_sum


class CommentReader:
    """Reads files one after the other; `files` says to which part the comments of each belong."""

    def __init__(self, files: Mapping[Path, int]):
        self._files = list(files)
        self._parts = list(files.values())
        self._sizes = [path.stat().st_size for path in self._files]
        self.total_bytes = sum(self._sizes)

    def read(self, position: Position | None) -> Iterator[Piece]:
        """All comments from a user on."""
        at = position or {"file": 0, **_START}
        for number in range(at["file"], len(self._files)):
            here = at if number == at["file"] else {"file": number, **_START}
            yield from self._read_file(here)

    def _read_file(self, at: Position) -> Iterator[Piece]:
        number, users, names, ended = at["file"], at["users"], at["names"], bool(at["ended"])
        path, rows = self._files[number], _Rows(self._parts[number])
        before = sum(self._sizes[:number])
        with JsonStream(path, "LEAF's JSON") as stream:
            listed = _up_to_user_data(stream)
            if at["byte"]:
                stream.seek(at["byte"])
            elif stream.peek() == "}":
                stream.mark("}")
                ended = True
            begin = stream.byte
            while not ended:
                user = stream.key()
                if listed is not None and user not in listed:
                    raise BadInputError(f"{path} has data of user {user!r}, who is not among its users")
                rows.add(path, user, stream.value(), number * _USERS_PER_FILE + users)
                users, names = users + 1, _names_sum([user], names)
                ended = stream.mark(",", "}") == "}"
                if ended or stream.byte - begin >= PIECE_BYTES:
                    begin = stream.byte
                    position = {"file": number, "byte": begin, "users": users, "names": names, "ended": int(ended)}
                    yield Piece(rows.take(path), position, (before + begin) / self.total_bytes)
            listed = _after_user_data(stream, listed)
        if listed is not None and len(listed) != users:
            raise BadInputError(f"{path} lists {len(listed):,} different users and has the data of {users:,}")
        if listed is not None and _names_sum(listed) != names:
            raise BadInputError(f"{path} lists other users than those it has the data of")

    def describe(self, rows: pa.Table, counts: IntArray) -> dict[str, pa.Array]:
        """The subreddit in which each user wrote most; raises if somebody was there twice."""
        user = np.repeat(np.arange(len(counts)), counts)
        self._check_entries(rows, user)
        subreddits = rows.column("subreddit").combine_chunks().dictionary_encode()
        codes = subreddits.indices.to_numpy().astype(np.int64)
        pairs, first, times = np.unique(
            user * len(subreddits.dictionary) + codes, return_index=True, return_counts=True
        )
        of_user = pairs // max(len(subreddits.dictionary), 1)
        order = np.lexsort((first, -times, of_user))  # of equally frequent ones the one that was first
        best = order[np.searchsorted(of_user[order], np.arange(len(counts)))]
        return {"subreddit": subreddits.dictionary.take(pa.array(codes[first[best]]))}

    def _check_entries(self, rows: pa.Table, user: IntArray) -> None:
        entry = rows.column("entry").to_numpy()
        set_of_user = user * len(PARTS) + rows.column("part").to_numpy()
        order = np.lexsort((entry, set_of_user))
        twice = np.flatnonzero((np.diff(set_of_user[order]) == 0) & (np.diff(entry[order]) != 0))
        if len(twice):
            one, other = order[twice[0]], order[twice[0] + 1]
            files = dict.fromkeys(str(self._files[entry[row] // _USERS_PER_FILE]) for row in (one, other))
            name = rows.column("user")[int(one)].as_py()
            raise BadInputError(f"User {name!r} is there twice, in {' and '.join(files)}")


class _Rows:
    """Comments that wait to be given on."""

    def __init__(self, part: int):
        self._part = part
        self._clear()

    def _clear(self) -> None:
        self._users: list[str] = []
        self._texts: list[str] = []
        self._subreddits: list[str] = []
        self._entries: list[int] = []

    def add(self, path: Path, user: str, data: Any, entry: int) -> None:
        try:
            texts = list(_comments(data))
        except _NotLeafError as problem:
            raise BadInputError(f"{path} is not LEAF's Reddit: user {user!r} {problem}") from None
        if not data["x"] and self._part == PARTS.index("train"):
            raise BadInputError(f"{path}: user {user!r} has no comments")
        self._texts.extend(text for text, _ in texts)
        self._subreddits.extend(subreddit for _, subreddit in texts)
        self._users.extend([user] * len(texts))
        self._entries.extend([entry] * len(texts))

    def take(self, path: Path) -> pa.RecordBatch:
        parts = np.full(len(self._users), self._part, dtype=np.int8)
        columns = [self._users, self._texts, self._subreddits, parts, self._entries]
        try:
            rows = pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
            )
        except UnicodeEncodeError:  # JSON can write half a character
            wrong = next(user for user, *texts in zip(*columns[:3], strict=True) if not _is_unicode(user, *texts))
            raise BadInputError(f"{path}: a comment of user {wrong!r} is not valid Unicode") from None
        self._clear()
        return rows


class _NotLeafError(Exception):
    """What is wrong with the data of a user."""


def _comments(data: Any) -> Iterator[tuple[str, str]]:
    """Every comment of a user without its padding, words separated by spaces, and its subreddit.

    After a single word nothing can be predicted, so such comments are left out.
    """
    if not (isinstance(data, dict) and isinstance(data.get("x"), list) and isinstance(data.get("y"), list)):
        raise _NotLeafError("must have the lists x and y")
    if len(data["x"]) != len(data["y"]):
        raise _NotLeafError(f"has {len(data['x'])} comments in x and {len(data['y'])} in y")
    for number, (rows, about) in enumerate(zip(data["x"], data["y"], strict=True), 1):
        if not (isinstance(about, dict) and isinstance(about.get("subreddit"), str)):
            raise _NotLeafError(f"has no subreddit of comment {number}")
        try:
            text = " ".join([" ".join(row) for row in rows])
            is_lists = type(rows) is list and all(type(row) is list for row in rows)
        except TypeError:
            is_lists = False
        if not is_lists or (rows and text.count(" ") + 1 != sum(map(len, rows))):
            raise _NotLeafError(f"has a comment {number} that is not a list of lists of words")
        text = f" {text}{_PADDING}".partition(_PADDING)[0][1:]
        if " " in text:
            yield text, about["subreddit"]


def _up_to_user_data(stream: JsonStream) -> set[str] | None:
    """Goes to the first user; returns those that are listed before."""
    listed = None
    stream.mark("{")
    while (key := stream.key()) != "user_data":
        listed = _list_of_users(stream, key, listed)
        if stream.mark(",", "}") == "}":
            raise BadInputError(f"{stream.path} is not LEAF's JSON: it has no user_data")
    stream.mark("{")
    return listed


def _after_user_data(stream: JsonStream, listed: set[str] | None) -> set[str] | None:
    """Goes to the end; returns those users that are listed here or were before."""
    while stream.mark(",", "}") == ",":
        if (key := stream.key()) == "user_data":
            raise BadInputError(f"{stream.path} has user_data twice")
        listed = _list_of_users(stream, key, listed)
    stream.end()
    return listed


def _list_of_users(stream: JsonStream, key: str, listed: set[str] | None) -> set[str] | None:
    """Goes past a value; returns those users that are listed there or were before."""
    value = stream.value()
    if key != "users":
        return listed
    if listed is not None:
        raise BadInputError(f"{stream.path} has users twice")
    if not isinstance(value, list) or not all(isinstance(user, str) for user in value):
        raise BadInputError(f"{stream.path} is not LEAF's JSON: users must be a list of names")
    if len(names := set(value)) != len(value):
        ((twice, _),) = Counter(value).most_common(1)
        raise BadInputError(f"{stream.path} lists user {twice!r} twice")
    return names


def _names_sum(users: Iterable[str], before: int = 0) -> int:
    """A number that other users would not have, whatever their order; a checkpoint has it of all that were read."""
    digests = (hashlib.blake2b(user.encode(errors="surrogatepass"), digest_size=8).digest() for user in users)
    return (before + sum(int.from_bytes(digest, "big") for digest in digests)) % (1 << 64)


def _is_unicode(*texts: str) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True

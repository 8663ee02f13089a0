"""Reading LEAF's JSON as a stream: first who is in a file, then user by user, so that any size fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ijson

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.leaf.description import KEY, Piece, parse_piece

_BUFFER_BYTES = 1 << 20
_NEEDED = ("users", "num_samples", "user_data")
_EVENTS_PER_REPORT = 1 << 18
_DEEPEST = 64  # numpy has no more dimensions, and every level costs the parser of values memory
Report = Callable[[float], None]


@dataclass(frozen=True)
class Head:
    """What a file says about its users, without their samples."""

    users: list[str]
    num_samples: list[int]
    hierarchies: list[str] | None
    piece: Piece | None  # if the file was written here


def read_head(path: Path, progress: Report) -> Head:
    """Looks through a file for everything but samples, and checks that it fits together."""
    top: dict[str, Any] = {}
    with _opened(path) as file:
        size = max(path.stat().st_size, 1)
        for key, value in _top_level(file, lambda: progress(min(file.tell() / size, 1.0))):
            if key in top:
                raise BadInputError(f"{path} is not LEAF's: it has {key!r} twice")
            top[key] = value
    missing = [key for key in _NEEDED if key not in top]
    if missing:
        raise BadInputError(
            f"{path} is not LEAF's: it has no {missing[0]!r}; LEAF's files are objects with users, num_samples and "
            "user_data"
        )
    users = _strings(top["users"], path)
    counts = top["num_samples"]
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise BadInputError(f"{path}: num_samples must be a list of numbers of samples")
    if len(counts) != len(users):
        raise BadInputError(f"{path} has {len(users):,} users but {len(counts):,} numbers in num_samples")
    _check_users(path, users, top["user_data"])
    piece = parse_piece(top[KEY], str(path)) if KEY in top else None
    if piece is not None and len(piece.clients) != len(users):
        raise BadInputError(f"{path} has {len(users):,} users, and {KEY!r} describes {len(piece.clients):,}")
    hierarchies = _hierarchies(path, users, top["user_data"], top["hierarchies"]) if "hierarchies" in top else None
    return Head(users, counts, hierarchies, piece)


def read_users(path: Path, head: Head) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of every user in the file, and what the file has for them: lists x (where it has any) and y."""
    number_of = {user: number for number, user in enumerate(head.users)}
    has_inputs = head.piece is None or head.piece.federation.has_inputs_as_leaf
    with _opened(path) as file:
        for user, lists in ijson.kvitems(file, "user_data", use_float=True, buf_size=_BUFFER_BYTES):
            if user not in number_of:
                # LEAF leaves those whom a split drops behind, without samples.
                if isinstance(lists, dict) and (lists.get("x") or lists.get("y")):
                    raise BadInputError(f"{path}: user {user!r} has samples in user_data, but is not in users")
                continue
            _check_samples(f"{path}: user {user!r}", lists, head.num_samples[number_of[user]], has_inputs)
            yield number_of[user], lists


def _top_level(file: IO[bytes], report: Callable[[], None]) -> Iterator[tuple[str, Any]]:
    """The keys and values of the object in a file; of user_data only its keys, one by one in a list."""
    events = ijson.basic_parse(file, use_float=True, buf_size=_BUFFER_BYTES)
    kind, _ = next(events)
    if kind != "start_map":
        raise BadInputError(f"{file.name} is not LEAF's: it is not an object with users, num_samples and user_data")
    for kind, key in events:
        if kind == "end_map":
            break
        yield key, _keys(file.name, events, report) if key == "user_data" else _value(file.name, events)
    for _ in events:  # looks for what may stand behind the object
        pass


def _keys(path: str, events: Iterator[tuple[str, Any]], report: Callable[[], None]) -> list[str]:
    """The keys of the object that comes next, whatever its values."""
    kind, _ = next(events)
    if kind != "start_map":
        raise BadInputError(f"{path}: user_data must be an object with an entry for every user")
    keys, depth = [], 1
    for number, (kind, value) in enumerate(events):
        if kind == "map_key":
            if depth == 1:
                keys.append(value)
        elif kind in ("start_map", "start_array"):
            depth += 1
            _check_depth(path, depth)
        elif kind in ("end_map", "end_array"):
            depth -= 1
            if depth == 0:
                break
        if number % _EVENTS_PER_REPORT == 0:
            report()
    return keys


def _value(path: str, events: Iterator[tuple[str, Any]]) -> Any:
    builder = ijson.ObjectBuilder()
    depth = 0
    for kind, value in events:
        builder.event(kind, value)
        depth += (kind in ("start_map", "start_array")) - (kind in ("end_map", "end_array"))
        _check_depth(path, depth)
        if depth == 0:
            break
    return builder.value


def _check_depth(path: str, depth: int) -> None:
    if depth >= _DEEPEST:  # the object around everything is one more
        raise BadInputError(f"{path} is not LEAF's: lists and objects are in each other more than {_DEEPEST} deep")


def _strings(users: Any, path: Path) -> list[str]:
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise BadInputError(f"{path}: users must be a list of strings")
    return users


def _check_users(path: Path, users: list[str], keys: list[str]) -> None:
    for whole, where in ((users, "users"), (keys, "user_data")):
        seen: set[str] = set()
        for user in whole:
            if user in seen:
                raise BadInputError(f"{path}: user {user!r} is in {where} twice")
            seen.add(user)
    known = set(keys)
    for user in users:
        if user not in known:
            raise BadInputError(f"{path}: user {user!r} is in users, but has nothing in user_data")


def _hierarchies(path: Path, users: list[str], keys: list[str], found: Any) -> list[str]:
    """What every user belongs to, as text."""
    if not isinstance(found, list):
        raise BadInputError(f"{path}: hierarchies must be a list with an entry for every user")
    # A split by sample drops users with a single sample, but not their hierarchies.
    owners = {len(keys): keys, len(users): users}.get(len(found))
    if owners is None:
        raise BadInputError(f"{path} has {len(users):,} users but {len(found):,} hierarchies")
    texts = {}
    for user, levels in zip(owners, found, strict=True):
        names = levels if isinstance(levels, list) else [levels]
        if not all(isinstance(name, str) for name in names):
            raise BadInputError(f"{path}: the hierarchy of user {user!r} must be text, or a list of texts")
        texts[user] = ",".join(names)
    return [texts[user] for user in users]


def _check_samples(where: str, lists: Any, promised: int, has_inputs: bool) -> None:
    needed = ("x", "y") if has_inputs else ("y",)
    if not isinstance(lists, dict) or not all(isinstance(lists.get(key), list) for key in needed):
        raise BadInputError(f"{where} must have {'two lists, x and y' if has_inputs else 'a list y'}")
    inputs, labels = len(lists[needed[0]]), len(lists["y"])
    if inputs != labels:
        raise BadInputError(f"{where} has {inputs:,} samples in x, but {labels:,} in y")
    if labels != promised:
        raise BadInputError(f"{where} has {labels:,} samples, but num_samples says {promised:,}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """An open file; whatever the parser finds wrong with it becomes a sentence."""
    try:
        with open(path, "rb") as file:
            try:
                yield file
            except ijson.JSONError as error:
                raise _explained(path, file, str(error)) from None
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None


def _explained(path: Path, file: IO[bytes], message: str) -> BadInputError:
    reason = message.removeprefix("b'").splitlines()[0].split("\\n")[0].rstrip(".")
    if "premature EOF" in reason:
        return DamagedFileError(f"{path} is damaged: it ends in the middle of its JSON")
    if "UTF8" in reason:
        return DamagedFileError(f"{path} is damaged: it holds bytes that are not UTF-8")
    excerpt = "".join(message.partition("\n")[2].partition("\n")[0].split())
    hint = "; JSON has no NaN and no Infinity" if "NaN" in excerpt or "Inf" in excerpt else ""
    place = f" near {excerpt[:60]!r}, before byte {file.tell():,}" if excerpt else ""
    return BadInputError(f"{path} is not valid JSON ({reason.partition(': ')[2] or reason}{place}){hint}")

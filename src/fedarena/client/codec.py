"""Tensors as bytes, in the form of safetensors: what travels between server and devices, and what devices keep.

Eight bytes say how long the header is; the header is JSON that says, by name, the type, shape and place of every
tensor; then come the numbers. Nothing in it can be executed. It comes from outside, so whatever is not exactly in that
form is refused by one kind of error, before any memory is taken for it. Only torch and NumPy are needed, because phones
have no package for this.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.files import replacing
from fedarena.core.outside_text import quoted
from fedarena.models import Tensors
from fedarena.train.tensors import Groups, flatten_groups, unflatten_groups

Form = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # by name: the type and the shape of a tensor

# A header that a client may send, unless the form that is expected needs more; and one of a form that is not known.
KNOWN_HEADER_BYTES, UNKNOWN_HEADER_BYTES = 64 * 1024, 1024 * 1024
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA, _GROUPS = "__metadata__", "groups"
_LENGTH_BYTES = 8
_MOST_DIMENSIONS, _TOO_LARGE = 16, 2**48
_ENTRY = {"dtype", "shape", "data_offsets"}


class BadTensorsError(BadInputError):
    """Bytes that should be tensors are not, or are others than they should be. The sentence says where and why."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What the beginning of a file says about the rest."""

    entries: dict[str, Entry]  # in the order in which they were written
    metadata: dict[str, str]
    bytes: int  # of the beginning, after which the numbers come

    @property
    def form(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes alone."""
        return {name: (entry.dtype, entry.shape) for name, entry in self.entries.items()}


def form_of(tensors: Tensors) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The names, types and shapes of tensors."""
    return {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def encoded_bytes(form: Form, metadata: Mapping[str, str] | None = None) -> int:
    """How many bytes tensors of this form become."""
    return len(_header(form, metadata)) + sum(_size(dtype, shape) for dtype, shape in form.values())


def write_tensors(file: BinaryIO, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors one after the other, in their order."""
    file.write(_header(form_of(tensors), metadata))
    for t in tensors.values():
        if t.numel():
            file.write(bytes_of(t))


def encode(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """The tensors as bytes."""
    buffer = io.BytesIO()
    write_tensors(buffer, tensors, metadata)
    return buffer.getvalue()


def save(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Replaces the content of a file by tensors: a reader sees the old ones or all of the new ones."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        write_tensors(file, tensors, metadata)


def decode(data: bytes, form: Form | None = None, what: str = "What was received") -> Tensors:
    """The tensors in some bytes, which must have this form if one is given; `what` begins sentences about them."""
    return dict(_read(io.BytesIO(data), len(data), form, what))


def load(path: Path, form: Form | None = None) -> Tensors:
    """The tensors in a file."""
    return dict(read_file(path, form))


def read_file(path: Path, form: Form | None = None) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a file one after the other, for who has no room for all."""
    with open(path, "rb") as file:
        yield from _read(file, os.fstat(file.fileno()).st_size, form, str(path))


def encode_groups(groups: Groups) -> bytes:
    """Named groups of tensors as bytes."""
    return encode(flatten_groups(groups), _group_names(groups))


def save_groups(path: Path, groups: Groups, metadata: Mapping[str, str] | None = None) -> None:
    """Replaces the content of a file by named groups of tensors."""
    save(path, flatten_groups(groups), {**_group_names(groups), **(metadata or {})})


def decode_groups(data: bytes, what: str = "What was received") -> Groups:
    """The inverse of `encode_groups`."""
    return _groups_in(io.BytesIO(data), len(data), what)


def load_groups(path: Path) -> Groups:
    """The inverse of `save_groups`."""
    with open(path, "rb") as file:
        return _groups_in(file, os.fstat(file.fileno()).st_size, str(path))


def read_header(file: BinaryIO, size: int, form: Form | None, what: str) -> Header:
    """The header of a file of this size; all of it is looked at, so that what it says can be relied upon."""
    refuse = _Refusal(what)
    start = file.read(_LENGTH_BYTES)
    if len(start) < _LENGTH_BYTES:
        raise refuse(f"it ends after {len(start)} bytes, before its header")
    length = int.from_bytes(start, "little")
    most = UNKNOWN_HEADER_BYTES if form is None else max(KNOWN_HEADER_BYTES, 2 * len(_header(form, None)))
    if length > most:
        raise refuse(f"it announces a header of {length:,} bytes, and at most {most:,} are read")
    if _LENGTH_BYTES + length > size:
        raise refuse(f"it announces a header of {length:,} bytes and has {size:,} bytes in all")
    values = _parsed(file.read(length), refuse)
    metadata = values.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise refuse("its metadata are not texts by name")
    entries = {name: _entry(name, value, refuse) for name, value in values.items()}
    _check_places(entries, size - _LENGTH_BYTES - length, refuse)
    header = Header(entries, metadata, _LENGTH_BYTES + length)
    if form is not None:
        check_form(header.form, form, what)
    return header


def check_form(found: Form, wanted: Form, what: str) -> None:
    """Refuses tensors of other names, types or shapes."""
    refuse = _Refusal(what)
    if missing := [name for name in wanted if name not in found]:
        raise refuse(f"it has no tensor {quoted(missing[0])}")
    if extra := [name for name in found if name not in wanted]:
        raise refuse(f"it has a tensor {quoted(extra[0])}, which nobody asked for")
    for name, (dtype, shape) in wanted.items():
        if found[name] != (dtype, shape):
            has, needs = (f"{_NAMES[kind]} of shape {list(sizes)}" for kind, sizes in (found[name], (dtype, shape)))
            raise refuse(f"its tensor {quoted(name)} is {has}, and must be {needs}")


class _Refusal:
    """Makes the sentences about one thing."""

    def __init__(self, what: str):
        self._what = what

    def __call__(self, why: str) -> BadTensorsError:
        return BadTensorsError(f"{self._what} does not hold tensors in the form of safetensors: {why}")


def _read(file: BinaryIO, size: int, form: Form | None, what: str) -> Iterator[tuple[str, Tensor]]:
    header = read_header(file, size, form, what)
    names = list(header.entries if form is None else form)  # the order is that of the form, since sums depend on it
    for name in names:
        entry = header.entries[name]
        file.seek(header.bytes + entry.begin)
        yield name, _read_tensor(file, entry, name, what)


def _read_tensor(file: BinaryIO, entry: Entry, name: str, what: str) -> Tensor:
    t = torch.empty(entry.shape, dtype=entry.dtype)
    if t.numel():
        place = memoryview(_as_bytes(t)).cast("B")
        done = 0
        while done < len(place):
            read = file.readinto(place[done:])  # type: ignore[attr-defined]
            if not read:  # it got shorter since its size was asked for
                raise _Refusal(what)(f"it ends in the middle of the tensor {quoted(name)}")
            done += read
        if entry.dtype == torch.bool and int(t.view(torch.uint8).max()) > 1:
            raise _Refusal(what)(f"its tensor {quoted(name)} has truth values that are neither 0 nor 1")
    return t


def _groups_in(file: BinaryIO, size: int, what: str) -> Groups:
    header = read_header(file, size, None, what)
    refuse = _Refusal(what)
    names = header.metadata.get(_GROUPS, "[]")
    try:
        groups = json.loads(names)
    except (ValueError, RecursionError):
        groups = None
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise refuse("the names of its groups are not a list of names")
    if nowhere := [name for name in header.entries if "/" not in name]:
        raise refuse(f"its tensor {quoted(nowhere[0])} belongs to no group, as in 'group/name'")
    flat = {}
    for name, entry in header.entries.items():
        file.seek(header.bytes + entry.begin)
        flat[name] = _read_tensor(file, entry, name, what)
    return unflatten_groups(flat, groups)


def _group_names(groups: Groups) -> dict[str, str]:
    """Names of groups are written down only where one holds nothing, which tensors cannot show."""
    return {_GROUPS: json.dumps(list(groups))} if not all(groups.values()) else {}


def bytes_of(t: Tensor) -> Any:
    """The numbers of a tensor that is not empty, as they are written."""
    return _as_bytes(t.detach().cpu().contiguous())


def _as_bytes(t: Tensor) -> Any:
    """The memory of a contiguous tensor that is not empty, as an array of bytes."""
    return t.reshape(-1).view(torch.uint8).numpy()


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _header(form: Form, metadata: Mapping[str, str] | None) -> bytes:
    values: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    place = 0
    for name, (dtype, shape) in form.items():
        if name == _METADATA or dtype not in _NAMES:
            raise ValueError(f"{name!r} of type {dtype} cannot be written")
        end = place + _size(dtype, shape)
        values[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # so that numbers are where a processor likes them
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _parsed(text: bytes, refuse: _Refusal) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise refuse("its header has a name twice")
        return found

    try:
        values = json.loads(text.decode(), object_pairs_hook=unique)
        json.dumps(values, ensure_ascii=False).encode()  # which halves of characters cannot be
    except (ValueError, RecursionError) as error:
        raise refuse("its header is not JSON") from error
    if not isinstance(values, dict):
        raise refuse("its header is not a list of tensors by name")
    return values


def _entry(name: str, value: Any, refuse: _Refusal) -> Entry:
    what = f"its tensor {quoted(name)}"
    if not isinstance(value, dict) or value.keys() != _ENTRY:
        raise refuse(f"{what} is not described by dtype, shape and data_offsets")
    dtype = DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise refuse(f"{what} is of the type {quoted(value['dtype'])}, which is not known")
    shape, places = value["shape"], value["data_offsets"]
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS or math.prod(max(one, 1) for one in shape) >= _TOO_LARGE:
        raise refuse(f"{what} has the shape {quoted(shape)}")
    if not _are_sizes(places) or len(places) != 2 or places[0] > places[1]:
        raise refuse(f"{what} lies at {quoted(places)}")
    if places[1] - places[0] != _size(dtype, tuple(shape)):
        raise refuse(f"{what} has {places[1] - places[0]:,} bytes, which is not what its shape and type need")
    return Entry(dtype, tuple(shape), *places)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < _TOO_LARGE for one in values)


def _check_places(entries: Mapping[str, Entry], size: int, refuse: _Refusal) -> None:
    """Every byte behind the header belongs to one tensor."""
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != place:
            problem = "overlaps another one" if entry.begin < place else "comes after bytes of no tensor"
            raise refuse(f"its tensor {quoted(name)} {problem}")
        place = entry.end
    if place != size:
        problem = f"{size - place:,} bytes belong to no tensor" if place < size else "it ends before its last tensor"
        raise refuse(problem)

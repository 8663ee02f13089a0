"""The files that W&B writes offline: how far they go.

A ``.wandb`` file is a log in the form of LevelDB's, blocks of 32 KiB with records that may span several, of protocol
buffers. W&B's library has no reader for it any more, so here is one, which gives up quietly at what it does not know.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32 * 1024
_FILE_HEADER_BYTES = 7
_RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _LAST = 1, 2, 4


def last_step(folder: Path, run_id: str) -> int | None:
    """The last step that is on disk under this id, -1 if none is; None where there are no files at all.

    W&B writes with a delay, so this may be less than what it was handed by a process that was killed.
    """
    paths = sorted(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb"))
    return max((step for path in paths for step, _ in history(path)), default=-1) if paths else None


def history(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """What was logged: the steps, and the numbers of each."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    for data in _records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            yield int(values.pop("_step", record.history.step.num)), values


def _records(data: bytes) -> Iterator[bytes]:
    place, pieces = _FILE_HEADER_BYTES, b""
    while place + _RECORD_HEADER.size <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _RECORD_HEADER.size:  # the rest of a block that has no room for a record
            place += left
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(data, place)
        place += _RECORD_HEADER.size
        if kind == 0 or place + length > len(data):  # what a killed process was about to write
            return
        pieces = (b"" if kind in (_FULL, _FIRST) else pieces) + data[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield pieces

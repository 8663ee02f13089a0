"""What clients keep, in files instead of messages: for workers that have the run's folder on a file system of theirs.

Where much is kept, workers write it to files of their own beside the driver's log, under names that nobody had before,
and say in their answers what they have written. The driver has such a file count with the round (see
`fedarena.simulate.client_states.log`), and tells others where in it they find what a client keeps. So a file counts
when its round is committed, and one that nobody asked for in the end, because its worker or the driver was killed, is
removed when the run is written or opened the next time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedarena.core.signs import Sign
from fedarena.simulate import ClientStates
from fedarena.simulate.client_states import StatePlace, packed_states, write_part
from fedarena.simulate.client_states.layout import Layout
from fedarena.train import Groups, count_bytes
from fedarena.train.engine import IntArray
from fedarena.train.shards import StateFile

ABOVE_BYTES = 256 * 2**20  # that the clients of a round keep; less goes through the driver


class SharedFolder:
    """The folder of a run's files of states, with a sign that it is that of the driver."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._sign = Sign(folder)  # which is removed with other temporary files that a killed driver leaves

    def offer(self, share: float) -> dict[str, Any]:
        """What a worker is told, for a shard with such a share of a round's clients."""
        return {**self._sign.offer(), "above_bytes": share * ABOVE_BYTES}

    def close(self) -> None:
        """Takes the sign away."""
        self._sign.remove()


def write_states(offer: Mapping[str, Any], states: Sequence[tuple[IntArray, Groups]]) -> StateFile | None:
    """Writes what clients keep to a new file, if it is enough for that."""
    if sum(count_bytes(rows) for _, rows in states) <= offer["above_bytes"]:
        return None
    packed = (one for clients, rows in states if rows for one in packed_states(clients, rows))
    return write_part(Path(offer["folder"]), f"client_states-{uuid.uuid4().hex}.part", packed)


def pack_places(states: Mapping[int, Groups], clients: Sequence[int]) -> dict[str, Any] | None:
    """Where the states lie of those clients whose are in such files."""
    if not isinstance(states, ClientStates) or states.folder is None:
        return None
    places = {client: place for client in clients if (place := states.place_in_part(client)) is not None}
    layouts = list(dict.fromkeys(place.layout for place in places.values()))
    numbers = {layout: number for number, layout in enumerate(layouts)}
    return {
        "folder": str(states.folder),
        "clients": list(places),
        "places": [(*place[:-1], numbers[place.layout]) for place in places.values()],
        "layouts": [layout.to_json() for layout in layouts],
    }


def unpack_places(message: Mapping[str, Any]) -> dict[int, Groups]:
    """What lies there."""
    layouts = [Layout.from_json(text) for text in message["layouts"]]
    folder, states = Path(message["folder"]), {}
    for client, (file, start, length, crc32, number) in zip(message["clients"], message["places"], strict=True):
        states[client] = StatePlace(file, start, length, crc32, layouts[number]).read(folder)
    return states

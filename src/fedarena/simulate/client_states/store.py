"""What clients keep between their rounds: for those who took part, in RAM up to a limit, and on disk.

A round reads the `ClientStates` of the round before it, collects what its clients want to keep in `ClientStateChanges`,
and ends with the `ClientStates` after it. Only what changes is touched, so a round costs as much as its cohort, however
many took part before. Without a log everything stays in RAM. With one, every state is written to it, and RAM holds
those that were used last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedarena.core.errors import RunFailedError
from fedarena.simulate.client_states.layout import Layout, PackedState
from fedarena.simulate.client_states.log import ClientStateLog, StatePlace
from fedarena.train import Groups
from fedarena.train.engine import IntArray
from fedarena.train.shards import StateFile

DEFAULT_RAM_BYTES = 2 * 2**30


class ClientStates(Mapping[int, Groups]):
    """What every client keeps after a certain round. Reading gives tensors of one's own, on the CPU.

    The rounds of a run share one store, so the states of a round can be read until later ones are settled.
    """

    def __init__(self, store: _Store | None = None, version: int = 0):
        self._store = store if store is not None else _Store()
        self._version = version

    def __getitem__(self, client: int) -> Groups:
        with self._store.lock:
            state = self._store.find(client, self._includes_new())
        if state is None:
            raise KeyError(client)
        return state.unpack()

    def __contains__(self, client: object) -> bool:
        with self._store.lock:
            return self._store.has(client, self._includes_new())

    def __iter__(self) -> Iterator[int]:
        with self._store.lock:
            return iter(sorted(self._store.clients(self._includes_new())))

    def __len__(self) -> int:
        with self._store.lock:
            return len(self._store.clients(self._includes_new()))

    @property
    def bytes_in_ram(self) -> int:
        """How much of the states is in RAM now."""
        return self._store.bytes_in_ram

    @property
    def folder(self) -> Path | None:
        """Where files of states lie that others may write for `ClientStateChanges.adopt`; None without a log."""
        return self._store.folder

    def place_in_part(self, client: int) -> StatePlace | None:
        """Where a client's state can be read by others, if it lies in such a file."""
        with self._store.lock:
            return self._store.place_in_part(client, self._includes_new())

    def keep_in(self, log: ClientStateLog, ram_bytes: int) -> None:
        """From now on states are written to this log, and RAM holds at most so many bytes of them."""
        with self._store.lock:
            self._store.keep_in(log, ram_bytes)

    def settle(self) -> None:
        """Writes to the log what changed in this round. The states of earlier rounds are gone."""
        with self._store.lock:
            if self._includes_new():
                self._store.settle()

    def compact_log(self, path: Path) -> ClientStateLog:
        """Goes on in a new file that has nothing outdated; the old file stays as it is."""
        with self._store.lock:
            return self._store.compact_log(path)

    def _includes_new(self) -> bool:
        if self._version not in (self._store.settled_version, self._store.new_version):
            raise RuntimeError("These are the states of an earlier round, and later ones have taken their place")
        return self._version == self._store.new_version


class ClientStateChanges:
    """What the clients of one round want to keep. It counts when the round is over; a failed one is forgotten."""

    def __init__(self, before: ClientStates):
        self._before = before
        self._after: ClientStates | None = None

    def add(self, clients: Sequence[int] | IntArray, rows: Groups) -> None:
        """The new states of some clients: a row each, from any device; no groups where there is nothing to keep."""
        if not rows:
            return
        packed = packed_states(clients, rows)
        with self._changing() as store:
            for client, state in packed:
                store.put_new(client, state)

    def adopt(self, file: StateFile) -> None:
        """The new states of some clients, which somebody has written to a file in `ClientStates.folder`."""
        with self._changing() as store:
            store.adopt_new(file)

    def client_states(self) -> ClientStates:
        """What every client keeps after the round."""
        return self._before if self._after is None else self._after

    @contextmanager
    def _changing(self) -> Iterator[_Store]:
        store = self._before._store
        with store.lock:
            if self._after is None:
                self._before.settle()
                self._after = ClientStates(store, store.begin())
            try:
                yield store
            except OSError as error:
                raise RunFailedError(f"Cannot write the states of clients to disk: {error.strerror}") from error


def packed_states(clients: Sequence[int] | IntArray, rows: Groups) -> list[tuple[int, PackedState]]:
    """The states of some clients, of which `rows` has a row each."""
    layout = Layout.of_rows(rows)
    contents = layout.pack_rows(rows, len(clients))
    return [(int(client), PackedState(layout, content)) for client, content in zip(clients, contents, strict=True)]


class _Store:
    """Two versions of all states: the settled one, and the new one of a round that may still come to nothing."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # engines read from several threads
        self.settled_version = 0
        self.new_version: int | None = None
        self._last_version = 0
        self._settled: OrderedDict[int, PackedState] = OrderedDict()  # used last comes last
        self._settled_bytes = 0
        self._new: dict[int, PackedState] = {}
        self._new_bytes = 0
        self._log: ClientStateLog | None = None
        self._ram_bytes = 0

    @property
    def bytes_in_ram(self) -> int:
        return self._settled_bytes + self._new_bytes

    def find(self, client: int, new: bool) -> PackedState | None:
        state = self._find_new(client) if new else None
        if state is None and client in self._settled:
            self._settled.move_to_end(client)
            state = self._settled[client]
        if state is None and self._log is not None:
            state = self._log.read(client)
            if state is not None:
                self._hold(client, state)
                self._make_room()
        return state

    def _find_new(self, client: int) -> PackedState | None:
        if client in self._new or self._log is None:
            return self._new.get(client)
        return self._log.read(client, unsettled=True)

    def has(self, client: object, new: bool) -> bool:
        if self._log is None:
            return client in self._settled or (new and client in self._new)
        return client in self._log or (new and (client in self._new or client in self._log.unsettled_clients))

    def clients(self, new: bool) -> set[int]:
        clients = {*(self._settled if self._log is None else self._log), *(self._new if new else ())}
        return clients | self._log.unsettled_clients if new and self._log is not None else clients

    def begin(self) -> int:
        """Starts a new version; what a round that came to nothing left behind is dropped."""
        self._drop_new()
        self._last_version += 1
        self.new_version = self._last_version
        return self._last_version

    def _drop_new(self) -> None:
        self._new, self._new_bytes, self.new_version = {}, 0, None
        if self._log is not None:
            self._log.drop_unsettled()

    def put_new(self, client: int, state: PackedState) -> None:
        before = self._new.get(client)
        self._new[client] = state
        self._new_bytes += len(state.content) - (len(before.content) if before else 0)
        if self._log is not None and self._new_bytes > self._ram_bytes:
            self._flush_new()
        self._make_room()

    def adopt_new(self, file: StateFile) -> None:
        assert self._log is not None
        self._flush_new()  # what came before in this round is outdated by what the file has of the same client
        self._log.append_part(file)

    def _flush_new(self) -> None:
        assert self._log is not None
        self._log.append(self._new.items())
        self._new, self._new_bytes = {}, 0

    def place_in_part(self, client: int, new: bool) -> StatePlace | None:
        if self._log is None or (new and client in self._new):
            return None
        if new and client in self._log.unsettled_clients:
            return self._log.place_in_part(client, unsettled=True)
        return self._log.place_in_part(client)

    @property
    def folder(self) -> Path | None:
        return None if self._log is None else self._log.path.parent

    def settle(self) -> None:
        """The new version is the settled one from now on."""
        assert self.new_version is not None
        if self._log is not None:
            self._log.append(self._new.items())
            for client in self._log.unsettled_clients:
                self._let_go(client)
            self._log.settle()
        for client, state in self._new.items():
            self._hold(client, state)
        self._new, self._new_bytes = {}, 0
        self.settled_version, self.new_version = self.new_version, None
        self._make_room()

    def keep_in(self, log: ClientStateLog, ram_bytes: int) -> None:
        if self._log is log:
            return
        if self._settled:
            log.append(self._settled.items())
            log.settle()
        self._log, self._ram_bytes = log, ram_bytes
        self._make_room()

    def compact_log(self, path: Path) -> ClientStateLog:
        assert self._log is not None
        self._drop_new()
        self._log = self._log.compacted(path)
        return self._log

    def _hold(self, client: int, state: PackedState) -> None:
        self._let_go(client)
        self._settled[client] = state
        self._settled_bytes += len(state.content)

    def _let_go(self, client: int) -> None:
        before = self._settled.pop(client, None)
        self._settled_bytes -= len(before.content) if before else 0

    def _make_room(self) -> None:
        while self._log is not None and self._settled and self.bytes_in_ram > self._ram_bytes:
            self._let_go(next(iter(self._settled)))

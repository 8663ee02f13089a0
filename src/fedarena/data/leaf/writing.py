"""Writing any federation as LEAF's JSON: folders train/, val/ and test/, each with files of so many users."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.folders import new_folder
from fedarena.data.leaf.description import KEY, Description, Piece, describe_for_leaf, hierarchy_among
from fedarena.data.leaf.files import FOLDERS, HELD_OUT
from fedarena.data.leaf.samples import SampleForm
from fedarena.data.registry import Progress
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import GROUPS, AnyArray, IntArray, Part

_CHUNK_BYTES = 1 << 24  # of samples in memory at a time


def export_leaf(federation: Federation, folder: Path, users_per_file: int, progress: Progress) -> None:
    """Writes `federation` into a new folder, which gets its name when everything is in it.

    Training samples of training clients go to train/, validation samples to val/, test samples to test/. Everybody is
    in the folder called like their group, even without samples there.
    """
    if folder.exists():
        raise BadInputError(f"{folder} exists; choose another folder, or remove it")
    if users_per_file < 1:
        raise BadInputError(f"A file must hold at least one user, not {users_per_file}")
    with new_folder(folder, "the files of LEAF") as temporary:
        _Export(federation, temporary, users_per_file, progress).write()


class _Export:
    def __init__(self, federation: Federation, folder: Path, users_per_file: int, progress: Progress):
        self._federation = federation
        self._description: Description = describe_for_leaf(federation)
        self._form = SampleForm(self._description)
        self._folder = folder
        self._users_per_file = users_per_file
        self._progress = progress
        self._groups = np.empty(federation.num_clients, dtype=np.int8)
        for code, group in enumerate(GROUPS):
            self._groups[federation.clients(group)] = code
        self._written = 0  # samples

    def write(self) -> None:
        for name, part in FOLDERS.items():
            clients = self._clients_of(name, part)
            bounds = np.arange(self._users_per_file, len(clients), self._users_per_file)
            if len(clients) or name in ("train", "test"):  # LEAF's readers want both folders
                (self._folder / name).mkdir()
            for number, chunk in enumerate(np.split(clients, bounds) if len(clients) else []):
                path = self._folder / name / f"all_data_{number}_{name}.json"
                with open(path, "w", encoding="utf-8") as file:
                    self._write_file(file, chunk, part)
                    file.flush()
                    os.fsync(file.fileno())

    def _clients_of(self, folder: str, part: Part) -> IntArray:
        """Who is in a folder: those with samples of its part, and those of the group that is called like it."""
        everybody = self._federation.clients()
        has_samples = self._federation.counts(everybody, part) > 0
        is_trained = self._groups == GROUPS.index("train")
        if folder == HELD_OUT:
            chosen = has_samples & ~is_trained
        elif folder == "train":
            chosen = is_trained
        else:
            chosen = has_samples | (self._groups == GROUPS.index(part))
        clients: IntArray = everybody[chosen]
        return clients

    def _write_file(self, file: IO[str], clients: IntArray, part: Part) -> None:
        ids, counts = self._federation.client_ids(clients), self._federation.counts(clients, part)
        attributes = {name: _plain(values) for name, values in self._federation.attributes(clients).items()}
        piece = Piece(
            federation=self._description,
            clients=clients.tolist(),
            groups=[GROUPS[code] for code in self._groups[clients]],
            attributes=attributes,
        )
        head: dict[str, Any] = {KEY: piece.model_dump(mode="json"), "users": ids, "num_samples": counts.tolist()}
        hierarchy = hierarchy_among([name for name, kind in self._description.attributes.items() if kind == "string"])
        if hierarchy is not None:
            head["hierarchies"] = [[value] for value in attributes[hierarchy]]
        file.write(json.dumps(head)[:-1] + ', "user_data": {')
        for position, (id, columns) in enumerate(self._samples(clients, part, ids)):
            try:
                lists = self._form.to_lists(columns)
            except BadInputError as error:
                raise BadInputError(f"{self._federation.name} cannot be written: of client {id!r} {error}") from None
            file.write(f"{', ' if position else ''}{json.dumps(id)}: {json.dumps(lists)}")
            self._written += len(next(iter(columns.values())))
            self._progress(self._written / max(self._federation.num_samples, 1), "Writing")
        file.write("}}\n")

    def _samples(self, clients: IntArray, part: Part, ids: list[str]) -> Iterator[tuple[str, dict[str, AnyArray]]]:
        bytes_of = sum(spec.bytes_per_sample for spec in self._description.columns.values())
        chunk_of_client = np.cumsum(self._federation.counts(clients, part)) * bytes_of // _CHUNK_BYTES
        names = iter(ids)
        for some in np.split(clients, np.flatnonzero(np.diff(chunk_of_client)) + 1):
            samples = self._federation.samples(some, part)
            for start, stop in pairwise(samples.offsets.tolist()):
                yield next(names), {name: values[start:stop] for name, values in samples.columns.items()}


def _plain(values: AnyArray | list[str]) -> list[Any]:
    """Values that JSON can hold; numbers that are not finite become text."""
    if isinstance(values, list):
        return values
    return [value if np.isfinite(value) else str(value) for value in values.tolist()]

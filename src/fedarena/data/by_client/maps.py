"""FedScale's maps: tables of who has which sample, ``client_data_mapping/train.csv``, ``val.csv`` and ``test.csv``.

A row is ``client_id,sample_path,label_name,label_id``; the second column may be called data_path. Google's files for
landmarks and iNaturalist, ``user_id,image_id,class``, are maps, too. FedScale numbers clients from 0 in every file, so
that client 0 of two files is two people: ids that are numbers are called by their group here (``train-0``). Any other
id that is in two files is one person in two groups, which is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.packed import PACKINGS, table_rows, whole_number
from fedarena.data.by_client.rows import Record
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFiles
from fedarena.data.store.schema import GROUPS, Group

MAPS: dict[Group, tuple[str, ...]] = {
    "train": ("train.csv",),
    "validation": ("val.csv", "validation.csv"),
    "test": ("test.csv",),
}
MAP_FOLDER = "client_data_mapping"
_CLIENT = ("client_id", "user_id")
_SAMPLE = ("sample_path", "data_path", "image_id")
_NAME, _LABEL = ("label_name",), ("label_id", "class")


class MapFiles(RawFiles):
    """Files with maps, in the folder that is given or in one inside of it that the archive has made."""

    def found(self, given: str | None) -> dict[str, Path]:
        """The maps by group, or else the files that are known by their names."""
        maps = self.maps(given)
        return {f"map of {group}": path for group, path in maps.items()} or super().found(given)

    def maps(self, given: str | None) -> dict[Group, Path]:
        """The map of every group that has one."""
        root = self.root(given)
        found: dict[Group, Path] = {}
        for group, names in MAPS.items():
            for name in names:
                for path in (root / MAP_FOLDER / f"{name}{ending}" for ending in ("", *PACKINGS)):
                    if group not in found and path.is_file():
                        found[group] = path
        return found

    def root(self, given: str | None) -> Path:
        """The folder with the maps: the one that is given, or the only one inside of it that has some."""
        place = self.folder(given)
        if (place / MAP_FOLDER).is_dir() or not place.is_dir():
            return place
        inside = sorted(path.parent for path in place.glob(f"*/{MAP_FOLDER}") if path.is_dir())
        if len(inside) > 1:
            raise BadInputError(f"{place} has maps in {inside[0].name} and {inside[1].name}; give one of these folders")
        return inside[0] if inside else place


class MapRow(NamedTuple):
    """A row of a map."""

    client: str
    sample: str
    label_name: str
    label_id: str
    group: int  # its place in GROUPS
    path: Path
    line: int
    done: float  # of the file

    @property
    def where(self) -> str:
        """The row, for sentences."""
        return f"{self.path}, line {self.line:,}"


def map_rows(path: Path, group: Group) -> Iterator[MapRow]:
    """The rows of a map; a heading that is there twice, as in FedScale's VLOG, is passed over."""
    heading, rows = table_rows(path)
    client, sample = heading.place(*_CLIENT), heading.place(*_SAMPLE)
    name, label = heading.find(*_NAME), heading.find(*_LABEL)
    code = GROUPS.index(group)
    for row in rows:
        values = row.values
        if values == heading.names:
            continue
        if not values[client]:
            raise BadInputError(f"{path}, line {row.line:,} has no client")
        person = f"{group}-{values[client]}" if values[client].isdecimal() else values[client]
        label_name = "" if name is None else values[name]
        label_id = "" if label is None else values[label]
        yield MapRow(person, values[sample], label_name, label_id, code, path, row.line, row.done)


def groups_of_maps(maps: Mapping[Group, Path]) -> PublishedGroups:
    """The division of clients by the files in which they are."""
    return PublishedGroups(lambda group, line: f"line {line:,} of {maps[GROUPS[group]]}", len(maps))


def map_records(
    maps: Mapping[Group, Path], record: Callable[[MapRow], tuple[object, ...] | None]
) -> tuple[Sequence[Path], Callable[[Path], Iterator[Record]]]:
    """What a reader of records needs: the files, and their records, each with its group and line in front.

    `record` says what else is known of a row; a row of which it says None is left out.
    """
    group_of = {path: group for group, path in maps.items()}

    def records(path: Path) -> Iterator[Record]:
        for row in map_rows(path, group_of[path]):
            if (values := record(row)) is not None:
                yield Record(row.client, (row.group, row.line, *values), row.done)

    return list(maps.values()), records


def label_below(classes: int, advice: str = "") -> Callable[[MapRow], int]:
    """The number of a row's label, which must be that of a class; `advice` is what to do if it is not."""

    def label(row: MapRow) -> int:
        code = whole_number(row.label_id, "label_id", row.where)
        if code >= classes:
            raise BadInputError(
                f"{row.where} has the label {code}; there are {classes:,} classes, 0 to {classes - 1:,}{advice}"
            )
        return code

    return label


def existing(root: Path, row: MapRow, candidates: Sequence[str]) -> str:
    """The first of some names, seen from `root`, under which there is a file."""
    for name in candidates:  # as texts: with paths, looking takes several times as long
        if name.startswith("/") or (".." in name and ".." in name.split("/")):
            raise BadInputError(f"{row.where} names {quoted(name)}, which is not inside of {root}")
        if os.path.isfile(f"{root}/{name}"):
            return name
    raise BadInputError(f"{row.where} names {quoted(row.sample)}, but there is no file {root / candidates[0]}")

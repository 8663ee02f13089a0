"""Where photos come from: a folder, a .zip, tar archives, or HDF5. All are read in pieces and checked by threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.data.flair.archives import PUBLISHED_ARCHIVES, read_members
from fedarena.data.flair.checking import Picture, checked_jpeg
from fedarena.data.flair.photos import Photos
from fedarena.data.raw.folders import refuse
from fedarena.data.raw.trees import RawTree
from fedarena.data.store.schema import Encoding, IntArray
from fedarena.data.store.side_by_side import decoding_threads

PICTURES_AT_ONCE = 64
_SUFFIX = ".jpg"

Load = Callable[[], Picture]  # reads, if that can be done side by side, and checks


@dataclass(frozen=True)
class Piece:
    """Some pictures that are ready to be checked, and the place in the input that they are from."""

    loads: list[Load]
    position: int


class PictureSource(ABC):
    """Pictures of photos, which are given by their rows in `Photos`."""

    encoding: Encoding = "jpeg"

    @abstractmethod
    def pieces(self, rows: IntArray, position: int) -> Iterator[Piece]:
        """These pictures in any order; those before `position` in the input have been read before."""

    @abstractmethod
    def lacks(self, rows: IntArray) -> BadInputError:
        """What to say where there are no pictures of some photos."""

    def close(self) -> None:  # noqa: B027 - not all have something to close
        """Ends reading."""


def read_side_by_side(pieces: Iterator[Piece]) -> Iterator[tuple[list[Picture], int]]:
    """The pictures of every piece, checked, in the order of the pieces; few pieces are in memory at a time."""
    threads = decoding_threads()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="checking")
    waiting: deque[tuple[Future[list[Picture]], int]] = deque()
    try:
        for piece in pieces:
            waiting.append((pool.submit(_load, piece.loads), piece.position))
            if len(waiting) > 2 * threads:
                done, position = waiting.popleft()
                yield done.result(), position
        while waiting:
            done, position = waiting.popleft()
            yield done.result(), position
    finally:
        pool.shutdown(cancel_futures=True)


def _load(loads: Sequence[Load]) -> list[Picture]:
    return [load() for load in loads]


class PictureFolder(PictureSource):
    """The folder small_images."""

    def __init__(self, path: Path, photos: Photos, metadata: Path):
        self._path, self._photos, self._metadata = path, photos, metadata
        try:
            self._there = frozenset(os.listdir(path))
        except OSError as error:
            refuse(error)

    def check_all_there(self, rows: IntArray) -> None:
        """Raises unless there are pictures of these photos, before any is read."""
        missing = [row for row in rows.tolist() if self._photos.images[row] + _SUFFIX not in self._there]
        if missing:
            raise _lacking(self._path, self._photos, missing, self._metadata)

    def pieces(self, rows: IntArray, position: int) -> Iterator[Piece]:
        """Read by threads, too."""
        for start in range(0, len(rows), PICTURES_AT_ONCE):
            yield Piece([self._loader(row) for row in rows[start : start + PICTURES_AT_ONCE].tolist()], 0)

    def lacks(self, rows: IntArray) -> BadInputError:
        """Files that have gone meanwhile."""
        return _lacking(self._path, self._photos, rows.tolist(), self._metadata)

    def _loader(self, row: int) -> Load:
        path = f"{self._path}/{self._photos.images[row]}{_SUFFIX}"

        def load() -> Picture:
            try:
                with open(path, "rb", buffering=0) as file:
                    content = file.read()
            except OSError as error:
                refuse(error)
            return checked_jpeg(row, content, path)

        return load


class PictureZip(PictureSource):
    """A .zip with the pictures."""

    def __init__(self, tree: RawTree, photos: Photos, metadata: Path):
        self._tree, self._photos, self._metadata = tree, photos, metadata
        self._places = {name.rpartition("/")[2]: place for place, name in enumerate(tree.names)}

    def pieces(self, rows: IntArray, position: int) -> Iterator[Piece]:
        """Read one after the other, since they are in one file."""
        for start in range(0, len(rows), PICTURES_AT_ONCE):
            loads = []
            for row in rows[start : start + PICTURES_AT_ONCE].tolist():
                place = self._places.get(self._photos.images[row] + _SUFFIX)
                if place is not None:
                    loads.append(_checker(row, self._tree.read(place), self._tree.where(place)))
            yield Piece(loads, 0)

    def lacks(self, rows: IntArray) -> BadInputError:
        """Photos that are not in the archive."""
        return _lacking(self._tree.path, self._photos, rows.tolist(), self._metadata)

    def close(self) -> None:
        """Closes the archive."""
        self._tree.close()


class PictureTars(PictureSource):
    """Tar archives; the place in the input is the number of an archive."""

    def __init__(self, archives: Mapping[str, Sequence[Path]], photos: Photos, metadata: Path):
        self._archives, self._photos, self._metadata = archives, photos, metadata

    def pieces(self, rows: IntArray, position: int) -> Iterator[Piece]:
        """All archives from a certain one on, each read from its beginning to its end."""
        row_of = {self._photos.images[row] + _SUFFIX: row for row in rows.tolist()}
        for number, parts in enumerate(self._archives.values()):
            if number < position:
                continue
            loads: list[Load] = []
            for name, content in read_members(parts):
                if name in row_of:
                    loads.append(_checker(row_of[name], content, f"{name} in {parts[0]}"))
                    if len(loads) == PICTURES_AT_ONCE:
                        yield Piece(loads, number)
                        loads = []
            yield Piece(loads, number)

    def lacks(self, rows: IntArray) -> BadInputError:
        """Photos that are in none of the archives."""
        folder = next(iter(self._archives.values()))[0].parent
        named = f"the {counted(len(self._archives), 'archive')} in {folder} (FLAIR has {PUBLISHED_ARCHIVES})"
        return _lacking(named, self._photos, rows.tolist(), self._metadata)


def _checker(row: int, content: bytes, where: str) -> Load:
    return lambda: checked_jpeg(row, content, where)


def _lacking(where: Path | str, photos: Photos, rows: Sequence[int], metadata: Path) -> BadInputError:
    begin = f"{where} lacks" if isinstance(where, Path) else f"{where[0].upper()}{where[1:]} lack"
    return BadInputError(
        f"{begin} {len(rows):,} of the photos that {metadata} names: {photos.images[rows[0]]}{_SUFFIX} is the first"
    )

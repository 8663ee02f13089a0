"""Where the store of somebody's own data goes: a folder he names, or the cache, where the same data is built once."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import by_path, parts_in, resolve_part
from fedarena.core.outside_text import as_file_name
from fedarena.data.registry import PARTITIONERS, Progress, StoreBuild, cache_folder, own_fingerprints
from fedarena.data.store.federation import MANIFEST_NAME, Federation
from fedarena.data.store.schema import SourceSpec
from fedarena.data.store.writer import StoreExistsError

VERSION = 2


@dataclass(frozen=True)
class StorePlace:
    """Where a store goes: a folder, or the cache; whether another one there may be replaced; whom to tell how far."""

    path: Path | str | None = None
    overwrite: bool = False
    progress: Progress | None = None


def build_once(
    kind: str,
    options: Mapping[str, Any],
    state: list[Any],
    name: str,
    place: StorePlace,
    build: Callable[[StoreBuild], None],
) -> Federation:
    """The federation that `build` writes, unless it is there: the same options, and data in the same state."""
    recorded = json.loads(json.dumps(dict(options), default=lambda value: str(by_path(value))))
    recorded["state"] = _digest(state)
    if (partition := options.get("partition")) is not None:
        made_by = parts_in(PARTITIONERS, resolve_part(PARTITIONERS, partition, "partition"))
        if own := own_fingerprints(made_by):
            recorded["own_source"] = own
    source = SourceSpec(name=kind, version=VERSION, options=recorded)

    def write(folder: Path) -> None:
        build(StoreBuild(folder, name, source, place.progress or (lambda fraction, text: None)))

    return open_or_write(name, source, place, write)


def open_or_write(name: str, source: SourceSpec, place: StorePlace, write: Callable[[Path], None]) -> Federation:
    """The store of this name and source where it is to go; `write` is called with a folder if it is not there."""
    if place.path is None:
        folder = (
            cache_folder() / f"{source.name}-{as_file_name(name)}-{_digest([name, source.model_dump(mode='json')])}"
        )
        if not folder.exists():
            with suppress(StoreExistsError):  # somebody else writes the same at the same time
                write(folder)
        elif place.overwrite and not _holds(folder, name, source, may_replace=True):
            _replace(folder, write)
        try:
            return Federation.open(folder)
        except DamagedFileError as error:
            raise DamagedFileError(f"{error} Remove the folder {folder} to have it built again.") from error
    folder = Path(place.path).expanduser()
    if not folder.exists():
        write(folder)
    elif not (folder / MANIFEST_NAME).is_file():
        raise StoreExistsError(f"{folder} exists and is no federation; choose another folder.")
    elif not _holds(folder, name, source, place.overwrite):
        if not place.overwrite:
            raise StoreExistsError(f"{folder} holds another federation; choose another folder, or overwrite it.")
        _replace(folder, write)
    return Federation.open(folder)


def _holds(folder: Path, name: str, source: SourceSpec, may_replace: bool) -> bool:
    """Whether a store is the one to be written; one that is damaged is not, and refused unless it may be replaced."""
    try:
        found = Federation.open(folder)
        is_same = found.name == name and found.source == source
        if is_same:
            found.verify_bytes()
    except DamagedFileError as error:
        if not may_replace:
            raise DamagedFileError(f"{error} Overwrite it to have it built again, or remove {folder}.") from error
        return False
    except BadInputError:
        return False
    return is_same


def _replace(folder: Path, write: Callable[[Path], None]) -> None:
    """Puts a new store in the place of another, which is kept until the new one is complete."""
    beside, former = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.{what}") for what in ("new", "old"))
    try:
        write(beside)
        folder.rename(former)
        try:
            beside.rename(folder)
        except OSError:
            former.rename(folder)
            raise
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def name_of(path: Path | None, given: str | None, otherwise: str) -> str:
    """What a federation is called: as somebody says, or as the file or folder it comes from."""
    if given is not None:
        if not given.strip():
            raise BadInputError("name must not be empty.")
        return given
    if path is None:
        return otherwise
    return re.sub(r"(\.[A-Za-z]\w{0,7})+$", "", path.absolute().name) or otherwise

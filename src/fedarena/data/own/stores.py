"""Where the store of somebody's own data goes: a folder he names, or the cache, where the same data is built once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name
from fedarena.data.registry import Progress, cache_folder
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AttributeType, ColumnSpec, SourceSpec, TaskSpec
from fedarena.data.store.writer import FederationWriter, StoreExistsError

VERSION = 1


@dataclass(frozen=True)
class OwnBuild:
    """What writes a store of one's own: where it goes, what it is called, and whom to tell how far it is."""

    path: Path
    name: str
    source: SourceSpec
    progress: Progress

    def writer(
        self,
        *,
        task: TaskSpec,
        columns: Mapping[str, ColumnSpec],
        attributes: Mapping[str, AttributeType] | None = None,
    ) -> FederationWriter:
        """A writer for the store to build."""
        return FederationWriter(
            self.path, name=self.name, task=task, columns=columns, source=self.source, attributes=attributes
        )


def build_once(
    kind: str,
    options: Mapping[str, Any],
    state: list[Any],
    name: str,
    path: Path | str | None,
    progress: Progress | None,
    build: Callable[[OwnBuild], None],
) -> Federation:
    """The federation that `build` writes, unless the cache has it: the same options, and data in the same state."""
    recorded = json.loads(json.dumps(dict(options), default=str))
    if path is None:
        key = json.dumps([kind, VERSION, name, recorded, state], sort_keys=True, default=str)
        digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        place = cache_folder() / f"{as_file_name(name)}-{digest}"
        if place.exists():
            return Federation.open(place)
    else:
        place = Path(path).expanduser()
        if place.exists():
            raise StoreExistsError(f"{place} already exists; remove it or choose another folder.")
    source = SourceSpec(name=kind, version=VERSION, options=recorded)
    target = OwnBuild(place, name, source, progress or (lambda fraction, text: None))
    if path is None:
        with suppress(StoreExistsError):  # somebody else built the same store at the same time
            build(target)
    else:
        build(target)
    return Federation.open(place)


def name_of(path: Path | None, given: str | None, otherwise: str) -> str:
    """What a federation is called: as somebody says, or as the file or folder it comes from."""
    if given is not None:
        if not given.strip():
            raise BadInputError("name must not be empty.")
        return given
    if path is None:
        return otherwise
    return re.sub(r"(\.[A-Za-z]\w{0,7})+$", "", path.absolute().name) or otherwise

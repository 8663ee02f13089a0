"""The catalogues of federation sources and partitioners, and the cache in which sources keep what they built.

A source is a function ``source(progress, *, options...) -> Federation``. Most build a store once and open it
from then on: they are written as a function of a `StoreBuild` and turned into a source by `cached_source`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import platformdirs

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import parts_among, resolve_part
from fedarena.core.outside_text import quoted
from fedarena.core.own import is_own
from fedarena.core.registry import Registry
from fedarena.core.user_warnings import warn_user
from fedarena.data.raw.folders import files_below
from fedarena.data.raw.tarballs import unpacked
from fedarena.data.store.federation import MANIFEST_NAME, Federation
from fedarena.data.store.schema import AnyArray, AttributeType, ColumnSpec, IntArray, SourceSpec, TaskSpec
from fedarena.data.store.writer import FederationWriter, StoreExistsError

# Called with the fraction that is done and a few words on what is happening.
Progress = Callable[[float, str], None]
Source = Callable[..., Federation]
Partitioner = Callable[..., IntArray]
StateOf = Callable[[Path], list[int | str]]

FEDERATIONS: Registry[Source] = Registry("federation", takes=("progress",), folders="store")
PARTITIONERS: Registry[Partitioner] = Registry("partitioner", takes=("labels",))

CACHE_VARIABLE = "FEDARENA_CACHE"


def load_federation(
    name: str, options: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> Federation:
    """Opens the federation called `name`, which is built first if it was never used with these options.

    >>> load_federation("digits", {"partition": {"name": "iid", "clients": 10}}).num_clients
    10
    """
    resolved = resolve_part(FEDERATIONS, {**(options or {}), "name": name}, "federation")
    source = FEDERATIONS.get(resolved.pop("name"))
    if not isinstance(source, CachedSource):  # which has them in the name of what it builds
        resolved = as_declared(source, resolved)
    return source(progress or _ignore, **resolved)


def assign_clients(partition: Mapping[str, Any], labels: AnyArray) -> IntArray:
    """The client of every sample, by the partitioner ``partition["name"]``; the other entries are its options."""
    resolved = resolve_part(PARTITIONERS, dict(partition), "partition")
    name = resolved.pop("name")
    handed_over = np.array(labels)  # a copy, as somebody's own partitioner may write into it
    clients = PARTITIONERS.get(name)(handed_over, **resolved)
    if not np.array_equal(handed_over, labels):
        raise BadInputError(
            f"The partitioner {quoted(name)} changes the labels it is given, so its clients need not be those of the "
            "samples in their order; let it work on a copy: labels = labels.copy()"
        )
    return _checked_clients(clients, len(handed_over), name)


def _checked_clients(clients: Any, samples: int, partitioner: str) -> IntArray:
    """The client of every sample as a partitioner gave it, which may be somebody's own and give anything."""
    try:
        given = np.asarray(clients)
    except (ValueError, TypeError, RuntimeError):  # lists of unequal lengths, a tensor on a GPU
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "biuf" or given.ndim != 1:
        wrong = quoted(clients)
    elif len(given) != samples:
        wrong = f"{len(given):,} numbers"
    else:
        with np.errstate(invalid="ignore"):  # what is no number is told below
            numbers = given.astype(np.int64)
        strange = np.flatnonzero((numbers != given) | (numbers < 0))
        if not len(strange):
            return numbers
        wrong = f"{given[strange[0]]} for sample {strange[0]}"
    raise BadInputError(
        f"The partitioner {quoted(partitioner)} must return the client of each of the {samples:,} samples, an array of "
        f"whole numbers from 0 in the order of the labels, but it returned {wrong}"
    )


def own_fingerprints(parts: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """What changes with the source of those parts that are somebody's own, as what they made is made anew then."""
    own = [(name, part) for name, part in parts if ":" in name or is_own(part)]
    if not own:
        return {}
    from fedarena.core.own_source import source_of  # which needs torch, as built-in parts do not

    source = source_of(own)
    for note in source.notes:
        warn_user(note)
    return source.fingerprints


def cache_folder() -> Path:
    """Where built stores are kept: ``$FEDARENA_CACHE``, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_path("fedarena"))


@dataclass(frozen=True)
class StoreBuild:
    """What writes a store: where it goes, what it is called, what it is made of, and whom to tell how far it is."""

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
        notes: Sequence[str] = (),
    ) -> FederationWriter:
        """A writer for the store to build; `notes` are sentences on what was done to the samples."""
        return FederationWriter(
            self.path,
            name=self.name,
            task=task,
            columns=columns,
            source=self.source,
            attributes=attributes,
            notes=notes,
        )


class Inputs(Protocol):
    """The files a source reads."""

    def find(self, folder: str | None) -> Mapping[str, Path]:
        """All of them by any names, given the option ``folder`` of the source; raises if some are missing."""

    def tarball(self, folder: str | None) -> Path | None:
        """An archive with all of them, where they are not there themselves; it is unpacked while a store is built."""
        return None


class CachedSource:
    """A source that builds a store once per set of options, and per state of the files that it reads."""

    def __init__(
        self, build: Callable[..., None], version: int, reads: Inputs | None, files: Sequence[str], state: StateOf
    ):
        functools.update_wrapper(self, build)  # its options and its description are those of the source
        _, *options = inspect.signature(build).parameters.values()
        progress = inspect.Parameter("progress", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.__signature__ = inspect.Signature([progress, *options])
        self._build, self._version, self.reads, self._files, self._state = build, version, reads, files, state

    def __call__(self, progress: Progress, **options: Any) -> Federation:
        """Opens the store, which is built first if it is not there."""
        path = self.path(**options)
        if not path.exists():
            with suppress(StoreExistsError):  # somebody else built the same store at the same time
                source = self._spec(options)
                self._build_store(StoreBuild(path, source.name, source, progress), options)
        try:
            federation = Federation.open(path)
            _check_source(federation, self._spec(options))
        except DamagedFileError as error:
            raise DamagedFileError(f"{error} Remove the folder {path} to have it built again.") from error
        return federation

    def _build_store(self, build: StoreBuild, options: Mapping[str, Any]) -> None:
        tarball = None if self.reads is None else self.reads.tarball(options["folder"])
        if tarball is None:
            self._build(build, **as_declared(self._build, options))
            return
        with unpacked(tarball, build.path, build.progress) as folder:
            self._build(build, **as_declared(self._build, {**options, "folder": str(folder)}))

    @property
    def reads_nothing(self) -> bool:
        """Whether its samples follow from its options alone."""
        return self.reads is None and not self._files

    def path(self, **options: Any) -> Path:
        """Where the store is or would be."""
        key = [self._build.__module__, self._spec(options).model_dump(mode="json")]
        if own := own_fingerprints(parts_among(self, options)):
            key.append(own)
        stem = f"{self._build.__name__}-{_digest(json.dumps(key, sort_keys=True))}"
        if self.reads is None:
            return cache_folder() / stem
        try:
            files = self.reads.find(options["folder"])
            state = [[key, path.name, *self._state(path)] for key, path in sorted(files.items())]
            named = [(name, Path(options[name])) for name in self._files if options[name] is not None]
            state += [[name, *state_of(path)] for name, path in named if path.exists()]
        except BadInputError:
            state = []
            if built := [path for path in cache_folder().glob(f"{stem}-*") if path.is_dir()]:
                return max(built, key=_built_at)
        return cache_folder() / f"{stem}-{_digest(json.dumps(state))}"

    def _spec(self, options: dict[str, Any]) -> SourceSpec:
        return SourceSpec(name=self._build.__name__, version=self._version, options=options)


def cached_source(
    version: int, reads: Inputs | None = None, files: Sequence[str] = (), state: StateOf | None = None
) -> Callable[[Callable[..., None]], CachedSource]:
    """Turns a builder ``build(target, *, options...)`` into a source that builds once per set of options.

    The source must be called with all options, as `load_federation` does, because they are the key in the
    cache. Raise `version` whenever the same options would give other samples than before. A source that reads
    files says which with `reads`, which is asked with its option ``folder``: it builds again when they have
    changed, and opens what it built last when some of them are gone. `files` are options that name further files.
    Where looking at all files takes too long, `state` says what of a file or folder changes with it, instead of
    `state_of`.
    """
    return lambda build: CachedSource(build, version, reads, files, state or state_of)


def cached_path(name: str, options: Mapping[str, Any] | None = None) -> Path | None:
    """Where the store of a federation is or would be; None if it is never built into the cache."""
    resolved = resolve_part(FEDERATIONS, {**(options or {}), "name": name}, "federation")
    source = FEDERATIONS.get(resolved.pop("name"))
    return source.path(**resolved) if isinstance(source, CachedSource) else None


def state_of(path: Path) -> list[int | str]:
    """What changes when a file does, or any file in a folder: sizes and times, as reading everything takes too long."""
    if not path.is_dir():
        seen = path.stat()
        return [seen.st_size, seen.st_mtime_ns]
    digest = hashlib.blake2b(digest_size=16)
    for name, entry in files_below(path):
        seen = entry.stat()
        digest.update(os.fsencode(f"{name}\0{seen.st_size}\0{seen.st_mtime_ns}\0"))
    return [digest.hexdigest()]


def _built_at(store: Path) -> int:
    """When a store was written: its folder also changes when a lost checksum is made anew, its manifest never does."""
    manifest = store / MANIFEST_NAME
    return (manifest if manifest.exists() else store).stat().st_mtime_ns


def _check_source(federation: Federation, expected: SourceSpec) -> None:
    """Raises if somebody put the store of another source, or of other options, in the place of this one."""
    found, wanted = (_plain(spec) for spec in (federation.source, expected))
    if found == wanted:
        return
    options = [name for name in wanted["options"] if found["options"].get(name) != wanted["options"][name]]
    of_others = (
        f"other options ({', '.join(options)})" if options and found["name"] == wanted["name"] else "another one"
    )
    raise DamagedFileError(
        f"{federation.path} is not the store of {wanted['name']} that it is called, but of {of_others}."
    )


def _plain(spec: SourceSpec) -> dict[str, Any]:
    """As it is written in a manifest."""
    plain: dict[str, Any] = json.loads(spec.model_dump_json())
    return plain


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _ignore(fraction: float, text: str) -> None:
    pass


def is_drawn(settings: Mapping[str, Any]) -> bool:
    """Whether a federation follows from its options alone, reads no files, and would have to be built first."""
    resolved = resolve_part(FEDERATIONS, settings, "federation")
    source = FEDERATIONS.get(resolved.pop("name"))
    return isinstance(source, CachedSource) and source.reads_nothing and not source.path(**resolved).exists()

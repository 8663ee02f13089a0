"""The files of a run folder, and the manifest that protects them.

``manifest.json`` carries the run's random id, the length and checksum of every file that is complete, and a checksum of
itself. It is written with the files that a run begins with, and again, last of all, when the run ends in whatever way.
So a file that is there but not in the manifest does not count: its run was killed while it was being closed. A run
that goes on first takes back what the manifest says about its end. What is still growing, under ``checkpoint/``, is
protected by ``state.json`` (see `fedarena.storage.checkpoint`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedarena.core.arrow_memory import arrow_file
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import json_text, reading, write_bytes
from fedarena.core.sealed_json import checksum_of, seal_json, unseal_json
from fedarena.storage.changes import finish_changes

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
FLEET_FILE = "fleet.json"
ATTRIBUTES_FILE = "attributes.parquet"
CONSTANTS_FILE = "constants.safetensors"  # of the model: frozen parameters and buffers
SUMMARY_FILE = "summary.json"
PREDICTIONS_FILE = "predictions.parquet"
MANIFEST_FILE = "manifest.json"
STATE_FILE = "checkpoint/state.json"
RUN_ID = "run_id"  # in environment.json, too
CONTENT_FINGERPRINT = "federation_content_fingerprint"  # in environment.json
# What a run begins with; it never changes.
FIRST_FILES = (CONFIG_FILE, ENVIRONMENT_FILE, FLEET_FILE, ATTRIBUTES_FILE, CONSTANTS_FILE)


class FileSeal(BaseModel):
    """What a file must be like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: Annotated[int, Field(ge=0, strict=True)]
    checksum: str


class Manifest(BaseModel):
    """The content of ``manifest.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    run_id: str
    files: dict[str, FileSeal]


class RunFiles:
    """The files of one run; each is read whole and compared with the manifest, so nothing else is taken for it."""

    def __init__(self, folder: Path, manifest: Manifest | None):
        self.folder = folder
        self._manifest = manifest  # None: written by an earlier version, which protected nothing

    @classmethod
    def create(cls, folder: Path) -> RunFiles:
        """Those of a new run, none of which is there yet."""
        return cls(folder, Manifest(run_id=uuid.uuid4().hex, files={}))

    @classmethod
    def open(cls, folder: Path) -> RunFiles:
        """Those of a run on disk."""
        if not (folder / CONFIG_FILE).exists():
            raise BadInputError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
        finish_changes(folder)
        path = folder / MANIFEST_FILE
        if not path.exists():
            if _was_protected(folder):
                raise DamagedFileError(f"{path} is missing, so nothing tells whether the run's files are its own")
            return cls(folder, None)
        content = unseal_json(_read(path))
        if content is None:
            raise DamagedFileError(f"{path} is damaged: its content does not match its checksum")
        try:
            return cls(folder, Manifest.model_validate(content))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise DamagedFileError(f"{path} cannot be understood: {where} {problem['msg']}") from None

    @property
    def run_id(self) -> str | None:
        """What tells the run from every other; None in runs of earlier versions."""
        return None if self._manifest is None else self._manifest.run_id

    @property
    def is_closed(self) -> bool:
        """Whether the run ended, in whatever way, and everything about its end is on disk."""
        return SUMMARY_FILE in self

    def __contains__(self, name: str) -> bool:
        return (self.folder / name).exists() if self._manifest is None else name in self._manifest.files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFiles) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def read(self, name: str) -> bytes:
        """The content of a file, which is what the run wrote."""
        path = self.folder / name
        data = _read(path)
        seal = None if self._manifest is None else self._manifest.files.get(name)
        if seal is not None and seal != _seal(data):
            if name == CONFIG_FILE:
                raise BadInputError(
                    f"{path} was changed after the run began, so it does not say what the run did; "
                    f"put it back, or start a new run with: fedarena run {path} name=…"
                )
            raise DamagedFileError(f"{path} is damaged: its content does not match its checksum in {MANIFEST_FILE}")
        return data

    def check_first_files(self) -> None:
        """Refuses a run whose settings, or what else it began with, are no longer those that it began with."""
        for name in FIRST_FILES:
            if name in self:
                self.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, which counts once the manifest is written."""
        write_bytes(self.folder / name, data)
        self.include(name, data)

    def include(self, name: str, data: bytes) -> None:
        """Makes a file that is already there part of the next manifest."""
        assert self._manifest is not None
        files = {**self._manifest.files, name: _seal(data)}
        self._manifest = self._manifest.model_copy(update={"files": files})

    def write_manifest(self) -> None:
        """From now on everything that was written counts."""
        assert self._manifest is not None
        write_bytes(self.folder / MANIFEST_FILE, seal_json(self._manifest.model_dump(mode="json")))

    def beginning_with(self, changed: Mapping[str, bytes]) -> bytes:
        """The manifest of the same run, which has not ended, and began with some other files."""
        assert self._manifest is not None
        first = {name: seal for name, seal in self._manifest.files.items() if name in FIRST_FILES}
        files = first | {name: _seal(data) for name, data in changed.items()}
        return seal_json(self._manifest.model_copy(update={"files": files}).model_dump(mode="json"))

    def reopen(self) -> None:
        """From now on the run has not ended."""
        assert self._manifest is not None
        files = {name: seal for name, seal in self._manifest.files.items() if name in FIRST_FILES}
        self._manifest = self._manifest.model_copy(update={"files": files})
        self.write_manifest()
        (self.folder / SUMMARY_FILE).unlink(missing_ok=True)  # it tells how the run ended before


def write_first_files(
    folder: Path,
    config_yaml: str,
    environment: dict[str, Any],
    fleet: dict[str, Any] | None,
    attributes: pa.Table | None,
    constants: Mapping[str, Tensor] | None,
) -> RunFiles:
    """Writes what a run begins with into its new folder."""
    (folder / "checkpoint").mkdir()
    files = RunFiles.create(folder)
    files.write(CONFIG_FILE, config_yaml.encode())
    files.write(ENVIRONMENT_FILE, json_text({RUN_ID: files.run_id, **environment}).encode())
    if fleet is not None:
        files.write(FLEET_FILE, json_text(fleet).encode())
    if attributes is not None:
        files.write(ATTRIBUTES_FILE, parquet_bytes(attributes))
    if constants:
        own_memory = {name: t.cpu().contiguous().clone() for name, t in constants.items()}
        files.write(CONSTANTS_FILE, safetensors.torch.save(own_memory))
    files.write_manifest()
    return files


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file with a checksum for every page, which also readers other than FedArena can verify."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def read_parquet(files: RunFiles, name: str) -> pa.Table:
    """A table of a run."""
    path, data = files.folder / name, files.read(name)
    try:
        with reading(path):
            return pq.read_table(arrow_file(data), page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise DamagedFileError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def read_constants(files: RunFiles) -> dict[str, Tensor]:
    """What of a run's model is not trained."""
    if CONSTANTS_FILE not in files:
        return {}
    path = files.folder / CONSTANTS_FILE
    try:
        return safetensors.torch.load(files.read(CONSTANTS_FILE))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _seal(data: bytes) -> FileSeal:
    return FileSeal(bytes=len(data), checksum=checksum_of(data))


def _read(path: Path) -> bytes:
    try:
        with reading(path):
            return path.read_bytes()
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from None


def _was_protected(folder: Path) -> bool:
    """Whether a run was written by a version that writes manifests."""
    path = folder / ENVIRONMENT_FILE
    return path.is_file() and f'"{RUN_ID}"'.encode() in _read(path)

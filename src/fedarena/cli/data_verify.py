"""The command that checks a federation's store, and the files that it was built from, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.cli.base import data_command
from fedarena.cli.federations import FederationName, FederationSettings, federation_options, progress_bar, say
from fedarena.core.errors import BadInputError, DamagedFileError

if TYPE_CHECKING:
    from fedarena.data.raw.files import RawFile, RawFiles


@data_command
def verify(name: FederationName, settings: FederationSettings = None) -> None:
    """Check a store against its checksums, and the files it was built from against those published."""
    from fedarena.data.raw.files import raw_files_of
    from fedarena.data.registry import cached_path

    source, options = federation_options(name, settings)
    path = cached_path(source, options) or (Path(options["path"]) if source == "store" else None)
    if path is None:
        raise BadInputError(f"{name} keeps no store that could be checked")
    is_there = path.is_dir() or source == "store"
    problems = _check_store(path, in_cache=source != "store") if is_there else []
    if (files := raw_files_of(source)) is not None:
        checked, wrong = _check_files(files, options["folder"], options.get("verify", True))
        problems += wrong
        is_there = is_there or checked
    if problems:
        raise DamagedFileError("; ".join(str(problem) for problem in problems))
    if not is_there:
        raise BadInputError(
            f"There is nothing to check: {name} is not prepared with these options; fedarena data prepare does that"
        )


def _check_store(path: Path, in_cache: bool) -> list[DamagedFileError]:
    from fedarena.data import Federation
    from fedarena.data.statistics.flair_counts import compared_with_flair
    from fedarena.data.statistics.table5 import compared_with_table_5
    from fedarena.data.statistics.table7 import compared_with_table_7
    from fedarena.display.drawing.units import count, listing

    with progress_bar() as advance:
        advance(0, None, f"Checking {path.name}")
        try:
            federation = Federation.open(path)
            federation.verify()
        except DamagedFileError as error:
            return [DamagedFileError(f"{error} Remove the folder {path} to have it built again") if in_cache else error]
    files = listing(sorted(federation.manifest.files))
    clients, samples = count(federation.num_clients, "client"), count(federation.num_samples, "sample")
    say(f"Store {path}: {files} are as they were written ({clients}, {samples})")
    for compare in (compared_with_table_7, compared_with_table_5, compared_with_flair):
        if (compared := compare(federation)) is not None:
            say(f"Counted: {compared}")
    return []


def _check_files(files: RawFiles, folder: str | None, verify: bool) -> tuple[bool, list[DamagedFileError]]:
    """Whether there was anything to check, and what is wrong with it; without `verify` nothing need be as published."""
    found, problems = files.there(folder), []
    for key, path in found.items():
        try:
            text = _check_file(files.files.get(key), path) if verify else "not checked, as verify=false says"
            say(f"File {path}: {text}")
        except DamagedFileError as error:
            problems.append(error)
    if found and (counted := files.counted(found)) is not None:
        say(f"Files counted: {counted}")
    for key, file in files.files.items():
        if key not in found and not (found and files.one_is_enough):
            say(f"File {file.name}: not in {files.folder(folder)}")
    return bool(found), problems


def _check_file(file: RawFile | None, path: Path) -> str:
    """What was found out about a file."""
    if file is None or file.checksum is None:
        return "not checked, no checksum is known"
    if file.is_unpacked(path):
        return f"not checked, unpacked; the known checksum is that of {file.name}"
    with progress_bar() as advance:
        file.check(path, lambda fraction: advance(fraction, 1.0, f"Checking {path.name}"))
    return f"as published ({file.checksum.partition(':')[0]})"

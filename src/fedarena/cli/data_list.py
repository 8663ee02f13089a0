"""The command that shows which federations there are and what of them is on this machine."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.cli.base import data_command, screen
from fedarena.cli.federations import folder_bytes, say

if TYPE_CHECKING:
    from fedarena.data.raw.files import RawFiles
    from fedarena.data.registry import Source


@data_command
def list_() -> None:
    """Show all federations, which files they need, which of these are there, and what is prepared."""
    from fedarena.data import FEDERATIONS
    from fedarena.data.raw.files import raw_files_of
    from fedarena.data.registry import CachedSource, cache_folder
    from fedarena.display.drawing.units import BYTES, count, listing, quantity
    from fedarena.display.terminal import names_table

    prepared = _prepared(cache_folder())
    rows = []
    for name in FEDERATIONS.names():
        source = FEDERATIONS.get(name)
        summary = (inspect.getdoc(source) or "").partition("\n\n")[0].replace("\n", " ")
        if (files := raw_files_of(name)) is not None:
            details = [files_line(files)]
        else:
            given = [f"{option.name}=…" for option in _options(source) if option.default is option.empty]
            details = [f"files: yours, given as {listing(given)}" if given else "no files needed"]
        if isinstance(source, CachedSource):
            details.append(_stores_line(prepared.get(name, [])))
        rows.append((name, summary, "\n".join(details)))
    screen.print(names_table("federations", rows))
    say(f"Cache: {cache_folder()}")
    if unfinished := sorted(cache_folder().glob(".*.work")):
        size = quantity(sum(map(folder_bytes, unfinished)), BYTES)
        builds = count(len(unfinished), "build")
        say(f"{builds} not finished, {size} in .*.work there; the same command goes on with one, or remove it")


def files_line(files: RawFiles) -> str:
    """Which of the files are there, and where the others are looked for."""
    from fedarena.display.drawing.units import count, listing

    found = files.there(None)
    if files.summary is not None:
        fetching = "; prepare --download fetches what is missing" if files.to_fetch(None) else ""
        return f"files: {count(len(found), 'file')} of {files.summary} in {files.folder(None)}{fetching}"
    missing = [file.name for key, file in files.files.items() if key not in found]
    place = files.folder(None)
    known = [file.name for file in files.to_fetch(None)]
    fetched = f"; prepare --download fetches {listing(known)}" if known else ""
    if not missing or (found and files.one_is_enough):
        return f"files: {listing([path.name for path in found.values()])} in {place}"
    if files.one_is_enough:
        return f"files: none of {listing(missing)} in {place}; one is enough{fetched}"
    there = listing([path.name for path in found.values()]) if found else "none"
    return f"files: {there} in {place}, missing: {listing(missing)}{fetched}"


def _options(source: Source) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(source).parameters.values() if one.kind is one.KEYWORD_ONLY]


def _stores_line(stores: list[Path]) -> str:
    from fedarena.display.drawing.units import BYTES, count, quantity

    if not stores:
        return "not prepared"
    size = quantity(sum(map(folder_bytes, stores)), BYTES)
    return f"prepared: {count(len(stores), 'store')}, {size}"


def _prepared(cache: Path) -> dict[str, list[Path]]:
    """The stores in the cache by the name of their source; one for each set of options."""
    stores: dict[str, list[Path]] = defaultdict(list)
    for manifest in sorted(cache.glob("[!.]*/federation.json")):
        try:
            name = json.loads(manifest.read_text(encoding="utf-8"))["source"]["name"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged store, which is refused where it is used
        stores[name].append(manifest.parent)
    return stores

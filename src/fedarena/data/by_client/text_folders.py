"""FedScale's form of texts: folders train, val and test with a file for every client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedarena.data.by_client.packed import Member, members
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import TextFiles, words_of
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFiles

_FOLDERS = (("train", 0), ("val", 1), ("validation", 1), ("test", 2))  # with the place of the group in GROUPS
_ANY = re.compile("")


class TextFolders(RawFiles):
    """A folder for each group, in which every client has a file; or other files, known by their names."""

    def found(self, given: str | None) -> dict[str, Path]:
        """The folders, or else the other files."""
        return {f"folder {path.name}": path for path in self.folders(given)} or super().found(given)

    def folders(self, given: str | None) -> dict[Path, int]:
        """Every folder with the number of its group."""
        place = self.folder(given)
        inside = place / self.federation
        root = inside if inside.is_dir() else place
        found = {root / name: code for name, code in _FOLDERS if (root / name).is_dir()}
        return found if any(code == 0 for code in found.values()) else {}


def texts_of_folders(folders: dict[Path, int]) -> TextFiles:
    """A text for every file; files without words make no client."""

    def records(folder: Path) -> Iterator[Record]:
        for number, member in enumerate(members(folder, _ANY), 1):
            if words := words_of(decoded(member)):
                client = member.name.removesuffix(".txt")
                yield Record(client, (folders[folder], number, words), member.done)

    names = {code: folder for folder, code in folders.items()}
    return TextFiles.of(list(folders), records, PublishedGroups(lambda group, line: f"file {line:,} of {names[group]}"))


def decoded(member: Member) -> str:
    """The text of a file, without bytes that are not UTF-8, as FedScale reads it."""
    return member.content.decode("utf-8", "ignore")

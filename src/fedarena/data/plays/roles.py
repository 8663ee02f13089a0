"""Roles and what they say, gathered speech by speech."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedarena.core.errors import BadInputError


@dataclass(frozen=True)
class Role:
    """A speaking role."""

    play: str  # as it is printed; empty if the text does not say
    name: str
    text: str

    @property
    def id(self) -> str:
        """As LEAF calls its users: THE_TRAGEDY_OF_KING_LEAR_KENT."""
        return _plain(f"{self.play} {self.name}")


class Speeches:
    """Collects speeches. Names that differ only in case, spaces or punctuation are one role, as in LEAF."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[str, list[str]]] = {}  # the name as it was first, and the lines
        self._where: dict[str, str] = {}

    def begin_play(self, title: str, where: str) -> None:
        """`where` is the file, or the file and the line, for a sentence in case the same play comes twice."""
        before = self._where.setdefault(_plain(title), where)
        if before != where:
            raise BadInputError(f"{where}: the play {title!r} is there twice, before in {before}")

    def add(self, play: str, name: str, lines: list[str]) -> None:
        """Adds a speech; one that has no words or nobody to say it is left out."""
        name = " ".join(name.split()).upper()
        spoken = [line for line in (" ".join(line.split()) for line in lines) if line]
        if _plain(name) and spoken:
            self._said.setdefault((play, _plain(name)), (name, []))[1].extend(spoken)

    def roles(self) -> list[Role]:
        """All roles in the order of their first words; a line of theirs is a line of the text."""
        return [Role(play, name, "\n".join(lines)) for (play, _), (name, lines) in self._said.items()]


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").upper()

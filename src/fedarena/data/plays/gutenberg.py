"""Gutenberg's etext 100 of 1994, the complete works in one file, which LEAF uses (1994-01-100.zip).

A work begins with its year, its title and "by William Shakespeare". A speech begins with two spaces, the role and a
full stop, and goes on in lines with four spaces; in The Comedy of Errors it begins without spaces and goes on with two.
Names are capitals in some plays ("  COUNTESS. In delivering ...") and abbreviations in others ("  Ham. Words, ...").
Stage directions stand between empty lines or far to the right, also behind the words of a line, or in brackets; in The
Comedy of Errors they begin with "<" or have no spaces.

There are two ways to read it:

- ``speech``: what is said, line by line. Left out are stage directions, poems, and what comes before the first act.
- ``leaf``: as LEAF's script reads it, on which the numbers of its paper rest. Lines with four spaces count as spoken
  whatever they are, line ends are spaces, and roles of one or two lines are left out. Where names have no spaces before
  them, notices about copyright become roles ("WITH PERMISSION. ELECTRONIC AND ...").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from fedarena.core.errors import BadInputError
from fedarena.data.plays.documents import decoded, documents
from fedarena.data.plays.roles import Role, Speeches

Reading = Literal["speech", "leaf"]

_AUTHOR = "by William Shakespeare"
_LINES_TO_TITLE = 7
_NAME = r"([A-Za-z][A-Za-z ]*)\. (.*)"
_NAME_WITH_TITLE = r"((?:(?:MRS|MR|DR)\. )?[A-Za-z][A-Za-z' -]*)\. +(.*)"
_HEADING = re.compile(r"\s*((act|scene)\s+(\d|[ivx]+\b)|(the )?(prologue|induction)\b)", re.IGNORECASE)
_ACT = re.compile(r"(act|scene)\b", re.IGNORECASE)
_RIGHT = re.compile(r"(?<=\S)\s{3,}\S.*")  # a direction behind the words of a line
_NOTICE = re.compile(r"^<<.*?>>", re.MULTILINE | re.DOTALL)  # about copyright, before every act
_BRACKETS = re.compile(r"\[[^\[\]]{0,500}\]")
_FAR_RIGHT = 20
_LEAF_FEWEST_LINES = 3


@dataclass(frozen=True)
class _Work:
    title: str
    where: str
    lines: list[str]

    @property
    def is_flush(self) -> bool:
        """Whether speeches begin without spaces, as in The Comedy of Errors."""
        flush = sum(re.match(_NAME, line) is not None for line in self.lines)
        return flush > sum(re.match("  " + _NAME, line) is not None for line in self.lines)


def read_gutenberg(path: Path, reading: Reading) -> list[Role]:
    """The roles of all plays in the file, or in the archive that holds it."""
    texts = list(documents(path, ".txt"))
    if len(texts) != 1:
        raise BadInputError(f"{path} must hold one .txt file with the complete works, not {len(texts)}")
    where, content = texts[0]
    speeches = Speeches()
    roles: list[Role] = []
    for work in _works(decoded(content, where), where):
        if not any(map(_HEADING.match, work.lines)):
            continue  # a poem
        if reading == "leaf":
            roles += _as_leaf(work)
        else:
            for name, lines in _speeches(work):
                speeches.add(work.title, name, lines)
    roles += speeches.roles()
    if not roles:
        raise BadInputError(
            f"{where} has no speaking role: this must be Gutenberg's edition of 1994, with works that begin with a "
            f"title and {_AUTHOR!r} and speeches that begin with two spaces, a name and a full stop"
        )
    return roles


def _works(text: str, where: str) -> Iterator[_Work]:
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(_AUTHOR)]
    seen = Speeches()
    for start, stop in pairwise([*starts, len(lines)]):
        above = reversed(lines[max(start - _LINES_TO_TITLE, 0) : start])
        title = next((line.strip() for line in above if line.strip()), None)
        if title is None:
            raise BadInputError(f"{where}, line {start + 1}: there is no title above {_AUTHOR!r}")
        place = f"{where}, line {start + 1}"
        seen.begin_play(title, place)
        yield _Work(title, place, lines[start + 1 : stop])


def _speeches(work: _Work) -> Iterator[tuple[str, list[str]]]:
    """Roles and what they say, without stage directions."""
    flush = work.is_flush
    begins = re.compile(_NAME_WITH_TITLE if flush else "  " + _NAME_WITH_TITLE)
    least_spaces = 2 if flush else 3  # a few lines have lost the fourth
    lines = _NOTICE.sub("", "\n".join(work.lines)).split("\n")
    first = next((number for number, line in enumerate(lines) if _HEADING.match(line)), len(lines))
    name, said = "", list[str]()
    for line in _without_directions(lines[first:]):
        if _ACT.match(line):
            yield name, _spoken(said)
            name, said = "", []
        elif speech := begins.match(line):
            yield name, _spoken(said)
            name, said = speech[1], [speech[2]]
        elif _spaces(line) >= least_spaces:
            said.append(line)
    yield name, _spoken(said)


def _spoken(lines: list[str]) -> list[str]:
    """The words of a speech without the directions beside them."""
    return _BRACKETS.sub(" ", "\n".join(_RIGHT.sub("", line) for line in lines)).split("\n")


def _without_directions(lines: list[str]) -> Iterator[str]:
    """All lines but those far to the right, and those of one to three indented lines between empty ones."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        if len(block) > 3 or any(_spaces(each) <= 4 for each in block):
            yield from (each for each in block if _spaces(each) < _FAR_RIGHT)
        block = []


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _as_leaf(work: _Work) -> list[Role]:
    flush = work.is_flush
    begins = re.compile(_NAME if flush else "  " + _NAME)
    goes_on = re.compile("(?!<)(.*)" if flush else "    (.*)")
    said: dict[str, list[str]] = {}
    name = None
    for line in work.lines:
        if speech := begins.match(line):
            is_heading = flush and speech[1].upper().startswith("ACT ")
            name = None if is_heading else " ".join(speech[1].upper().split())
            words = speech[2]
        elif more := goes_on.match(line):
            words = more[1]
        else:
            name = None if flush else name
            continue
        if name is not None:
            said.setdefault(name, []).append(words)
    if len(said) < 2:
        return []
    return [
        Role(work.title, name, re.sub("  +", " ", "".join(f"{line} " for line in lines)))
        for name, lines in said.items()
        if len(lines) >= _LEAF_FEWEST_LINES
    ]

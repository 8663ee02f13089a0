"""Plays in the XML of Jon Bosak: a PLAY has a TITLE and SPEECHes of one SPEAKER or several, and LINEs.

Stage directions and headings of songs are left out. What several say together is said by a role of their own, "A AND
B" in the order of the alphabet, as their words would otherwise be in the samples of more than one client. Speeches of
nobody are left out (the prologue of Romeo and Juliet has an empty SPEAKER).
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.plays.documents import documents
from fedarena.data.plays.roles import Role, Speeches

_NOT_SPOKEN = frozenset({"STAGEDIR", "SUBHEAD"})


def read_bosak(path: Path) -> list[Role]:
    """The roles of all plays in an archive, a folder or a file."""
    speeches = Speeches()
    plays = 0
    for where, content in documents(path, ".xml"):
        try:
            play = ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            line, column = error.position
            reason = str(error).partition(":")[0]
            raise DamagedFileError(f"{where}, line {line}: the XML is malformed at column {column}: {reason}") from None
        except (ValueError, LookupError) as error:  # an encoding that is not known
            raise BadInputError(f"{where} cannot be read: {error}") from None
        title = " ".join((play.findtext("TITLE") or "").split())
        if play.tag != "PLAY" or not title:
            raise BadInputError(f"{where} is not a play: it must be a PLAY with a TITLE, not {play.tag} {title!r}")
        speeches.begin_play(title, where)
        plays += 1
        for speech in play.iter("SPEECH"):
            speakers = sorted(name.strip() for name in map(_spoken, speech.findall("SPEAKER")) if name.strip())
            speeches.add(title, " AND ".join(speakers), [_spoken(line) for line in speech.findall("LINE")])
    if not plays:
        raise BadInputError(f"{path} has no plays: it must hold XML files, one for every play")
    roles = speeches.roles()
    if not roles:
        raise BadInputError(f"{path} has no speaking role: no SPEECH with a SPEAKER and a LINE")
    return roles


def _spoken(element: ElementTree.Element) -> str:
    """The text of an element without what is only done; elements may be nested deeper than functions can be."""
    pieces: list[str] = []
    waiting: list[ElementTree.Element | str] = [element]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            pieces.append(one)
            continue
        pieces.append(one.text or "")
        for child in reversed(one):
            waiting += [child.tail or "", " " if child.tag in _NOT_SPOKEN else child]
    return "".join(pieces)

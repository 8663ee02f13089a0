"""label_relationship.txt: which coarse label each fine one belongs to, a pair a line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

_MARKS = ("->", ",", "\t")  # between the two labels: as published, and as others write it
_AROUND = " \t\r()'\"“”"


@dataclass(frozen=True)
class Taxonomy:
    """The labels that there are. A coarse label also counts as a fine one, for what could not be told more exactly."""

    path: Path
    coarse_of: dict[str, str]  # by fine label

    @cached_property
    def coarse(self) -> frozenset[str]:
        """All coarse labels."""
        return frozenset(self.coarse_of.values())

    @cached_property
    def fine(self) -> frozenset[str]:
        """All fine labels."""
        return frozenset(self.coarse_of) | self.coarse

    def unknown(self, label: object, fine: bool, where: str) -> BadInputError:
        """What to say of a label that is not among these."""
        which, names = ("fine", self.fine) if fine else ("coarse", self.coarse)
        hint = nearest(label, names) if isinstance(label, str) else "a label is text"
        return BadInputError(f"{where} has the {which} label {quoted(label)}, which {self.path} does not know; {hint}")


def read_taxonomy(path: Path) -> Taxonomy:
    """The pairs in the file."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not UTF-8 text") from None
    coarse_of: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        mark = next((mark for mark in _MARKS if mark in line), None)
        pair = [label.strip(_AROUND) for label in line.split(mark)] if mark else []
        if len(pair) != 2 or not all(pair):
            raise BadInputError(f"{path}, line {number} must be a fine and a coarse label, not {quoted(line)}")
        fine, coarse = pair
        if coarse_of.setdefault(fine, coarse) != coarse:
            raise BadInputError(
                f"{path}, line {number}: {fine} belongs to {coarse_of[fine]} above and to {coarse} here"
            )
    return Taxonomy(path, coarse_of)

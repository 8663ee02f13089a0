"""How numbers are written in texts: what is before a fraction, and what is between thousands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted

_BETWEEN_THOUSANDS = (",", ".", " ", "'", "’", "\u00a0", "\u202f")
_LOOKS_LIKE_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")


@dataclass(frozen=True)
class NumberForm:
    """How a table writes its numbers."""

    decimal: str = "."  # what is before a fraction
    thousands: str | None = None  # what is between thousands, if anything

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise BadInputError(f"decimal must be a point or a comma, not {quoted(self.decimal)}.")
        if self.thousands is None:
            return
        if self.thousands not in _BETWEEN_THOUSANDS:
            raise BadInputError(
                f"thousands must be a comma, a point, a blank or an apostrophe, not {quoted(self.thousands)}."
            )
        if self.thousands == self.decimal:
            raise BadInputError(f"decimal and thousands cannot both be {quoted(self.decimal)}; say the other one, too.")

    @property
    def is_usual(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.decimal == "." and self.thousands is None

    def plain(self, texts: Sequence[str]) -> list[str]:
        """Texts with numbers as Python writes them; other texts, and numbers in another form, stay what they are."""
        point = re.escape(self.decimal)
        fraction = rf"(?:{point}(\d*))?((?:[eE][+-]?\d+)?)"
        whole = r"([+-]?\d*)"
        if self.thousands is not None:
            whole = rf"([+-]?(?:\d{{1,3}}(?:{re.escape(self.thousands)}\d{{3}})+|\d*))"
        number = re.compile(whole + fraction)
        return [self._plain(text, number.fullmatch(text)) for text in texts]

    def _plain(self, text: str, found: re.Match[str] | None) -> str:
        if found is None or not any(letter.isdigit() for letter in found[1] + (found[2] or "")):
            return text
        whole = found[1] if self.thousands is None else found[1].replace(self.thousands, "")
        return whole + ("" if found[2] is None else f".{found[2]}") + found[3]

    def is_strange(self, text: str, plain: str) -> bool:
        """Whether a text has a point where fractions have a comma, so that one cannot tell what it means."""
        return self.decimal == "," and "." in text and text == plain


USUAL_FORM = NumberForm()


def looks_like_thousands(text: str) -> bool:
    """Whether commas in a number are where those between thousands are."""
    return _LOOKS_LIKE_THOUSANDS.fullmatch(text) is not None

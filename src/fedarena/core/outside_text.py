"""Text that others wrote (ids of clients, names in files, what somebody typed), made fit to be shown.

Nothing here needs more than Python, because a phone that is measured shows text, too.
"""

from __future__ import annotations

import re
from typing import Any

# What a terminal would obey instead of showing it (control characters and thereby escape sequences), what turns the
# direction of writing or ends a line, and halves of characters, which cannot be written at all.
_DANGEROUS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# So much of a value is quoted in a sentence.
_MOST_CHARACTERS = 80


def harmless(text: str) -> str:
    """Text on one line in which control characters and the like are written out, such as ``\\x1b`` and ``\\n``."""
    return _DANGEROUS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def harmless_lines(text: str) -> str:
    """Like `harmless`, but lines and tabs stay what they are."""
    return _DANGEROUS.sub(lambda found: found[0] if found[0] in "\n\t" else harmless(found[0]), text)


def quoted(value: Any) -> str:
    """A value as a sentence about it quotes it: as Python writes it, and not too long."""
    try:
        text = harmless(repr(value))
    except ValueError:  # Python does not write down numbers with thousands of digits
        return "a number of very many digits"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def as_file_name(name: str) -> str:
    """A name from outside as the beginning of a file's name, which cannot lead to another folder."""
    return re.sub(r"[^\w.+-]+", "_", name)[:_MOST_CHARACTERS].lstrip(".") or "unnamed"

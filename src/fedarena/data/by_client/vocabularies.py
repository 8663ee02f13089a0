"""Lists of words that come with texts: a line for each, or pickled, which is read without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes
from fedarena.core.pickles import PlainUnpickler, parse_pickle


class _WordsUnpickler(PlainUnpickler):
    allowed: ClassVar[str] = "a vocabulary may hold texts, numbers, lists and dictionaries only"


_PICKLED = (b"\x80", b"(lp", b"(dp", b"]", b"}")


def read_vocabulary(path: Path) -> list[str]:
    """The words of a file in their order: a pickled list, or dictionary by word, or a text with a word in each line."""
    content = read_bytes(path)
    if not content.startswith(_PICKLED):
        try:
            words = content.decode().split("\n")
        except UnicodeDecodeError:
            raise BadInputError(f"{path} is neither a pickled list of words nor UTF-8 text") from None
        return [word.strip() for word in words if word.strip()]
    value = parse_pickle(content, path, _WordsUnpickler)
    if isinstance(value, dict):
        numbered = all(type(place) is int for place in value.values())
        value = sorted(value, key=value.__getitem__) if numbered else list(value)
    if not isinstance(value, list) or not value:
        raise BadInputError(f"{path} must hold a list of words, not {type(value).__name__}")
    found = [word.decode("utf-8", "replace") if isinstance(word, bytes) else word for word in value]
    for place, word in enumerate(found, 1):
        if not isinstance(word, str):
            raise BadInputError(f"{path} must hold a list of words; entry {place:,} is no text")
    return found

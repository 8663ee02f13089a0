"""Two texts that belong together, such as a sentence and its translation, as one text whose next word is predicted."""

from __future__ import annotations

END = "<end>"


def with_marks(first: str, second: str, mark: str) -> str:
    """``first mark second <end>``, all of them words separated by spaces.

    >>> with_marks("good morning", "bonjour", "<fr>")
    'good morning <fr> bonjour <end>'
    """
    return " ".join(part for part in (first, mark, second, END) if part)

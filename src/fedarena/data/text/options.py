"""The options of a federation of somebody's own texts, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.own.parts import DivisionOptions, Missing
from fedarena.data.own.who import Partition
from fedarena.data.text.words import SPECIAL

_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class TextOptions:
    """What becomes of texts and of their clients."""

    tokenizer: str
    vocabulary: int
    length: int | None
    join: bool
    missing: Missing
    partition: Partition | None
    minimum_samples: int
    division: DivisionOptions

    def __post_init__(self) -> None:
        for option, value, least in (
            ("vocabulary", self.vocabulary, len(SPECIAL) + 1),
            ("length", 1 if self.length is None else self.length, 1),
            ("minimum_samples", self.minimum_samples, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_TOKENS:
                raise BadInputError(f"{option} must be a number from {least} to {_MOST_TOKENS:,}, not {quoted(value)}.")
        if self.missing not in ("refuse", "drop"):
            raise BadInputError(f"missing must be 'refuse' or 'drop', not {quoted(self.missing)}.")

    @property
    def recorded(self) -> dict[str, Any]:
        """What a store notes of them."""
        own = {name: value for name, value in vars(self).items() if name != "division"}
        return {**own, **vars(self.division)}


@dataclass(frozen=True)
class TextColumns:
    """Which column of a table is what. Without one of labels, the next token is predicted."""

    text: str
    client: str | None = None
    label: str | None = None
    part: str | None = None
    attributes: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None  # where classes have an order of their own

    @property
    def used(self) -> dict[str, str]:
        """The columns by what they are for."""
        known = {"client": self.client, "text": self.text, "label": self.label, "part": self.part}
        found = {what: column for what, column in known.items() if column is not None}
        return {**found, **{f"attribute {name}": name for name in self.attributes}}

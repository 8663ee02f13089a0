"""What LEAF's JSON lacks about a federation: written into every file under a key that LEAF's readers ignore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedarena.core.errors import BadInputError
from fedarena.core.options import explain
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AttributeType, ColumnSpec, Count, Group, Part, TaskSpec

KEY = "fedarena"
# Tokens that are no characters need one each in a string; the first that the vocabulary does not have is taken.
_FOR_PADDING = "\u2400\u25a1\u25a2\u25a3\ue000"
_FOR_UNKNOWN = "\ufffd\u25c6\u25c7\u25c8\ue001"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Description(_Strict):
    """The federation that a file is a piece of."""

    name: str
    task: TaskSpec
    columns: dict[str, ColumnSpec]
    attributes: dict[str, AttributeType]
    clients: Count
    samples: dict[Group, dict[Part, Count]]
    text: Literal["numbers", "characters", "words"]  # how tokens are written
    characters: str | None = None  # one for every token
    label_characters: str | None = None  # one for every label, if labels are written so

    @property
    def text_column(self) -> str | None:
        """The column that holds text."""
        if self.task.vocabulary is None:
            return None
        return "tokens" if self.task.kind == "next_token" else "x"

    @property
    def has_inputs_as_leaf(self) -> bool:
        """Whether its files have LEAF's list x, or only inputs that LEAF does not know, such as codes of categories."""
        return "x" in self.columns or self.text_column == "tokens"

    @property
    def gap(self) -> int:
        """How many samples after one may share text with it, as samples are cut here."""
        if self.task.kind == "next_token":
            return 1  # a sequence begins with the last token of the one before
        if self.task.tokens is not None and self.text == "characters":
            return self.columns["x"].shape[0]  # a window begins one character after the one before
        return 0

    @property
    def words(self) -> tuple[str, ...]:
        """The names of all tokens."""
        return _token_names(self.task) or ()


class Piece(_Strict):
    """What the key holds: the federation, and of the users of this file what LEAF has no place for."""

    version: Literal[1] = 1
    federation: Description
    clients: list[Annotated[int, Field(ge=0)]]  # their numbers in the federation
    groups: list[Group]
    attributes: dict[str, list[Any]]

    @model_validator(mode="after")
    def _one_for_every_user(self) -> Piece:
        lengths = {len(self.clients), len(self.groups), *map(len, self.attributes.values())}
        if len(lengths) > 1 or set(self.attributes) != set(self.federation.attributes):
            raise ValueError("clients, groups and attributes do not fit each other")
        return self


def describe_for_leaf(federation: Federation) -> Description:
    """Describes a federation, and decides how its text is written: characters, words or numbers."""
    task, names = federation.task, _token_names(federation.task)
    described = {
        "name": federation.name,
        "task": task,
        "columns": {name: column.decoded for name, column in federation.columns.items()},
        "attributes": dict(federation.manifest.attributes),
        "clients": federation.num_clients,
        "samples": federation.manifest.samples,
    }
    if task.vocabulary is None or names is None:
        return Description(**described, text="numbers")
    single = _single_characters(names, task)
    if single is None:
        is_unique = len(set(names)) == len(names)
        return Description(**described, text="words" if is_unique else "numbers")
    of_name = dict(zip(names, single, strict=True))
    labels = None
    if task.kind == "classification" and task.label_names is not None:
        letters = [of_name.get(name, name) for name in task.label_names]
        labels = "".join(letters) if _all_differ(letters) else None
    return Description(**described, text="characters", characters=single, label_characters=labels)


def hierarchy_among(texts: Sequence[str]) -> str | None:
    """The attribute that LEAF would call a hierarchy: the one of that name, or else the first that is text."""
    return "hierarchy" if "hierarchy" in texts else next(iter(texts), None)


def parse_piece(content: Any, where: str) -> Piece:
    """Checks what a file says under the key."""
    try:
        return Piece.model_validate(content)
    except ValidationError as error:
        raise BadInputError(f"{where}: {explain(error, KEY)}") from None


def _token_names(task: TaskSpec) -> tuple[str, ...] | None:
    return task.label_names if task.kind == "next_token" else task.token_names


def _single_characters(names: tuple[str, ...], task: TaskSpec) -> str | None:
    """A character for every token, if all but padding and unknown have names of one character."""
    letters = list(names)
    for token, candidates in ((task.padding, _FOR_PADDING), (task.unknown, _FOR_UNKNOWN)):
        if token is not None and len(letters[token]) != 1:
            letters[token] = next((letter for letter in candidates if letter not in letters), "")
    return "".join(letters) if _all_differ(letters) else None


def _all_differ(letters: list[str]) -> bool:
    return all(len(letter) == 1 for letter in letters) and len(set(letters)) == len(letters)

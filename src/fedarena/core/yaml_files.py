"""Settings in YAML, read within limits, so that no file can take all memory or time.

Of YAML, settings need texts, numbers, true and false, null, lists and mappings. All else is refused or read as text:
dates, numbers to the base of 60 and (beginning with 0) of 8 would be something that nobody meant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless, quoted

MOST_BYTES = 1 << 20  # of a file
MOST_VALUES = 20_000  # in a file: keys and values, those behind an alias as often as it is used
MOST_LEVELS = 50  # of lists and mappings in each other
MOST_NUMBER_CHARACTERS = 100  # of a single number

_TAG = "tag:yaml.org,2002:"
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z|[-+]?0b[01_]+\Z|[-+]?0x[0-9a-fA-F_]+\Z")
_FLOAT = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?\Z|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?\Z|"
    r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)


class NotYamlError(BadInputError):
    """A text is not YAML at all."""


class _SettingsLoader(yaml.SafeLoader):
    """A loader that counts, refuses what is ambiguous, and says where."""

    yaml_constructors = {  # noqa: RUF012  (PyYAML's own way)
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in _KINDS
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag.removeprefix(_TAG) in ("null", "bool", "merge")]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, where: str):
        super().__init__(text)
        self._where = where
        self._values = 0
        self._levels = 0
        self._sizes: dict[int, int] = {}  # how many values are in an anchored node, by its id

    def problem(self, what: str, place: Any) -> BadInputError:
        """An error with its place, which is that of a node or an event."""
        return BadInputError(f"{self._where}, line {place.start_mark.line + 1}: {what}")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Counts values and levels before they are made."""
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()  # type: ignore[no-untyped-call]
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise self.problem("an alias stands inside of what it refers to", alias)
            self._count(self._sizes[id(node)])
            return node
        before = self._values
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise BadInputError(f"{self._where} is nested too deeply: settings have at most {MOST_LEVELS} levels")
        self._count(1)
        node = super().compose_node(parent, index)
        self._levels -= 1
        self._sizes[id(node)] = self._values - before
        return node

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            raise BadInputError(f"{self._where} holds too much: settings have at most {MOST_VALUES:,} keys and values")

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuses keys that are not names, and those that are there already."""
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                shown = quoted(key.value).strip("'") if isinstance(key, yaml.ScalarNode) else "that is a list"
                raise self.problem(f"there is the key {shown}, but keys must be names", key)
            if key.value in seen:
                first = seen[key.value]
                raise self.problem(f"the key {quoted(key.value)} is there already, in line {first}", key)
            seen[key.value] = key.start_mark.line + 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """A number, if it is one and not endless."""
        if len(node.value) > MOST_NUMBER_CHARACTERS:
            raise self.problem(f"a number has more than {MOST_NUMBER_CHARACTERS} characters", node)
        kind = node.tag.removeprefix(_TAG)
        make = self.construct_yaml_int if kind == "int" else self.construct_yaml_float
        try:
            number: int | float = make(node)
        except (ValueError, IndexError):
            raise self.problem(f"{quoted(node.value)} is not a number of the type {kind}", node) from None
        return number

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """A text that can be written down."""
        text: str = self.construct_yaml_str(node)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self.problem(f"{quoted(text)} holds half a character", node)
        return text

    def construct_truth(self, node: yaml.ScalarNode) -> bool:
        """True or false."""
        try:
            return bool(self.construct_yaml_bool(node))
        except KeyError:
            raise self.problem(f"{quoted(node.value)} is neither true nor false", node) from None


_SettingsLoader.add_constructor(f"{_TAG}int", _SettingsLoader.construct_number)
_SettingsLoader.add_constructor(f"{_TAG}float", _SettingsLoader.construct_number)
_SettingsLoader.add_constructor(f"{_TAG}bool", _SettingsLoader.construct_truth)
_SettingsLoader.add_constructor(f"{_TAG}str", _SettingsLoader.construct_text)
_SettingsLoader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
_SettingsLoader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))


def parse_yaml(text: str, where: str) -> Any:
    """What a text holds; `where` it comes from begins the sentence about what is wrong with it."""
    try:
        return _SettingsLoader(text, where).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise NotYamlError(f"{where} is not valid YAML: {harmless(str(error.problem))}{place}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two about characters given by numbers
        raise NotYamlError(f"{where} is not valid YAML: {harmless(' '.join(str(error).split()))}") from None


def read_yaml(path: Path) -> Any:
    """What a file holds."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise BadInputError(f"There is no file {path}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{path} cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        raise BadInputError(f"{path} is too large for settings: it has more than {MOST_BYTES:,} bytes")
    try:
        return parse_yaml(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} cannot be read as a text file: {error}") from None

"""What the names of files say: ``{client}/{label}`` and other patterns of folders and file names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless, quoted
from fedarena.core.registry import nearest

FIELDS = ("client", "label", "part")
_TOKEN = re.compile(r"\{([^{}]*)\}|\*\*/?|\*")


@dataclass(frozen=True)
class NamePattern:
    """A pattern of names, such as ``{part}/{client}/*_{label}.png``.

    A field in braces stands for any text without a slash; if it stands there twice, both texts are joined with a
    slash. ``*`` is any text without a slash and ``**`` any number of folders. What comes after the pattern in a name
    may be anything, and the ending of a file may be left out. If the last part of a pattern has a field, it stands for
    folders or for files, not for both.

    >>> NamePattern.parse("{label}/{label}/*_{client}").read("Greek/character01/0394_07.png")
    {'label': 'Greek/character01', 'client': '07'}
    """

    text: str
    fields: tuple[str, ...]  # in the order in which they stand there
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> NamePattern:
        """Reads a pattern."""
        if not isinstance(text, str):
            raise BadInputError(f"pattern must be a text such as '{{client}}/{{label}}', not {quoted(text)}.")
        trimmed = text.strip("/")
        fields: list[str] = []
        regex, done = "", 0
        for token in _TOKEN.finditer(trimmed):
            regex += re.escape(trimmed[done : token.start()])
            done = token.end()
            if token[1] is None:
                regex += "[^/]*" if token[0] == "*" else "(?:[^/]+/)*"
                continue
            if token[1] not in FIELDS:
                raise BadInputError(
                    f"pattern is {text!r}, but there is no field {quoted(token[1])}; "
                    f"{nearest(token[1], FIELDS)} (* stands for any text)"
                )
            fields.append(token[1])
            regex += "([^/]+)"
        rest = trimmed[done:]
        if "{" in rest or "}" in rest or not fields:
            raise BadInputError(f"pattern must have fields in braces, such as '{{client}}/{{label}}', not {text!r}.")
        return cls(text, tuple(fields), re.compile(rf"{regex}{re.escape(rest)}(/.*)?"))

    def read(self, name: str) -> dict[str, str] | None:
        """The fields in a file's name, written with slashes; None if the name is not of this form."""
        found = self._match(name)
        return None if found is None else self._fields_in(found)

    def _match(self, name: str) -> re.Match[str] | None:
        folder, slash, file = name.rpartition("/")
        without_ending = folder + slash + file.rpartition(".")[0] if "." in file else name
        return self.regex.fullmatch(without_ending) or self.regex.fullmatch(name)

    def _fields_in(self, found: re.Match[str]) -> dict[str, str]:
        values: dict[str, str] = {}
        for field, value in zip(self.fields, found.groups()[:-1], strict=True):
            values[field] = f"{values[field]}/{value}" if field in values else value
        return values

    def read_all(self, names: Sequence[str], where: Path) -> dict[str, list[str]]:
        """The fields of all names, every one of which must be of this form."""
        columns: dict[str, list[str]] = {field: [] for field in self.fields}
        first_by_end: dict[bool, str] = {}  # the first name in which the pattern ends at a folder, or at the file
        for name in names:
            found = self._match(name)
            if found is None:
                raise BadInputError(f"{name} in {where} has another form than pattern says, which is {self.text!r}.")
            first_by_end.setdefault(found.groups()[-1] is None, name)
            for field, value in self._fields_in(found).items():
                if not _is_text(value):
                    raise BadInputError(f"{harmless(name)} in {where} has a name that is not in UTF-8; rename it.")
                columns[field].append(value)
        last = self.text.strip("/").rpartition("/")[2]
        if len(first_by_end) == 2 and "{" in last:
            raise BadInputError(
                f"pattern is {self.text!r}, whose end {last} is a folder in {first_by_end[False]} but a file in "
                f"{first_by_end[True]} (both in {where}); put that file into a folder, or remove it."
            )
        return columns


def _is_text(name: str) -> bool:
    """Whether a part of a file's name can be written down; in other encodings than UTF-8 it has half characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

"""A plain dialogue: paragraphs whose first line is a name and a colon. It does not say where a play begins."""

from __future__ import annotations

from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.data.plays.documents import decoded, documents
from fedarena.data.plays.roles import Role, Speeches


def read_dialogue(path: Path) -> list[Role]:
    """Everybody in the dialogue."""
    speeches = Speeches()
    for where, content in documents(path, ".txt"):
        name, lines = "", list[str]()
        for number, line in enumerate([*decoded(content, where).split("\n"), ""], start=1):
            if not line.strip():
                speeches.add("", name, lines)
                name, lines = "", []
            elif name:
                lines.append(line)
            elif line.rstrip().endswith(":") and len(line.strip()) > 1:
                name = line.strip()[:-1]
            else:
                raise BadInputError(
                    f"{where}, line {number}: a speech must begin with a line 'NAME:', not {line[:60]!r}"
                )
    roles = speeches.roles()
    if not roles:
        raise BadInputError(f"{path} has no speaking role: nobody says anything below a line 'NAME:'")
    return roles

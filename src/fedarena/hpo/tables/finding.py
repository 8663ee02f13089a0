"""Where tables are: in the package, or in a file of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.core.errors import BadInputError
from fedarena.core.words import some
from fedarena.hpo.tables.table import Table, read_table

if TYPE_CHECKING:
    from fedarena.hpo.problems.declared import Declared

ENDING = ".parquet"
MADE_OF = "made_of"  # where a table notes what it is made of beside settings and samples


def shipped_folder() -> Path:
    """Where the tables are that come with the package."""
    return Path(str(resources.files("fedarena") / "hpo" / "tables" / "data"))


def shipped_tables() -> dict[str, Path]:
    """The tables that come with the package, by the names of their problems."""
    return {path.name.removesuffix(ENDING): path for path in sorted(shipped_folder().glob(f"*{ENDING}"))}


def find_table(declared: Declared, given: Path | None) -> tuple[Table, Path]:
    """The table of a problem: the one that is given, or the one that comes with the package."""
    path = given
    if path is None:
        path = shipped_tables().get(declared.name)
        if path is None:
            raise BadInputError(
                f"No table of {declared.name} comes with FedArena; make one (fedarena hpo table {declared.name} "
                "-o FILE) and give it (table=FILE), or have it trained (mode=raw)"
            )
    table = read_table(path)
    check_made_for(declared, table.problem, table.about, path, "table")
    return table, path


def check_made_for(declared: Declared, problem: str, about: Mapping[str, Any], path: Path, what: str) -> None:
    """Refuses a table, or the surrogate of one, of another problem or of the same one with other settings."""
    if problem != declared.name:
        raise BadInputError(f"{path} is the {what} of {problem}, not of {declared.name}")
    if about.get("problem_fingerprint") != declared.fingerprint:
        changed = f" ({', '.join(declared.options)})" if declared.options else ""
        raise BadInputError(
            f"The {what} {path} was made with other settings or another space of {declared.name}{changed}; "
            f"have it trained (mode=raw), or make a table with these: fedarena hpo table {declared.name} -o FILE"
        )
    if made_of := about.get(MADE_OF):
        _check_same_source(declared, made_of, path, what)


def _check_same_source(declared: Declared, made_of: Mapping[str, str], path: Path, what: str) -> None:
    """Refuses what was made of other source than there is now; where that is not here, nobody can tell."""
    from fedarena.hpo.problems.made_of import changed_since, source_of, with_every_choice

    now: dict[str, str] = {}
    for config in with_every_choice(declared.settings, declared.space):
        now |= source_of(config)
    if changed := changed_since(made_of, now):
        raise BadInputError(
            f"The {what} {path} was made before {some(changed)} changed; make another one, or have it "
            "trained (mode=raw)"
        )

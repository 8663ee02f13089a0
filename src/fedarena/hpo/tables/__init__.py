"""Tables of results: their format, where they are found, and how they are made."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedarena.hpo.tables.finding import find_table, shipped_tables
    from fedarena.hpo.tables.making import make_table
    from fedarena.hpo.tables.recipe import Recipe, make_recipe
    from fedarena.hpo.tables.table import Table, read_table, write_table

__all__ = [
    "Recipe",
    "Table",
    "find_table",
    "make_recipe",
    "make_table",
    "read_table",
    "shipped_tables",
    "write_table",
]
_HOMES = {
    "finding": ("find_table", "shipped_tables"),
    "making": ("make_table",),
    "recipe": ("Recipe", "make_recipe"),
    "table": ("Table", "read_table", "write_table"),
}


def __getattr__(name: str) -> Any:
    """What makes tables needs problems, which need tables: so it is imported when it is first used."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

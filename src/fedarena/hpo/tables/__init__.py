"""Tables of results: their format, where they are found, and how they are made."""

from fedarena.hpo.tables.table import Table, read_table, write_table

__all__ = ["Table", "read_table", "write_table"]

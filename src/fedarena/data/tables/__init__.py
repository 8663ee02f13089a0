"""Federations from tables of one's own: files, data frames and Arrow tables."""

from fedarena.data.tables.importing import from_table, table_name

__all__ = ["from_table", "table_name"]

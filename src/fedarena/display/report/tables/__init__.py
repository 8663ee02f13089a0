"""The tables of a comparison, as values: the report renders them as HTML, the command line with rich."""

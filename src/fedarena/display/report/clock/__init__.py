"""The section of the report about virtual time."""

"""The part of the report about virtual time."""

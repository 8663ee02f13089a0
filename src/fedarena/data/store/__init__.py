"""How a federation is stored: its schema, its tables, writing and reading."""

"""The section about differential privacy, and what other places tell of it."""

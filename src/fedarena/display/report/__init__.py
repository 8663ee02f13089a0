"""The report that compares runs: one HTML page."""

"""The section about corrupted clients and defences, and what other places tell of them."""

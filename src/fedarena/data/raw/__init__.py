"""Files as their publishers give them out: fetched, found, checked, decoded."""

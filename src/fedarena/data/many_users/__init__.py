"""Texts of very many users, from files that do not fit into memory: sorted by user on disk, going on after a kill."""

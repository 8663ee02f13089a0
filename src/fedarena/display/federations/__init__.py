"""Federations in pictures."""

"""LEAF's metrics files in pictures."""

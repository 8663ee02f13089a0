"""Comparisons of optimizers as pictures, tables and a page."""

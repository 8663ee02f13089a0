"""Texts as arrays: characters, words, sequences of equal length."""

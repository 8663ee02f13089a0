"""Texts as rows of equal length, many texts at once. Padding, which fills rows up, is token 0 if none is given."""

from __future__ import annotations

import numpy as np

from fedarena.data.store.schema import AnyArray, IntArray

PADDING = 0


def padded_in_front(tokens: AnyArray, lengths: IntArray, length: int, padding: int = PADDING) -> AnyArray:
    """Texts as rows of equal length: of longer ones the first words, shorter ones with padding in front.

    `tokens` has all texts one after the other, and `lengths` the number of tokens of each.
    """
    rows = np.full((len(lengths), length), padding, dtype=tokens.dtype)
    kept = np.minimum(lengths, length)
    row = np.repeat(np.arange(len(lengths)), kept)
    place = np.arange(len(row)) - np.repeat(np.cumsum(kept) - kept, kept)
    rows[row, length - kept[row] + place] = tokens[(np.cumsum(lengths) - lengths)[row] + place]
    return rows


def rows_with_end(tokens: AnyArray, lengths: IntArray, length: int, padding: int, closing: int | None) -> AnyArray:
    """`padded_in_front`, where a text that is cut short still ends with the token that ends every text, if any."""
    rows = padded_in_front(tokens, lengths, length, padding)
    if closing is not None:
        rows[lengths > length, -1] = closing
    return rows


def cut_into_sequences(
    tokens: AnyArray, lengths: IntArray, length: int, padding: int = PADDING
) -> tuple[AnyArray, IntArray]:
    """Texts cut into rows of ``length + 1`` tokens, and how many rows each text has.

    Each row begins with the last token of the one before, so that every token but a text's first is predicted once;
    the last row of a text has padding behind.
    """
    counts = num_sequences(lengths, length)
    text = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = number[:, None] * length + np.arange(length + 1)
    inside = places < lengths[text][:, None]
    rows = np.full(places.shape, padding, dtype=tokens.dtype)
    rows[inside] = tokens[((np.cumsum(lengths) - lengths)[text][:, None] + places)[inside]]
    return rows, counts


def num_sequences(lengths: IntArray, length: int) -> IntArray:
    """How many rows `cut_into_sequences` makes of each text."""
    counts: IntArray = np.maximum(-(-(lengths - 1) // length), 0)
    return counts

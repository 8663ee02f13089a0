"""Tokens as a person reads them."""

from __future__ import annotations

import numpy as np

from fedarena.data.text.characters import Alphabet


def decode(alphabet: Alphabet, tokens: np.ndarray) -> str:
    """The text of some tokens, without padding; unknown characters become �."""
    names = ["\ufffd" if name == "<unknown>" else "" if name == "<padding>" else name for name in alphabet.names]
    return "".join(names[token] for token in tokens)


def decode_sequences(alphabet: Alphabet, sequences: np.ndarray) -> str:
    """The text that was cut into sequences, each of which begins with the last character of the one before."""
    return decode(alphabet, np.concatenate([sequences[0, :1], sequences[:, 1:].ravel()]))

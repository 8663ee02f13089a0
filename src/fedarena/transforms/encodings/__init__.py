"""Encodings: how what clients send becomes bytes."""

from fedarena.transforms.encodings.base import BadEncodingError, Encoding, Message, Plain
from fedarena.transforms.encodings.levels import Levels
from fedarena.transforms.encodings.values import Values

__all__ = ["BadEncodingError", "Encoding", "Levels", "Message", "Plain", "Values"]

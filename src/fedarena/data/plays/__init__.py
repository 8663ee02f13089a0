"""Plays as they are published: what every role says, from Gutenberg's text, Bosak's XML, or a plain dialogue."""

from fedarena.data.plays.bosak import read_bosak
from fedarena.data.plays.dialogue import read_dialogue
from fedarena.data.plays.gutenberg import Reading, read_gutenberg
from fedarena.data.plays.roles import Role

__all__ = ["Reading", "Role", "read_bosak", "read_dialogue", "read_gutenberg"]

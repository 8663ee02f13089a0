"""Games of Go in the Smart Game Format: the main line of one game."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.go_board import BLACK, SIDE, WHITE

_TOKEN = re.compile(r"\s*(?:([();])|([A-Za-z]+)((?:\s*\[(?:\\.|[^\]\\])*\])+))", re.DOTALL)
_VALUE = re.compile(r"\[((?:\\.|[^\]\\])*)\]", re.DOTALL)
_LETTERS = "abcdefghijklmnopqrs"
_COLOURS = {"B": BLACK, "W": WHITE}


@dataclass(frozen=True)
class Game:
    """A game: what is known of it, stones that are there at the beginning, and moves; passing is None."""

    known: dict[str, str]
    handicap: list[tuple[int, int]]  # colour, point
    moves: list[tuple[int, int | None]]


def parse_game(text: str, where: str) -> Game:
    """The first game in a text and its main line; variations are passed over."""
    known: dict[str, str] = {}
    handicap: list[tuple[int, int]] = []
    moves: list[tuple[int, int | None]] = []
    place = 0
    while token := _TOKEN.match(text, place):
        place = token.end()
        if token[1] == ")" and known:  # the main line ends where something is closed for the first time
            return Game(known, handicap, moves)
        if token[1]:  # some files lack the first bracket, so that nobody counts them
            continue
        name = "".join(letter for letter in token[2] if letter.isupper())
        values = _VALUE.findall(token[3])
        if name in _COLOURS:
            moves.append((_COLOURS[name], _point(values[0], where, len(moves) + 1)))
        elif name in ("AB", "AW"):
            for value in values:
                point = _point(value, where, 0)
                if point is not None:
                    handicap.append((_COLOURS[name[1]], point))
        elif name not in known:
            known[name] = values[0].strip()
    raise DamagedFileError(f"{where} is no complete SGF file: it makes no sense after {place:,} characters")


def _point(value: str, where: str, move: int) -> int | None:
    """A point, counted row by row; None for passing, which older files write as a point outside of the board."""
    letters = value.strip().lower()
    if letters in ("", "tt"):
        return None
    if len(letters) != 2 or any(letter not in _LETTERS for letter in letters):
        raise BadInputError(f"{where}, move {move}: {quoted(value)} is no point of a board of {SIDE} x {SIDE}")
    return _LETTERS.index(letters[1]) * SIDE + _LETTERS.index(letters[0])

"""A board of Go: stones that are put on it, and those that are taken off."""

from __future__ import annotations

import numpy as np

from fedarena.data.store.schema import AnyArray

SIDE = 19
POINTS = SIDE * SIDE
EMPTY, BLACK, WHITE = 0, 1, 2


def _neighbours(point: int) -> tuple[int, ...]:
    row, column = divmod(point, SIDE)
    found = []
    if row > 0:
        found.append(point - SIDE)
    if row < SIDE - 1:
        found.append(point + SIDE)
    if column > 0:
        found.append(point - 1)
    if column < SIDE - 1:
        found.append(point + 1)
    return tuple(found)


NEIGHBOURS = tuple(_neighbours(point) for point in range(POINTS))


class Board:
    """Who has a stone on which point; points are counted row by row."""

    def __init__(self) -> None:
        self.stones = bytearray(POINTS)

    def put(self, point: int, colour: int) -> None:
        """A stone, as at the beginning of a game with a handicap."""
        self.stones[point] = colour

    def play(self, point: int, colour: int) -> bool:
        """A move; False if there is a stone already. What has no liberty afterwards is taken, the other's first."""
        if self.stones[point] != EMPTY:
            return False
        self.stones[point] = colour
        other = BLACK + WHITE - colour
        for neighbour in NEIGHBOURS[point]:
            if self.stones[neighbour] == other:
                self._take_if_surrounded(neighbour)
        self._take_if_surrounded(point)
        return True

    def seen_by(self, colour: int, last: int | None) -> AnyArray:
        """Planes ``[3, 19, 19]`` of bytes that are 0 or 255: own stones, the other's, and the last move."""
        stones = np.frombuffer(self.stones, dtype=np.uint8)
        planes = np.zeros((3, POINTS), dtype=np.uint8)
        planes[0] = (stones == colour) * 255
        planes[1] = (stones == BLACK + WHITE - colour) * 255
        if last is not None:
            planes[2, last] = 255
        return planes.reshape(3, SIDE, SIDE)

    def _take_if_surrounded(self, point: int) -> None:
        stones, colour = self.stones, self.stones[point]
        chain, waiting = {point}, [point]
        while waiting:
            for neighbour in NEIGHBOURS[waiting.pop()]:
                if stones[neighbour] == EMPTY:
                    return
                if stones[neighbour] == colour and neighbour not in chain:
                    chain.add(neighbour)
                    waiting.append(neighbour)
        for taken in chain:
            stones[taken] = EMPTY

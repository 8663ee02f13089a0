"""Games of Go on the Fox server: predict the next move; a client is a player.

The files are in the Smart Game Format, one game in each, in folders by rank; the collection is that of the repository
featurecat/go-dataset, whose archives (.7z) must be unpacked. A position is seen by whose turn it is, and belongs to
that player. FedScale names the task reinforcement learning and ships no loader for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.building import Form, build_from_rows, numbers, vectors
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.go_board import BLACK, POINTS, SIDE, WHITE, Board
from fedarena.data.by_client.packed import is_archive, members
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.sgf import Game, parse_game
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

_SGF = re.compile(r"\.sgf$", re.IGNORECASE)
_PASS = POINTS  # the last class
_PLANES = 3


class GameFiles(RawFiles):
    """A folder with games anywhere in it, or archives of games."""

    def found(self, given: str | None) -> dict[str, Path]:
        """Archives if there are any, otherwise the folder."""
        place = self.folder(given)
        if not place.is_dir():
            return {}
        archives = {path.name: path for path in sorted(place.iterdir()) if is_archive(path)}
        return archives or ({"games": place} if next(place.rglob("*.sgf"), None) else {})


FILES = GameFiles(
    "fox_go",
    "Fox Go",
    {"games": RawFile("*.sgf")},
    "in any folders, or in archives (.zip, .tar.gz); https://github.com/featurecat/go-dataset has them as .7z, to be "
    "unpacked",
    one_is_enough=True,
)


@FEDERATIONS.register("fox_go")
@cached_source(version=1, reads=FILES)
def fox_go(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    positions: Annotated[int, Field(ge=1, le=POINTS)] = 10,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Positions of Go and the moves that players made in them, from the games in `folder`; a client is a player.

    Of every game each player has at most so many `positions`, evenly spread over the player's moves. A sample has
    three planes: own stones, the other's, and the last move; its class is a point of the board, row by row, or passing.
    Games on other boards than 19 x 19 are left out, and those in which a stone is put where there is one.
    """
    found = FILES.find(folder)
    names = tuple(f"{chr(ord('a') + point % SIDE)}{chr(ord('a') + point // SIDE)}" for point in range(POINTS))
    shape = (_PLANES, SIDE, SIDE)
    build_from_rows(
        build,
        list(found.values()),
        lambda path: _moves(path, positions),
        {"x": pa.binary(), "label": pa.int64()},
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            TaskSpec(kind="classification", classes=POINTS + 1, label_names=(*names, "pass")),
            {"x": ColumnSpec(dtype="uint8", shape=shape), "y": ColumnSpec(dtype="int64")},
            lambda rows: {"x": _unpacked(rows), "y": numbers(rows, "label", "int64")},
            ("Games on other boards, and those in which a stone is put where there is one, are left out.",),
        ),
    )


def _unpacked(rows: pa.Table) -> AnyArray:
    bits = vectors(rows, "x", "uint8", (-(-_PLANES * POINTS // 8),))
    planes = np.unpackbits(bits, axis=1, count=_PLANES * POINTS) * np.uint8(255)
    return planes.reshape(len(rows), _PLANES, SIDE, SIDE)


def _moves(path: Path, positions: int) -> Iterator[Record]:
    for member in members(path, _SGF):
        # Names are in several encodings; they are keys and nothing else.
        game = parse_game(member.content.decode("utf-8", "backslashreplace"), member.where)
        if game.known.get("SZ", str(SIDE)) != str(SIDE):
            continue
        players = {BLACK: game.known.get("PB", ""), WHITE: game.known.get("PW", "")}
        if not all(players.values()):
            raise BadInputError(f"{member.where} does not say who played (PB and PW)")
        for player, planes, move in _positions(game, positions) or ():
            yield Record(players[player], (np.packbits(planes > 0).tobytes(), move), member.done)


def _positions(game: Game, wanted: int) -> list[tuple[int, AnyArray, int]] | None:
    """Some positions of each player, and the moves; None if a move is impossible."""
    chosen: set[int] = set()
    for colour in (BLACK, WHITE):
        own = [number for number, (who, _) in enumerate(game.moves) if who == colour]
        chosen.update(own[place * len(own) // wanted] for place in range(wanted) if own)
    board, found = Board(), []
    last: int | None = None
    for colour, stone in game.handicap:
        board.put(stone, colour)
    for number, (colour, point) in enumerate(game.moves):
        if number in chosen:
            found.append((colour, board.seen_by(colour, last), _PASS if point is None else point))
        if point is not None and not board.play(point, colour):
            return None
        last = point
    return found

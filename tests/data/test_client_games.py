"""Games of Go and ways of road users: boards, SGF and record files by hand, and real games."""

from __future__ import annotations

import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from both_engines import agree
from protocol_buffers import message, record, scenario, track
from publishers_files import REAL, load

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.by_client.go_board import BLACK, EMPTY, SIDE, WHITE, Board
from fedarena.data.by_client.sgf import parse_game
from fedarena.data.by_client.tfrecords import fields, masked_crc

GAMES = REAL / "fox_go_pro" / "fox_pro_games.jsonl.xz"


def at(row: int, column: int) -> int:
    return row * SIDE + column


def test_stones_without_liberties_are_taken() -> None:
    board = Board()
    for point, colour in [(at(0, 0), WHITE), (at(0, 1), BLACK), (at(5, 5), WHITE), (at(1, 0), BLACK)]:
        assert board.play(point, colour)
    assert board.stones[at(0, 0)] == EMPTY  # in the corner
    assert not board.play(at(0, 1), WHITE)
    ring = [(2, 2), (2, 3), (3, 1), (3, 4), (4, 2), (4, 3)]
    for row, column in [(3, 2), (3, 3)]:
        board.put(at(row, column), WHITE)
    for row, column in ring:
        board.play(at(row, column), BLACK)
    assert [board.stones[at(3, column)] for column in (2, 3)] == [EMPTY, EMPTY]  # two at once
    # A stone that takes others lives although it had no liberty.
    board = Board()
    for row, column in [(0, 1), (1, 0)]:
        board.put(at(row, column), WHITE)
    for row, column in [(0, 2), (1, 1), (2, 0)]:
        board.put(at(row, column), BLACK)
    board.play(at(0, 0), BLACK)
    assert board.stones[at(0, 0)] == BLACK
    assert board.stones[at(0, 1)] == EMPTY
    planes = board.seen_by(WHITE, at(0, 0))
    assert planes[1, 0, 0] == planes[2, 0, 0] == 255
    assert planes[0].sum() == 0


def test_the_main_line_of_a_game() -> None:
    text = "(;GM[1]SZ[19]PB[a\\]b]PW[c] AB[dd][pp];B[aa];W[tt](;B[ba];W[])(;B[ss]))"
    game = parse_game(text, "a.sgf")
    assert game.known["PB"] == "a\\]b"
    assert game.handicap == [(BLACK, at(3, 3)), (BLACK, at(15, 15))]
    assert game.moves == [(BLACK, 0), (WHITE, None), (BLACK, 1), (WHITE, None)]
    assert parse_game(text[1:], "a.sgf") == game  # as some of the published files are
    with pytest.raises(DamagedFileError, match=r"a\.sgf is no complete SGF file"):
        parse_game(text[:40], "a.sgf")
    with pytest.raises(BadInputError, match=r"a\.sgf, move 1: 'zz' is no point of a board of 19 x 19"):
        parse_game("(;PB[a];B[zz])", "a.sgf")


def test_players_have_the_positions_before_their_moves(tmp_path: Path) -> None:
    game = "(;SZ[19]PB[ann]PW[bob];B[aa];W[ba];B[ss];W[ab];B[tt])"
    folder = tmp_path / "raw" / "9d"
    folder.mkdir(parents=True)
    (folder / "1.sgf").write_text(game)
    (folder / "small.sgf").write_text("(;SZ[9]PB[ann]PW[cid];B[aa])")
    options = {"positions": 3, "split": "within_client", "train_fraction": 1.0}
    federation = load("fox_go", tmp_path / "raw", **options)
    clients = federation.clients()
    samples = {
        name: federation.samples(np.array([client]), "train").columns
        for client, name in zip(clients, federation.client_ids(clients), strict=True)
    }
    assert {name: sorted(of["y"].tolist()) for name, of in samples.items()} == {"ann": [0, 360, 361], "bob": [1, 19]}
    last = samples["ann"]["x"][samples["ann"]["y"] == 361][0]
    # The stone in the corner was taken.
    assert [np.flatnonzero(plane).tolist() for plane in last.reshape(3, -1)] == [[360], [1, 19], [19]]
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "packed" / "games.zip", "w") as archive:
        archive.writestr("9d/1.sgf", game)
    packed = load("fox_go", tmp_path / "packed", **options)
    assert packed.manifest.files == federation.manifest.files
    (folder / "2.sgf").write_text("(;PB[ann]PW[dora];B[aa];W[aa])")  # which is impossible
    assert load("fox_go", tmp_path / "raw", **options).manifest.files == federation.manifest.files
    (folder / "2.sgf").write_text("(;PB[ann];B[aa])")
    with pytest.raises(BadInputError, match=r"2\.sgf in .* does not say who played"):
        load("fox_go", tmp_path / "raw", positions=2)


def real_games(number: int) -> list[str]:
    if not GAMES.is_file():
        pytest.skip(f"needs {GAMES}")
    games = []
    with lzma.open(GAMES, "rt", encoding="utf-8") as lines:
        for line in lines:
            game = json.loads(line)
            if game["HA"] != "0":
                continue  # where the stones lay that were there at the beginning is not in this file
            colours = "BW" if game["first"] == "B" else "WB"
            moves = [game["moves"][place : place + 2] for place in range(0, len(game["moves"]), 2)]
            played = "".join(f";{colours[place % 2]}[{move}]" for place, move in enumerate(moves))
            games.append(f"(;GM[1]SZ[19]PB[{game['PB']}]PW[{game['PW']}]{played})")
            if len(games) == number:
                break
    return games


def test_real_games_train_on_both_engines(tmp_path: Path) -> None:
    """Real games, written in the form in which they were published."""
    (tmp_path / "raw").mkdir()
    for number, game in enumerate(real_games(30)):
        (tmp_path / "raw" / f"{number}.sgf").write_text(game)
    federation = load("fox_go", tmp_path / "raw", positions=3)
    assert federation.num_samples == 180
    agree(federation, tmp_path, model="logistic_regression")


@pytest.mark.slow
def test_ten_thousand_real_games(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with zipfile.ZipFile(tmp_path / "raw" / "games.zip", "w") as archive:
        for number, game in enumerate(real_games(20_000)):
            archive.writestr(f"{number}.sgf", game)
    federation = load("fox_go", tmp_path / "raw", positions=1)
    # Of 3,949 games, 3,684: in the others somebody moved twice, and whose moves are whose is not in this file.
    assert (federation.num_clients, federation.num_samples) == (916, 7368)


def test_checksums_are_those_of_record_files() -> None:
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert dict(fields(message((3, 300), (5, b"ab")), "here")) == {3: 300, 5: b"ab"}
    with pytest.raises(DamagedFileError, match="here is no message"):
        list(fields(message((5, b"abcdef"))[:-2], "here"))


def test_ways_are_seen_from_where_somebody_is(tmp_path: Path) -> None:
    north = [(5.0, float(step)) for step in range(91)]  # a metre every moment, to the north
    parked = [(1.0, 1.0)] * 91
    hidden = [*north[:20], None, *north[21:]]
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "training.tfrecord-00000-of-00001").write_bytes(
        scenario("a", track(north), track(parked), track(hidden)) + scenario("b", track(north), track(north))
    )
    (folder / "validation.tfrecord-00000-of-00001").write_bytes(scenario("c", track(north)))
    federation = load("waymo", folder, future=20, every=10)
    assert [len(federation.clients(group)) for group in ("train", "validation")] == [2, 1]
    assert federation.num_samples == 4
    samples = federation.samples(federation.clients("validation"), "validation").columns
    np.testing.assert_allclose(samples["x"][0], [[step - 10, 0] for step in range(11)], atol=1e-6)
    np.testing.assert_allclose(samples["y"], [[10, 0, 20, 0]], atol=1e-6)
    path = folder / "training.tfrecord-00000-of-00001"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    with pytest.raises(DamagedFileError, match=r"training\.tfrecord-00000-of-00001 is damaged: record 2 is broken"):
        load("waymo", folder, future=20, every=10)
    path.write_bytes(b"\1" + content[1:])
    with pytest.raises(DamagedFileError, match=r"record 1 is broken or cut off"):
        load("waymo", folder, future=20, every=10)
    path.write_bytes(record(message((1, 0.1))))
    with pytest.raises(BadInputError, match=r"00001, record 1 is no scenario: it has no id"):
        load("waymo", folder, future=20, every=10)
    with pytest.raises(BadInputError, match=r"federation\.future, 20, must be a multiple of federation\.every, 7"):
        load("waymo", folder, future=20, every=7)

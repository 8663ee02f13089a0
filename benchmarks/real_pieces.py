"""Pieces of published datasets that are at hand, as folders from which federations are made.

Of most datasets the published files themselves are there. Three were passed on as arrays or lines of JSON, and are
written here in the form in which they were published, once.
"""

from __future__ import annotations

import json
import lzma
import wave
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPOKEN_RATE = 8_000
DONE = "complete.txt"


def folder_of(piece: str, data: Path, work: Path) -> Path:
    """The folder that a federation is made from, below `data` or, if files have to be written first, below `work`."""
    if piece not in WRITERS:
        return data / piece
    place = work / "pieces" / piece
    if not (place / DONE).exists():  # what was interrupted is written again
        source, write = WRITERS[piece]
        place.mkdir(parents=True, exist_ok=True)
        write(data / source, place)
        (place / DONE).write_text(f"made of {source}\n", encoding="utf-8")
    return place


def is_there(piece: str, data: Path) -> bool:
    """Whether there is such a piece."""
    return (data / (WRITERS[piece][0] if piece in WRITERS else piece)).exists()


def write_spoken_digits(source: Path, place: Path) -> None:
    """AudioMNIST's recordings, named as those of Speech Commands, among whose words the ten digits are."""
    with np.load(source) as found:
        samples, offsets, spoken, speakers = (found[name] for name in ("wav", "offset", "digit", "speaker"))
    for number, (digit, speaker) in enumerate(zip(spoken.tolist(), speakers.tolist(), strict=True)):
        path = place / "speech_commands_digits" / DIGITS[digit] / f"s{speaker}_nohash_{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SPOKEN_RATE)
            file.writeframes(samples[offsets[number] : offsets[number + 1]].astype("<i2").tobytes())


def write_traces(source: Path, place: Path) -> None:
    """Throughput of Puffer's sessions, a text of times and rates for every stream."""
    with np.load(source) as found:
        traces = {name: found[name] for name in found}
    folder = place / "cooked_traces"
    folder.mkdir(exist_ok=True)
    for number, (session, stream) in enumerate(zip(traces["session"], traces["stream"], strict=True)):
        begin, end = traces["offset"][number : number + 2]
        points = zip(traces["t_ms"][begin:end], traces["throughput"][begin:end], strict=True)
        text = "".join(f"{time / 1000} {rate}\n" for time, rate in points)
        (folder / f"trace{session.replace('/', '-')}_{stream}").write_text(text, encoding="utf-8")


def write_games(source: Path, place: Path) -> None:
    """Games of Go as SGF; those with stones on the board at the beginning are left out: where they lay is not known."""
    with zipfile.ZipFile(place / "games.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, game in enumerate(_games(source)):
            archive.writestr(f"{number}.sgf", game)


def _games(source: Path) -> Iterator[str]:
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        for game in map(json.loads, lines):
            if game["HA"] == "0":
                colours = "BW" if game["first"] == "B" else "WB"
                moves = [game["moves"][place : place + 2] for place in range(0, len(game["moves"]), 2)]
                played = "".join(f";{colours[place % 2]}[{move}]" for place, move in enumerate(moves))
                yield f"(;GM[1]SZ[19]PB[{game['PB']}]PW[{game['PW']}]{played})"


# The file that a piece is written from, and how.
WRITERS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "spoken_digits": ("speech/audiomnist_60spk_8k_3reps.npz", write_spoken_digits),
    "puffer_traces": ("puffer_traces/puffer_sessions_first300.npz", write_traces),
    "fox_go_pro": ("fox_go_pro/fox_pro_games.jsonl.xz", write_games),
}

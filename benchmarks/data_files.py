"""Files in the form of Sentiment140 and of LEAF's Reddit, of any size, with made-up words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedarena.core import streams
from fedarena.data.sources.sent140 import TABLES

KNOWN_WORDS = 300_000
USERS_PER_FILE = 80_000  # LEAF's complete Reddit is in 21 files of each part
SEQUENCE_LENGTH = 10
TWEETS_PER_CHUNK = 100_000
# Table 1 of the LEAF paper: users, samples per user, and their standard deviation.
SENT140 = (660_120, 2.42, 4.71)
REDDIT = (1_660_820, 34.07, 62.95)
_PARTS = {"train": (0.0, 0.6), "val": (0.6, 0.8), "test": (0.8, 1.0)}


def sizes_of_users(users: int, mean: float, deviation: float, least: int) -> np.ndarray:
    """Skewed sizes with about this mean and standard deviation, at least `least` each."""
    above, variance = mean - least, deviation**2
    random = streams.generator(0, "benchmark/sizes")
    return least + random.negative_binomial(above**2 / (variance - above), above / variance, size=users)


class Words:
    """Draws words, frequent and rare ones as in natural language."""

    def __init__(self, purpose: str):
        self._random = streams.generator(0, purpose)
        self._names = np.array([_name(number) for number in range(KNOWN_WORDS)], dtype=object)
        frequencies = 1 / (np.arange(KNOWN_WORDS) + 2.7)  # Zipf and Mandelbrot
        self._bounds = np.cumsum(frequencies) / frequencies.sum()

    def texts(self, number: int, mean: float) -> list[list[str]]:
        """So many texts, each of one word or more."""
        lengths = 1 + self._random.poisson(mean - 1, size=number)
        drawn = self._names[np.searchsorted(self._bounds, self._random.random(lengths.sum()))].tolist()
        ends = np.cumsum(lengths).tolist()
        return [drawn[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def _name(number: int) -> str:
    letters = ""
    while True:
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
        if number == 0:
            return letters


def write_tweets(folder: Path, users: int, mean: float, deviation: float) -> int:
    """Writes Sentiment140's two tables, the tweets of a user all over them; returns how many tweets there are."""
    owners = np.repeat(np.arange(users), sizes_of_users(users, mean, deviation, least=1))
    random = streams.generator(0, "benchmark/tweets")
    random.shuffle(owners)
    words = Words("benchmark/words")
    tested = min(498, len(owners) // 2)
    folder.mkdir(parents=True)
    for name, rows in zip(TABLES, (owners[tested:], owners[:tested]), strict=True):
        with open(folder / name, "w", encoding="latin-1", newline="") as file:
            for start in range(0, len(rows), TWEETS_PER_CHUNK):
                chunk = rows[start : start + TWEETS_PER_CHUNK].tolist()
                polarities = (4 * random.integers(2, size=len(chunk))).tolist()
                texts = words.texts(len(chunk), mean=13)
                file.writelines(
                    f'"{polarity}","{start + row}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","user{owner}",'
                    f'"@user{row} {" ".join(text)}!"\n'
                    for row, (owner, polarity, text) in enumerate(zip(chunk, polarities, texts, strict=True))
                )
    return len(owners)


def write_comments(folder: Path, users: int, mean: float, words_per_comment: float) -> int:
    """Writes LEAF's Reddit; returns how many comments there are."""
    sizes = np.minimum(sizes_of_users(users, mean, mean * REDDIT[2] / REDDIT[1], least=2), 1000)
    words = Words("benchmark/comments")
    for part in _PARTS:
        (folder / part).mkdir(parents=True)
    for number, first in enumerate(range(0, users, USERS_PER_FILE)):
        of_file = sizes[first : first + USERS_PER_FILE].tolist()
        files = {part: open(folder / part / f"reddit_{number}_{part}.json", "w") for part in _PARTS}  # noqa: SIM115
        names = [str(first + place + 1) for place in range(len(of_file))]
        for file in files.values():
            file.write(f'{{"users": {json.dumps(names)}, "num_samples": {json.dumps(of_file)}, "user_data": {{')
        for place, (name, size) in enumerate(zip(names, of_file, strict=True)):
            comments = [_leaf_comment(text, int(name)) for text in words.texts(size, words_per_comment)]
            for part, file in files.items():
                begin, end = (int(bound * size) for bound in _PARTS[part])
                data = {"x": [x for x, _ in comments[begin:end]], "y": [y for _, y in comments[begin:end]]}
                file.write(f'{", " if place else ""}"{name}": {json.dumps(data)}')
        for file in files.values():
            file.write("}}")
            file.close()
    return int(sizes.sum())


def _leaf_comment(words: list[str], user: int) -> tuple[list[list[str]], dict[str, object]]:
    here, following = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
    filling = -len(here) % SEQUENCE_LENGTH
    counted = list(_rows([1.0] * len(here) + [0.0] * filling))
    about = {"subreddit": f"subreddit{(user * len(words)) % 997}", "created_utc": 1512086400, "score": 1}
    targets = list(_rows(following + ["<PAD>"] * filling))
    return list(_rows(here + ["<PAD>"] * filling)), {**about, "target_tokens": targets, "count_tokens": counted}


def _rows(values: list) -> Iterator[list]:
    return (values[start : start + SEQUENCE_LENGTH] for start in range(0, len(values), SEQUENCE_LENGTH))

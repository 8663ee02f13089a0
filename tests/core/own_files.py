"""Small files in their usual form: Omniglot's folders, a table of paths, who said what in which mood, word vectors."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

DRAWERS = 20
MOODS = {"joy": "what a lovely day", "anger": "leave me alone now", "neutral": "it is five o'clock"}


def write_own_files(folder: Path) -> None:
    """Writes ``omniglot``, ``drawings.csv``, ``speeches.csv`` and ``glove.txt``."""
    random = np.random.default_rng(0)
    paths = []
    for number, character in enumerate(["Greek/character01", "Greek/character02", "Latin/character01"]):
        (folder / "omniglot" / character).mkdir(parents=True)
        for drawer in range(1, DRAWERS + 1):
            path = f"omniglot/{character}/{number + 394:04d}_{drawer:02d}.png"
            pixels = random.random((35, 35)) < 0.9
            pixels[10 * number : 10 * number + 5] = False
            Image.fromarray(pixels).save(folder / path)
            paths.append((path, f"drawer {drawer}", character))
    _write_table(folder / "drawings.csv", ("file", "drawer", "character"), paths)
    moods = [sorted(MOODS)[place] for place in random.integers(len(MOODS), size=120)]
    said = [(f"speaker {number % 24}", f"{MOODS[mood]}, {number}!", mood) for number, mood in enumerate(moods)]
    _write_table(folder / "speeches.csv", ("speaker", "utterance", "emotion"), said)
    words = sorted({word for text in MOODS.values() for word in text.split()})
    lines = [f"{word} {' '.join(f'{value:.3f}' for value in random.normal(size=4))}\n" for word in words]
    (folder / "glove.txt").write_text("".join(lines), encoding="utf-8")


def _write_table(path: Path, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])

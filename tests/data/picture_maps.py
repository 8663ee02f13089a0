"""Small folders of pictures with maps of who has them, in FedScale's form and in those of publishers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

HEADING = ("client_id", "sample_path", "label_name", "label_id")
MAPS = {"train": 4, "val": 1, "test": 2}  # clients of each map


def picture(number: int, size: tuple[int, int] = (28, 28), kind: str = "PNG", channels: int = 1) -> bytes:
    """A picture that differs from that of any other number."""
    random = np.random.default_rng(number)
    pixels = random.integers(0, 255, (size[1], size[0], 3) if channels == 3 else (size[1], size[0]), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def write_maps(folder: Path, sample_of, classes: int = 3, each: int = 3, heading: Sequence[str] = HEADING) -> int:
    """Maps of clients with `each` samples; `sample_of(map, number)` gives the path and makes the file."""
    number = 0
    for name, clients in MAPS.items():
        rows: list[Sequence[object]] = [heading]
        for client in range(clients):
            for _ in range(each):
                label = number % classes
                rows.append((client, sample_of(name, number), f"class {label}", label))
                number += 1
        write_table(folder / "client_data_mapping" / f"{name}.csv", rows)
    return number

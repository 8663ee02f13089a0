"""Files in the form of FLAIR's, of any number and size of photos, with its numbers of users, photos and labels.

The pictures are made up: clouds of colour with some grain, about as large as JPEGs of photos are. A few hundred are
drawn, and every photo is one of them.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedarena.core import streams
from fedarena.data.flair.archives import published_archive
from fedarena.data.flair.published import FINE_LABELS, IMAGES, USERS

PHOTOS = sum(IMAGES.values())
# How many photos have each coarse label, as the authors' notebook prints it.
COARSE = {
    "structure": 228_923,
    "equipment": 225_862,
    "material": 139_733,
    "outdoor": 131_322,
    "plant": 123_363,
    "food": 110_792,
    "animal": 68_858,
    "liquid": 68_677,
    "art": 37_230,
    "interior_room": 32_042,
    "light": 11_326,
    "recreation": 5_651,
    "celebration": 3_769,
    "fire": 3_011,
    "music": 2_571,
    "games": 1_093,
    "religion": 866,
}
MOST_OF_A_USER = 4_151
DIFFERENT_PICTURES = 400
QUALITY = 75
_MEDIAN, _SIGMA = 2.0, 1.75  # of a lognormal distribution with about the published quartiles and mean
_PARTITIONS = {"train": "train", "validation": "val", "test": "test"}


def sizes_of_users(users: int, photos: int) -> np.ndarray:
    """Skewed numbers of photos, one at least, that add up to `photos`."""
    drawn = streams.generator(0, "benchmark/flair sizes").lognormal(np.log(_MEDIAN), _SIGMA, users)
    sizes = drawn.clip(1, MOST_OF_A_USER).astype(np.int64)
    order = np.argsort(-sizes, kind="stable")
    while (lacking := photos - int(sizes.sum())) != 0:  # the larger half gives and takes
        some = order[: min(abs(lacking), max(users // 2, 1))]
        sizes[some] = (sizes[some] + np.sign(lacking)).clip(1, MOST_OF_A_USER)
    return sizes


def write_flair(folder: Path, photos: int, side: int, archives: int = 0) -> int:
    """Writes metadata, taxonomy and photos, in a folder or in so many archives; returns how many users there are."""
    users = max(round(sum(USERS.values()) * photos / PHOTOS), 3)
    folder.mkdir(parents=True)
    fine_of = _taxonomy()
    (folder / "label_relationship.txt").write_text(
        "".join(f"{fine} -> {coarse}\n" for coarse, fines in fine_of.items() for fine in fines)
    )
    ids = _write_metadata(folder / "labels_and_metadata.json", users, photos, fine_of)
    contents = [_jpeg(number, side) for number in range(min(DIFFERENT_PICTURES, photos))]
    if archives:
        for number in range(archives):
            with tarfile.open(folder / published_archive(number), "w:gz", compresslevel=1) as archive:
                for place in range(number, photos, archives):
                    member = tarfile.TarInfo(f"small_images/{ids[place]}.jpg")
                    member.size = len(contents[place % len(contents)])
                    archive.addfile(member, io.BytesIO(contents[place % len(contents)]))
        return users
    (folder / "small_images").mkdir()
    for place, image in enumerate(ids):
        with open(f"{folder}/small_images/{image}.jpg", "wb", buffering=0) as file:
            file.write(contents[place % len(contents)])
    return users


def _taxonomy() -> dict[str, list[str]]:
    """Fine labels by coarse ones, as many as published; common coarse labels have more."""
    share = np.sqrt(list(COARSE.values()))
    numbers = np.maximum((share / share.sum() * FINE_LABELS).astype(np.int64), 1)
    numbers[0] += FINE_LABELS - numbers.sum()
    return {
        coarse: [coarse, *(f"{coarse}_{number:03d}" for number in range(1, count))]
        for coarse, count in zip(COARSE, numbers.tolist(), strict=True)
    }


def _write_metadata(path: Path, users: int, photos: int, fine_of: dict[str, list[str]]) -> list[str]:
    """Photos of all users in random order; returns their ids."""
    random = streams.generator(0, "benchmark/flair labels")
    owners = np.repeat(np.arange(users), sizes_of_users(users, photos))
    random.shuffle(owners)
    bounds = np.cumsum([round(users * count / sum(USERS.values())) for count in USERS.values()])[:-1]
    partitions = [_PARTITIONS[group] for group in np.array(list(USERS))[np.searchsorted(bounds, owners, side="right")]]
    names = np.array(list(COARSE))
    chances = np.array(list(COARSE.values())) / PHOTOS
    ids = [f"{5_000_000_000 + 31 * place}" for place in range(photos)]
    with open(path, "w", encoding="utf-8") as file:
        for place, (owner, partition) in enumerate(zip(owners.tolist(), partitions, strict=True)):
            chosen = names[random.random(len(names)) < chances].tolist() or [str(names[0])]
            fine = [fine_of[one][int(len(fine_of[one]) * random.random() ** 4)] for one in chosen]
            entry = {
                "user_id": f"{owner + 10_000_000}@N{owner % 8:02d}",
                "image_id": ids[place],
                "labels": sorted(chosen),
                "partition": partition,
                "fine_grained_labels": sorted(fine),
            }
            file.write(("[" if place == 0 else ", ") + json.dumps(entry))
        file.write("]")
    return ids


def _jpeg(number: int, side: int) -> bytes:
    random = streams.generator(0, "benchmark/flair pictures", number)
    clouds = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(
        (side, side), Image.Resampling.BICUBIC
    )
    grain = random.normal(0, 9, (side, side, 1))
    pixels = (np.asarray(clouds, np.float64) + grain).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()

"""Small files in the form of FLAIR's: metadata, taxonomy, and photos in a folder, archives or HDF5."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from fedarena.data import Federation, load_federation

METADATA, RELATIONSHIP, PHOTOS = "labels_and_metadata.json", "label_relationship.txt", "small_images"
SIDE = 8
COARSE_OF = {
    "oak": "plant",
    "fern": "plant",
    "plant": "plant",
    "bridge": "structure",
    "tower": "structure",
    "bread": "food",
}
# User, partition, and the fine labels of each photo.
USERS: dict[str, tuple[str, list[list[str]]]] = {
    "52@N01": ("train", [["oak", "bridge"], ["fern"], ["tower"], ["bread", "oak"], ["bridge"]]),
    "11@N00": ("train", [["bread"], ["tower", "plant"]]),
    "77@N05": ("val", [["oak"]]),
    "30@N02": ("test", [["bridge", "bread"], ["fern", "oak"]]),
}


def entries() -> list[dict[str, Any]]:
    """The metadata; users take turns, so that the photos of each are scattered."""
    found = []
    for turn in range(max(len(photos) for _, photos in USERS.values())):
        for number, (user, (partition, photos)) in enumerate(USERS.items()):
            if turn < len(photos):
                found.append(
                    {
                        "user_id": user,
                        "image_id": f"{100 * (number + 1) + turn}",
                        "labels": sorted({COARSE_OF[label] for label in photos[turn]}),
                        "partition": partition,
                        "fine_grained_labels": photos[turn],
                    }
                )
    return found


def pixels(image_id: str, side: int = SIDE) -> np.ndarray:
    """Each photo has a colour of its own."""
    return np.full((side, side, 3), (23 * int(image_id) % 256, 51 * int(image_id) % 256, 90), np.uint8)


def jpeg(image_id: str, side: int = SIDE) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(image_id, side)).save(file, "JPEG", quality=95)
    return file.getvalue()


def write_labels(folder: Path, metadata: Any = None, relationship: Iterable[str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METADATA).write_text(json.dumps(entries() if metadata is None else metadata))
    lines = [f"{fine} -> {coarse}" for fine, coarse in COARSE_OF.items()] if relationship is None else relationship
    (folder / RELATIONSHIP).write_text("".join(f"{line}\n" for line in lines))


def write_folder(folder: Path) -> Path:
    """Everything, with the photos unpacked."""
    write_labels(folder)
    (folder / PHOTOS).mkdir()
    for entry in entries():
        (folder / PHOTOS / f"{entry['image_id']}.jpg").write_bytes(jpeg(entry["image_id"]))
    return folder


def tar_bytes(contents: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{PHOTOS}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def write_archives(folder: Path, number: int = 3) -> Path:
    """Everything, with the photos in several archives."""
    write_labels(folder)
    ids = [entry["image_id"] for entry in entries()]
    for place in range(number):
        contents = {f"{image_id}.jpg": jpeg(image_id) for image_id in ids[place::number]}
        (folder / f"small_images-{place:02d}.tar.gz").write_bytes(tar_bytes(contents))
    return folder


def write_hdf5(path: Path, sparse: bool = True) -> Path:
    """The file that pfl-research (`sparse` labels) or the authors' script makes."""
    listed = entries()
    places = {
        "": {name: place for place, name in enumerate(sorted(set(COARSE_OF.values())))},
        "fine_grained_": {
            name: place for place, name in enumerate(sorted({x for e in listed for x in e["fine_grained_labels"]}))
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for user, (partition, _) in USERS.items():
            own = [entry for entry in listed if entry["user_id"] == user]
            group = file.create_group(f"{partition}/{user}")
            group["images"] = np.stack([pixels(entry["image_id"]) for entry in own])
            group["image_ids"] = np.array([entry["image_id"] for entry in own], dtype="S")
            for prefix, columns in places.items():
                labels = [entry[f"{prefix}labels"] for entry in own]
                if sparse:
                    rows = [row for row, of_photo in enumerate(labels) for _ in of_photo]
                    group[f"{prefix}labels_row"] = np.array(rows, np.uint16)
                    group[f"{prefix}labels_col"] = np.array(
                        [columns[x] for of_photo in labels for x in of_photo], np.uint16
                    )
                else:
                    group[f"{prefix}labels"] = np.array(["|".join(of_photo) for of_photo in labels], dtype="S")
        if sparse:
            for prefix, columns in places.items():
                file[f"metadata/{prefix}label_mapping"] = json.dumps(columns)
    return path


def load(
    folder: Path, name: str = "flair", progress: Callable[[float, str], None] | None = None, **options: object
) -> Federation:
    return load_federation(name, {"folder": str(folder), **options}, progress)

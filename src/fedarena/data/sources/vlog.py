"""VLOG (Fouhey et al., 2018): in which kind of room a video of everyday life was taken; a client is an uploader.

The publisher's files meta/uploaderId.txt, meta/manifest.txt and meta/scene_category/scene_category_full.npy have a clip
in each row, in the same order. FedScale's maps are read as well, also with the heading twice, as its script writes
them. It keeps uploaders of at least seven clips: the publisher's lists then have 4,900 uploaders with 95,879 clips;
FedScale's Table 5 has the same 4,900 with 9.6K. Clips are read as frames, a folder with pictures for each; videos are
not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedarena.core.array_archives import NO_ARRAYS
from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, numbers
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.frames import Frames, sampled_frames
from fedarena.data.by_client.maps import MapFiles, MapRow, groups_of_maps, map_records
from fedarena.data.by_client.packed import lines
from fedarena.data.by_client.pictures import Size
from fedarena.data.by_client.rows import Record
from fedarena.data.raw.files import RawFile
from fedarena.data.raw.images import need_pillow
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

SCENES = 6
NONE = SCENES  # the class of -1, none of the above
_UPLOADERS, _CLIPS, _SCENES = (
    "meta/uploaderId.txt",
    "meta/manifest.txt",
    "meta/scene_category/scene_category_full.npy",
)
FILES = MapFiles(
    "vlog",
    "VLOG",
    {name: RawFile(name) for name in (_UPLOADERS, _CLIPS, _SCENES)},
    "and the frames of every clip in a folder of its name; https://web.eecs.umich.edu/~fouhey/2017/VLOG has them; or "
    "FedScale's client_data_mapping",
    one_is_enough=True,
)


@FEDERATIONS.register("vlog")
@cached_source(version=1, reads=FILES)
def vlog(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    frames: Frames = 1,
    size: Size = 64,
    minimum_samples: MinimumSamples = 7,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Clips of everyday life and the kind of room they show, from the files in `folder`; a client is an uploader.

    Of every clip so many `frames` are taken, evenly spread over the pictures in its folder: pictures of `size` x `size`
    pixels, one behind the other as channels. There are six kinds of rooms, and none of them.
    """
    need_pillow("vlog")
    found = FILES.find(folder)
    root, maps = FILES.root(folder), FILES.maps(folder)

    def samples(rows: pa.Table) -> dict[str, AnyArray]:
        clips = rows.column("clip").to_pylist()
        x = np.stack([sampled_frames(root / clip, frames, size, f"The clip {clip}") for clip in clips])
        return {"x": x, "y": numbers(rows, "label", "int64")}

    columns = {"clip": pa.string(), "label": pa.int64()}
    if maps:

        def record(row: MapRow) -> tuple[object, ...]:
            return _clip(root, row.sample, row.where), _scene(row.label_id, row.where)

        files, records = map_records(maps, record)
    else:
        if missing := [name for name in (_UPLOADERS, _CLIPS, _SCENES) if name not in found]:
            raise BadInputError(f"{root} lacks {', '.join(missing)}; all three are needed")
        files, records = [found[_CLIPS]], lambda path: _published(root, found)
    build_from_rows(
        build,
        files,
        records,
        {**GROUP_COLUMNS, **columns} if maps else columns,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            TaskSpec(kind="classification", classes=SCENES + 1),
            {"x": ColumnSpec(dtype="uint8", shape=(3 * frames, size, size)), "y": ColumnSpec(dtype="int64")},
            samples,
        ),
        groups_of_maps(maps) if maps else None,
    )


def _published(root: Path, found: Mapping[str, Path]) -> Iterator[Record]:
    try:
        scenes = np.load(found[_SCENES], allow_pickle=False).reshape(-1)
    except NO_ARRAYS:
        raise BadInputError(f"{found[_SCENES]} is no array of numbers") from None
    uploaders = [line for _, line, _ in lines(found[_UPLOADERS])]
    clips = [line for _, line, _ in lines(found[_CLIPS])]
    if not len(uploaders) == len(clips) == len(scenes):
        raise BadInputError(
            f"{root} has {len(uploaders):,} uploaders, {len(clips):,} clips and {len(scenes):,} scenes; there must be "
            "one of each in every row"
        )
    for number, (uploader, clip, scene) in enumerate(zip(uploaders, clips, scenes.tolist(), strict=True), 1):
        where = f"{found[_CLIPS]}, line {number:,}"
        scene_of_clip = _scene(str(scene), f"{found[_SCENES]}, entry {number:,}")
        yield Record(uploader, (_clip(root, clip, where), scene_of_clip), number / len(clips))


def _clip(root: Path, name: str, where: str) -> str:
    """The folder of a clip, seen from `root`; lists may name the video that is in it."""
    clip = name.strip().strip("/")
    clip = clip.rpartition("/")[0] if clip.endswith(".mp4") else clip
    if not clip or ".." in Path(clip).parts or not (root / clip).is_dir():
        raise BadInputError(f"{where} names the clip {quoted(name)}, but there is no folder {root / clip}")
    return clip


def _scene(text: str, where: str) -> int:
    label = text.strip()
    if label == "-1":
        return NONE
    if not label.isdecimal() or int(label) >= SCENES:
        raise BadInputError(f"{where} has the scene {quoted(text)}; there are 0 to {SCENES - 1}, and -1 for none")
    return int(label)

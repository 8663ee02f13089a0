"""From FLAIR's files to a store: photos are read and checked once, taken down, and written client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from re import compile as pattern

from fedarena.data.divided_clients import DividedClients
from fedarena.data.flair.archives import find_archives
from fedarena.data.flair.checking import check_same_size, size_of
from fedarena.data.flair.files import HDF5, METADATA, PICTURES, RELATIONSHIP
from fedarena.data.flair.hdf5 import Hdf5Pictures, need_h5py, read_hdf5_photos
from fedarena.data.flair.photos import Labels, Photos, read_photos
from fedarena.data.flair.pictures import PictureFolder, PictureSource, PictureTars, PictureZip, read_side_by_side
from fedarena.data.flair.staging import PictureStage
from fedarena.data.flair.taxonomy import read_taxonomy
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.raw.images import need_pillow
from fedarena.data.raw.trees import open_tree
from fedarena.data.registry import StoreBuild
from fedarena.data.store.encoding import EncodedRows
from fedarena.data.store.schema import ColumnSpec, IntArray, TaskSpec

PHOTOS_AT_ONCE = 1024
_PICTURE = pattern(r"(?:^|/)[^/.][^/]*\.jpg$")
_METADATA_SHARE, _READING_SHARE = 0.05, 0.85  # of the time that a build takes


def build_flair(
    build: StoreBuild, paths: Mapping[str, Path], labels: Labels, choose: Callable[[Photos], DividedClients]
) -> None:
    """Builds the store of the clients that `choose` makes of all photos."""
    need_pillow(build.source.name)
    with work_folder(build) as work:
        photos = _read_photos(build, paths, labels)
        clients = choose(photos)
        with (
            closing(_pictures(build, paths, photos, clients.rows)) as pictures,
            PictureStage(work, len(photos.images)) as stage,
        ):
            _take_down(build, pictures, stage, clients.rows)
            _write(build, photos, clients, stage, pictures)


def _read_photos(build: StoreBuild, paths: Mapping[str, Path], labels: Labels) -> Photos:
    def progress(done: float) -> None:
        build.progress(_METADATA_SHARE * done, "Reading metadata")

    progress(0.0)
    if HDF5 in paths:
        need_h5py(build.source.name)
        return read_hdf5_photos(paths[HDF5], labels, progress)
    return read_photos(paths[METADATA], read_taxonomy(paths[RELATIONSHIP]), labels, progress)


def _pictures(build: StoreBuild, paths: Mapping[str, Path], photos: Photos, rows: IntArray) -> PictureSource:
    build.progress(_METADATA_SHARE, "Listing photos")
    if HDF5 in paths:
        return Hdf5Pictures(paths[HDF5], photos)
    path, metadata = paths[PICTURES], paths[METADATA]
    if path.is_dir():
        folder = PictureFolder(path, photos, metadata)
        folder.check_all_there(rows)
        return folder
    if path.suffix == ".zip":
        return PictureZip(open_tree(path, _PICTURE), photos, metadata)
    return PictureTars(find_archives(path.parent), photos, metadata)


def _take_down(build: StoreBuild, pictures: PictureSource, stage: PictureStage, rows: IntArray) -> None:
    """Reads all pictures of `rows` that are not there yet, in this order where the source can."""
    missing = stage.missing_of(rows)
    size = None
    if len(missing) < len(rows):  # a build goes on
        size = size_of(stage.first(rows))
    done = len(rows) - len(missing)
    for read, position in read_side_by_side(pictures.pieces(missing, stage.position)):
        for picture in read:
            size = size or (picture.height, picture.width)
            check_same_size(picture, *size)
            stage.add(picture.row, picture.content, position)
        done += len(read)
        build.progress(_METADATA_SHARE + _READING_SHARE * min(done / len(rows), 1.0), "Reading photos")
    stage.checkpoint()
    if len(still := stage.missing_of(rows)):
        raise pictures.lacks(still)


def _write(
    build: StoreBuild, photos: Photos, clients: DividedClients, stage: PictureStage, pictures: PictureSource
) -> None:
    classes = len(photos.label_names)
    task = TaskSpec(kind="multi_label", classes=classes, label_names=photos.label_names)
    height, width = size_of(stage.first(clients.rows))
    columns = {
        "x": ColumnSpec(dtype="uint8", shape=(3, height, width), encoding=pictures.encoding),
        "y": ColumnSpec(dtype="uint8", shape=(classes,)),
    }
    of_users = None if clients.users is None else photos.counts[clients.users]
    with build.writer(
        task=task, columns=columns, attributes=None if of_users is None else {"photos": "int64"}
    ) as writer:
        done = 0
        for chosen, rows in clients.pieces(PHOTOS_AT_ONCE):
            names = [photos.images[row] for row in rows.tolist()]
            writer.add_clients(
                clients.ids[chosen],
                counts=clients.counts[chosen],
                columns={"x": EncodedRows(stage.read(rows), names, checked=True), "y": photos.multi_hot(rows)},
                groups=clients.groups[chosen],
                attributes=None if of_users is None else {"photos": of_users[chosen]},
            )
            done += len(rows)
            before = _METADATA_SHARE + _READING_SHARE
            build.progress(before + (1 - before) * done / len(clients.rows), "Writing")

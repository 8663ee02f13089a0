"""FLAIR from small files with the form of those that are published."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flair_files import COARSE_OF, PHOTOS, USERS, entries, jpeg, load, pixels, write_archives, write_folder, write_hdf5
from interrupted_builds import InterruptionError
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import DamagedFileError
from fedarena.data import Federation, describe
from fedarena.data.flair import building, hdf5, pictures, published, staging
from fedarena.data.flair.archives import find_archives, read_members
from fedarena.data.flair.checking import Picture, as_png, checked_jpeg
from fedarena.data.flair.files import FILES
from fedarena.data.registry import CACHE_VARIABLE, cache_folder
from fedarena.data.statistics import pixels as pixels_statistics
from fedarena.data.statistics.flair_counts import compared_with_flair
from fedarena.display import federation_figure
from fedarena.display.federations import frequencies

ALL = sorted(USERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("flair") / "raw")


def of_user(federation: Federation, user: str) -> tuple[list[bytes], np.ndarray]:
    client = federation.client_ids(federation.clients()).index(user)
    return federation.encoded([client]).files, federation.samples([client], columns=["y"]).columns["y"]


def expected(user: str, kind: str = "labels") -> list[set[str]]:
    return [set(entry[kind]) for entry in entries() if entry["user_id"] == user]


def photo_ids(user: str) -> list[str]:
    return [entry["image_id"] for entry in entries() if entry["user_id"] == user]


def check_everything(federation: Federation, kind: str = "labels") -> None:
    """Everybody has their photos with their labels, in the group that was published."""
    assert federation.client_ids(federation.clients()) == ALL
    names = np.array(federation.task.label_names)
    for user in ALL:
        files, y = of_user(federation, user)
        assert [set(names[row == 1]) for row in y] == expected(user, kind)
        assert files == [jpeg(image_id) for image_id in photo_ids(user)]
    groups = {"train": "train", "val": "validation", "test": "test"}
    for client, user in enumerate(ALL):
        group = groups[USERS[user][0]]
        assert client in federation.clients(group)
        assert federation.counts([client], group) == len(USERS[user][1])


def test_a_folder_becomes_a_federation_of_its_jpegs(folder: Path) -> None:
    federation = load(folder)
    check_everything(federation)
    assert federation.task.kind == "multi_label"
    assert federation.task.label_names == ("food", "plant", "structure")
    assert federation.columns["x"].encoding == "jpeg"
    assert federation.samples([0]).columns["x"].shape == (2, 3, 8, 8)
    assert federation.attributes([0, 1, 2, 3])["photos"].tolist() == [len(USERS[user][1]) for user in ALL]


def test_fine_labels_are_those_that_occur(folder: Path) -> None:
    federation = load(folder, labels="fine")
    check_everything(federation, "fine_grained_labels")
    assert federation.task.label_names == tuple(sorted(COARSE_OF))


def test_structure_is_one_label(folder: Path) -> None:
    federation = load(folder, labels="structure")
    assert federation.task.label_names == ("structure",)
    _, y = of_user(federation, "52@N01")
    assert y.tolist() == [["structure" in labels] for labels in expected("52@N01")]


@pytest.mark.parametrize("form", ["tar.gz", "tar", "joined", "zip"])
def test_archives_give_the_same_store(folder: Path, tmp_path: Path, form: str) -> None:
    place = write_archives(tmp_path / "raw", 1 if form in ("joined", "zip") else 3)
    first = place / "small_images-00.tar.gz"
    if form == "tar":
        for archive in place.glob("*.tar.gz"):
            archive.with_suffix("").write_bytes(gzip.decompress(archive.read_bytes()))
            archive.unlink()
    elif form == "joined":  # as split makes them
        content = first.read_bytes()
        for number, part in enumerate(("aa", "ab", "ac")):
            (place / f"{first.name}.{part}").write_bytes(
                content[number * 200 : (number + 1) * 200 if number < 2 else None]
            )
        first.unlink()
    elif form == "zip":
        with zipfile.ZipFile(place / "small_images.zip", "w") as archive:
            for name, content in read_members([first]):
                archive.writestr(f"{PHOTOS}/{name}", content)
        first.unlink()
    federation = load(place)
    check_everything(federation)
    assert federation.manifest.files == load(folder).manifest.files


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(("labels", "kind"), [("coarse", "labels"), ("fine", "fine_grained_labels")])
def test_hdf5_gives_the_same_pixels_and_labels(tmp_path: Path, sparse: bool, labels: str, kind: str) -> None:
    federation = load(write_hdf5(tmp_path / "raw" / "flair_federated.hdf5", sparse).parent, labels=labels)
    assert federation.columns["x"].encoding == "png"
    names = np.array(federation.task.label_names)
    for client, user in enumerate(ALL):
        samples = federation.samples([client]).columns
        assert [set(names[row == 1]) for row in samples["y"]] == expected(user, kind)
        wanted = np.stack([pixels(image_id).transpose(2, 0, 1) for image_id in photo_ids(user)])
        assert np.array_equal(samples["x"], wanted)
    assert len(federation.clients("validation")) == len(federation.clients("test")) == 1


def test_those_who_train_have_at_most_so_many_photos(folder: Path) -> None:
    limited = load(folder, max_samples=1)
    assert [len(of_user(limited, user)[0]) for user in ALL] == [1, 2, 1, 1]  # 30@N02 is only tested on
    first = load(folder, max_samples=3, kept="first")
    drawn = load(folder, max_samples=3)
    other = load(folder, max_samples=3, sampling_seed=1)
    all_of_them = [jpeg(image_id) for image_id in photo_ids("52@N01")]
    assert of_user(first, "52@N01")[0] == all_of_them[:3]
    chosen = [of_user(one, "52@N01")[0] for one in (drawn, other)]
    assert chosen[0] != chosen[1]
    for files in chosen:
        assert files == [file for file in all_of_them if file in files]
        assert len(files) == 3
    assert of_user(drawn, "11@N00")[0] == [jpeg(image_id) for image_id in photo_ids("11@N00")]


def test_a_split_of_ones_own(folder: Path) -> None:
    federation = load(folder, split="within_client", train_fraction=0.5, minimum_samples=2)
    assert federation.client_ids(federation.clients("train")) == ["11@N00", "30@N02", "52@N01"]
    assert federation.counts(federation.clients(), "train").tolist() == [1, 1, 3]
    assert federation.counts(federation.clients(), "test").tolist() == [1, 1, 2]


def test_a_fraction_reads_only_its_photos(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "raw")
    some = load(place, fraction=0.3)
    taken = some.client_ids(some.clients())
    assert 0 < len(taken) < len(ALL)
    kept = {f"{image_id}.jpg" for user in taken for image_id in photo_ids(user)}
    for path in (place / PHOTOS).iterdir():
        if path.name not in kept:
            path.unlink()
    assert load(place, fraction=0.3).manifest.files == some.manifest.files


def test_dealt_at_random_everything_is_there_once(folder: Path) -> None:
    published, dealt = load(folder), load(folder, "flair_iid")
    for group in ("train", "validation", "test"):
        files = [Counter(one.encoded(one.clients(group)).files) for one in (published, dealt)]
        assert files[0] == files[1]
    assert sorted(dealt.counts(dealt.clients("train")).tolist()) == [2, 5]
    assert not any(
        dealt.encoded([client]).files == of_user(published, user)[0]
        for client in dealt.clients("train")
        for user in ("11@N00", "52@N01")
    )
    # Labels go with their photos.
    label_of = {file: row.tolist() for user in ALL for file, row in zip(*of_user(published, user), strict=True)}
    for client in dealt.clients():
        y = dealt.samples([client], columns=["y"]).columns["y"]
        assert [label_of[file] for file in dealt.encoded([client]).files] == y.tolist()


def test_dealt_in_equal_sizes(folder: Path) -> None:
    dealt = load(folder, "flair_iid", sizes="equal", clients=3)
    assert dealt.counts(dealt.clients("train")).tolist() == [3, 2, 2]
    assert dealt.counts(dealt.clients("test")).tolist() == [1, 1]
    as_many = load(folder, "flair_iid", sizes="equal")
    assert as_many.counts(as_many.clients("train")).tolist() == [4, 3]


@pytest.mark.parametrize("form", ["folder", "archives", "hdf5"])
def test_an_interrupted_build_goes_on_and_gives_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(pictures, "PICTURES_AT_ONCE", 1)
    monkeypatch.setattr(hdf5, "PICTURES_AT_ONCE", 1)
    monkeypatch.setattr(building, "PHOTOS_AT_ONCE", 2)
    monkeypatch.setattr(staging, "CHECKPOINT_PICTURES", 1)
    place = tmp_path / "raw"
    if form == "hdf5":
        write_hdf5(place / "flair.h5")
    else:
        (write_folder if form == "folder" else write_archives)(place)
    whole = load(place)
    whole.path.rename(tmp_path / "whole")
    seen: list[float] = []

    def interrupt(fraction: float, words: str) -> None:
        if words in ("Reading photos", "Writing") and fraction not in seen:
            seen.append(fraction)
            raise InterruptionError

    checked: list[int] = []

    def noted(check: Callable[..., Picture]) -> Callable[..., Picture]:
        def look(row: int, *rest: object) -> Picture:
            checked.append(row)
            return check(row, *rest)

        return look

    monkeypatch.setattr(pictures, "checked_jpeg", noted(checked_jpeg))
    monkeypatch.setattr(hdf5, "as_png", noted(as_png))
    for _ in range(40):
        try:
            again = load(place, progress=interrupt)
            break
        except InterruptionError:
            assert not whole.path.exists()  # nothing half-built has the name of a store
    assert again.fingerprint == whole.fingerprint
    assert len(seen) > 10
    # A few pictures are ahead of the one that was taken down last, and are looked at again.
    assert len(checked) < len(seen) * len(entries()) / 2
    assert not list(whole.path.parent.glob(f".{whole.path.name}*"))


def test_what_was_not_made_durable_is_forgotten(tmp_path: Path) -> None:
    with staging.PictureStage(tmp_path, 3) as stage:
        stage.add({2: b"first"}, 0)
        stage.checkpoint()
        stage.add({0: b"second"}, 1)
    with staging.PictureStage(tmp_path, 3) as stage:
        assert stage.missing_of(np.array([0, 1, 2])).tolist() == [0, 1]
        assert stage.position == 0
        stage.add({1: b"third"}, 4)
        assert stage.read(np.array([1, 2])) == [b"third", b"first"]
        stage.checkpoint()
    os.truncate(tmp_path / "pictures.bin", 3)  # a checkpoint that promises more than there is
    with staging.PictureStage(tmp_path, 3) as stage:
        assert len(stage.missing_of(np.array([0, 1, 2]))) == 3
        assert stage.position == 0


@pytest.mark.parametrize("change", ["bit of the index", "byte of a picture", "an old index"])
def test_damage_to_what_was_taken_down_does_not_get_into_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(pictures, "PICTURES_AT_ONCE", 1)
    monkeypatch.setattr(staging, "CHECKPOINT_PICTURES", 1)
    place = write_folder(tmp_path / "raw")

    def interrupt(fraction: float, words: str) -> None:
        if words == "Writing":
            raise InterruptionError

    with pytest.raises(InterruptionError):
        load(place, progress=interrupt)
    (work,) = cache_folder().glob(".flair-*.work")
    index, content = work / "pictures.index", work / "pictures.bin"
    if change == "byte of a picture":
        with open(content, "r+b") as file:
            file.seek(content.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(DamagedFileError, match=r"pictures\.bin is damaged"):
            load(place)
    else:
        flipped = bytearray(index.read_bytes())
        flipped[8] ^= 1  # where the first picture begins
        index.write_bytes(flipped if change == "bit of the index" else index.read_bytes()[8:])
    check_everything(load(place))


def test_archives_that_are_missing_are_fetched(tmp_path: Path) -> None:
    place = write_archives(tmp_path / "raw", 3)
    (place / "small_images-01.tar.gz").unlink()
    fetched = [file.name for file in FILES.to_fetch(str(place))]
    assert fetched == ["small_images-01.tar.gz", *(f"small_images-{number:02d}.tar.gz" for number in range(3, 43))]
    assert [file.name for file in FILES.to_fetch(str(tmp_path / "nothing"))][:3] == [
        "labels_and_metadata.json",
        "label_relationship.txt",
        "small_images-00.tar.gz",
    ]
    assert FILES.to_fetch(str(write_folder(tmp_path / "unpacked"))) == []


def test_archives_are_found_in_order(tmp_path: Path) -> None:
    parts = [f"small_images-00.tar.gz.part{number}" for number in (10, 2, 1, 3, 4, 5, 6, 7, 8, 9)]
    for name in ("small_images-01.tar.gz", *parts, "images-00.tar.gz"):
        (tmp_path / name).write_bytes(b"")
    found = {name: [path.name for path in files] for name, files in find_archives(tmp_path).items()}
    assert found == {
        "small_images-00.tar.gz": [f"small_images-00.tar.gz.part{number}" for number in range(1, 11)],
        "small_images-01.tar.gz": ["small_images-01.tar.gz"],
    }


def said(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["data", "verify", *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_verify_counts_users_and_photos(folder: Path) -> None:
    load(folder, max_samples=1)
    text = said("flair", f"folder={folder}", "max_samples=1")
    assert "Counted: 2 / 1 / 1 users, 7 / 1 / 2 images for training, validation and test, where 41,131" in text
    assert "Files counted: 2 / 1 / 1 users" in text
    assert "3 coarse and 6 fine labels" in text
    load(folder, "flair_iid")
    assert "Counted: 7 / 1 / 2 images" in said("flair_iid", f"folder={folder}")
    load(folder, fraction=0.3)
    assert "fraction=0.3 these are not the published users" in said("flair", f"folder={folder}", "fraction=0.3")


def test_what_was_published_is_recognized(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    counts = {"train": 2, "validation": 1, "test": 1}, {"train": 7, "validation": 1, "test": 2}
    monkeypatch.setattr(published, "USERS", counts[0])
    monkeypatch.setattr(published, "IMAGES", counts[1])
    assert str(compared_with_flair(load(folder))).endswith("for training, validation and test, as published")
    counted = str(FILES.counted(FILES.find(str(folder))))  # there are as many users and photos, but other labels
    assert counted.endswith("17 coarse and 1,628 fine labels were published")
    monkeypatch.setattr(published, "COARSE_LABELS", 3)
    monkeypatch.setattr(published, "FINE_LABELS", 6)
    counted = str(FILES.counted(FILES.find(str(folder))))
    assert counted.endswith("3 coarse and 6 fine labels, as published")


def test_the_published_counts_are_those_at_hand() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "flair_stats" / "flair_stats.json"
    if not path.exists():
        pytest.skip("the published statistics are not here")
    known = json.loads(path.read_text())
    names = {"train": "train", "validation": "val", "test": "test"}
    for ours, theirs in ((published.USERS, "users_by_split"), (published.IMAGES, "images_by_split")):
        assert {names[group]: number for group, number in ours.items()} == known[theirs]


def test_frequencies_of_labels_by_photos_and_by_users(folder: Path) -> None:
    """Fig. 3 of the paper."""
    statistics = describe(load(folder))
    figure = federation_figure(statistics)
    by_samples, by_clients = (trace for trace in figure.data if trace.yaxis == "y7")
    photos = [labels for user in ALL for labels in expected(user)]
    names = ["plant", "structure", "food"]
    assert list(by_samples.customdata) == names
    assert by_samples.y.tolist() == [sum(name in labels for labels in photos) / len(photos) for name in names]
    share = [sum(any(name in labels for labels in expected(user)) for user in ALL) / len(ALL) for name in names]
    assert by_clients.y.tolist() == share
    places = sorted(figure.layout[axis].domain for axis in figure.layout if axis.startswith("yaxis"))
    assert all(low[1] < high[0] for low, high in pairwise(places)), "panels do not cover each other"


def test_many_labels_are_told_by_their_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequencies, "MAX_LABELS", 5)
    figure = federation_figure(describe(load(folder, labels="fine")))
    assert (figure.layout.xaxis7.type, figure.layout.yaxis7.type) == ("log", "log")
    assert figure.layout.xaxis7.ticktext is None


def test_what_is_shown_of_labels_and_of_the_paper(folder: Path) -> None:
    one = ["data", "stats", "flair", f"folder={folder}", "-o", str(folder / "picture.html")]
    text = " ".join(CliRunner().invoke(main, one).output.split())
    assert "most common: 'plant', in 60.0 % of the samples and at 100 % of the clients" in text
    assert "least common: 'food', in 30.0 % of the samples and at 75.0 % of the clients" in text
    assert "in FLAIR's paper 51,414 clients, 429,078 photos, mean 8.35 ± 51.28" in text
    assert "x: uint8 of shape [3, 8, 8], stored as JPEG files" in text
    several = ["data", "stats", "flair", f"folder={folder}", "digits", "-o", str(folder / "pictures.html")]
    text = " ".join(CliRunner().invoke(main, several).output.split())
    assert "FLAIR's paper, photos 51,414 429,078 8.35 51.28" in text
    assert "FLAIR's paper: all of the data, before max_samples" in text


def test_pixels_of_compressed_pictures_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels_statistics, "MAX_BYTES", 1)
    found = describe(load(folder)).pixels
    assert found is not None
    assert found.images == sum("plant" in labels for user in ALL for labels in expected(user))


KILLED = """
import os, signal, sys
from fedarena.data import load_federation
from fedarena.data.flair import pictures, staging

staging.CHECKPOINT_PICTURES = pictures.PICTURES_AT_ONCE = 1

def progress(fraction, words):
    if words == "Reading photos" and fraction > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

load_federation("flair", {"folder": sys.argv[1]}, progress)
"""


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on(tmp_path: Path, built_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_archives(tmp_path / "raw")
    variables = {**os.environ, CACHE_VARIABLE: str(built_once)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place)], env=variables, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    checked: list[int] = []

    def noted(row: int, *rest: Any) -> Picture:
        checked.append(row)
        return checked_jpeg(row, *rest)

    monkeypatch.setattr(pictures, "checked_jpeg", noted)
    check_everything(load(place))
    assert 0 < len(checked) <= len(entries()) / 2

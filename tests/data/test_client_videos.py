"""Videos as frames or features: Charades and VLOG in their forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from picture_maps import HEADING, picture, put, write_table
from publishers_files import load

from fedarena.core.errors import BadInputError
from fedarena.data import Federation

TABLE = ("id", "subject", "scene", "actions", "length")


def everything(federation: Federation) -> dict[str, np.ndarray]:
    parts = [federation.samples(federation.clients(), part).columns for part in ("train", "validation", "test")]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write_charades(folder: Path) -> None:
    rows = [("AAAA1", "S1", "Kitchen", "c092 11.90 21.20;c000 0.0 1.5", 30), ("BBBB2", "S2", "Hall", "", 30)]
    write_table(folder / "Charades_v1_train.csv", [TABLE, *rows])
    write_table(folder / "Charades_v1_test.csv", [TABLE, ("CCCC3", "S1", "Hall", "c156 1 2", 9)])


def test_actions_from_frames_and_from_features(tmp_path: Path) -> None:
    for form in ("frames", "features"):
        write_charades(tmp_path / form)
    for number, name in enumerate(("AAAA1", "BBBB2", "CCCC3")):
        for frame in range(3 + number):
            content = picture(10 * number + frame, (12, 8), "JPEG", channels=3)
            put(tmp_path / "frames" / "Charades_v1_rgb" / name / f"{name}-{frame:06d}.jpg", content)
            text = f"{number} {frame}\n".encode()
            put(tmp_path / "features" / "Charades_v1_features_rgb" / name / f"{name}-{frame:06d}.txt", text)
    federation = load("charades", tmp_path / "frames", frames=2, size=4)
    assert sorted(federation.client_ids(federation.clients())) == ["S1", "S2"]
    samples = everything(federation)
    assert samples["x"].shape == (3, 6, 4, 4)
    assert sorted(np.flatnonzero(row).tolist() for row in samples["y"]) == [[], [0, 92], [156]]
    features = everything(load("charades", tmp_path / "features", frames=2))
    # Frames 0 and 2 of 3, 1 and 3 of 4, 1 and 3 of 5.
    assert sorted(features["x"].tolist()) == [[0, 1], [1, 2], [2, 2]]
    put(tmp_path / "features" / "Charades_v1_features_rgb" / "BBBB2" / "BBBB2-000001.txt", b"1 x")
    with pytest.raises(BadInputError, match=r"BBBB2-000001\.txt must have 2 numbers"):
        load("charades", tmp_path / "features", frames=4)
    write_table(tmp_path / "frames" / "Charades_v1_test.csv", [TABLE, ("CCCC3", "S1", "Hall", "c157 1 2", 9)])
    with pytest.raises(BadInputError, match=r"test\.csv, line 2: 'c157 1 2' must be an action of c000 to c156"):
        load("charades", tmp_path / "frames")
    write_table(tmp_path / "frames" / "Charades_v1_test.csv", [TABLE, ("DDDD4", "S1", "Hall", "", 9)])
    with pytest.raises(BadInputError, match=r"test\.csv, line 2 names the video DDDD4, but there is no folder"):
        load("charades", tmp_path / "frames")


def write_vlog(folder: Path, scenes: list[int]) -> None:
    uploaders = [f"user{place // 7}" for place in range(len(scenes))]
    clips = [f"v_{place}/001/clip.mp4" for place in range(len(scenes))]
    put(folder / "meta" / "uploaderId.txt", "\n".join(uploaders).encode())
    put(folder / "meta" / "manifest.txt", "\n".join(clips).encode())
    (folder / "meta" / "scene_category").mkdir(exist_ok=True)
    np.save(folder / "meta" / "scene_category" / "scene_category_full.npy", np.array(scenes))
    for place, clip in enumerate(clips):
        put(folder / Path(clip).parent / "frame1.png", picture(place, (6, 6), channels=3))


def test_rooms_as_published_and_as_fedscale_has_them(tmp_path: Path) -> None:
    write_vlog(tmp_path / "published", [place % 7 - 1 for place in range(16)])
    federation = load("vlog", tmp_path / "published", size=6)
    # Who has fewer than seven clips is left out.
    assert sorted(federation.client_ids(federation.clients())) == ["user0", "user1"]
    assert sorted(everything(federation)["y"].tolist()) == sorted([6, 0, 1, 2, 3, 4, 5] * 2)
    map_folder = tmp_path / "map" / "client_data_mapping"
    put(tmp_path / "map" / "v_0" / "001" / "frame1.png", picture(0, (6, 6), channels=3))
    heading = ("client_id", "data_path", "label_name", "label_id")
    write_table(map_folder / "train.csv", [heading, heading, (0, "v_0/001", "none-of-the-above", -1)])
    federation = load("vlog", tmp_path / "map", size=6, minimum_samples=1)
    assert federation.samples(federation.clients("train"), "train").columns["y"].tolist() == [6]
    write_table(map_folder / "train.csv", [heading, (0, "v_0/001", "kitchen", 6)])
    with pytest.raises(BadInputError, match=r"train\.csv, line 2 has the scene '6'; there are 0 to 5, and -1 for none"):
        load("vlog", tmp_path / "map", minimum_samples=1)
    write_table(map_folder / "train.csv", [HEADING, (0, "v_1/001", "kitchen", 2)])
    with pytest.raises(BadInputError, match=r"train\.csv, line 2 names the clip 'v_1/001', but there is no folder"):
        load("vlog", tmp_path / "map", minimum_samples=1)
    put(tmp_path / "published" / "meta" / "uploaderId.txt", b"a\nb")
    with pytest.raises(BadInputError, match="has 2 uploaders, 16 clips and 16 scenes"):
        load("vlog", tmp_path / "published")

"""Small files in the form of every dataset of FedScale's Table 5, of six clients or more with three samples or more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from picture_maps import picture, put, write_maps, write_table
from protocol_buffers import scenario, track
from wav_files import tone, wav

Write = Callable[[Path], dict[str, object]]  # writes files and gives options

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "some", "birds", "in", "trees", "while", "it", "rained"]
SMALL_TEXT = {"vocabulary": 12}
PEOPLE = range(8)


def some_words(number: int, count: int = 7) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, count))


def _pictures(kind: str, where: Callable[[str, int], str], named: Callable[[str, int], str]) -> Write:
    def write(folder: Path) -> dict[str, object]:
        def sample(group: str, number: int) -> str:
            channels = 1 if kind == "PNG" else 3
            put(folder / where(group, number), picture(number, (10, 8), kind, channels))
            return named(group, number)

        write_maps(folder, sample)
        return {"size": 8} if kind == "PNG" else {"size": 8, "compressed": None}

    return write


def _with(write: Write, **options: object) -> Write:
    return lambda folder: {**write(folder), **options}


def inature(folder: Path) -> dict[str, object]:
    path = "train_val2019/Birds/{}/{}.jpg"
    write = _pictures("JPEG", lambda _, n: path.format(n % 3, n), lambda _, n: path.format(n % 3, n))
    return {**write(folder), "classes": 3}


def charades(folder: Path) -> dict[str, object]:
    rows = [(f"V{n:04d}", f"S{n % 8}", f"c{n % 5:03d} 0.0 1.0") for n in range(24)]
    write_table(folder / "Charades_v1_train.csv", [("id", "subject", "actions"), *rows])
    for number, (name, *_) in enumerate(rows):
        put(folder / "Charades_v1_rgb" / name / f"{name}-000001.jpg", picture(number, (9, 9), "JPEG", 3))
    return {"frames": 1, "size": 8}


def vlog(folder: Path) -> dict[str, object]:
    put(folder / "meta" / "uploaderId.txt", "\n".join(f"u{n % 8}" for n in range(24)).encode())
    put(folder / "meta" / "manifest.txt", "\n".join(f"v_{n}/1" for n in range(24)).encode())
    (folder / "meta" / "scene_category").mkdir()
    np.save(folder / "meta" / "scene_category" / "scene_category_full.npy", np.arange(24) % 7 - 1)
    for number in range(24):
        put(folder / f"v_{number}" / "1" / "a.jpg", picture(number, (9, 9), "JPEG", 3))
    return {"size": 8, "minimum_samples": 3}


def waymo(folder: Path) -> dict[str, object]:
    folder.mkdir(parents=True)
    for name, first in (("training", 0), ("validation", 5), ("testing", 7)):
        content = b""
        for number in range(first, first + 4):
            steps = np.random.default_rng(number).normal(0.3, 0.1, (3, 91, 2)).cumsum(axis=1)
            content += scenario(f"{name}{number}", *(track([tuple(place) for place in one.tolist()]) for one in steps))
        (folder / f"{name}.tfrecord-00000-of-00001").write_bytes(content)
    return {"future": 10}


def europarl(folder: Path) -> dict[str, object]:
    for language, shift in (("en", 0), ("fr", 100)):
        text = "<CHAPTER ID=1>\n"
        for number in range(24):
            text += f'<SPEAKER ID={number} NAME="Speaker {number % 8}">\n{some_words(number + shift, 4)}\n'
        put(folder / "txt" / language / "ep-00-01-17.txt", text.encode())
    return {**SMALL_TEXT, "length": 5}


def blog_corpus(folder: Path) -> dict[str, object]:
    for person in PEOPLE:
        posts = "".join(f"<post>{some_words(10 * person + n)}</post>" for n in range(3))
        put(folder / "blogs" / f"{person}.male.20.Arts.Leo.xml", f"<Blog>{posts}</Blog>".encode())
    return {**SMALL_TEXT, "sequence_length": 4}


def stackoverflow(folder: Path) -> dict[str, object]:
    folder.mkdir(parents=True)
    for name, people in (("train", PEOPLE), ("test", range(20, 24))):
        with h5py.File(folder / f"stackoverflow_{name}.h5", "w") as file:
            for person in people:
                posts = [[some_words(10 * person + n), "", f"tag{(person + n) % 3}|tag0"] for n in range(3)]
                for place, column in enumerate(("tokens", "title", "tags")):
                    values = [post[place].encode() for post in posts]
                    file.create_dataset(f"examples/{person}/{column}", data=values, dtype=h5py.string_dtype())
    return {**SMALL_TEXT, "tags": 3, "length": 5}


def reddit_comments(folder: Path) -> dict[str, object]:
    rows = [(f"user{n % 8}", some_words(n)) for n in range(32)]
    write_table(folder / "comments.csv", [("author", "body"), *rows])
    return {**SMALL_TEXT, "sequence_length": 4}


def amazon_review(folder: Path) -> dict[str, object]:
    reviews = [{"reviewerID": f"r{n % 8}", "overall": 1 + n % 5, "reviewText": some_words(n)} for n in range(32)]
    put(folder / "Gifts_5.json", "\n".join(map(json.dumps, reviews)).encode())
    return {**SMALL_TEXT, "length": 5}


def coqa(folder: Path) -> dict[str, object]:
    for name, first in (("train", 0), ("dev", 50)):
        conversations = [
            {
                "id": f"{name}{person}",
                "questions": [{"input_text": some_words(first + 10 * person + n, 4)} for n in range(3)],
                "answers": [{"input_text": some_words(first + 10 * person + n + 5, 2)} for n in range(3)],
            }
            for person in PEOPLE
        ]
        put(folder / f"coqa-{name}-v1.0.json", json.dumps({"data": conversations}).encode())
    return {**SMALL_TEXT, "length": 4}


def _said(number: int) -> np.ndarray:
    return tone(number, 1600)


def libritts(folder: Path) -> dict[str, object]:
    for number in range(24):
        stem = folder / "train-clean-100" / str(number % 8) / "1" / f"{number % 8}_1_0_{number}"
        put(stem.with_name(f"{stem.name}.wav"), wav(_said(number)))
        put(stem.with_name(f"{stem.name}.normalized.txt"), some_words(number, 1)[:3].encode())
    return {"sample_rate": 8000, "seconds": 0.2, "length": 3}


def google_speech(folder: Path) -> dict[str, object]:
    for number in range(24):
        put(
            folder / "speech_commands" / ("bed", "cat")[number % 2] / f"a{number % 8}_nohash_{number}.wav",
            wav(_said(number)),
        )
    put(folder / "speech_commands" / "testing_list.txt", b"bed/a6_nohash_6.wav\ncat/a7_nohash_7.wav\n")
    return {"sample_rate": 8000, "seconds": 0.2}


def common_voice(folder: Path) -> dict[str, object]:
    rows = [f"c{n % 8}\t{n}.wav\t{some_words(n, 1)[:3]}" for n in range(24)]
    put(folder / "validated.tsv", "\n".join(["client_id\tpath\tsentence", *rows]).encode())
    for number in range(24):
        put(folder / "clips" / f"{number}.wav", wav(_said(number)))
    return {"sample_rate": 8000, "seconds": 0.2, "length": 3}


def taxi(folder: Path) -> dict[str, object]:
    heading = ["TRIP_ID", "TAXI_ID", "MISSING_DATA", "POLYLINE"]
    steps = np.random.default_rng(0).normal(0, 0.003, (24, 6, 2)).cumsum(axis=1) + np.array([-8.62, 41.16])
    rows = [(n, n % 8, "False", json.dumps(way.tolist())) for n, way in enumerate(steps)]
    write_table(folder / "train.csv", [heading, *rows])
    return {"points": 4}


def taobao(folder: Path) -> dict[str, object]:
    samples = [(n % 8, n, n % 5, f"4_{n % 3}", 0, int(n % 4 == 0)) for n in range(32)]
    write_table(folder / "raw_sample.csv", [("user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"), *samples])
    ads = [(n, n % 2, n % 3, n, n, 10.0 * n) for n in range(5)]
    write_table(
        folder / "ad_feature.csv", [("adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"), *ads]
    )
    names = (
        "cms_segid",
        "cms_group_id",
        "final_gender_code",
        "age_level",
        "pvalue_level",
        "shopping_level",
        "occupation",
    )
    users = [(n, *(n % (2 + place) for place in range(8))) for n in PEOPLE]
    write_table(folder / "user_profile.csv", [("userid", *names, "new_user_class_level"), *users])
    return {}


def puffer(folder: Path) -> dict[str, object]:
    rates = np.random.default_rng(0).uniform(1e5, 4e6, 96)
    rows = [(n, f"session{n % 8}", 0, rate) for n, rate in enumerate(rates.tolist())]
    write_table(folder / "video_sent_2021-01-01.csv", [("time", "session_id", "index", "delivery_rate"), *rows])
    return {"history": 4}


def fox_go(folder: Path) -> dict[str, object]:
    for number in range(12):
        points = np.random.default_rng(number).permutation(361)[:20]
        moves = "".join(f";{'BW'[n % 2]}[{chr(97 + p % 19)}{chr(97 + p // 19)}]" for n, p in enumerate(points.tolist()))
        put(folder / f"{number}.sgf", f"(;SZ[19]PB[p{number % 4}]PW[q{number % 5}]{moves})".encode())
    return {"positions": 3}


# The federations of FedScale's Table 5, and settings with which one of each is quick to train.
SOURCES: dict[str, tuple[Write, dict[str, object]]] = {
    "inature": (inature, {}),
    "fedscale_femnist": (_pictures("PNG", lambda _, n: f"{n}.png", lambda _, n: f"{n}.png"), {}),
    "openimage": (_pictures("JPEG", lambda g, n: f"{g}/{n}.jpg", lambda _, n: f"{n}.jpg"), {}),
    "landmarks": (_with(_pictures("JPEG", lambda _, n: f"{n}.jpg", lambda _, n: f"{n}.jpg"), classes=3), {}),
    "charades": (charades, {}),
    "vlog": (vlog, {}),
    "waymo": (waymo, {}),
    "europarl": (europarl, {"model": {"name": "seq2seq", "embedding": 4, "hidden": 4}}),
    "blog_corpus": (blog_corpus, {}),
    "stackoverflow": (stackoverflow, {}),
    "reddit_comments": (reddit_comments, {}),
    "amazon_review": (amazon_review, {}),
    "coqa": (coqa, {"model": {"name": "seq2seq", "embedding": 4, "hidden": 4}}),
    "libritts": (libritts, {"model": {"name": "deepspeech_small", "bands": 4, "hidden": 4, "layers": 1}}),
    "google_speech": (google_speech, {"model": {"name": "speech_cnn", "bands": 8, "channels": [2, 2], "hidden": 4}}),
    "common_voice": (common_voice, {"model": {"name": "deepspeech_small", "bands": 4, "hidden": 4, "layers": 1}}),
    "taxi": (taxi, {}),
    "taobao": (taobao, {}),
    "puffer": (puffer, {}),
    "fox_go": (fox_go, {"model": {"name": "go_policy", "width": 2, "layers": 1}}),
}

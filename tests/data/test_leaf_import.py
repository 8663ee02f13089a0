"""Reading LEAF's JSON: its datasets in the form of its own scripts, and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.core.errors import BadInputError
from fedarena.data import Federation, load_federation
from fedarena.data.leaf.division import _divide
from fedarena.data.splits import Split
from fedarena.data.store.schema import PARTS

SENT140 = Path(__file__).parents[3] / "shared" / "data" / "leaf_sent140_k30"


def write(path: Path, samples: dict[str, list[tuple[Any, Any]]], **more: Any) -> Path:
    """A file with the keys and the order of keys of LEAF's scripts."""
    content = {
        "users": list(samples),
        "num_samples": [len(mine) for mine in samples.values()],
        "user_data": {user: {"x": [x for x, _ in mine], "y": [y for _, y in mine]} for user, mine in samples.items()},
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def load(folder: Path, **options: Any) -> Federation:
    return load_federation("leaf", {"folder": str(folder), **options})


def features(numbers: range) -> list[tuple[list[float], int]]:
    """Samples that say in their first feature which one they are."""
    return [([float(number), 0.5], number % 3) for number in numbers]


def numbers_of(federation: Federation, client: int, part: str = "all") -> list[int]:
    return federation.samples([client], part).columns["x"][:, 0].astype(int).tolist()


def test_features_and_labels(tmp_path: Path) -> None:
    write(tmp_path / "data.json", {"0": features(range(10)), "1": features(range(10, 15))})
    federation = load(tmp_path)
    assert federation.client_ids(federation.clients()) == ["0", "1"]
    assert (federation.task.kind, federation.task.classes) == ("classification", 3)
    assert sorted(numbers_of(federation, 0)) == list(range(10))
    assert len(numbers_of(federation, 0, "train")) == 9
    rows = federation.samples([0, 1]).columns
    np.testing.assert_array_equal(rows["y"], rows["x"][:, 0] % 3)
    assert load(tmp_path, classes=7).task.classes == 7
    assert load(tmp_path, shape=[1, 2]).columns["x"].shape == (1, 2)


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        # As MOCHA's, Ditto's and FedProx's files of vehicles and phones have them.
        ([[-1], [1], [1], [-1]], [0, 1, 1, 0], ("-1", "1")),
        ([[-1.0], [1.0], [1.0], [-1.0]], [0, 1, 1, 0], ("-1", "1")),
        ([10, -2, 9, 9.0], [2, 0, 1, 1], ("-2", "9", "10")),
        (["10", "-2", 9, "9.0"], [2, 0, 1, 1], ("-2", "9", "10")),
        (["walks", "sits", "10", "walks"], [2, 1, 0, 2], ("10", "sits", "walks")),
        ([[["walks"]], [["sits"]], [["sits"]], [["sits"]]], [1, 0, 0, 0], ("sits", "walks")),
        ([True, False, True, True], [1, 0, 1, 1], ("false", "true")),
        ([True, False, 3, True], [1, 0, 3, 1], None),
        ([200_000, 5, 5, 5], [1, 0, 0, 0], ("5", "200000")),
        ([3, 1, "0", 1.0], [3, 1, 0, 1], None),  # whole numbers from 0 are classes as they are
    ],
)
def test_labels_are_whatever_they_are(
    tmp_path: Path, labels: list[Any], classes: list[int], names: tuple[str, ...] | None
) -> None:
    samples = [([float(number), 0.5], label) for number, label in enumerate(labels)]
    write(tmp_path / "train" / "mytrain.json", {"f_0": samples[:1], "f_1": samples[1:3]})
    write(tmp_path / "test" / "mytest.json", {"f_0": samples[3:], "f_1": []})
    federation = load(tmp_path)
    rows = federation.samples(federation.clients()).columns
    assert dict(zip(rows["x"][:, 0].astype(int).tolist(), rows["y"].tolist(), strict=True)) == dict(enumerate(classes))
    assert federation.task.label_names == names
    assert federation.task.classes == (max(classes) + 1 if names is None else len(names))


def test_texts_with_words_for_labels(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"u": [("good day", "glad"), ("bad day", "sad"), ("what a day", "glad")]})
    federation = load(tmp_path, train_fraction=1.0)
    assert (federation.task.classes, federation.task.label_names) == (2, ("glad", "sad"))
    assert sorted(federation.samples([0]).columns["y"].tolist()) == [0, 0, 1]


def test_the_pictures_of_femnist(tmp_path: Path) -> None:
    """Fractions of 255 become bytes; others stay numbers."""
    pixels = np.arange(784) % 256
    path = write(tmp_path / "a.json", {"f0000_14": [((pixels / 255).tolist(), 61), ((pixels / 255).tolist(), 0)]})
    federation = load(path)
    assert federation.columns["x"].model_dump() == {"dtype": "uint8", "shape": (1, 28, 28)}
    np.testing.assert_array_equal(federation.samples([0], "train").columns["x"][0].ravel(), pixels)
    assert federation.task.classes == 62
    path = write(tmp_path / "b.json", {"f0000_14": [((pixels / 300).tolist(), 1)]})
    assert load(path).columns["x"].dtype == "float32"
    path = write(tmp_path / "d.json", {"f0000_14": [((2 * pixels / 255).tolist(), 1)]})
    np.testing.assert_allclose(load(path).samples([0]).columns["x"].max(), 2)
    path = write(tmp_path / "c.json", {"f0000_14": [([0.2] * 12, 1)]})
    assert load(path, kind="images", shape=[3, 2, 2]).columns["x"].shape == (3, 2, 2)
    with pytest.raises(BadInputError, match="user 'f0000_14': x has 12 numbers; say what shape pictures have"):
        load(path, kind="images")
    with pytest.raises(BadInputError, match=r"x has 12 numbers, which do not fill the shape \[3, 3\]"):
        load(path, shape=[3, 3])


def test_lines_of_shakespeare_and_their_plays(tmp_path: Path) -> None:
    """Windows overlap: none for testing may share a character with one for training."""
    text, length = "".join(chr(ord("A") + number % 26) for number in range(130)) + "~", 20
    windows = [(text[start : start + length], text[start + length]) for start in range(110)]
    path = tmp_path / "all_data.json"
    write(path, {"LEAR_KENT": windows, "LEAR_FOOL": windows[:30]}, hierarchies=["KING LEAR", "KING LEAR"])
    federation = load(path, train_fraction=0.5)
    task = federation.task
    assert task.token_names is not None
    assert (task.classes, task.tokens, task.unknown, task.padding) == (80, 81, 80, None)
    assert federation.attributes([0, 1]) == {"hierarchy": ["KING LEAR", "KING LEAR"]}
    rows = federation.samples([0], "train").columns
    assert len(rows["y"]) == 55
    assert "".join(task.token_names[token] for token in rows["x"][54]) == text[54:74]
    assert task.token_names[rows["y"][54]] == text[74]
    test = federation.samples([0], "test").columns
    assert len(test["y"]) == 35  # window 54 ends with character 74, so the first for testing is 75
    assert "".join(task.token_names[token] for token in test["x"][0]) == text[75:95]
    with pytest.raises(
        BadInputError, match=r"federation.iid_users .* overlap .* text for testing would also be trained"
    ):
        load(path, iid_users=4)
    assert load(path, iid_users=4, train_fraction=1.0).num_samples == 140


def test_other_alphabets_and_short_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"я": [("где", "ж"), ("б", "д")]})
    federation = load(path, train_fraction=1.0)
    assert federation.task.token_names == ("б", "г", "д", "е", "ж", "<unknown>", "<padding>")
    assert sorted(federation.samples([0]).columns["x"].tolist()) == [[1, 2, 3], [6, 6, 0]]
    with pytest.raises(BadInputError, match=r"user 'я': x must be strings of at most 2 characters, as the first was"):
        load(path, length=2)


def test_characters_that_are_only_in_test_samples_are_unknown(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", {"я": [("аб", "в")]})
    write(tmp_path / "test" / "a.json", {"я": [("бг", "д")]})
    federation = load(tmp_path)
    assert federation.task.token_names == ("а", "б", "в", "д", "<unknown>")
    assert federation.samples([0], "test").columns["x"].tolist() == [[1, 4]]


def tweet(text: str) -> list[str]:
    return ["1467", "Mon Apr 06", "NO_QUERY", "ann", text]


def test_tweets(tmp_path: Path) -> None:
    tweets = [(tweet(f"Good good {word}!"), 4) for word in ("day", "night", "day", "luck")]
    path = write(tmp_path / "a.json", {"ann": tweets, "bob": [(tweet("bad bad dog"), 0)]})
    federation = load(path, length=5, train_fraction=1.0, vocabulary=7)
    task = federation.task
    assert task.token_names == ("<PAD>", "<UNK>", "good", "!", "bad", "day", "dog")
    assert (task.classes, task.label_names) == (2, ("negative", "positive"))
    rows = federation.samples([0, 1]).columns
    assert sorted(rows["x"].tolist())[:2] == [[0, 0, 4, 4, 6], [0, 2, 2, 1, 3]]
    assert rows["y"].tolist() == [1, 1, 1, 1, 0]
    cased = load(path, tokenizer="leaf").task.token_names
    assert cased is not None
    assert {"Good", "good"} <= set(cased)


def test_labels_0_and_4_are_polarities_of_tweets_alone(tmp_path: Path) -> None:
    tweets = write(tmp_path / "a.json", {"ann": [(tweet("good"), 4), (tweet("bad"), 0)]})
    texts = write(tmp_path / "b.json", {"ann": [("good", 4), ("bad", 0)]})
    for path, options, labels in ((tweets, {}, [0, 1]), (tweets, {"classes": 5}, [0, 4]), (texts, {}, [0, 4])):
        federation = load(path, **options)
        assert federation.task.classes == max(labels) + 1
        assert sorted(federation.samples([0]).columns["y"].tolist()) == labels


def test_texts_alone_and_words(tmp_path: Path) -> None:
    for name, x in (("a", "we are such stuff as dreams"), ("b", ["we", "are", "such", "stuff", "as", "dreams"])):
        federation = load(write(tmp_path / f"{name}.json", {"ann": [(x, 2)]}), length=6)
        assert federation.task.classes == 3
        assert set(federation.samples([0]).columns["x"][0].tolist()) == set(range(2, 8))


def test_lists_of_words_stay_whole_if_some_begin_with_a_number(tmp_path: Path) -> None:
    texts = [["the", "film", "was", "very", "good"], ["4", "people", "liked", "this", "film", "much"]]
    path = write(tmp_path / "a.json", {"ann": [(text, number) for number, text in enumerate(texts)]})
    federation = load(path, length=6, train_fraction=1.0)
    rows, names = federation.samples([0]).columns, federation.task.token_names
    assert names is not None
    found = {tuple(names[token] for token in x if token) for x in rows["x"].tolist()}
    assert found == set(map(tuple, texts))


def test_words_that_are_only_in_test_samples_are_unknown(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", {"ann": [("yes", 1), ("no", 0)]})
    write(tmp_path / "test" / "a.json", {"ann": [("perhaps", 1)], "bob": [("no", 0)]})
    federation = load(tmp_path, length=1)
    assert federation.task.token_names == ("<PAD>", "<UNK>", "no", "yes")
    assert federation.samples([0], "test").columns["x"].tolist() == [[1]]


def test_train_and_test_folders(tmp_path: Path) -> None:
    """Who is in both is one client with both parts; who is in test/ alone is tested on alone."""
    write(tmp_path / "train" / "all_data_0_train_9.json", {"ann": features(range(3)), "bob": features(range(3, 5))})
    write(tmp_path / "train" / "all_data_10_train_9.json", {"cid": features(range(5, 7))})
    write(tmp_path / "train" / "all_data_2_train_9.json", {"dan": features(range(7, 8))})
    write(tmp_path / "val" / "a.json", {"bob": features(range(20, 21))})
    write(tmp_path / "test" / "a.json", {"bob": features(range(30, 32)), "eve": features(range(40, 43))})
    federation = load(tmp_path)
    assert federation.client_ids(federation.clients("train")) == ["ann", "bob", "dan", "cid"]
    assert federation.client_ids(federation.clients("test")) == ["eve"]
    assert [numbers_of(federation, 1, part) for part in ("train", "validation", "test")] == [[3, 4], [20], [30, 31]]
    assert numbers_of(federation, 4, "test") == [40, 41, 42]

    again = load(tmp_path, split="by_client", train_fraction=0.6)
    assert [len(again.clients(group)) for group in ("train", "test")] == [3, 2]
    assert sorted(numbers_of(again, 1)) == [3, 4, 20, 30, 31]


def test_both_in_one_folder_are_told_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "all_data_niid_0_keep_1_train_9.json", {"ann": features(range(3))})
    write(tmp_path / "all_data_niid_0_keep_1_test_9.json", {"ann": features(range(3, 4))})
    federation = load(tmp_path)
    assert (numbers_of(federation, 0, "train"), numbers_of(federation, 0, "test")) == ([0, 1, 2], [3])


def test_who_was_dropped_by_a_split_leaves_a_trace(tmp_path: Path) -> None:
    """LEAF's split by sample keeps their hierarchies and empty lists, and takes them off users."""
    write(tmp_path / "a.json", {"ann": features(range(3)), "bob": [], "cid": features(range(2))})
    content = json.loads((tmp_path / "a.json").read_text())
    content |= {"users": ["ann", "cid"], "num_samples": [3, 2], "hierarchies": ["a", "b", ["c", "d"]]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    federation = load(tmp_path)
    assert federation.client_ids([0, 1]) == ["ann", "cid"]
    assert federation.attributes([0, 1]) == {"hierarchy": ["a", "c,d"]}


def test_sampling(tmp_path: Path) -> None:
    samples = {f"u{size}": features(range(size)) for size in range(1, 21)}
    write(tmp_path / "a.json", samples)
    assert load(tmp_path, minimum_samples=15).num_clients == 6
    some = load(tmp_path, fraction=0.3, sampling_seed=4)
    assert 63 <= some.num_samples <= 63 + 20
    assert load(tmp_path, fraction=0.3, sampling_seed=5).client_ids([0]) != some.client_ids([0])


def test_dealt_out_at_random(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"ann": features(range(60)), "bob": features(range(60, 100))})
    federation = load(tmp_path, iid_users=6)
    assert federation.client_ids(federation.clients()) == list("012345")
    assert sorted(federation.counts(federation.clients()).tolist()) == [16, 16, 17, 17, 17, 17]
    dealt = [numbers_of(federation, client) for client in range(6)]
    assert sorted(number for mine in dealt for number in mine) == list(range(100))
    assert all(min(mine) < 60 <= max(mine) for mine in dealt)
    assert load(tmp_path, iid_users=0.5, fraction=0.2).counts([0]).tolist() == [20]
    with pytest.raises(BadInputError, match="asks for 101 users, but there are 100 samples"):
        load(tmp_path, iid_users=101)


@pytest.mark.parametrize("kind", ["by_client", "within_client"])
@pytest.mark.parametrize("gap", [0, 2])
def test_many_are_divided_like_one(kind: str, gap: int) -> None:
    """Against `Split.divide`, a client at a time."""
    split = Split(kind, 0.5, 0.2, seed=3)
    sizes = np.array([0, 1, 2, 5, 12, 30])
    rows = 100 + np.arange(sizes.sum())
    groups = split.groups(len(sizes))
    counts, divided = _divide(rows, sizes, groups, split, gap)
    expected = []
    for client, mine in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        parts = split.divide(client, groups[client], {"row": mine}, "in_order" if gap else "shuffled", gap)
        expected += [parts.get(part, {"row": mine[:0]})["row"].tolist() for part in PARTS]
    found = np.split(divided, np.cumsum(counts.ravel())[:-1])
    assert [some.tolist() for some in found] == expected


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"ann": features(range(3))})
    assert load(tmp_path).num_samples == 3
    write(tmp_path / "a.json", {"ann": features(range(4))})
    assert load(tmp_path).num_samples == 4


def test_a_file_that_moves_to_another_part_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"ann": features(range(10))})
    found = [load(tmp_path)]
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        path = path.rename(tmp_path / name / "a.json")
        found.append(load(tmp_path))
    assert [[len(numbers_of(some, 0, part)) for part in ("train", "test")] for some in found] == [
        [9, 1],
        [10, 0],
        [0, 10],
    ]


def test_any_names_of_files(tmp_path: Path) -> None:
    for number, name in enumerate(("²3.json", "٣.json", "3.json")):
        write(tmp_path / name, {str(number): features(range(2))})
    assert load(tmp_path).num_clients == 3


@pytest.mark.skipif(not SENT140.is_dir(), reason="LEAF's own file is not here")
def test_leafs_own_file() -> None:
    (path,) = SENT140.glob("*.json")
    content = json.loads(path.read_text())
    federation = load(SENT140, minimum_samples=5)
    assert (len(content["users"]), sum(content["num_samples"])) == (2_875, 16_025)
    assert federation.num_samples == sum(size for size in content["num_samples"] if size >= 5)
    assert (federation.task.tokens, federation.task.classes) == (10_000, 2)
    (first,) = federation.client_ids([0])
    labels = federation.samples([0]).columns["y"]
    assert sorted(labels.tolist()) == sorted(content["user_data"][first]["y"])

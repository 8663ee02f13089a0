"""Texts by client: blogs, reviews, comments, posts, conversations, speeches; made in their forms, and real ones."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
from both_engines import agree
from picture_maps import HEADING, write_table
from publishers_files import groups_of, load, real

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation


def texts_of(federation: Federation) -> dict[str, list[str]]:
    """The words of every client's samples, whatever part they are in."""
    names = federation.task.label_names if federation.task.kind == "next_token" else federation.task.token_names
    column = "tokens" if federation.task.kind == "next_token" else "x"
    found = {}
    clients = federation.clients()
    for client, name in zip(clients, federation.client_ids(clients), strict=True):
        rows = [
            row
            for part in ("train", "validation", "test")
            for row in federation.samples(np.array([client]), part).columns[column]
        ]
        found[name] = sorted(" ".join(names[token] for token in row if token) for row in rows)
    return found


def translations(federation: Federation) -> list[tuple[str, str]]:
    """The training texts and what they are to become."""
    names = federation.task.label_names
    columns = federation.samples(federation.clients(), "train").columns
    return [
        (" ".join(names[token] for token in x if token), " ".join(names[token] for token in y if token))
        for x, y in zip(columns["x"], columns["y"], strict=True)
    ]


def blog(*posts: str) -> str:
    return "<Blog>\n" + "".join(f"<date>01,May,2004</date>\n<post>\n {post} \n</post>\n" for post in posts) + "</Blog>"


BLOGS = {
    "1.male.23.Arts.Aries.xml": blog("one two three", "four & five"),
    "22.female.16.Student.Leo.xml": blog("one two"),
    "333.male.30.indUnk.Libra.xml": blog("one"),
}


def test_blogs_in_a_folder_and_in_archives_are_the_same(tmp_path: Path) -> None:
    for name, content in BLOGS.items():
        path = tmp_path / "folder" / "blogs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() + b"\xff")  # not UTF-8, like the real ones
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip" / "blogs.zip", "w") as archive:
        for name, content in BLOGS.items():
            archive.writestr(f"blogs/{name}", content)
    (tmp_path / "tar").mkdir()
    with tarfile.open(tmp_path / "tar" / "blogs.tar.gz", "w:gz") as archive:
        for name, content in BLOGS.items():
            entry = tarfile.TarInfo(f"blogs/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    # After a single word there is nothing to predict.
    expected = {"1": ["four & five", "one two three"], "22": ["one two"]}
    for form in ("folder", "zip", "tar"):
        options = {"sequence_length": 3, "split": "within_client", "train_fraction": 1.0}
        assert texts_of(load("blog_corpus", tmp_path / form, **options)) == expected
    (tmp_path / "tar" / "blogs.tar.gz").write_bytes((tmp_path / "tar" / "blogs.tar.gz").read_bytes()[:150])
    with pytest.raises(DamagedFileError, match=r"blogs\.tar\.gz is damaged: it cannot be unpacked"):
        load("blog_corpus", tmp_path / "tar")


def test_blogs_as_fedscale_has_them(tmp_path: Path) -> None:
    for group, clients in {"train": ["a", "b"], "test": ["c"]}.items():
        (tmp_path / group).mkdir()
        for client in clients:
            (tmp_path / group / client).write_text(f"the words of {client}\nin two lines")
    (tmp_path / "train" / "nothing").write_text(" \n")
    federation = load("blog_corpus", tmp_path, sequence_length=4)
    assert groups_of(federation) == {"a": "train", "b": "train", "c": "test"}
    assert texts_of(federation)["a"] == ["in two lines", "the words of a in"]
    (tmp_path / "test" / "a").write_text("once again")
    with pytest.raises(BadInputError, match=r"'a' is in two groups, in file 1 of .*train and file 1 of .*test"):
        load("blog_corpus", tmp_path)


REVIEWS = [("ann", 5, "Very good!"), ("ann", 1, "Bad."), ("bob", 4, "Good."), ("cid", 3, "")]


def test_reviews_in_all_forms(tmp_path: Path) -> None:
    objects = [
        {"reviewerID": who, "overall": float(stars), "reviewText": text, "style": {"a": "b"}}
        for who, stars, text in REVIEWS
    ]
    for form, text in {
        "lines": "\n".join(map(json.dumps, objects)),
        "spread": "\n".join(json.dumps(one, indent=2) for one in objects),
    }.items():
        (tmp_path / form).mkdir()
        (tmp_path / form / "Gifts_5.json.gz").write_bytes(gzip.compress(text.encode()))
    rows = [(who, "B00", "name", "[0, 0]", text, stars, "", 0, "02 28, 2014") for who, stars, text in REVIEWS]
    write_table(tmp_path / "table" / "reviews.csv", rows)
    expected = {"ann": ["bad .", "very good !"], "bob": ["good ."]}
    for form in ("lines", "spread", "table"):
        federation = load("amazon_review", tmp_path / form, split="within_client", train_fraction=1.0, length=4)
        assert texts_of(federation) == expected
        labels = federation.samples(federation.clients(), "train").columns["y"]
        assert sorted(labels.tolist()) == [0, 3, 4]
    write_table(
        tmp_path / "map" / "client_data_mapping" / "train.csv",
        [("client_id", "data_path", "label_name", "label_id"), (1, "Very good!", 5, 4), (2, "Good,\nthough", 4, 3)],
    )
    write_table(tmp_path / "map" / "client_data_mapping" / "test.csv", [HEADING, (1, "Bad.", 1, 0)])
    federation = load("amazon_review", tmp_path / "map")
    assert groups_of(federation) == {"train-1": "train", "train-2": "train", "test-1": "test"}
    assert texts_of(federation)["train-2"] == ["good , though"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '{"reviewerID": "a", "overall": 5, "reviewText": "b"}\n{"reviewerID": "a", "overall": 6, "reviewText": ""}',
            "line 2 has 6 stars; there are 1 to 5",
        ),
        ('{"overall": 5, "reviewText": "b"}', "line 1 has no reviewer"),
        (
            '{"reviewerID": "a", "overall": 5,\n{"reviewerID": "a"}\n',
            "line 1: what begins here is no complete JSON object",
        ),
        ('{"reviewerID": "a"', "line 1: what begins here is no complete JSON object"),
        ('{"reviewerID": "a", "overall": 5, "reviewText": "\\ud800"}', None),
    ],
)
def test_reviews_that_are_none(content: str, complaint: str | None, tmp_path: Path) -> None:
    (tmp_path / "a_5.json").write_text(content)
    with pytest.raises(BadInputError, match=complaint or r"a_5\.json has (text that is not valid Unicode|no texts)"):
        load("amazon_review", tmp_path)


def test_comments_in_all_forms(tmp_path: Path) -> None:
    comments = [("ann", "to the moon"), ("bob", "to me"), ("[deleted]", "gone"), ("bob", "[removed]")]
    write_table(
        tmp_path / "table" / "some.csv",
        [("author_fullname", "score", "body"), *((who, 1, text) for who, text in comments)],
    )
    (tmp_path / "dump").mkdir()
    lines = "\n".join(json.dumps({"author": who, "body": text}) for who, text in comments)
    (tmp_path / "dump" / "RC_2017-11.json.gz").write_bytes(gzip.compress(lines.encode()))
    expected = {"ann": ["to the moon"], "bob": ["to me"]}
    for form in ("table", "dump"):
        assert texts_of(load("reddit_comments", tmp_path / form, split="within_client", train_fraction=1.0)) == expected
    for group, users in {"train": {"ann": {"x": ["to the moon"]}}, "test": {"bob": {"x": ["to me"]}}}.items():
        (tmp_path / "script" / group).mkdir(parents=True)
        (tmp_path / "script" / group / "a.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    (tmp_path / "script" / "reddit_vocab.pkl").write_bytes(pickle.dumps(["to", "the", "me"]))
    federation = load("reddit_comments", tmp_path / "script", vocabulary=4)
    assert groups_of(federation) == {"ann": "train", "bob": "test"}
    assert federation.task.label_names == ("<PAD>", "<UNK>", "to", "the")


class Evil:
    def __reduce__(self):
        return (print, ("this must not be run",))


def test_a_pickled_vocabulary_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "some.csv", [("author", "body"), ("ann", "to the moon")])
    (tmp_path / "reddit_vocab.pkl").write_bytes(pickle.dumps(["to", Evil()]))
    with pytest.raises(
        BadInputError, match=r"reddit_vocab\.pkl wants to run builtins\.print, .*a vocabulary may hold texts"
    ):
        load("reddit_comments", tmp_path)
    (tmp_path / "reddit_vocab.pkl").write_bytes(pickle.dumps(["to", 3]))
    with pytest.raises(BadInputError, match=r"reddit_vocab\.pkl must hold a list of words; entry 2 is no text"):
        load("reddit_comments", tmp_path)
    assert "must not be run" not in capsys.readouterr().out


POSTS = {
    "10": [("how to sort", "sorting", "python|list"), ("why not", "slow", "rare")],
    "11": [("sort a list", "", "list")],
}


def write_examples(path: Path, clients: Mapping[str, list[tuple[str, str, str]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for client, posts in clients.items():
            group = file.create_group(f"examples/{client}")
            for place, name in enumerate(("tokens", "title", "tags")):
                group.create_dataset(name, data=[post[place].encode() for post in posts], dtype=h5py.string_dtype())


def test_posts_of_stack_overflow(tmp_path: Path) -> None:
    write_examples(tmp_path / "stackoverflow_train.h5", POSTS)
    write_examples(tmp_path / "stackoverflow_test.h5", {"10": [("lists", "", "list|python")]})
    (tmp_path / "vocab_tags.txt").write_bytes(pickle.dumps(["python", "list", "rare"]))
    federation = load("stackoverflow", tmp_path, tags=2, length=5)
    assert groups_of(federation) == {"train-10": "train", "train-11": "train", "test-10": "test"}
    assert texts_of(federation)["train-10"] == ["how to sort sorting"]
    assert federation.task.label_names == ("python", "list")
    assert federation.samples(federation.clients("test"), "test").columns["y"].tolist() == [1]
    several = load("stackoverflow", tmp_path, tags=2, labels="tags")
    assert several.samples(several.clients("test"), "test").columns["y"].tolist() == [[1, 1]]
    words = load("stackoverflow", tmp_path, labels="next_word", sequence_length=4)
    assert texts_of(words)["train-10"] == ["how to sort", "why not"]
    (tmp_path / "vocab_tags.txt").unlink()
    assert load("stackoverflow", tmp_path, tags=3).task.label_names == ("list", "python", "rare")
    with pytest.raises(BadInputError, match=r"has 3 different tags; federation.tags must not be above, unlike 4"):
        load("stackoverflow", tmp_path, tags=4)


def test_examples_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "stackoverflow_train.h5"
    with h5py.File(path, "w") as file:
        file.create_group("other")
    with pytest.raises(BadInputError, match=r"stackoverflow_train\.h5 has no clients: its group examples is missing"):
        load("stackoverflow", tmp_path)
    write_examples(path, POSTS)
    with h5py.File(path, "a") as file:
        del file["examples/11/title"]
    with pytest.raises(BadInputError, match=r"the client '11' has no title"):
        load("stackoverflow", tmp_path, tags=2)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DamagedFileError, match=r"stackoverflow_train\.h5 is damaged: HDF5 cannot read it"):
        load("stackoverflow", tmp_path, tags=2)


def test_questions_are_followed_by_answers(tmp_path: Path) -> None:
    def conversation(name: str) -> dict[str, object]:
        turns = [("Who?", f"{name}."), ("Why?", "Because")]
        return {
            "id": name,
            "questions": [{"input_text": question} for question, _ in turns],
            "answers": [{"input_text": answer} for _, answer in turns],
        }

    (tmp_path / "coqa-train-v1.0.json").write_text(json.dumps({"data": [conversation("ann"), conversation("bob")]}))
    (tmp_path / "coqa-dev-v1.0.json").write_text(json.dumps({"data": [conversation("cid")]}))
    federation = load("coqa", tmp_path, length=4)
    assert groups_of(federation) == {"ann": "train", "bob": "train", "cid": "test"}
    assert sorted(translations(federation)) == [
        ("who ?", "<to> ann . <end>"),
        ("who ?", "<to> bob . <end>"),
        ("why ?", "<to> because <end>"),
        ("why ?", "<to> because <end>"),
    ]
    assert load("coqa", tmp_path, vocabulary=6).task.label_names[:5] == ("<PAD>", "<UNK>", "<to>", "<end>", "?")
    (tmp_path / "coqa-dev-v1.0.json").write_text(json.dumps({"data": [{"id": "x", "questions": []}]}))
    with pytest.raises(BadInputError, match=r"coqa-dev-v1\.0\.json, conversation 1 must have an id, questions"):
        load("coqa", tmp_path)
    root = tmp_path / "map"
    (root / "data").mkdir(parents=True)
    (root / "data" / "1.txt").write_text("who?\nme\n")
    write_table(root / "client_data_mapping" / "train.csv", [HEADING, (0, "1.txt", "", 0)])
    assert translations(load("coqa", root)) == [("who ?", "<to> me <end>")]


def test_speeches_with_their_translations(tmp_path: Path) -> None:
    chapter = (
        '<CHAPTER ID=1>\nTitle\n<SPEAKER ID=1 NAME="Ann" LANGUAGE="EN">\n{}\n<P>\n{}\n<SPEAKER ID=2 NAME="Bob">\n{}\n'
    )
    for language, said in {
        "en": ("Good day.", "Thank you.", "Yes."),
        "fr": ("Bonjour.", "Merci.", "Oui.\nSi."),
    }.items():
        (tmp_path / "txt" / language).mkdir(parents=True)
        (tmp_path / "txt" / language / "ep-00-01-17.txt").write_text(chapter.format(*said))
    federation = load("europarl", tmp_path)
    expected = [("good day .", "<to> bonjour . <end>"), ("thank you .", "<to> merci . <end>")]
    assert translations(federation) == expected
    # What Bob said has another number of lines in French.
    assert federation.client_ids(federation.clients()) == ["Ann"]
    root = tmp_path / "map"
    write_table(root / "en" / "en.csv", [["text"], ["Yes."], ["No."]])
    write_table(root / "fr" / "fr.csv", [["text"], ["Oui."], ["Non."]])
    write_table(root / "client_data_mapping" / "train.csv", [HEADING, (7, 1, "", 0)])
    assert translations(load("europarl", root)) == [("no .", "<to> non . <end>")]
    write_table(root / "client_data_mapping" / "train.csv", [HEADING, (7, 2, "", 0)])
    with pytest.raises(BadInputError, match=r"train\.csv, line 2 names sentence 2; there are 2, from 0"):
        load("europarl", root)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "folder", "clients", "options"),
    [
        ("amazon_review", "amazon_reviews", 2241, {"vocabulary": 500, "length": 8}),
        ("reddit_comments", "reddit_comments", 6047, {"vocabulary": 50, "sequence_length": 6, "minimum_samples": 1}),
    ],
)
def test_real_files_train_on_both_engines(name: str, folder: str, clients: int, options: dict, tmp_path: Path) -> None:
    federation = load(name, real(folder), **options)
    assert federation.num_clients == clients
    agree(load(name, real(folder), **{**options, "minimum_samples": 5, "fraction": 0.3}), tmp_path)


@pytest.mark.slow
def test_a_thousand_real_bloggers(tmp_path: Path) -> None:
    federation = load("blog_corpus", real("blog_corpus"))
    assert (federation.num_clients, federation.num_samples) == (1000, 43253)
    agree(load("blog_corpus", real("blog_corpus"), vocabulary=50, sequence_length=6, fraction=0.02), tmp_path)

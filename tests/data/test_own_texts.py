"""Own texts: every tokenizer against plain Python, vocabularies of training texts alone, parts, clients, bad tables."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
from fedarena.data.images.own import from_images
from fedarena.data.many_users import buckets
from fedarena.data.own import stores, tables
from fedarena.data.text.encoding import encode_texts
from fedarena.data.text.own import from_texts
from fedarena.data.text.words import split_messages

SAID = [
    ("ann", "Well, hello there!", "joy", "train"),
    ("bob", "no\nno no", "anger", "train"),
    ("ann", "I see é ✓", "neutral", "train"),
    ("ann", "hello again", "joy", "test"),
    ("cyd", "unheard of words", "anger", "test"),
    ("bob", "hello", "joy", "val"),
]
TABLE = pd.DataFrame(SAID, columns=["speaker", "utterance", "emotion", "part"])


def plain_tokens(text: str, tokenizer: str) -> list[str]:
    if tokenizer == "characters":
        return ["<space>" if character == " " else character for character in text]
    if tokenizer == "bytes":
        return [chr(b) if 33 <= b < 127 else f"<0x{b:02X}>" for b in text.encode()]
    return split_messages([text.replace("\n", " ")])[0].split()


def plain_vocabulary(texts: list[str], tokenizer: str, size: int = 10_000) -> list[str]:
    if tokenizer == "bytes":
        return ["<padding>", *(plain for b in range(256) for plain in [chr(b) if 33 <= b < 127 else f"<0x{b:02X}>"])]
    counts = Counter(token for text in texts for token in plain_tokens(text, tokenizer))
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    return ["<PAD>", "<UNK>", *frequent][:size]


def rows_of_part(federation: Federation, part: str) -> set[tuple[str, tuple[str, ...], str]]:
    """Client, tokens and label of every sample of a part, as names."""
    found = set()
    for client, id in enumerate(federation.client_ids(federation.clients())):
        columns = federation.samples([client], part).columns
        names, labels = federation.task.token_names, federation.task.label_names
        for x, y in zip(columns["x"], columns["y"], strict=True):
            found.add((id, tuple(names[token] for token in x), labels[y]))
    return found


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bytes"])
def test_every_tokenizer_agrees_with_plain_python(tokenizer: str) -> None:
    federation = from_texts(
        TABLE, client="speaker", text="utterance", label="emotion", part="part", tokenizer=tokenizer, length=12
    )
    training = [text for _, text, _, part in SAID if part == "train"]
    vocabulary = plain_vocabulary(training, tokenizer)
    task = federation.task
    assert list(task.token_names) == vocabulary
    assert task.label_names == ("anger", "joy", "neutral")
    assert (task.padding, task.unknown) == (0, None if tokenizer == "bytes" else 1)
    for part, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        expected = set()
        for speaker, text, emotion, found in SAID:
            if found == name:
                tokens = [t if t in vocabulary else "<UNK>" for t in plain_tokens(text, tokenizer)][:12]
                expected.add((speaker, (*[vocabulary[0]] * (12 - len(tokens)), *tokens), emotion))
        assert rows_of_part(federation, part) == expected
    assert federation.client_ids(federation.clients("test")) == ["cyd"]


@pytest.mark.parametrize("split", ["within_client", "by_client"])
@pytest.mark.parametrize("tokenizer", ["words", "characters"])
def test_only_training_texts_make_the_vocabulary(tokenizer: str, split: str) -> None:
    """Every text has a word (a character) of its own; those of tested texts must be unknown."""
    own = "αβγδεζηθικλμνξοπρστυφχψω"
    table = {"who": [str(n // 6) for n in range(24)], "text": [f"a {letter}" for letter in own], "y": ["u", "v"] * 12}
    federation = from_texts(table, client="who", text="text", label="y", tokenizer=tokenizer, split=split)
    assert federation.manifest.samples["train"]["train"] < 24
    names = federation.task.token_names
    trained = {token for client in federation.clients() for row in tokens(federation, client, "train") for token in row}
    assert {names[token] for token in trained} | {"<PAD>", "<UNK>"} == set(names)
    tested = [row for client in federation.clients() for row in tokens(federation, client, "test")]
    assert tested
    assert all(federation.task.unknown in row for row in tested)


def tokens(federation: Federation, client: int, part: str) -> list[list[int]]:
    return federation.samples([client], part).columns["x"].tolist()


def test_a_small_vocabulary_has_the_most_frequent_words() -> None:
    table = {"who": list("ab") * 3, "text": ["b b c", "b a", "c d", "a", "b", "c"], "y": [0, 1] * 3}
    federation = from_texts(
        {**table, "part": ["train"] * 6}, client="who", text="text", label="y", part="part", vocabulary=4
    )
    assert federation.task.token_names == ("<PAD>", "<UNK>", "b", "c")


# --- the next token


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(st.sampled_from("ab"), st.text("xyz é\n", max_size=9)), min_size=2, max_size=12),
    length=st.integers(1, 7),
    join=st.booleans(),
    tokenizer=st.sampled_from(["characters", "bytes", "words"]),
)
def test_sequences_are_the_texts_of_a_client_in_their_order(
    texts: list[tuple[str, str]], length: int, join: bool, tokenizer: str
) -> None:
    table = {"who": [who for who, _ in texts], "text": [text for _, text in texts], "part": ["train"] * len(texts)}
    federation = from_texts(
        table, client="who", text="text", part="part", length=length, join=join, tokenizer=tokenizer
    )
    names = federation.task.label_names
    end = {"characters": "\n", "bytes": "<0x0A>", "words": "<EOS>"}[tokenizer]
    for client, id in enumerate(federation.client_ids(federation.clients())):
        streams = [[*plain_tokens(text, tokenizer), end] for who, text in texts if who == id]
        if join:
            streams = [[token for stream in streams for token in stream]]
        expected = []
        for stream in streams:
            for start in range(0, len(stream) - 1, length):
                row = stream[start : start + length + 1]
                expected.append(row + [names[0]] * (length + 1 - len(row)))
        found = federation.samples([client], "train").columns["tokens"]
        assert [[names[token] for token in row] for row in found] == expected


def test_earlier_texts_train_and_later_ones_test() -> None:
    table = {"who": ["a"] * 20, "text": [f"w{n}" for n in range(20)]}
    federation = from_texts(table, client="who", text="text", train_fraction=0.7)
    names = federation.task.label_names
    trained = [names[token] for token in federation.samples([0], "train").columns["tokens"].ravel()]
    assert [word for word in trained if word[0] == "w"] == [f"w{n}" for n in range(14)]
    assert set(trained) == {"<PAD>", "<EOS>", *(f"w{n}" for n in range(14))}
    assert federation.task.kind == "next_token"


# --- tokenizers in files


@pytest.fixture(scope="module")
def bert_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pieces of words between [CLS] and [SEP], as BERT has them."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator([text for _, text, _, _ in SAID], trainers.WordPieceTrainer(special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(3)  # what the file says about lengths does not count here
    made.enable_padding(length=50)
    path = tmp_path_factory.mktemp("tokenizers") / "tokenizer.json"
    made.save(str(path))
    return path


def test_a_tokenizer_file_keeps_its_numbers(bert_like: Path) -> None:
    federation = from_texts(TABLE, client="speaker", text="utterance", label="emotion", tokenizer=bert_like, length=6)
    plain = Tokenizer.from_file(str(bert_like))
    plain.no_truncation()
    plain.no_padding()
    assert (federation.task.padding, federation.task.unknown) == (0, 1)
    assert federation.task.token_names[:4] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    expected = set()
    for _, text, _, _ in SAID:
        ids = plain.encode(text).ids
        ids = ids if len(ids) <= 6 else [*ids[:5], 3]  # cut short, it still ends with [SEP]
        expected.add(tuple([0] * (6 - len(ids)) + ids))
    found = federation.samples(federation.clients()).columns["x"]
    assert {tuple(row) for row in found.tolist()} == expected
    assert (federation.path / "tokenizer.json").read_bytes() == bert_like.read_bytes()


def test_padding_is_added_to_a_tokenizer_that_has_none(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([text for _, text, _, _ in SAID], trainer)
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(tmp_path / "bpe.json"))
    federation = from_texts(TABLE, client="speaker", text="utterance", part="part", tokenizer=tmp_path / "bpe.json")
    size = made.get_vocab_size()
    assert (federation.task.padding, federation.task.unknown, federation.task.classes) == (size, None, size + 1)
    end = made.token_to_id("<|endoftext|>")
    expected = [
        id for who, text, _, part in SAID if (who, part) == ("ann", "train") for id in [*made.encode(text).ids, end]
    ]
    found = federation.samples([0], "train").columns["tokens"][0].tolist()
    assert found[: len(expected)] == expected
    assert set(found[len(expected) :]) == {size}


def test_files_that_are_no_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=r"no\.json is not a file that Hugging Face's tokenizers can read"):
        from_texts(TABLE, client="speaker", text="utterance", tokenizer=tmp_path / "no.json")
    with pytest.raises(BadInputError, match="did you mean 'words'"):
        from_texts(TABLE, client="speaker", text="utterance", tokenizer="word")


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bytes", "file"])
def test_new_texts_are_encoded_as_those_of_the_store(tokenizer: str, bert_like: Path) -> None:
    chosen = bert_like if tokenizer == "file" else tokenizer
    federation = from_texts(TABLE, client="speaker", text="utterance", label="emotion", tokenizer=chosen, length=9)
    found = encode_texts(federation, list(TABLE["utterance"]))
    stored = federation.samples(federation.clients()).columns["x"]
    assert found.dtype == stored.dtype
    assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in stored.tolist()}
    next_token = from_texts(TABLE, client="speaker", text="utterance", tokenizer=chosen)
    with pytest.raises(BadInputError, match="not made of texts with labels"):
        encode_texts(next_token, ["hello"])


# --- tables


def test_all_kinds_of_tables_give_the_same(tmp_path: Path) -> None:
    def content(table: Any, **options: Any) -> str:
        made = from_texts(table, client="speaker", text="utterance", label="emotion", part="part", **options)
        return made.manifest.files["samples.arrow"].model_dump_json() + str(made.task)

    TABLE.to_csv(tmp_path / "said.csv", index=False)
    TABLE.to_csv(tmp_path / "said.tsv", index=False, sep="\t")
    TABLE.to_csv(tmp_path / "said.txt", index=False, sep="|")
    TABLE.to_csv(tmp_path / "said.csv.gz", index=False)
    TABLE.to_parquet(tmp_path / "said.parquet")
    TABLE.to_json(tmp_path / "said.jsonl", orient="records", lines=True)
    TABLE.to_json(tmp_path / "said.jsonl.gz", orient="records", lines=True)
    frames = [TABLE, TABLE.astype("category"), pa.Table.from_pandas(TABLE), TABLE.to_dict("list")]
    frames[1]["utterance"] = TABLE["utterance"]
    files = ["said.csv", "said.tsv", "said.csv.gz", "said.parquet", "said.jsonl", "said.jsonl.gz"]
    found = {content(tmp_path / file) for file in files} | {content(frame) for frame in frames}
    found.add(content(str(tmp_path / "said.txt"), delimiter="|"))
    assert len(found) == 1


def test_ids_and_labels_may_be_numbers() -> None:
    table = pd.DataFrame({"who": [10.0, 9.0] * 4, "text": ["a b"] * 8, "y": [1, -1] * 4})
    federation = from_texts(table, client="who", text="text", label="y")
    assert federation.client_ids(federation.clients()) == ["10", "9"]
    assert federation.task.label_names == ("-1", "1")
    strings = from_texts({**table.to_dict("list"), "y": ["10", "9"] * 4}, client="who", text="text", label="y")
    assert strings.task.label_names == ("9", "10")
    written = from_texts(
        {**table.to_dict("list"), "y": ["1.0", "-1", "1", "-1"] * 2}, client="who", text="text", label="y"
    )
    assert written.task.label_names == ("-1", "1")
    assert written.samples([0]).columns["y"].tolist() == [1] * 4


def test_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_bytes("who,text,y\na,déjà,0\nb,vu,1\n".encode("cp1252"))
    options = {"client": "who", "text": "text", "label": "y"}
    with pytest.raises(BadInputError, match="is not text in utf8; say which encoding"):
        from_texts(tmp_path / "said.csv", **options)
    assert "déjà" in from_texts(tmp_path / "said.csv", **options, encoding="cp1252", train_fraction=1).task.token_names
    with pytest.raises(BadInputError, match="cannot be read"):
        from_texts(tmp_path / "said.csv", **options, encoding="klingon")


def test_files_without_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_text("a,hello,0\nb,hi,1\n")
    with pytest.raises(BadInputError, match=r"columns=\[…\] names them if the file does not"):
        from_texts(tmp_path / "said.csv", client="who", text="text", label="y")
    named = from_texts(tmp_path / "said.csv", client="who", text="text", label="y", columns=["who", "text", "y"])
    assert named.num_samples == 2


def test_quotation_marks_do_not_swallow_lines(tmp_path: Path) -> None:
    """In files with tabs a mark is often just a mark; taken for more, it hides all rows up to the next one."""
    rows = ["who\ttext\ty", 'a\t"never open\t0', "b\tquiet\t1", 'a\tend" here\t1', "b\tlast\t0"]
    (tmp_path / "said.tsv").write_text("\n".join(rows) + "\n")
    options = {"client": "who", "text": "text", "label": "y"}
    with pytest.raises(BadInputError, match=r"begins in line \d+ has a value .* goes on .*say quotes=false"):
        from_texts(tmp_path / "said.tsv", **options)
    assert from_texts(tmp_path / "said.tsv", **options, quotes=False).num_samples == 4
    (tmp_path / "said.tsv").write_text('who\ttext\ty\na\t"two\nlines"\t0\nb\tquiet\t1\n')
    assert from_texts(tmp_path / "said.tsv", **options).num_samples == 2


def test_missing_values_are_refused_or_left_out(tmp_path: Path) -> None:
    with open(tmp_path / "said.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "text", "y"])
        rows.writerows([["a", "x", "0"], ["a", "NA null", "1"], ["", "x", "0"], ["b", "", "1"], ["b", "y", "1"]])
    with pytest.raises(BadInputError, match=r"said\.csv, row 3: the client \(column 'who'\) is missing"):
        from_texts(tmp_path / "said.csv", client="who", text="text", label="y")
    federation = from_texts(tmp_path / "said.csv", client="who", text="text", label="y", missing="drop")
    assert federation.num_samples == 3
    assert {"na", "null"} <= set(federation.task.token_names)


def test_attributes_of_clients() -> None:
    table = {"who": list("abab"), "text": ["x"] * 4, "y": [0, 1, 1, 0], "sex": list("fmfm"), "age": [30, 40, 30, 40]}
    federation = from_texts(table, client="who", text="text", label="y", attributes=["sex", "age"])
    assert federation.attributes([0, 1]) == {"sex": ["f", "m"], "age": ["30", "40"]}
    with pytest.raises(BadInputError, match="'sex' differs between texts of the client 'b'"):
        from_texts({**table, "sex": list("fmff")}, client="who", text="text", label="y", attributes=["sex"])


def test_partitions(tmp_path: Path) -> None:
    table = {"who": [f"p{n % 6}" for n in range(24)], "text": [f"w{n}" for n in range(24)], "y": [0, 1, 2] * 8}
    by_label = from_texts(
        table, text="text", label="y", partition={"name": "pathological", "clients": 6, "classes_per_client": 1}
    )
    for client in by_label.clients():
        assert len(set(by_label.samples([client]).columns["y"].tolist())) == 1
    grouped = from_texts(
        table, client="who", text="text", label="y", partition={"name": "id_groups", "group_size": 3, "order": "sorted"}
    )
    assert grouped.counts(grouped.clients()).tolist() == [12, 12]
    assert from_texts(table, text="text", partition={"name": "iid", "clients": 3}).num_clients == 3


def test_many_pieces_and_buckets_give_the_same_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "who": [f"user{n}" for n in random.integers(40, size=500)],
            "text": [" ".join(random.choice(list("abcdefgh"), 4)) for _ in range(500)],
            "y": random.integers(3, size=500),
        }
    )
    table["part"] = random.choice(["train", "test"], size=500)

    def clients(**options: Any) -> dict[str, tuple]:
        made = from_texts(table, client="who", text="text", label="y", part="part", **options)
        ids = made.client_ids(made.clients())
        return {
            id: tuple(made.samples([n], part).columns[c].tobytes() for part in ("train", "test") for c in "xy")
            for n, id in enumerate(ids)
        }

    whole = clients()
    monkeypatch.setattr(tables, "_ROWS_PER_PIECE", 7)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 3000)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 2000)
    assert clients(path=tmp_path / "in pieces") == whole
    assert [file.name for file in tmp_path.iterdir()] == ["in pieces"]


def test_a_length_that_cuts_many_texts_is_told() -> None:
    table = {"who": list("ab") * 10, "text": ["a b c d"] * 20, "y": [0, 1] * 10}
    with pytest.warns(UserWarning, match=r"100\.0% of the training texts have more than 2 tokens"):
        from_texts(table, client="who", text="text", label="y", length=2)
    by_itself = from_texts({**table, "text": ["a"] * 19 + ["a b c"]}, client="who", text="text", label="y")
    assert by_itself.columns["x"].shape[0] <= 3


def test_the_cache_is_used_until_the_table_changes(tmp_path: Path) -> None:
    TABLE.to_csv(tmp_path / "said.csv", index=False)
    options = {"client": "speaker", "text": "utterance", "label": "emotion"}
    first = from_texts(tmp_path / "said.csv", **options)
    assert first.name == "said"
    assert from_texts(tmp_path / "said.csv", **options).path == first.path
    assert from_texts(tmp_path / "said.csv", **options, tokenizer="bytes").path != first.path
    TABLE.head(5).to_csv(tmp_path / "said.csv", index=False)
    assert from_texts(tmp_path / "said.csv", **options).num_samples == 5
    frame = from_texts(TABLE, **options)
    assert from_texts(TABLE.copy(), **options).path == frame.path
    assert from_texts(TABLE.head(5), **options).path != frame.path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": None}, "Say which column of the table has the clients"),
        ({"client": "speeker"}, "client is 'speeker', but the table has no such column; did you mean 'speaker'"),
        ({"text": "part2"}, "text is 'part2'"),
        ({"label": "speaker2"}, "label is 'speaker2'"),
        ({"label": 3}, "label must be the name of a column"),
        ({"length": 0}, "length must be a number from 1"),
        ({"vocabulary": 2}, "vocabulary must be a number from 3"),
        ({"missing": "zero"}, "missing must be"),
        ({"part": "emotion"}, "'joy' is not a part; valid: train"),
        ({"part": "part", "split": "by_client"}, "every sample comes with its part"),
        ({"split": "by_sample"}, "split must be"),
        ({"train_fraction": 2}, "train_fraction must be above 0"),
        ({"minimum_samples": 10}, "nobody has more than 3"),
        ({"partition": {"name": "iid", "clients": 1000}}, "6 samples are not enough"),
    ],
)
def test_wrong_options_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        from_texts(TABLE, **{"client": "speaker", "text": "utterance", "label": "emotion", **options})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.csv", None, "There is no table"),
        ("a.xlsx", b"PK", "is not a table that is known by its ending"),
        ("a.csv", b"", "cannot be read"),
        ("a.csv", b"who,text\na,b,c\n", "cannot be read"),
        ("a.csv", b"who,who,text\na,b,c\n", "two columns called 'who'"),
        ("a.csv", b"who,text\n", "has no rows"),
        ("a.csv", b"who,text\na,\xff\xfe\n", "is not text in utf8"),
        ("a.parquet", b"no", "cannot be read"),
        ("a.jsonl", b'{"who": "a", "text": "b"}\n[1]\n', "line 2 must be a JSON object"),
        ("a.jsonl", b'{"who": "a", "text": 5}\n', "holds int64 values instead of texts"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=words) as caught:
        from_texts(tmp_path / name, client="who", text="text")
    assert "\n" not in str(caught.value)


def test_empty_texts_alone_are_nothing_to_learn_from() -> None:
    with pytest.raises(BadInputError, match="The training texts are empty"):
        from_texts({"who": ["a", "b"], "text": ["", ""], "y": [0, 1]}, client="who", text="text", label="y")


def test_one_label_is_no_task() -> None:
    with pytest.raises(BadInputError, match="is x in every sample, so there is nothing to learn"):
        from_texts({"who": ["a"], "text": ["b"], "y": ["x"]}, client="who", text="text", label="y")


# --- what stands in a table is read as in tables of numbers and categories


def test_blanks_do_not_make_clients_or_classes_and_marks_of_nothing_are_missing() -> None:
    table = {"who": ["ann", "ann ", " bob", "bob"], "text": ["a", "NA", "", "d"], "y": ["u", " v", "v", "u "]}
    federation = from_texts(table, client="who", text="text", label="y")
    assert federation.client_ids(federation.clients()) == ["ann", "bob"]
    assert federation.task.label_names == ("u", "v")
    assert federation.num_samples == 4  # also an empty text, and one that says NA
    for column, mark in (("y", ""), ("y", "NA"), ("who", "nan"), ("who", " ")):
        marked = {**table, column: [mark if n == 1 else value for n, value in enumerate(table[column])]}
        with pytest.raises(BadInputError, match=rf"The table, row 2: the \w+ \(column '{column}'\) is missing"):
            from_texts(marked, client="who", text="text", label="y")
    assert from_texts(marked, client="who", text="text", label="y", missing="drop").num_samples == 3


@pytest.mark.parametrize("number", [float("inf"), 1e300, 0.5])
def test_numbers_that_cannot_be_ids_are_refused(number: float) -> None:
    with pytest.raises(BadInputError, match=r"Column 'who' holds .*, but numbers that stand for classes or clients"):
        from_texts({"who": [1.0, number], "text": ["a", "b"]}, client="who", text="text")


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            ["a,u,x", 'a,v,"no', "b,u,y", "b,v,z"],
            "ends within a value that begins with a quotation mark, in a row .* 3;",
        ),
        (
            ["a,u,x", 'a,"v,no', "b,u,y", "b,v,z"],
            "ends within a value that begins with a quotation mark, in a row .* 3;",
        ),
        (
            ["a,u,x", 'a,v,"no', 'b,u,"y"', "b,v,z"],
            "row that begins in line 3 .* goes on to line 4, where the next mark",
        ),
        (["a,u,x", 'a,v,"no', "b,u,y", 'b,v,5"'], "begins in line 3 has a value .* over lines that look like rows"),
        (["a,u,x", '"a,v,no', "b,u,y", '5",v,z'], "begins in line 3 has a value .* over lines that look like rows"),
    ],
)
def test_a_stray_quotation_mark_does_not_swallow_rows(
    lines: list[str], sentence: str, ending: str, tmp_path: Path
) -> None:
    file = tmp_path / f"said{ending}"
    content = "\n".join(["who,y,text", *lines, ""])
    file.write_text(content if ending == ".csv" else content.replace(",", "\t"))
    with pytest.raises(BadInputError, match=f"said{ending}:? .*{sentence}"):
        from_texts(file, client="who", text="text", label="y")
    assert from_texts(file, client="who", text="text", label="y", quotes=False).num_samples == 4


def test_quoted_values_of_several_lines_are_texts(tmp_path: Path) -> None:
    options = {"client": "who", "text": "text", "label": "y"}
    texts = ["Dear Ann,\nwell, no", 'so "good"\n\nyes', "x" * 200_000, '5" wide']
    with (tmp_path / "said.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("who", "y", "text"), *zip("aabb", "uvuv", texts, strict=True)])
        file.write('c,u,5" wide\n')
    assert from_texts(tmp_path / "said.csv", **options).num_samples == 5
    (tmp_path / "verse.csv").write_text('who,y,text\na,u,"I came\nI saw, I won, I left"\na,v,b\n')
    with pytest.raises(BadInputError, match="or line_breaks=true if this is one value"):
        from_texts(tmp_path / "verse.csv", **options)
    assert from_texts(tmp_path / "verse.csv", **options, line_breaks=True).num_samples == 2


def test_a_first_line_with_the_given_names_is_no_sample(tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_text("who,text,y\na,good,u\na,bad,v\n")
    options = {"client": "who", "text": "text", "label": "y"}
    federation = from_texts(tmp_path / "said.csv", **options, columns=["who", "text", "y"])
    assert (federation.num_clients, federation.num_samples) == (1, 2)
    other = from_texts(tmp_path / "said.csv", client="a", text="b", label="c", columns=["a", "b", "c"])
    assert (other.num_clients, other.num_samples) == (2, 3)


def test_classes_of_clients_that_are_left_out_are_no_classes() -> None:
    table = {"who": list("aabbc"), "text": list("vwxyz"), "y": ["u", "w", "w", "u", "v"]}
    federation = from_texts(table, client="who", text="text", label="y", minimum_samples=2, train_fraction=1.0)
    assert federation.task.label_names == ("u", "w")
    assert sorted(federation.samples([0, 1], "all").columns["y"].tolist()) == [0, 0, 1, 1]
    found = {(id, label) for id, _, label in rows_of_part(federation, "train")}
    assert found == {("a", "u"), ("a", "w"), ("b", "u"), ("b", "w")}
    one_left = {**table, "y": list("uuuuv")}
    with pytest.raises(
        BadInputError, match="The label is u in every sample that is left, so there is nothing to learn"
    ):
        from_texts(one_left, client="who", text="text", label="y", minimum_samples=2)


def test_vowel_signs_and_accents_stay_in_their_words() -> None:
    texts = ["हिन्दी में", "cafe\u0301 bon", "می\u200cخواهم", "ok \u2764\ufe0fyes"]
    federation = from_texts(
        {"who": list("aabb"), "text": texts, "y": list("uvuv")},
        client="who",
        text="text",
        label="y",
        train_fraction=1.0,
    )
    words = {"हिन्दी", "में", "cafe\u0301", "bon", "می\u200cخواهم", "ok", "\u2764", "\ufe0f", "yes"}
    assert set(federation.task.token_names) == {"<PAD>", "<UNK>", *words}
    assert split_messages(texts)[1] == "cafe \u0301 bon"  # as in federations that were made before


def test_texts_as_polars_has_them() -> None:
    columns = {"who": list("aabb"), "text": ["so", "no", "so", "no"], "y": list("uvuv")}
    table = pa.table({name: pa.array(values, pa.string_view()) for name, values in columns.items()})
    federation = from_texts(table, client="who", text="text", label="y")
    assert rows_of_part(federation, "all") == rows_of_part(
        from_texts(columns, client="who", text="text", label="y"), "all"
    )


def test_attributes_are_a_list() -> None:
    with pytest.raises(BadInputError, match="attributes must be a list of columns, not 'part'"):
        from_texts(TABLE, client="speaker", text="utterance", attributes="part")


@pytest.mark.parametrize(("version", "words"), [(1, ["cafe", "\u0301"]), (2, ["<PAD>", "<UNK>"])])
def test_new_texts_are_encoded_as_when_their_store_was_made(
    version: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "VERSION", version)
    table = {"who": list("aabb"), "text": ["cafe \u0301"] * 4, "y": list("uvuv")}
    federation = from_texts(table, client="who", text="text", label="y", train_fraction=1.0)
    found = encode_texts(federation, ["cafe\u0301"])[0]
    assert [federation.task.token_names[token] for token in found] == words


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"speaker": "ann", "speaker": "bob", "utterance": "a b", "emotion": 1}', "line 1: an object says twice"),
        ('{"speaker": ' + "[" * 100_000, "line 1 must be a JSON object"),
        ('{"speaker": 12345678901234567890123, "utterance": "a b", "emotion": 1}', "cannot be read: .* too large"),
        ('{"speaker": "ann", "utterance": "a b", "emotion": {"is": 1}}', "'emotion' holds struct<is: int64> values"),
    ],
)
def test_odd_lines_of_json_get_a_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "t.jsonl").write_text(f"{line}\n")
    with pytest.raises(BadInputError, match=sentence):
        from_texts(tmp_path / "t.jsonl", client="speaker", text="utterance", label="emotion")


def test_whole_numbers_of_any_size_in_memory_get_a_sentence() -> None:
    with pytest.raises(BadInputError, match="too large"):
        from_texts({"who": [2**70], "said": ["a"], "mood": [1]}, client="who", text="said", label="mood")


def test_labels_in_two_ways_of_writing_are_told_or_refused() -> None:
    said = {"who": list("abab"), "said": ["so good"] * 4}
    with pytest.raises(BadInputError, match="'mood' of the table holds both true and numbers such as '0'"):
        from_texts({**said, "mood": ["True", "1", "0", "True"]}, client="who", text="said", label="mood")
    with pytest.warns(UserWarning, match="Of the labels, 'Bad' and 'bad' differ only in capitals"):
        from_texts({**said, "mood": ["Bad", "bad", "good", "good"]}, client="who", text="said", label="mood")
    with pytest.warns(UserWarning, match="Of the clients, 'Ann' and 'ann' differ only in capitals"):
        from_images(np.zeros((4, 8, 8), np.uint8), client=["Ann", "ann", "bob", "bob"], label=[0, 1, 0, 1])

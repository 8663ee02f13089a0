"""Tables of own texts: all kinds of them, what stands in them, and what is wrong with them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from own_texts import TABLE, rows_of_part

from fedarena.core.errors import BadInputError
from fedarena.data.images.own import from_images
from fedarena.data.many_users import buckets
from fedarena.data.own import stores, tables
from fedarena.data.text.encoding import encode_texts
from fedarena.data.text.own import from_texts
from fedarena.data.text.words import split_messages


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

"""GLUE's sentences: from small files of both forms, and from the published ones where they are."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.statistics.table7 import compared_with_table_7

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "glue"
GOOD, BAD = 'a "good" film', "what a bad plot this is"


def lines(number: int) -> list[tuple[int, str]]:
    """Sentences that are told apart by their last word; three of four are good."""
    return [(int(n % 4 > 0), f"{GOOD if n % 4 else BAD} n{n}") for n in range(number)]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """Sentence-level SST-2 and CoLA as their authors publish them."""
    for part, number in (("train", 100), ("dev", 12), ("test", 20)):
        (tmp_path / f"sst2_{part}.tsv").write_text("".join(f"{y}\t{text}\n" for y, text in lines(number)))
    for name, number in (("in_domain_train", 80), ("in_domain_dev", 8), ("out_of_domain_dev", 12)):
        rows = [f"gj04\t{y}\t{'' if y else '*'}\t{text}" for y, text in lines(number)]
        (tmp_path / f"cola_{name}.tsv").write_text("\n".join(rows))
    return tmp_path


def write_glue(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, number in (("train", 100), ("dev", 40)):
        rows = ["sentence\tlabel", *(f"{text} \t{y}" for y, text in lines(number))]
        (folder / f"{part}.tsv").write_text("\n".join(rows))
    (folder / "test.tsv").write_text("index\tsentence\n0\twho knows\n")


def load(folder: Path, **options: object) -> Federation:
    return load_federation("glue", {"folder": str(folder), "length": 10, "verify": False, **options})


def texts_of(federation: Federation, part: str) -> list[tuple[str, int]]:
    found = federation.samples(federation.clients(), part).columns
    names = federation.task.token_names
    assert names is not None
    return [(" ".join(names[t] for t in x if t), int(y)) for x, y in zip(found["x"], found["y"], strict=True)]


@pytest.mark.parametrize(("task", "sizes"), [("sst2", (100, 12, 20)), ("cola", (80, 8, 12))])
def test_published_parts_stay_as_they_are(sentences: Path, task: str, sizes: tuple[int, ...]) -> None:
    federation = load(sentences, task=task)
    assert federation.num_clients == 5
    for part, size in zip(("train", "validation", "test"), sizes, strict=True):
        words = [words.split(" ") for words, _ in texts_of(federation, part)]
        known = {f"n{n}" for n in range(size)}
        found = {text[-2] for text in words}
        assert len(words) == size
        assert found <= known | {"<UNK>"}
        assert all(text[0] == "[CLS]" and text[-1] == "[SEP]" for text in words)
    expected = {f'[CLS] a " good " film n{n} [SEP]': 1 for n in range(4) if n}
    training = dict(texts_of(federation, "train"))
    assert {text: training[text] for text in expected} == expected
    assert training["[CLS] what a bad plot this is n0 [SEP]"] == 0
    assert ("sentence-level SST-2" if task == "sst2" else "out-of-domain") in federation.notes[0]
    assert "where Table 7 of FedHPO-Bench has" in str(compared_with_table_7(federation))


def test_texts_that_are_cut_short_still_end(sentences: Path) -> None:
    texts = texts_of(load(sentences, length=5, vocabulary=8), "train")
    assert {text for text, y in texts if y} == {'[CLS] a " good [SEP]'}


@pytest.mark.parametrize("packed", [False, True])
def test_of_glue_the_dev_set_is_halved_and_preferred(sentences: Path, packed: bool) -> None:
    write_glue(sentences / "SST-2")
    if packed:
        with zipfile.ZipFile(sentences / "SST-2.zip", "w") as archive:
            for file in (sentences / "SST-2").iterdir():
                archive.write(file, f"SST-2/{file.name}")
                file.unlink()
        (sentences / "SST-2").rmdir()
    federation = load(sentences)
    assert "divided into halves" in federation.notes[0]
    assert {text.split(" ")[-2] for text, _ in texts_of(federation, "train")} == {f"n{n}" for n in range(100)}
    halves = [texts_of(federation, part) for part in ("validation", "test")]
    assert [sum(y for _, y in half) for half in halves] == [15, 15]
    words = [{text.split(" ")[-2] for text, _ in half} for half in halves]
    assert words[0] | words[1] == {f"n{n}" for n in range(40)}
    assert len(words[0]) == len(words[1]) == 20


def test_wordpiece_by_a_list_of_tokens(sentences: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "film", "n", "##0", "##1", '"', "bad", "pl", "##ot"]
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(pieces) + "\n")
    federation = load(sentences, tokenizer=str(file), length=9)
    assert federation.task.token_names == tuple(pieces)
    texts = [text for text, _ in texts_of(federation, "train")]
    assert '[CLS] a " good " film n ##1 [SEP]' in texts
    assert "[CLS] [UNK] a bad pl ##ot [UNK] [UNK] [SEP]" in texts
    # A file that has changed is read again.
    file.write_text("\n".join([*pieces, "what"]))
    os.utime(file, ns=(0, 1))
    assert load(sentences, tokenizer=str(file), length=9).task.vocabulary == len(pieces) + 1
    file.write_text("a\nb\n")
    with pytest.raises(BadInputError, match=r"is no vocabulary of BERT, .* it has no \[PAD\]"):
        load(sentences, tokenizer=str(file))
    with pytest.raises(BadInputError, match="There is no tokenizer"):
        load(sentences, tokenizer=str(tmp_path / "nothing.txt"))


def test_what_is_missing_or_wrong_is_said(sentences: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is not the published sst2_train\.tsv"):
        load(sentences, verify=True)
    (sentences / "cola_in_domain_dev.tsv").unlink()
    with pytest.raises(BadInputError, match=r"lacks CoLA: CoLA.zip \(or the folder CoLA\), or else cola_in_domain_dev"):
        load(sentences, task="cola")
    (sentences / "sst2_dev.tsv").write_text("1\tgood\n2\tvery good\n")
    with pytest.raises(BadInputError, match=r"sst2_dev.tsv, line 2 must have 2 values .* a label 0 or 1, not"):
        load(sentences)
    with pytest.raises(BadInputError, match=r"--download fetches SST-2.zip, CoLA.zip"):
        load(sentences / "nowhere")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
@pytest.mark.parametrize(("task", "sizes"), [("sst2", (6_920, 872, 1_821)), ("cola", (8_551, 527, 516))])
def test_the_published_files(task: str, sizes: tuple[int, ...]) -> None:
    federation = load_federation("glue", {"folder": str(PUBLISHED), "task": task})
    for part, size in zip(("train", "validation", "test"), sizes, strict=True):
        y = federation.samples(federation.clients(), part).columns["y"]
        assert len(y) == size
        assert set(np.unique(y)) == {0, 1}

"""Own texts: every tokenizer against plain Python, vocabularies of training texts alone, tokenizers in files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_texts import SAID, TABLE, rows_of_part
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
from fedarena.data.text.encoding import encode_texts
from fedarena.data.text.own import from_texts
from fedarena.data.text.words import split_messages


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

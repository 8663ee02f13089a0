"""Pretrained vectors of words: read as they are written, put where they belong, frozen or not, and their share told."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data.text.own import from_texts
from fedarena.models import DataSpec, build_model
from fedarena.models.word_vectors import WordVectors, word_embedding

NAMES = ("<PAD>", "<UNK>", "the", "cat", "sat", "xyzzy")
TEXT = DataSpec("classification", 2, (4,), padding=0, unknown=1, tokens=len(NAMES), token_names=NAMES)
GLOVE = "the 0.5 -1 2e-1\n. . . 9 9 9\ncat 1 2 3\ndog 4 5 6\nsat 7 8 9\ncat 0 0 0\n"
VECTORS = {2: [0.5, -1, 0.2], 3: [1.0, 2, 3], 4: [7.0, 8, 9]}


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE, encoding="utf-8")
    return path


def test_vectors_of_known_words(glove: Path, tmp_path: Path) -> None:
    (tmp_path / "word2vec.txt").write_text(f"6 3\n{GLOVE}", encoding="utf-8")
    with gzip.open(tmp_path / "glove.txt.gz", "wt", encoding="utf-8") as file:
        file.write(GLOVE)
    for path in (glove, tmp_path / "word2vec.txt", tmp_path / "glove.txt.gz"):
        found = WordVectors.read(path, NAMES)
        assert found.width == 3
        assert dict(zip(found.tokens.tolist(), found.values, strict=True)).keys() == VECTORS.keys()
        for token, values in zip(found.tokens.tolist(), found.values, strict=True):
            assert torch.equal(values, torch.tensor(VECTORS[token]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text("abcé.<>", min_size=1, max_size=3), min_size=1, max_size=8, unique=True),
    width=st.integers(2, 4),
    data=st.data(),
)
def test_what_is_written_is_read(words: list[str], width: int, data: st.DataObject, tmp_path: Path) -> None:
    number = st.floats(-10, 10, width=32)
    vectors = {word: data.draw(st.lists(number, min_size=width, max_size=width)) for word in words}
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {' '.join(map(repr, vectors[word]))}\n" for word in words), encoding="utf-8")
    names = data.draw(st.permutations(["<PAD>", *words]))
    found = WordVectors.read(path, names)
    assert found.tokens.tolist() == sorted(names.index(word) for word in words)
    for token, values in zip(found.tokens.tolist(), found.values, strict=True):
        assert values.tolist() == pytest.approx(vectors[names[token]], rel=1e-6)


@pytest.mark.parametrize(("model", "embedding"), [("char_mlp", "embed"), ("lstm", "0"), ("transformer", "0.token")])
@pytest.mark.parametrize("freeze", [True, False])
def test_models_begin_with_them(model: str, embedding: str, freeze: bool, glove: Path) -> None:
    options: dict[str, Any] = {"width": 3, "heads": 1} if model == "transformer" else {}
    made = build_model(model, TEXT, {**options, "vectors": str(glove), "freeze_vectors": freeze}, 0)
    weight = made.get_submodule(embedding).weight
    for token, values in VECTORS.items():
        assert torch.equal(weight[token], torch.tensor(values))
    if model == "transformer":
        plain = build_model(model, TEXT, options, 0)
        assert torch.equal(weight[[0, 1, 5]], plain.get_submodule(embedding).weight[[0, 1, 5]])  # as drawn without
    assert weight[[0, 1, 5]].abs().min() > 0
    assert weight.requires_grad is not freeze
    assert all(p.requires_grad for p in made.parameters() if p is not weight)


def test_an_embedding_for_models_of_your_own(glove: Path) -> None:
    layer = word_embedding(TEXT, glove, freeze=True)
    assert layer.weight.shape == (6, 3)
    assert not layer.weight.requires_grad
    assert layer.weight[3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        (b"\x00\xff\xfe\x01", "is not text"),
        (b"the 1 2\ncat 1\n", "line 2 must have 2 numbers"),
        (b"the 1 2\ncat 1 x\n", "line 2 holds something else than numbers"),
        (b"the 1 2\ncat 1 nan\n", "line 2 holds something else than numbers"),
        (b"the\n", "line 1 must have a word and its numbers"),
        (b"dog 1 2\n", "has no vector of any of the federation's 6 tokens"),
        (b"", "has no vector of any"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "vectors.txt").write_bytes(content)
    with pytest.raises(BadInputError, match=words):
        build_model("lstm", TEXT, {"vectors": str(tmp_path / "vectors.txt")}, 0)


def test_options_that_do_not_fit(glove: Path) -> None:
    with pytest.raises(BadInputError, match=r"model\.freeze_vectors needs model\.vectors"):
        build_model("lstm", TEXT, {"freeze_vectors": True}, 0)
    with pytest.raises(BadInputError, match=r"model\.width is 128, but the vectors in .* have 3 numbers"):
        build_model("transformer", TEXT, {"vectors": str(glove)}, 0)
    with pytest.raises(BadInputError, match="does not say what its tokens stand for"):
        build_model("lstm", DataSpec("next_token", 6, (4,)), {"vectors": str(glove)}, 0)


def test_a_run_says_how_many_words_are_random(
    glove: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"who": list("aabb"), "text": ["the cat sat", "xyzzy sat"] * 2, "y": [0, 1] * 2, "part": ["train"] * 4}
    federation = from_texts({**table, "part": ["train", "test"] * 2}, client="who", text="text", label="y", part="part")
    monkeypatch.chdir(tmp_path)
    result = fedarena.run(
        federation=federation,
        model={"name": "char_mlp", "vectors": "glove.txt", "hidden": 2, "context": 2},
        engine="reference",
        cohort=2,
        rounds=1,
    )
    assert result.config["model"]["vectors"] == str(glove)
    shown = " ".join((capsys.readouterr().err).split())
    assert "has vectors of 3 of the 5 tokens; the other 40.0% begin with random ones" in shown

"""BERT-Tiny: its size and names, padding in front, and weights from files in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.models import DataSpec, build_model
from fedarena.runs.weights import start_from

SMALL = {"layers": 2, "heads": 2, "width": 8, "positions": 12, "dropout": 0.0}
TEXTS = DataSpec("classification", 3, (9,), padding=0, tokens=20)
WORDS = "bert.embeddings.word_embeddings.weight"


def small(seed: int = 0, **options: Any) -> torch.nn.Module:
    return build_model("bert_tiny", TEXTS, {**SMALL, **options}, seed)


def tokens(length: int = 9) -> torch.Tensor:
    return torch.randint(1, 20, (4, length), generator=torch.Generator().manual_seed(0))


def test_it_has_the_published_size() -> None:
    published = DataSpec("classification", 2, (64,), padding=0, tokens=30_522)
    model = build_model("bert_tiny", published, {}, 0)
    assert sum(p.numel() for p in model.parameters()) == 4_386_178  # google/bert_uncased_L-2_H-128_A-2 and 2 classes


def test_padding_in_front_changes_nothing() -> None:
    model, texts = small().eval(), tokens(6)
    padded = torch.cat([torch.zeros(4, 3, dtype=torch.long), texts], 1)
    torch.testing.assert_close(model(padded), model(texts), rtol=0, atol=1e-6)
    assert not torch.allclose(model(padded), model(texts.flip(1)), atol=1e-4)  # the order of tokens counts
    assert torch.isfinite(model(torch.zeros(2, 9, dtype=torch.long))).all()


@pytest.mark.extras
def test_it_computes_what_the_library_does() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        num_labels=3,
    )
    torch.manual_seed(0)
    theirs = transformers.BertForSequenceClassification(config).eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.5)
    ours = small().eval()
    ours.load_state_dict({name: t for name, t in theirs.state_dict().items() if "position_ids" not in name})
    texts = tokens(6)
    behind = torch.cat([texts, torch.zeros(4, 3, dtype=torch.long)], 1)
    before = torch.cat([torch.zeros(4, 3, dtype=torch.long), texts], 1)
    expected = theirs(behind, attention_mask=(behind != 0).long()).logits
    torch.testing.assert_close(ours(before), expected, rtol=0, atol=1e-5)


def test_dropout_is_wherever_bert_has_it() -> None:
    assert [*small(dropout=0.3).state_dict()] == [*small().state_dict()]
    places = [name for name, part in small(dropout=0.3).named_modules() if isinstance(part, torch.nn.Dropout)]
    assert len(places) == 1 + 2 * 3 + 1  # embeddings; attention and both parts of both layers; before the classifier


def as_alone(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A BERT without a classifier, as AutoModel saves it."""
    return {name.removeprefix("bert."): t for name, t in state.items() if name.startswith("bert.")}


def as_before_2019(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in state.items()
        if name.startswith("bert.")
    }
    others = {"cls.predictions.bias": torch.zeros(20), "bert.embeddings.position_ids": torch.arange(12)[None]}
    return renamed | others


@pytest.mark.parametrize("form", [as_alone, as_before_2019])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "folder"])
def test_weights_come_from_files_of_the_library(tmp_path: Path, form: Any, name: str) -> None:
    pretrained = small(seed=1)
    state = form(pretrained.state_dict())
    path = tmp_path / ("model.safetensors" if name == "folder" else name)
    if path.suffix == ".bin":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    model = small(seed=2)
    fresh = model.classifier.weight.clone()
    notes = start_from(model, tmp_path if name == "folder" else path).notes
    for key, t in pretrained.bert.state_dict().items():
        assert torch.equal(model.bert.state_dict()[key], t), key
    assert torch.equal(model.classifier.weight, fresh)
    assert "freshly drawn: classifier.weight, classifier.bias" in notes[0]
    assert len(notes) == (2 if form is as_before_2019 else 1)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    state = small().state_dict()
    state[WORDS] = torch.zeros(30, 8)
    safetensors.torch.save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(BadInputError, match=r"knows 30 tokens and the federation has 20; .* own vocabulary"):
        start_from(small(), tmp_path / "other.safetensors")


@pytest.fixture
def texts(tmp_path: Path) -> Federation:
    random = np.random.default_rng(0)
    columns = {"x": ColumnSpec(dtype="uint16", shape=(9,)), "y": ColumnSpec(dtype="int64")}
    task = TaskSpec(kind="classification", classes=3, tokens=20, padding=0)
    source = SourceSpec(name="texts")
    with FederationWriter(tmp_path / "texts", name="texts", task=task, columns=columns, source=source) as writer:
        for client in range(3):
            x, y = random.integers(1, 20, size=(8, 9)).astype(np.uint16), random.integers(0, 3, size=8)
            writer.add_client(f"{client}", train={"x": x, "y": y}, test={"x": x, "y": y})
    return Federation.open(tmp_path / "texts")


def test_a_run_says_whether_it_starts_from_scratch(tmp_path: Path, texts: Federation) -> None:
    safetensors.torch.save_file(small().state_dict(), tmp_path / "w.safetensors")
    found = {}
    for name, weights in (("scratch", None), ("pretrained", str(tmp_path / "w.safetensors"))):
        run = fedarena.run(
            federation=texts,
            model={"name": "bert_tiny", **SMALL},
            weights=weights,
            engine="reference",
            rounds=1,
            name=name,
            runs_folder=tmp_path,
            progress=False,
        )
        found[name] = (run.path / "log.txt").read_text()
    assert "The model bert_tiny starts from scratch, not from pretrained weights" in found["scratch"]
    assert "from scratch" not in found["pretrained"]
    assert "all parameters were taken" in found["pretrained"]

"""A tiny encoder of Hugging Face's library as a model: the same on both engines, or a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.models import DataSpec, build_model
from fedarena.runs.building import GivenParts
from fedarena.runs.config import resolve
from fedarena.runs.run import start_run

pytestmark = pytest.mark.extras
LENGTH, TOKENS = 12, 40
TEXTS = DataSpec("classification", 3, (LENGTH,), padding=0, tokens=TOKENS)
SMALL = {
    "vocab_size": TOKENS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "num_labels": 5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as its library saves it, with dropout and a head for other classes."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(transformers.BertConfig(**SMALL)).save_pretrained(path)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Federation:
    """Texts of different lengths, whose second token tells the class."""
    generator = np.random.default_rng(0)
    with FederationWriter(
        tmp_path / "texts",
        name="texts",
        task=TaskSpec(kind="classification", classes=3, tokens=TOKENS, padding=0),
        columns={"x": ColumnSpec(dtype="int64", shape=(LENGTH,)), "y": ColumnSpec(dtype="int64", shape=())},
        source=SourceSpec(name="texts", version=1, options={}),
    ) as writer:
        for client in range(6):
            samples = int(generator.integers(3, 12))
            y = generator.integers(3, size=samples)
            x = generator.integers(5, TOKENS, (samples, LENGTH))
            x[:, 0], x[:, 1] = 1, 2 + y
            x[np.arange(LENGTH) >= generator.integers(4, LENGTH + 1, (samples, 1))] = 0
            writer.add_client(f"c{client}", train={"x": x, "y": y}, test={"x": x, "y": y})
    return Federation.open(tmp_path / "texts")


def test_it_trains_the_same_on_both_engines(tmp_path: Path, folder: Path, texts: Federation) -> None:
    found = {}
    for name in ("cohort", "reference"):
        config = resolve(
            {
                "federation": {"name": "store", "path": str(texts.path)},
                "model": {"name": "huggingface", "folder": str(folder)},
                "engine": {"name": name, "dtype": "float64"},
                "local": {"lr": 0.2, "batch_size": 4, "epochs": 2},
                "rounds": 3,
                "cohort": 4,
                "name": name,
            }
        )
        run = start_run(config, tmp_path, given=GivenParts(federation=texts))
        assert "one at a time" not in (run.path / "log.txt").read_text()
        found[name] = run.rounds["train_loss"].to_pylist()[1:]
    assert len(set(found["cohort"])) == 3
    np.testing.assert_allclose(found["cohort"], found["reference"], rtol=1e-9)


def test_padding_changes_nothing(folder: Path) -> None:
    model = build_model("huggingface", TEXTS, {"folder": str(folder)}, 0).eval()
    tokens = torch.randint(1, TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    tokens[:, 7:] = 0
    short = build_model(
        "huggingface", DataSpec("classification", 3, (7,), padding=0, tokens=TOKENS), {"folder": str(folder)}, 0
    )
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), short.eval()(tokens[:, :7]), rtol=0, atol=1e-5)


def test_weights_are_those_of_the_folder_or_fresh(folder: Path) -> None:
    one, other = (build_model("huggingface", TEXTS, {"folder": str(folder)}, seed).state_dict() for seed in (0, 1))
    fresh = build_model("huggingface", TEXTS, {"folder": str(folder), "pretrained": False}, 0).state_dict()
    name = "encoder.bert.embeddings.word_embeddings.weight"
    assert torch.equal(one[name], other[name])
    assert not torch.equal(one[name], fresh[name])
    assert one["encoder.classifier.weight"].shape == (3, 16)
    assert not torch.equal(one["encoder.classifier.weight"], other["encoder.classifier.weight"])


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    causal = tmp_path / "gpt"
    small = transformers.GPT2Config(vocab_size=TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=16, pad_token_id=0)
    transformers.AutoModelForSequenceClassification.from_config(small).save_pretrained(causal)
    long = DataSpec("classification", 3, (20,), padding=0, tokens=TOKENS)
    many = DataSpec("classification", 3, (LENGTH,), padding=0, tokens=TOKENS + 1)
    pictures = DataSpec("classification", 3, (1, 8, 8))
    for spec, path, message in (
        (TEXTS, tmp_path, r"has no config\.json; give a folder that save_pretrained wrote"),
        (TEXTS, causal, "is not an encoder that reads all of a text at once"),
        (long, folder, "Texts have 20 tokens, and the model in .* takes at most 16"),
        (
            many,
            folder,
            "has 41 tokens and the model in .* knows 40; make the federation with the model's own tokenizer",
        ),
        (pictures, folder, "needs texts to classify"),
    ):
        with pytest.raises(BadInputError, match=message):
            build_model("huggingface", spec, {"folder": str(path)}, 0)

"""Runs on federations of speech, of translations, of hidden tokens and of clicks, as small as they can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.models import MODELS, TASKS, DataSpec, build_model
from fedarena.models.keyed_random import keyed_uniform
from fedarena.models.sizes import USUAL_DATA, usual_size
from fedarena.runs.model_sizes import model_sizes
from fedarena.runs.weights import start_from

SPEECH = TaskSpec(kind="transcription", classes=4, label_names=("", "a", "b", " "), sample_rate=400)
WORDS = TaskSpec(kind="classification", classes=3, sample_rate=400)
TRANSLATIONS = TaskSpec(kind="translation", classes=9, tokens=7, padding=0)
TEXTS = TaskSpec(kind="next_token", classes=9, padding=0)
CLICKS = TaskSpec(kind="classification", classes=2, inputs={"x": None, "shop": 5})
RANDOM = np.random.default_rng(0)
# By name: the task, and how to make so many samples.
FEDERATIONS: dict[str, tuple[TaskSpec, Any]] = {
    "speech": (
        SPEECH,
        lambda n: {
            "x": RANDOM.integers(-9000, 9000, size=(n, 100)).astype(np.int16),
            "y": np.hstack([RANDOM.integers(1, 4, size=(n, 3)), np.zeros((n, 2), dtype=np.int64)]),
        },
    ),
    "words": (WORDS, lambda n: {"x": RANDOM.normal(size=(n, 100)).astype(np.float32), "y": np.arange(n) % 3}),
    "translations": (
        TRANSLATIONS,
        lambda n: {"x": RANDOM.integers(1, 7, size=(n, 4)), "y": RANDOM.integers(1, 9, size=(n, 5))},
    ),
    "texts": (TEXTS, lambda n: {"tokens": RANDOM.integers(1, 9, size=(n, 8))}),
    "clicks": (
        CLICKS,
        lambda n: {"x": RANDOM.normal(size=(n, 2)), "shop": RANDOM.integers(5, size=n), "y": np.arange(n) % 2},
    ),
}
ALBERT = {"layers": 1, "heads": 2, "width": 4, "embedding": 3, "hidden": 4, "positions": 8}


def federation(folder: Path, name: str) -> Federation:
    task, make = FEDERATIONS[name]
    columns = {key: ColumnSpec(dtype=str(v.dtype), shape=v.shape[1:]) for key, v in make(1).items()}
    writer = FederationWriter(folder / name, name=name, task=task, columns=columns, source=SourceSpec(name=name))
    with writer:
        for client in range(3):
            writer.add_client(f"{client}", train=make(4), test=make(3))
    return Federation.open(folder / name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "settings", "measured"),
    [
        ("speech", {"model": {"name": "deepspeech_small", "bands": 4, "hidden": 3}}, "word_error_rate"),
        ("words", {"model": {"name": "speech_cnn", "bands": 4, "hidden": 3}}, "accuracy"),
        ("translations", {"model": {"name": "seq2seq", "hidden": 4, "embedding": 3}}, "perplexity"),
        ("texts", {"task": "masked_token", "model": {"name": "albert", **ALBERT}}, "perplexity"),
        ("clicks", {"task": "click", "model": {"name": "dlrm", "top": [4]}}, "auc"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*from scratch")
def test_a_run_from_the_store_to_the_metric(tmp_path: Path, name: str, settings: Any, measured: str) -> None:
    data = federation(tmp_path, name)
    run = fedarena.run(
        federation=data,
        engine="reference",
        rounds=1,
        name="run",
        runs_folder=tmp_path,
        progress=False,
        evaluation={"predictions": True},
        **settings,
    )
    assert np.isfinite(run.summary["final"][measured])
    assert data.label_counts.sum() > 0
    assert len(run.predictions) == 9


class NoisyInputs(TASKS.get("classification")):
    """Draws by the key of a step, as dropout does."""

    def model_inputs(self, batch):
        (x,) = super().model_inputs(batch)
        return (x + keyed_uniform(batch["key"], x) if "key" in batch else x,)


class NoisyLosses(TASKS.get("classification")):
    """The same, where losses are computed."""

    def losses(self, outputs, batch):
        found = super().losses(outputs, batch)
        return found * keyed_uniform(batch["key"], found) if "key" in batch else found


class NoisyMethod(FedAvg):
    """The same in a method."""

    def local_loss(self, task, params, batch, client):
        return task.loss(params, batch) * keyed_uniform(batch["key"], client.job.share)


SPEECH_CNN = {"name": "speech_cnn", "bands": 4, "hidden": 3}


@pytest.mark.filterwarnings("ignore:.*from scratch")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("texts", {"task": "masked_token", "model": {"name": "albert", **ALBERT, "dropout": 0.0}}),
        ("words", {"task": NoisyInputs, "model": SPEECH_CNN}),
        ("words", {"task": NoisyLosses, "model": SPEECH_CNN}),
        ("words", {"algorithm": NoisyMethod, "model": SPEECH_CNN}),
    ],
)
def test_what_is_drawn_by_the_key_of_a_step_is_the_same_on_both_engines(
    tmp_path: Path, name: str, settings: Any
) -> None:
    data = federation(tmp_path, name)
    losses = [
        fedarena.run(
            federation=data,
            engine={"name": engine, "dtype": "float64"},
            rounds=2,
            local={"lr": 0.5, "batch_size": 4},
            name=engine,
            runs_folder=tmp_path,
            progress=False,
            **settings,
        )
        .rounds["train_loss"]
        .to_pylist()
        for engine in ("reference", "cohort")
    ]
    np.testing.assert_allclose(*(np.array(found, dtype=np.float64) for found in losses), rtol=1e-10)


def test_a_backdoor_needs_the_next_token(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="backdoor is not for the task masked_token; choose task=next_token"):
        fedarena.run(
            federation=federation(tmp_path, "texts"),
            task="masked_token",
            model={"name": "albert", **ALBERT},
            attack={"name": "backdoor", "target": "3", "token": "4"},
            runs_folder=tmp_path,
            progress=False,
        )


def test_labels_of_transcripts_and_translations_are_counted(tmp_path: Path) -> None:
    speech = federation(tmp_path, "speech").label_counts
    assert speech[0] == 0  # which is no character
    assert speech.sum() == 3 * 4 * 3
    assert federation(tmp_path, "translations").label_counts.sum() == 3 * 4 * 4  # but for the first of five


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({"kind": "translation", "classes": 5}, "a translation task has tokens, the number of those in x"),
        ({"kind": "next_token", "classes": 5, "sample_rate": 8}, "sample_rate is of a waveform x"),
    ],
)
def test_tasks_that_contradict_themselves_are_refused(task: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        TaskSpec(**task)


def test_a_waveform_is_a_row_of_numbers() -> None:
    columns = {"x": ColumnSpec(dtype="uint8", shape=(9,)), "y": ColumnSpec(dtype="int64")}
    with pytest.raises(BadInputError, match=r"'x' must hold int16 or floats of shape \[samples\] .*, not uint8"):
        WORDS.check_columns(columns)


def test_files_of_an_albert_are_taken(tmp_path: Path) -> None:
    spec = DataSpec("classification", 3, (6,), padding=0, tokens=9)
    pretrained: Any = build_model("albert", spec, ALBERT, 1)
    alone = {name.removeprefix("albert."): t for name, t in pretrained.state_dict().items() if "classifier" not in name}
    others = {"predictions.decoder.bias": torch.zeros(9), "embeddings.position_ids": torch.arange(8)[None]}
    safetensors.torch.save_file(alone | others, tmp_path / "model.safetensors")
    model: Any = build_model("albert", spec, ALBERT, 2)
    notes = start_from(model, tmp_path).notes
    assert "freshly drawn: classifier.weight, classifier.bias" in notes[0]
    for name, t in pretrained.albert.state_dict().items():
        assert torch.equal(model.albert.state_dict()[name], t), name
    with pytest.raises(BadInputError, match="knows 9 tokens and the federation has 12"):
        start_from(build_model("albert", DataSpec("classification", 3, (6,), tokens=12), ALBERT, 2), tmp_path)


def test_every_model_but_those_from_folders_has_a_size() -> None:
    assert set(MODELS.names()) - set(USUAL_DATA) == {"huggingface"}


@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds"),
    [
        ("logistic_regression", 610, 600),
        ("mobilenet_v2", 3_504_872, 300_774_272),  # as torchvision publishes them
        ("vgg11", 132_863_336, 7_609_090_048),
    ],
)
def test_sizes_are_computed(name: str, parameters: int, multiply_adds: int) -> None:
    size = usual_size(name)
    assert size is not None
    assert (size.parameters, size.multiply_adds) == (parameters, multiply_adds)


def test_sizes_are_kept_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDARENA_CACHE", str(tmp_path))
    monkeypatch.setattr("fedarena.runs.model_sizes.USUAL_DATA", {"linear": USUAL_DATA["linear"]})
    first = model_sizes()
    assert first["linear"] == "610 parameters, 600 multiply-adds of a sample, for features of shape [60] in 10 classes"
    (kept,) = (tmp_path / "model_sizes").iterdir()
    kept.write_text('{"linear": "as it was kept"}')
    assert model_sizes() == {"linear": "as it was kept"}
    kept.write_text("damaged")
    assert model_sizes() == first

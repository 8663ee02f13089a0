"""Models for speech, clicks, ways, games and translations: both engines agree, and they compute what they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_cohort import assert_same, train
from torch import Tensor, nn

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import MODELS, DataSpec, InputSpec, Task, build_model
from fedarena.models.tasks import task_class
from fedarena.models.tasks.translation import inputs_of_translation
from fedarena.train import CohortEngine, Engine, LocalTraining, ReferenceEngine, map_groups

SIZES = [0, 1, 3, 7]
RATE = 400  # samples of a second: windows of 10, four apart
CODES = (InputSpec("x", (5,)), InputSpec("shop", (), 7), InputSpec("seen", (3,), 9))
TEXT = DataSpec("next_token", 12, (9,), padding=0, unknown=1)
TWEETS = DataSpec("classification", 3, (7,), padding=0, unknown=1, tokens=15)
SMALL_ALBERT = {"layers": 1, "heads": 2, "width": 6, "embedding": 4, "hidden": 8, "positions": 12, "dropout": 0.2}
# By model and what is special: the form of the data, options, and the task.
CASES: dict[str, tuple[DataSpec, dict[str, Any], str]] = {
    "vgg11": (DataSpec("classification", 4, (3, 32, 32)), {"hidden": 6, "small_images": True}, "auto"),
    "albert": (TWEETS, SMALL_ALBERT | {"layers": 3}, "auto"),
    "albert, masked": (TEXT, SMALL_ALBERT, "masked_token"),
    "bert_tiny, masked": (TEXT, {"layers": 1, "width": 6, "positions": 12}, "masked_token"),
    "gru": (TEXT, {"embedding": 3, "hidden": 4}, "auto"),
    "gru, one label": (TWEETS, {"embedding": 3, "hidden": 4}, "auto"),
    "gru, ways": (DataSpec("regression", 2, (6, 3)), {"hidden": 4}, "auto"),
    "dlrm": (DataSpec("classification", 2, (), inputs=CODES), {"factors": 3, "bottom": (4,), "top": (5,)}, "click"),
    "dlrm, rating": (
        DataSpec("rating", 1, (), inputs=CODES[1:], value_range=(1.0, 5.0)),
        {"factors": 3, "top": (5,)},
        "auto",
    ),
    "go_policy": (DataSpec("classification", 26, (3, 5, 5)), {"width": 4, "layers": 1}, "auto"),
    "seq2seq": (
        DataSpec("translation", 11, (6,), padding=0, tokens=9, inputs=inputs_of_translation(6, 5, 9, 11)),
        {"embedding": 3, "hidden": 4},
        "auto",
    ),
    "speech_cnn": (
        DataSpec("classification", 3, (100,), sample_rate=RATE),
        {"bands": 4, "channels": (2, 3), "hidden": 4},
        "auto",
    ),
    "deepspeech_small": (
        DataSpec("transcription", 5, (100,), sample_rate=RATE, longest_transcript=4),
        {"bands": 4, "hidden": 3, "layers": 1},
        "auto",
    ),
}


def make(case: str, **more: Any) -> Task:
    spec, options, task = CASES[case]
    kind = task_class(task, spec)
    seen = kind.model_spec(spec)
    return kind(build_model(case.partition(",")[0], seen, options | more, 0, lambda module: kind(module, seen)), seen)


class SomeClients:
    """Clients with random samples of the form that a model is for."""

    def __init__(self, spec: DataSpec):
        self.spec, self._random = spec, np.random.default_rng(0)
        self.columns = [self._samples(size) for size in SIZES]

    def _tokens(self, size: int, length: int, number: int) -> np.ndarray:
        return self._random.integers(1, number, size=(size, length))

    def _samples(self, size: int) -> dict[str, np.ndarray]:
        spec = self.spec
        if spec.kind == "next_token":
            tokens = self._tokens(size, spec.input_shape[0] + 1, spec.classes)
            tokens[:, 6:] *= self._random.integers(0, 2, size=(size, 1))  # some end early
            return {"tokens": tokens.astype(np.uint8)}
        if spec.kind == "translation":
            y = self._tokens(size, spec.inputs[1].shape[0] + 1, spec.classes)
            y[:, 3:] *= self._random.integers(0, 2, size=(size, 1))
            x = self._tokens(size, spec.input_shape[0], spec.tokens or 0)
            x[:, :2] *= self._random.integers(0, 2, size=(size, 1))
            return {"x": x, "y": y}
        y = self._random.integers(spec.classes, size=size)
        if spec.kind in ("regression", "rating"):
            y = self._random.normal(size=(size, spec.classes) if spec.classes > 1 else size) + 3
        if spec.kind == "transcription":
            lengths = self._random.integers(1, (spec.longest_transcript or 1) + 1, size=(size, 1))
            said = self._tokens(size, spec.longest_transcript or 1, spec.classes)
            y = np.where(np.arange(said.shape[1]) < lengths, said, 0)
        if spec.inputs:
            x = {
                part.name: self._random.normal(size=(size, *part.shape))
                if part.values is None
                else self._random.integers(part.values, size=(size, *part.shape))
                for part in spec.inputs
            }
            return {**x, "y": y}
        if spec.is_text:
            return {"x": self._tokens(size, spec.input_shape[0], spec.vocabulary), "y": y}
        x = self._random.normal(size=(size, *spec.input_shape))
        return {"x": (x * 5000).astype(np.int16) if spec.is_audio else x, "y": y}

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([SIZES[c] for c in clients])

    def samples(self, clients: Any, part: str) -> Any:
        chosen = [self.columns[c] for c in clients]
        joined = {name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]}
        return SimpleNamespace(columns=joined, offsets=np.cumsum([0, *(SIZES[c] for c in clients)]))


def engine(kind: Any, case: str, **options: Any) -> Engine:
    local, algorithm = LocalTraining(epochs=1, batch_size=4, lr=0.05), FedAvg()
    algorithm.prepare(3, local)
    made: Engine = kind(make(case), algorithm, local, SomeClients(CASES[case][0]), seed=3, dtype="float64", **options)
    return made


# Those of which a step is recorded in seconds; all are tried in `make test-slow`.
SLOW = ("vgg11", "albert", "bert_tiny, masked", "seq2seq", "gru, one label", "gru, ways")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_many_clients_train_as_one_at_a_time(case: str) -> None:
    found, scored = [], []
    for kind in (ReferenceEngine, CohortEngine):
        made = engine(kind, case)
        params = made.initial_params()
        found.append(train(made, [2, 3], {"params": params}, {}))
        scored.append(made.evaluate(params, np.array([1, 3]), "test"))
        assert not made.notes  # which would say that it cannot be vectorized
    assert_same(*found)
    for name, scores in scored[0].metrics.items():
        np.testing.assert_allclose(scores.values, scored[1].metrics[name].values, rtol=1e-10)
        assert np.isfinite(scores.total)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_the_same(case: str) -> None:
    found = []
    for kind, options in ((ReferenceEngine, {"device": "cpu"}), (CohortEngine, {"device": "cuda", "compile": False})):
        made: Any = engine(kind, case, **options)
        params = made.place({"params": made.initial_params()})
        found.append(train(made, [2, 3], params, {}))
    on_cpu = {
        client: (map_groups(Tensor.cpu, update), memory, loss, amounts)
        for client, (update, memory, loss, amounts) in found[1].items()
    }
    assert_same(found[0], on_cpu)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", ["albert, masked", "dlrm", "gru, ways", "go_policy", "seq2seq", "deepspeech_small"])
def test_it_learns(case: str) -> None:
    """Some steps on the same samples, which a model can learn by heart."""
    task = make(case, **({"dropout": 0.0} if case.startswith("albert") else {}))
    columns = SomeClients(CASES[case][0]).columns[3]
    batch = task.batch({name: torch.from_numpy(values) for name, values in columns.items()})
    params = dict(task.module.named_parameters())
    optimizer = torch.optim.Adam(params.values(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = task.loss({}, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_dlrm_is_what_the_paper_says() -> None:
    task = make("dlrm")
    model: Any = task.module.double()
    columns = SomeClients(task.spec).columns[3]
    numbers, shop, seen = (torch.from_numpy(columns[name]) for name in ("x", "shop", "seen"))
    for sample in range(len(numbers)):
        dense = numbers[sample]
        for layer in (model.bottom[0], model.bottom[2]):
            dense = (layer.weight @ dense + layer.bias).clamp(min=0)
        shop_vector = model.embeddings[0].weight[shop[sample]]
        seen_vector = sum(model.embeddings[1].weight[code] for code in seen[sample])
        products = torch.stack([dense @ shop_vector, dense @ seen_vector, shop_vector @ seen_vector])
        first, last = model.top[0], model.top[2]
        hidden = (first.weight @ torch.cat([dense, products]) + first.bias).clamp(min=0)
        expected = last.weight @ hidden + last.bias
        found = model(numbers, shop, seen)[sample]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_gru_is_torchs() -> None:
    embed, *layers, output = make("gru").module
    theirs = nn.GRU(3, 4, num_layers=2, batch_first=True)
    for number, layer in enumerate(layers):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(theirs, f"{kind}_l{number}").data.copy_(getattr(layer, f"{kind}_l0"))
    tokens = torch.randint(12, (2, 9))
    expected = output(theirs(embed(tokens))[0])
    torch.testing.assert_close(nn.Sequential(embed, *layers, output)(tokens), expected)


def test_every_point_of_a_board_is_seen_alike() -> None:
    """Where no edge is near, moving all stones moves all scores, but for the biases of points."""
    task = make("go_policy", width=4, layers=1)
    spec = DataSpec("classification", 82, (3, 9, 9))
    model: Any = build_model("go_policy", spec, {"width": 4, "layers": 1}, 0)
    x = torch.zeros(1, 3, 9, 9)
    x[0, :, 4, 3] = 1
    points = model(x)[:, :81].view(9, 9)
    moved = model(x.roll(1, -1))[:, :81].view(9, 9)
    torch.testing.assert_close(moved[3:6, 4:6], points[3:6, 3:5])
    with torch.no_grad():
        model.bias[81] = 5.0
    assert model(x).argmax() == 81  # passing
    assert task.module.bias.shape == (26,)


def test_padding_of_a_text_changes_no_translation() -> None:
    task = make("seq2seq")
    model = task.module.eval()
    text, translated = torch.randint(1, 9, (2, 4)), torch.randint(1, 11, (2, 4))
    scores = model(text, translated)
    assert scores.shape == (2, 4, 11)
    later = translated.clone()
    later[:, 2:] = 1
    torch.testing.assert_close(model(text, later)[:, :2], scores[:, :2])  # nobody sees what is still to come


@pytest.mark.parametrize(
    ("model", "spec", "complaint"),
    [
        ("albert", TEXT, "'albert' needs whole texts, or the task masked_token, but"),
        ("gru", DataSpec("classification", 3, (4,)), "'gru' needs text, or sequences of numbers"),
        ("dlrm", DataSpec("classification", 3, (4,)), "'dlrm' needs inputs of which some are codes"),
        ("go_policy", DataSpec("classification", 9, (3, 5, 5)), "'go_policy' needs planes of a board"),
        ("seq2seq", TEXT, "'seq2seq' needs texts with their translations"),
        ("speech_cnn", DataSpec("classification", 3, (100,)), "'speech_cnn' needs waveforms with labels"),
        ("deepspeech_small", CASES["speech_cnn"][0], "'deepspeech_small' needs waveforms with what is said"),
        ("vgg11", DataSpec("classification", 3, (3, 16, 16)), "'vgg11' needs images of at least 32 x 32"),
        ("lstm", CASES["seq2seq"][0], "'lstm' needs a federation of text, but .* try model=seq2seq"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, spec: DataSpec, complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        build_model(model, spec, {}, 0)


def test_a_model_that_hears_too_little_is_refused() -> None:
    spec = DataSpec("transcription", 5, (100,), sample_rate=RATE, longest_transcript=14)
    options = {"bands": 4, "hidden": 3, "layers": 1}
    with pytest.raises(BadInputError, match="hears 13 moments, but transcripts of up to 14 characters need 27"):
        build_model("deepspeech_small", spec, options, 0)
    with pytest.raises(BadInputError, match="hears 26 moments"):
        build_model("deepspeech_small", spec, options | {"stride": 1}, 0)


@pytest.mark.slow
def test_the_dense_layers_of_vgg_need_not_be_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 133 million parameters, 124 are in dense layers."""
    small = DataSpec("classification", 4, (3, 32, 32))
    monkeypatch.setitem(CASES, "vgg11", (small, {"hidden": 256, "small_images": True}, "auto"))
    made: Any = engine(CohortEngine, "vgg11", dense="factored")
    names = {layer.name for layer in made._unwritten.layers}
    assert names == {"classifier.0.weight", "classifier.3.weight"}


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "published"), [("none", "vgg11"), ("frozen_batch", "vgg11_bn")])
def test_vgg_is_torchvisions(norm: str, published: str) -> None:
    theirs = getattr(pytest.importorskip("torchvision.models"), published)().eval()
    spec = DataSpec("classification", 1000, (3, 64, 64))
    ours = MODELS.get("vgg11")(spec, norm=norm, normalize=False).eval()
    theirs.load_state_dict(
        {name: t + 0.05 * torch.rand_like(t) if t.is_floating_point() else t for name, t in theirs.state_dict().items()}
    )
    tensors = theirs.state_dict().items()
    ours.load_state_dict({name: t for name, t in tensors if not name.endswith("num_batches_tracked")})
    x = torch.rand(2, 3, 64, 64)
    expected = theirs(x)
    torch.testing.assert_close(ours(x) / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("norm", "parameters"), [("none", 132_863_336), ("group", 132_868_840)])
def test_vgg_has_the_published_size(norm: str, parameters: int) -> None:
    with torch.device("meta"):
        made = MODELS.get("vgg11")(DataSpec("classification", 1000, (3, 224, 224)), norm=norm)
    assert sum(p.numel() for p in made.parameters()) == parameters


def test_albert_has_the_published_size() -> None:
    with torch.device("meta"):
        made = MODELS.get("albert")(DataSpec("classification", 2, (64,), padding=0, tokens=30_000))
    body = sum(p.numel() for name, p in made.named_parameters() if not name.startswith("classifier"))
    assert body == 11_683_584  # albert/albert-base-v2


@pytest.mark.extras
def test_a_bert_that_predicts_tokens_computes_what_the_library_does() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=12)
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(config).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    spec = DataSpec("masked_token", 20, (9,), padding=0, tokens=20)
    ours = MODELS.get("bert_tiny")(spec, width=8, positions=12).eval()
    ours.load_state_dict({name: t for name, t in theirs.state_dict().items() if ".decoder." not in name})
    texts, padding = torch.randint(1, 20, (4, 6)), torch.zeros(4, 3, dtype=torch.long)
    behind = torch.cat([texts, padding], 1)
    expected = theirs(behind, attention_mask=(behind != 0).long()).logits[:, :6]
    torch.testing.assert_close(ours(torch.cat([padding, texts], 1))[:, 3:], expected, rtol=0, atol=1e-5)


@pytest.mark.extras
@pytest.mark.parametrize("masked", [False, True])
def test_albert_computes_what_the_library_does(masked: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AlbertConfig(
        vocab_size=20,
        embedding_size=4,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=12,
        num_labels=3,
    )
    kind = transformers.AlbertForMaskedLM if masked else transformers.AlbertForSequenceClassification
    torch.manual_seed(0)
    theirs = kind(config).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    spec = DataSpec("masked_token" if masked else "classification", 20 if masked else 3, (9,), padding=0, tokens=20)
    options = {"layers": 3, "heads": 2, "width": 8, "embedding": 4, "hidden": 12, "positions": 12}
    ours = MODELS.get("albert")(spec, **options).eval()
    ours.load_state_dict({name: t for name, t in theirs.state_dict().items() if ".decoder." not in name})
    texts, padding = torch.randint(1, 20, (4, 6)), torch.zeros(4, 3, dtype=torch.long)
    behind = torch.cat([texts, padding], 1)
    expected = theirs(behind, attention_mask=(behind != 0).long()).logits
    found = ours(torch.cat([padding, texts], 1))
    if masked:
        expected, found = expected[:, :6], found[:, 3:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

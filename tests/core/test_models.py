from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedarena.core.errors import BadInputError
from fedarena.models import MODELS, DataSpec, build_model, default_model, make_task
from fedarena.models.blocks import Attention
from fedarena.models.characters import LSTMLayer
from fedarena.train import count_training_flops

TEXT = DataSpec("next_token", 98, (20,), padding=0, unknown=1)
DIGITS = DataSpec("classification", 10, (1, 8, 8))
FEMNIST = DataSpec("classification", 62, (1, 28, 28))
FEATURES = DataSpec("classification", 5, (60,))
TWEETS = DataSpec("classification", 3, (20,), padding=0, unknown=1, tokens=98)
WAYS = DataSpec("regression", 2, (20, 2))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", [name for name in MODELS.names() if name != "huggingface"])
@pytest.mark.parametrize("spec", [TEXT, DIGITS, FEMNIST, FEATURES, TWEETS], ids=str)
def test_a_model_fits_or_says_why_not(name: str, spec: DataSpec) -> None:
    for_text = name in ("char_mlp", "lstm", "gru", "transformer", "bag_of_words", "bert_tiny", "albert")
    for_images = "cnn" in name or name.startswith(("resnet", "mobilenet", "shufflenet", "vit"))
    for_others = ("matrix_factorization", "embedding_mlp", "dlrm", "gcn", "pfl_cnn", "vgg11", "go_policy", "seq2seq")
    unfit = name in for_others or "speech" in name
    unfit |= name in ("bag_of_words", "bert_tiny", "albert") and spec is TEXT
    unfit |= name == "leaf_celeba_cnn" and spec is DIGITS
    options = {"layers": 1, "heads": 2, "width": 8, "hidden": 8} if name == "albert" else {}
    if for_text != spec.is_text or (for_images and not spec.is_image) or unfit:
        with pytest.raises(BadInputError, match=f"'{name}' needs .* try model={default_model(spec)}"):
            build_model(name, spec, options, seed=0)
        return
    model = build_model(name, spec, options, seed=0)
    x = torch.zeros(3, *spec.input_shape, dtype=torch.long if spec.is_text else torch.float32)
    expected = (3, 20, 98) if spec.kind == "next_token" else (3, spec.classes)
    assert model(x).shape == expected


def test_steps_of_numbers_are_for_a_recurrent_model() -> None:
    assert default_model(WAYS) == "gru"
    assert default_model(DataSpec("regression", 2, (40,))) == "linear"


@pytest.mark.parametrize(
    "spec", [TEXT, DIGITS, FEATURES, TWEETS, WAYS, DataSpec("classification", 2, (1, 4, 4))], ids=str
)
def test_the_default_model_learns_an_example(spec: DataSpec) -> None:
    task = make_task(build_model(default_model(spec), spec, {}, seed=0), spec)
    batch = task.batch(task.example(3))
    params = dict(task.module.named_parameters())
    before = task.loss(params, batch)
    gradients = torch.autograd.grad(before, list(params.values()), materialize_grads=True)
    stepped = {name: p - 0.01 * g for (name, p), g in zip(params.items(), gradients, strict=True)}
    assert 0 < task.loss(stepped, batch) < before


@pytest.mark.parametrize(
    ("name", "spec", "options", "complaint"),
    [
        ("mlp", FEATURES, {"hidden": (-5,)}, "model.hidden must be at least 1, not -5"),
        ("mlp", FEATURES, {"hidden": (3, 0)}, "model.hidden must be at least 1, not 0"),
        ("cnn", DIGITS, {"hidden": -1}, "model.hidden must be at least 1, not -1"),
        ("cnn", DIGITS, {"channels": (4, 0)}, "model.channels must be at least 1, not 0"),
        ("leaf_cnn", DIGITS, {"hidden": 0}, "model.hidden must be at least 1, not 0"),
        ("char_mlp", TEXT, {"context": 0}, "model.context must be at least 1, not 0"),
        ("char_mlp", TEXT, {"embedding": 0}, "model.embedding must be at least 1, not 0"),
        ("char_mlp", TEXT, {"hidden": 0}, "model.hidden must be at least 1, not 0"),
        ("lstm", TEXT, {"layers": 0}, "model.layers must be at least 1, not 0"),
        ("lstm", TEXT, {"embedding": -1}, "model.embedding must be at least 1, not -1"),
        ("lstm", TEXT, {"hidden": 0}, "model.hidden must be at least 1, not 0"),
        ("resnet18", DIGITS, {"width": 0}, "model.width must be at least 1, not 0"),
        ("resnet18", DIGITS, {"groups": 0}, "model.groups must be at least 1, not 0"),
        ("resnet18", DIGITS, {"width": 5}, "model.width must be a multiple of model.groups, but 5 is not one of 2"),
        ("mlp", FEATURES, {"depth": 2}, "model.depth is given without model.width; layers need both"),
        ("mlp", FEATURES, {"width": 2}, "model.width is given without model.depth; layers need both"),
        ("mlp", FEATURES, {"depth": 2, "width": 0}, "model.width must be at least 1, not 0"),
        (
            "mlp",
            FEATURES,
            {"depth": 1, "width": 4, "hidden": (3,)},
            "model.hidden and model.depth are both given, and each says how many layers there are",
        ),
        ("mlp", FEATURES, {"dropout": 1.0}, "model.dropout must be at least 0 and below 1, not 1"),
        ("cnn", DIGITS, {"dropout": 1.5}, "model.dropout must be at least 0 and below 1, not 1.5"),
        ("bert_tiny", TWEETS, {"positions": 19}, "model.positions is 19, but texts have up to 20 tokens"),
        ("bert_tiny", TWEETS, {"heads": 3}, "model.width must be a multiple of model.heads, but 128 is not one of 3"),
        ("transformer", TEXT, {"layers": 0}, "model.layers must be at least 1, not 0"),
        ("transformer", TEXT, {"heads": 3}, "model.width must be a multiple of model.heads, but 128 is not one of 3"),
        ("transformer", TEXT, {"dropout": 1.0}, "model.dropout must be at least 0 and below 1, not 1"),
        ("transformer", TEXT, {"dropout": -0.1}, "model.dropout must be at least 0 and below 1, not -0.1"),
        ("vit", DIGITS, {"layers": 0}, "model.layers must be at least 1, not 0"),
        ("vit", DIGITS, {"patch": 0}, "model.patch must be at least 1, not 0"),
        ("vit", DIGITS, {"heads": 3}, "model.width must be a multiple of model.heads, but 64 is not one of 3"),
        ("vit", DIGITS, {"prompts": -1}, "model.prompts must be at least 0, not -1"),
        (
            "vit",
            DIGITS,
            {"mlp_ratio": 0.01},
            "model.mlp_ratio must leave at least one of 64 features, but 0.01 does not",
        ),
        (
            "vit",
            DIGITS,
            {"patch": 3},
            "model.patch must divide the height and the width of the images, but 3 does not divide 8 x 8",
        ),
    ],
)
def test_options_that_make_no_model_are_refused(
    name: str, spec: DataSpec, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInputError) as refusal:
        build_model(name, spec, options, seed=0)
    assert str(refusal.value) == complaint


def test_an_mlp_without_hidden_layers_is_linear() -> None:
    assert parameters(build_model("mlp", FEATURES, {"hidden": ()}, seed=0)) == 60 * 5 + 5


def test_sizes_are_those_of_leaf() -> None:
    assert parameters(build_model("leaf_cnn", FEMNIST, {}, seed=0)) == 6_603_710
    assert parameters(build_model("logistic_regression", FEATURES, {}, seed=0)) == 60 * 5 + 5
    # embedding, two layers of four gates, output
    shakespeare = DataSpec("next_token", 80, (80,))
    gates = 4 * (8 * 256 + 256 * 256 + 256) + 4 * (256 * 256 + 256 * 256 + 256)
    assert parameters(build_model("lstm", shakespeare, {}, seed=0)) == 80 * 8 + gates + 256 * 80 + 80


def test_the_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    first = build_model("mlp", DIGITS, {"hidden": (7,)}, seed=3).state_dict()
    before = torch.random.get_rng_state()
    second = build_model("mlp", DIGITS, {"hidden": (7,)}, seed=3).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    other = build_model("mlp", DIGITS, {"hidden": (7,)}, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


def test_our_lstm_layer_equals_torchs() -> None:
    ours, theirs = LSTMLayer(5, 7).double(), nn.LSTM(5, 7, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.weight_hh_l0.copy_(ours.recurrent.weight)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=0, atol=1e-12)


def test_resnet18_is_the_one_that_is_usual_for_cifar() -> None:
    cifar = DataSpec("classification", 10, (3, 32, 32))
    model = build_model("resnet18", cifar, {}, seed=0)
    assert parameters(model) == 11_173_962
    shapes = []
    for layer in model:
        layer.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    model(torch.zeros(2, 3, 32, 32))
    stages = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert shapes == [(64, 32, 32)] * 3 + [shape for shape in stages for _ in range(2)] + [(512,), (10,)]


@pytest.mark.parametrize("causal", [True, False])
def test_our_attention_equals_torchs(causal: bool) -> None:
    ours, theirs = Attention(12, 3, causal).double(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.queries, ours.keys, ours.values)]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.queries, ours.keys, ours.values)]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=future)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_dropout_of_the_transformer_is_where_it_says(dropout: float) -> None:
    model = build_model("transformer", TEXT, {"layers": 3, "dropout": dropout}, seed=0)
    shares = [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)]
    assert shares == ([dropout] * (1 + 2 * 3) if dropout else [])


@pytest.mark.parametrize("name", ["char_mlp", "lstm", "transformer"])
def test_character_models_do_not_see_the_future(name: str) -> None:
    model = build_model(name, TEXT, {}, seed=0)
    tokens = torch.randint(2, 98, (2, 20))
    changed = tokens.clone()
    changed[:, 12] = 97 - changed[:, 12] + 2
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12], after[:, 12])


def test_char_mlp_sees_exactly_its_context() -> None:
    model = build_model("char_mlp", TEXT, {"context": 4}, seed=0)
    tokens = torch.randint(2, 98, (1, 20))
    changed = tokens.clone()
    changed[0, 5] = 99 - changed[0, 5]
    with torch.no_grad():
        differs = (model(tokens) != model(changed)).any(-1)[0]
    assert differs.nonzero().flatten().tolist() == [5, 6, 7, 8]


def test_running_statistics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._parts, "normed", lambda spec: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    with pytest.raises(BadInputError, match=r"layer '1' \(BatchNorm2d\).*GroupNorm"):
        build_model("normed", DIGITS, {}, seed=0)


class Remembering(nn.Module):
    """Adds up what it sees in a buffer: in place, or as a new tensor."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.seen += x.sum()
        else:
            self.seen = self.seen + x.sum()
        return x


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_buffers_that_change_are_refused_and_put_back(
    monkeypatch: pytest.MonkeyPatch, in_place: bool, training: bool
) -> None:
    module = nn.Sequential(Remembering(in_place), nn.Flatten(), nn.Linear(64, 10)).train(training)
    buffer = module[0].seen
    monkeypatch.setitem(MODELS._parts, "remembering", lambda spec: module)
    with pytest.raises(BadInputError, match=r"layer '0' \(Remembering\), which would leak .*GroupNorm"):
        build_model("remembering", DIGITS, {}, seed=0)
    assert module[0].seen is buffer
    assert buffer == 0
    assert all(part.training is training for part in module.modules())


def test_instance_norm_with_running_statistics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def normed(spec: DataSpec, *, track: bool) -> nn.Module:
        return nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=track), nn.Flatten(), nn.Linear(64, 10))

    monkeypatch.setitem(MODELS._parts, "normed", normed)
    with pytest.raises(BadInputError, match=r"layer '0' \(InstanceNorm2d\)"):
        build_model("normed", DIGITS, {"track": True}, seed=0)
    assert parameters(build_model("normed", DIGITS, {"track": False}, seed=0)) == 650


def test_buffers_that_stay_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(60, 5)
            self.register_buffer("shift", torch.arange(60.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - self.shift)

    monkeypatch.setitem(MODELS._parts, "shifted", lambda spec: Shifted())
    model = build_model("shifted", FEATURES, {}, seed=0)
    assert torch.equal(model.shift, torch.arange(60.0))


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (nn.Flatten(), "The model 'own' has no parameters"),
        (
            nn.Linear(7, 5),
            r"The model 'own' does not work on .*features of shape \[60\] in 5 classes: RuntimeError: mat1",
        ),
        (nn.Linear(60, 4), r"The model 'own' does not work on .* its outputs have the shape \[2, 4\], but \[2, 5\]"),
        (len, "The model 'own' must give a torch module, but it gives a builtin_function_or_method"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(
    monkeypatch: pytest.MonkeyPatch, module: Any, complaint: str
) -> None:
    monkeypatch.setitem(MODELS._parts, "own", lambda spec: module)
    with pytest.raises(BadInputError, match=complaint):
        build_model("own", FEATURES, {}, seed=0)


def test_a_model_that_needs_two_samples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    monkeypatch.setitem(MODELS._parts, "own", lambda spec: nn.Sequential(nn.Linear(60, 5), norm))
    with pytest.raises(BadInputError, match=r"does not work on .* more than 1 value per channel"):
        build_model("own", FEATURES, {}, seed=0)


def test_classification_loss_and_measure_by_hand() -> None:
    spec = DataSpec("classification", 3, (2,))
    task = make_task(build_model("logistic_regression", spec, {}, seed=0), spec)
    params = {"1.weight": torch.tensor([[1.0, 0], [0, 1], [0, 0]]), "1.bias": torch.zeros(3)}
    batch = task.batch({"x": torch.tensor([[2.0, 0.0], [0.0, 1.0]]), "y": torch.tensor([0, 2], dtype=torch.uint8)})
    losses = torch.tensor([[2.0, 0, 0], [0, 1, 0]]).logsumexp(-1) - torch.tensor([2.0, 0.0])
    measured = task.measure(params, batch)
    torch.testing.assert_close(measured["loss"], losses)
    torch.testing.assert_close(task.loss(params, batch), losses.mean())
    assert measured["accuracy"].tolist() == [True, False]
    assert measured["count"].tolist() == [1, 1]


def test_bytes_become_fractions() -> None:
    task = make_task(build_model("logistic_regression", DIGITS, {}, seed=0), DIGITS)
    batch = task.batch({"x": torch.tensor([0, 51, 255], dtype=torch.uint8), "y": torch.zeros(3)})
    torch.testing.assert_close(batch["x"], torch.tensor([0, 0.2, 1.0]))


class Repeater(nn.Module):
    """Predicts that the next token is the same as this one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.nn.functional.one_hot(tokens, 5).float()


def test_next_token_ignores_padding_and_never_rewards_unknown() -> None:
    spec = DataSpec("next_token", 5, (4,), padding=0, unknown=1)
    task = make_task(Repeater(), spec)
    # predictions 2 2 3 | targets: right, wrong, padding …   and: unknown repeated, then right
    batch = task.batch({"tokens": torch.tensor([[2, 2, 3, 0, 0], [1, 1, 4, 4, 4]])})
    params = {"scale": torch.tensor(1.0)}
    measured = task.measure(params, batch)
    assert measured["count"].tolist() == [2, 4]
    assert measured["accuracy"].tolist() == [1, 2]
    hit, miss = (torch.tensor([1.0, 0, 0, 0, 0]).logsumexp(0) - s for s in (1, 0))
    torch.testing.assert_close(measured["loss"], torch.stack([hit + miss, hit + miss + 2 * hit]))
    torch.testing.assert_close(task.loss(params, batch), (4 * hit + 2 * miss) / 6)


def test_a_bag_of_words_is_logistic_regression_on_counts() -> None:
    model = build_model("bag_of_words", TWEETS, {}, seed=0).double()
    weights, bias = torch.randn(98, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    model.load_state_dict({"weights.weight": weights, "bias": bias})
    texts = torch.tensor([[0] * 16 + [5, 7, 5, 1], list(range(20))])
    counts = torch.stack([torch.bincount(text, minlength=98) for text in texts]).double()
    counts[:, 0] = 0  # padding
    torch.testing.assert_close(model(texts), counts @ weights + bias)
    without_padding = DataSpec("classification", 3, (20,), tokens=98)
    model = build_model("bag_of_words", without_padding, {}, seed=0)
    assert model.padding is None


@pytest.mark.parametrize("name", ["char_mlp", "lstm", "transformer"])
def test_the_label_of_a_text_is_read_off_its_end(name: str) -> None:
    """A model with the same weights gives the scores that it would give for the token after the last."""
    following = DataSpec("next_token", 98, (20,), padding=0, unknown=1)
    labelled = DataSpec("classification", 98, (20,), padding=0, unknown=1, tokens=98)
    at_all = build_model(name, following, {}, seed=0)
    at_end = build_model(name, labelled, {}, seed=1)
    names = zip(at_end.state_dict(), at_all.state_dict().values(), strict=True)
    at_end.load_state_dict(dict(names))
    texts = torch.randint(98, (4, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(at_end(texts), at_all(texts)[:, -1])


def test_a_window_longer_than_the_text_is_filled_with_nothing() -> None:
    long = DataSpec("next_token", 98, (5,))
    short = DataSpec("classification", 98, (5,), tokens=98)
    at_all, at_end = (build_model("char_mlp", spec, {"context": 8}, seed=0) for spec in (long, short))
    texts = torch.randint(98, (4, 5), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(at_end(texts), at_all(texts)[:, -1])


def test_leafs_celeba_model_has_its_size() -> None:
    faces = DataSpec("classification", 2, (3, 84, 84))
    model = build_model("leaf_celeba_cnn", faces, {}, seed=0)
    convolutions = (3 * 9 + 1) * 32 + 3 * (32 * 9 + 1) * 32
    assert parameters(model) == convolutions + 4 * 2 * 32 + (32 * 5 * 5 + 1) * 2
    with pytest.raises(BadInputError, match=r"model\.channels must be a multiple of 4, not 6"):
        build_model("leaf_celeba_cnn", faces, {"channels": 6}, seed=0)


def test_pfls_model_has_its_size_and_normalizes() -> None:
    model = build_model("pfl_cnn", DataSpec("classification", 10, (3, 32, 32)), {}, seed=0)
    assert parameters(model) == (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 14 * 14 + 1) * 128 + 129 * 10
    usual = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    assert model[0](usual).abs().max() < 1e-3
    weight = model[-1].weight  # Glorot and Bengio's bound
    assert 0.9 < weight.abs().max() / (6 / (128 + 10)) ** 0.5 <= 1


def test_a_perceptron_scores_between_0_and_1() -> None:
    model = build_model("perceptron", FEATURES, {}, seed=0)
    scores = model(100 * torch.randn(50, 60, generator=torch.Generator().manual_seed(0)))
    assert 0 <= scores.min() < 0.01
    assert 0.99 < scores.max() <= 1


def test_the_operations_of_a_bag_of_words_are_counted() -> None:
    """Rows of weights are added up for every word, and so are their gradients."""
    model = build_model("bag_of_words", TWEETS, {}, seed=0)
    assert count_training_flops(make_task(model, TWEETS)) == 2 * 20 * 3


@pytest.mark.parametrize(("name", "spec"), [("cnn", DIGITS), ("leaf_cnn", DIGITS), ("mlp", FEATURES)])
def test_dropout_is_before_dense_layers_and_renames_nothing(name: str, spec: DataSpec) -> None:
    plain, dropping = (build_model(name, spec, {"dropout": share}, seed=0) for share in (0.0, 0.5))
    assert [*plain.state_dict()] == [*dropping.state_dict()]
    assert all(torch.equal(t, dropping.state_dict()[key]) for key, t in plain.state_dict().items())
    layers = [layer for layer in dropping.modules() if isinstance(layer, nn.Dropout)]
    assert len(layers) == (1 if name == "mlp" else 2)
    assert not any(isinstance(layer, nn.Dropout) for layer in plain.modules())
    x = torch.randn(4, *spec.input_shape, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(dropping.train()(x), plain(x))
    assert torch.equal(dropping.eval()(x), plain(x))


def test_depth_and_width_are_another_way_to_say_hidden() -> None:
    deep = build_model("mlp", FEATURES, {"depth": 3, "width": 7}, seed=0)
    same = build_model("mlp", FEATURES, {"hidden": (7, 7, 7)}, seed=0)
    assert all(torch.equal(t, same.state_dict()[key]) for key, t in deep.state_dict().items())


class Attending(nn.Module):
    """A model of somebody's own with torch's attention, of which nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(20, 2, batch_first=True), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(len(x), 3, 20)
        return self.last(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def test_the_operations_of_attention_are_counted_whatever_computes_it() -> None:
    """On a CPU torch attends by a function that does not say how many they are."""
    projections, products, last = 3 * (20 * 60 + 20 * 20), 2 * 3 * 3 * 20, 20 * 5
    # The gradients of two products of what depends on parameters are twice as much; x itself has none.
    expected = 2 * (3 * (projections + products + last) - 3 * 20 * 60)
    assert count_training_flops(make_task(Attending(), FEATURES)) == expected


def test_operations_of_the_whole_model_are_those_of_one_of_which_nothing_is_frozen() -> None:
    task = make_task(nn.Sequential(nn.Linear(60, 20), nn.Linear(20, 5)), FEATURES)
    trained = count_training_flops(task)
    task.module[0].requires_grad_(False)
    assert count_training_flops(task, whole=True) == trained == 2 * (2 * (60 * 20 + 20 * 5) + 20 * 5)
    assert count_training_flops(task) == 2 * (60 * 20 + 2 * 20 * 5)

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedarena.errors import BadInputError
from fedarena.models import MODELS, DataSpec, build_model, default_model, make_task
from fedarena.models.characters import LSTMLayer
from fedarena.models.zoo import require

TEXT = DataSpec("next_token", 98, (20,), padding=0, unknown=1)
DIGITS = DataSpec("classification", 10, (1, 8, 8))
FEMNIST = DataSpec("classification", 62, (1, 28, 28))
FEATURES = DataSpec("classification", 5, (60,))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", MODELS.names())
@pytest.mark.parametrize("spec", [TEXT, DIGITS, FEMNIST, FEATURES], ids=str)
def test_a_model_fits_or_says_why_not(name: str, spec: DataSpec) -> None:
    if (name in ("char_mlp", "lstm")) != (spec.kind == "next_token") or ("cnn" in name and not spec.is_image):
        with pytest.raises(BadInputError, match=f"'{name}' needs .* try model={default_model(spec)}"):
            build_model(name, spec, {}, seed=0)
        return
    model = build_model(name, spec, {}, seed=0)
    x = torch.zeros(3, *spec.input_shape, dtype=torch.long if spec.kind == "next_token" else torch.float32)
    expected = (3, 20, 98) if spec.kind == "next_token" else (3, spec.classes)
    assert model(x).shape == expected


@pytest.mark.parametrize("spec", [TEXT, DIGITS, FEATURES], ids=str)
def test_the_default_model_fits(spec: DataSpec) -> None:
    build_model(default_model(spec), spec, {}, seed=0)


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


@pytest.mark.parametrize("name", ["char_mlp", "lstm"])
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


def test_require_lets_fitting_data_pass() -> None:
    require(True, "any", "anything", DIGITS)

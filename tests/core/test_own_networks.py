"""Models that look right and would be another one without a word: refused, or right on both engines."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import config, losses
from torch import nn
from torch.nn import functional as F

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, make_task
from fedarena.runs.run import start_run

ENGINES = ("reference", "cohort")


class OneName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers():
            x = torch.tanh(layer(x))
        return self.last(x)

    def layers(self):
        return [self.layer] * 3


class SeveralNames(OneName):
    def __init__(self):
        super().__init__()
        self.again, self.many = self.layer, nn.ModuleList([self.layer] * 2)

    def layers(self):
        return [self.again, *self.many]


def test_a_layer_may_have_several_names(tmp_path: Path) -> None:
    found = [
        losses(tmp_path, engine, model.__name__, model=model) for model in (OneName, SeveralNames) for engine in ENGINES
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9)


class WatchedDropout(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(64, 10)
        factor = self.factor
        self.drop.register_forward_hook(lambda layer, args, output: factor * output)

    def forward(self, x):
        return self.last(self.drop(x.flatten(1)))


class WatchedMore(WatchedDropout):
    factor = 3.0


def test_hooks_of_dropout_stay(tmp_path: Path) -> None:
    one, three = (losses(tmp_path, "reference", model.__name__, model=model) for model in (WatchedDropout, WatchedMore))
    assert one != three


class DrawsByNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.order, self.last = torch.from_numpy(np.random.permutation(64)), nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1)[:, self.order])


def test_what_a_model_draws_when_it_is_made_follows_from_the_seed(tmp_path: Path) -> None:
    before = np.random.get_state()[1].tolist()
    first, again = (start_run(config(model=DrawsByNumpy, rounds=1, name=name), tmp_path) for name in ("one", "two"))
    assert first.rounds["loss"].to_pylist() == again.rounds["loss"].to_pylist()
    assert torch.equal(order_of(first), order_of(again))
    assert np.random.get_state()[1].tolist() == before
    other = start_run(config(model=DrawsByNumpy, rounds=1, seed=1, name="other"), tmp_path)
    assert not torch.equal(order_of(other), order_of(first))


def order_of(run: Any) -> torch.Tensor:
    return fedarena.load(run.path).model().order


NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def the_same_network(spec):
    return NETWORK


def test_a_network_that_somebody_made_before_stays_as_it_is(tmp_path: Path) -> None:
    before = {name: t.clone() for name, t in NETWORK.state_dict().items()}
    found = []
    for name in ("one", "two"):
        run = start_run(config(model=the_same_network, rounds=1, name=name), tmp_path)
        fedarena.load(run.path).model()
        found.append(run.rounds["loss"].to_pylist())
    assert found[0] == found[1]
    for name, t in NETWORK.state_dict().items():
        assert torch.equal(t, before[name])


class Cumulative(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1).cumsum(0))


class BySize(Cumulative):
    def forward(self, x):
        return self.last(x.flatten(1)) * len(x) ** 0.5


class SamplesAsTime(Cumulative):
    """Without batch_first, a batch is taken for a sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(64, 64)

    def forward(self, x):
        return self.last(self.layer(x.flatten(1))[0])


@pytest.mark.parametrize("model", [Cumulative, BySize, SamplesAsTime])
def test_models_that_look_at_other_samples_are_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(BadInputError, match="for a sample depends on the other samples in the batch"):
        start_run(config(model=model, rounds=1), tmp_path)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.LazyLinear(10)

    def forward(self, x):
        return self.last(x.flatten(1))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("turn", torch.exp(1j * torch.arange(64.0)))

    def forward(self, x):
        return self.last((x.flatten(1) * self.turn).real)


@pytest.mark.parametrize(
    ("model", "message"), [(Lazy, "'last.weight', of which nobody knows the shape"), (Complex, "'turn' of complex num")]
)
def test_models_with_tensors_that_engines_cannot_keep_are_refused(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(model=model, rounds=1), tmp_path)


class ChangesInputs(OneName):
    def forward(self, x):
        x -= 0.5
        return super().forward(x)


def test_a_model_that_changes_its_inputs_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"called again with the same samples; .* and not x -= 1"):
        start_run(config(model=ChangesInputs, rounds=1), tmp_path)


class KeepsNoBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixing, self.last = torch.eye(64), nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1) @ self.mixing)


def test_a_tensor_that_is_no_buffer_is_told_where_it_cannot_stay(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"KeepsNoBuffer' does not compute in float64: .* buffer \(self\.regis"):
        losses(tmp_path, "cohort", model=KeepsNoBuffer, rounds=1)
    assert start_run(config(model=KeepsNoBuffer, rounds=1, name="usual"), tmp_path).status == "finished"


class Padded(nn.Module):
    """Attends to the first rows of a picture, but averages over all of them."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(layer, 2), nn.Linear(8, 10)

    def forward(self, x):
        rows = x.reshape(-1, 8, 8)
        length = 2 + rows[:, 3].sum(-1).long() % 7
        padding = torch.arange(8) >= length.unsqueeze(1)
        return self.last(self.encoder(rows, src_key_padding_mask=padding).mean(1))


def test_transformers_score_padding_as_they_train_on_it(tmp_path: Path) -> None:
    found = []
    for engine in ENGINES:
        settings = {"algorithm": "ditto", "federation.split": "within_client", "rounds": 2, "evaluation.every": 1}
        run = start_run(config(model=Padded, engine=engine, name=engine, **settings), tmp_path)
        shared, personal = (run.rounds[name].to_pylist() for name in ("loss", "personal_loss"))
        assert personal[0] == pytest.approx(shared[0], rel=1e-5)  # before training, everybody has the same model
        found.append([*shared, *personal])
    np.testing.assert_allclose(*found, rtol=1e-4)
    module, x = Padded().eval(), torch.rand(5, 64)
    task = make_task(module, DataSpec("classification", 10, (64,)))
    with torch.no_grad():
        scores = task.predict({}, {"x": x})
    torch.testing.assert_close(scores, module(x), rtol=1e-4, atol=1e-4)  # with gradients, as in training


class Plainest(nn.Module):
    """Torch's simplest recurrent layer trains many clients at once, but has no way to be scored so."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.RNN(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.last(self.layer(x.reshape(-1, 8, 8))[0].sum(1))


class CutWhenScored(OneName):
    def forward(self, x):
        scores = super().forward(x)
        if not self.training:
            scores = scores.clone()
            scores[scores < -1] = -1
        return scores


@pytest.mark.parametrize("algorithm", ["ditto", "reptile"])
@pytest.mark.parametrize("model", [Plainest, CutWhenScored])
def test_personal_models_may_be_such_as_can_only_be_trained_together(
    tmp_path: Path, model: Any, algorithm: str
) -> None:
    found = []
    for engine in ENGINES:
        settings = {"algorithm": algorithm, "federation.split": "within_client", "rounds": 2, "evaluation.every": 1}
        with pytest.warns(UserWarning, match="one at a time") if engine == "cohort" else nullcontext():
            run = start_run(
                config(model=model, engine={"name": engine, "dtype": "float64"}, name=engine, **settings), tmp_path
            )
        found.append(run.rounds["personal_loss"].to_pylist())
    np.testing.assert_allclose(*found, rtol=1e-9)


class CausalByMask(nn.Module):
    """Torch looks into the mask to find out what kind it is."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(layer, 1), nn.Linear(8, 10)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8, dtype=torch.float64))

    def forward(self, x):
        return self.last(self.encoder(x.reshape(-1, 8, 8), mask=self.mask)[:, -1])


def test_models_may_decide_by_what_is_the_same_for_all(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    found = [losses(tmp_path, engine, model=CausalByMask) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert not any("one at a time" in str(warning.message) for warning in recwarn)


class OptionalSpec(OneName):
    def __init__(self, spec=None):
        super().__init__()


def test_a_model_that_might_take_the_form_of_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="must take spec, and all else as options"):
        start_run(config(model=OptionalSpec, rounds=1), tmp_path)


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(x.flatten(1)).float()


class RoundedLoop(FedAvg):
    """As torch's users train in 16 bits. What is cast may be kept while autocast lasts, as parameters do not change."""

    kept: bool | None = None

    def train(self, client, model, data):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=self.kept):
                loss = F.cross_entropy(model(batch["x"].flatten(1)), batch["y"])
            loss.backward()
            optimizer.step()


class KeepingLoop(RoundedLoop):
    kept = True


class CastingLoop(RoundedLoop):
    kept = False


def test_own_code_that_rounds_sees_parameters_as_they_are_now(tmp_path: Path) -> None:
    settings = {"rounds": 2, "evaluation.every": 1, "local.batch_size": 4}
    found = [
        start_run(config(**settings, algorithm=algorithm, name=algorithm.__name__), tmp_path).rounds["loss"].to_pylist()
        for algorithm in (RoundedLoop, KeepingLoop, CastingLoop)
    ]
    with torch.autocast("cpu", torch.bfloat16):  # of a script, in which torch keeps what is cast until it ends
        within = start_run(config(**settings, algorithm=RoundedLoop, name="within"), tmp_path)
    assert found[0] == found[1] == found[2] == within.rounds["loss"].to_pylist()
    run = start_run(config(**settings, model=Rounded, algorithm="fedavg", name="model"), tmp_path)
    assert run.rounds["loss"][-1].as_py() < run.rounds["loss"][0].as_py()

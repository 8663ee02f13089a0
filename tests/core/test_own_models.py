"""Models that strangers wrote in the ways of torch: the same on both engines, or refused with a sentence."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import config
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.runs.run import Run, resume_run, start_run


class Own(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1))


class Tied(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.last(self.two(torch.tanh(self.one(x.flatten(1)))))


class Recurrent(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.layers = nn.GRU(8, 8, batch_first=True)

    def forward(self, x):
        return self.last(self.layers(x.squeeze(1))[0].flatten(1))


class Attention(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(x.squeeze(1)).flatten(1))


class FrozenBatchNorm(Own):
    """As people use a pretrained network: its statistics stay."""

    def __init__(self, spec):
        super().__init__(spec)
        self.norm = nn.BatchNorm1d(64).requires_grad_(False)
        self.norm.running_mean += 0.3

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.last(self.norm(x.flatten(1)))


class Parametrized(Own):
    def __init__(self, spec):
        super().__init__(spec)
        nn.utils.parametrizations.weight_norm(self.last)


class FunctionalDropout(Own):
    def forward(self, x):
        return self.last(F.dropout(x.flatten(1), 0.5, self.training))


class DecidesByValue(Own):
    def forward(self, x):
        x = x.flatten(1)
        return self.last(2 * x if x.abs().sum() > 1e9 else x)


class NothingFirst(Own):
    """The first parameter has no numbers."""

    def __init__(self, spec):
        super().__init__(spec)
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, x):
        x = x.flatten(1)
        return self.last(torch.cat([x, self.nothing.expand(len(x), 0)], 1))


class CountsCodes(Own):
    """Divides gradients by how often a code occurs in a batch; torch would count those of all clients."""

    def __init__(self, spec):
        super().__init__(spec)
        self.codes = nn.Embedding(17, 1, scale_grad_by_freq=True)
        self.layers = [self.last]  # torch knows it by another name

    def forward(self, x):
        return self.layers[0](self.codes((x.flatten(1) * 16).long()).squeeze(-1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("model", "note"),
    [
        (Tied, None),
        (Recurrent, None),
        (Attention, None),
        (FrozenBatchNorm, None),
        (NothingFirst, None),
        (Parametrized, "Torch computes _weight_norm_interface for one client after the other"),
        (FunctionalDropout, "one at a time, because the model FunctionalDropout cannot be vectorized"),
        (CountsCodes, "the layer 'codes' (Embedding) cannot be vectorized (NotImplementedError: scale_grad_by_freq"),
        (DecidesByValue, "one at a time, because the model DecidesByValue cannot be vectorized"),
    ],
)
def test_a_model_is_the_same_on_both_engines(tmp_path: Path, model, note) -> None:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of torch's own reaches the screen
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="Clients train one at a time|Torch computes")  # but ours does
        for name in ("cohort", "reference"):
            engine = {"name": name, "dtype": "float64"}
            settings = {"model": {"name": model}, "algorithm": "fedavg", "rounds": 2, "local.batch_size": 32}
            run = start_run(config(name=name, engine=engine, **settings), tmp_path)
            found[name] = run.rounds["train_loss"].to_pylist()[1:]
            if name == "cohort":
                log = (run.path / "log.txt").read_text()
                assert note in log if note else "warning" not in log
    np.testing.assert_allclose(found["cohort"], found["reference"], rtol=1e-9)


class Overwrites(Own):
    """Wrong in plain torch as well."""

    def forward(self, x):
        hidden = self.last(x.flatten(1))
        hidden.sigmoid_()
        hidden[:, 0] = 0
        return hidden


class Counts(Own):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(x.flatten(1)) * self.calls


class Spectral(Own):
    def __init__(self, spec):
        super().__init__(spec)
        nn.utils.parametrizations.spectral_norm(self.last)


class Tuple(Own):
    def forward(self, x):
        return (super().forward(x),)


class Compiled(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.last = torch.compile(self.last)


class Scripted(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.last = torch.jit.script(self.last)


class OldWeightNorm(Own):
    def __init__(self, spec):
        super().__init__(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.last)


class ShortRows(Own):
    """Torch writes to an embedding with max_norm when it is called, also where all rows are short enough."""

    def __init__(self, spec):
        super().__init__(spec)
        self.codes = nn.Embedding(17, 1, max_norm=100.0)

    def forward(self, x):
        return super().forward(self.codes((x.flatten(1) * 16).long()).squeeze(-1))


class SparseGradients(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.codes = nn.Embedding(17, 1, sparse=True)

    def forward(self, x):
        return super().forward(self.codes((x.flatten(1) * 16).long()).squeeze(-1))


class ClampsItself(Own):
    def forward(self, x):
        self.last.weight.data.clamp_(-0.01, 0.01)
        return super().forward(x)


class LayersInAList(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.layers = [nn.Linear(64, 64)]

    def forward(self, x):
        return super().forward(self.layers[0](x.flatten(1)))


class TensorThatIsNoParameter(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.scale = torch.ones(10, requires_grad=True)

    def forward(self, x):
        return super().forward(x) * self.scale


class NeverInitialized(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.scale = nn.Parameter(torch.empty(10))

    def forward(self, x):
        return super().forward(x) * self.scale


class DetachedAltogether(Own):
    def forward(self, x):
        return super().forward(x).detach()


class LayerLeftOut(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.first = nn.Linear(64, 64)


class DetachedInTheMiddle(LayerLeftOut):
    def forward(self, x):
        return super().forward(self.first(x.flatten(1)).detach())


class DrawsAlways(Own):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)


class Checkpointed(Own):
    def forward(self, x):
        return checkpoint(lambda x: torch.tanh(Own.forward(self, x)), x, use_reentrant=False)


class ReadsInBackward(Own):
    def forward(self, x):
        x = torch.tanh(super().forward(x))
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * self.last.weight.norm())
        return x


class SecondWay(Own):
    """Torch does not know that what is in there is one of its parameters."""

    def __init__(self, spec):
        super().__init__(spec)
        self.weights = [self.last.weight]

    def forward(self, x):
        return super().forward(x) / self.weights[0].norm()


class Remembering(SecondWay):
    def __init__(self, spec):
        super().__init__(spec)
        weight = self.last.weight
        self.scale = lambda x: x / weight.norm()

    def forward(self, x):
        return self.scale(Own.forward(self, x))


class FirstSamples(Own):
    mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return super().forward(x - self.mean)


class OfItsOwnGenerator(Own):
    def __init__(self, spec):
        super().__init__(spec)
        random = torch.Generator()
        random.seed()
        self.order = torch.randperm(64, generator=random)

    def forward(self, x):
        return super().forward(x.flatten(1)[:, self.order])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        *((kind, "computes with other parameters than those") for kind in (Checkpointed, ReadsInBackward)),
        *((kind, "computes with other parameters than those") for kind in (SecondWay, Remembering)),
        (FirstSamples, "keeps something of the first samples that it is called with"),
        (OfItsOwnGenerator, "is another one when it is built again from the same seed"),
        (ShortRows, "changes its parameter 'codes.weight' in place when it is called"),
        (SparseGradients, "gradients of embeddings must not be sparse; leave out sparse=True"),
        (ClampsItself, "changes its parameter 'last.weight' in place"),
        (LayersInAList, "has parameters in 'layers' that torch does not know"),
        (TensorThatIsNoParameter, "has parameters in 'scale' that torch does not know"),
        (DrawsAlways, "draws random numbers while it is scored"),
        (NeverInitialized, "has 'scale' with numbers that are not a number, such as those of torch.empty"),
        (DetachedAltogether, "the loss depends on none of its parameters"),
        (Compiled, "its layer 'last' is compiled by torch.compile; leave that out"),
        (OldWeightNorm, "cannot be copied .* take torch.nn.utils.parametrizations.weight_norm"),
        (Overwrites, "does not work on .* modified by an inplace operation"),
        (Counts, "puts out something else when it is called again with the same samples"),
        (Spectral, r"keeps running statistics in .* use GroupNorm instead, or a layer that stays in evaluation mode"),
        (Tuple, "does not work on .* it must put out one tensor, and puts out a tuple"),
        (Scripted, "its layer 'last' is compiled by torch.jit; leave that out"),
    ],
)
def test_a_model_that_cannot_be_right_is_refused(tmp_path: Path, model, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(model={"name": model}), tmp_path)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("model", [LayerLeftOut, DetachedInTheMiddle])
def test_parameters_that_no_loss_depends_on_are_told(tmp_path: Path, model) -> None:
    with pytest.warns(UserWarning, match="The loss does not depend on 'first.weight', 'first.bias'"):
        start_run(config(model={"name": model}, rounds=1), tmp_path)


class MovesByHook(FedAvg):
    """A second copy of the model, of which no loss knows, follows the first in every other step."""

    def local_start(self, client):
        params = client.broadcast["params"]
        return {**params, **{f"slow/{name}": p for name, p in params.items()}}

    def local_loss(self, task, params, batch, client):
        return task.loss({name: p for name, p in params.items() if not name.startswith("slow/")}, batch)

    def local_gradient(self, grad, params, client):
        due = client.job.step % 2 == 0
        slow = {f"slow/{name}": torch.where(due, g, 0.0) for name, g in grad.items() if not name.startswith("slow/")}
        return {**grad, **slow}

    def client_update(self, params, client, work):
        start = client.broadcast["params"]
        return {"params": {name: params[f"slow/{name}"] - p for name, p in start.items()}}, {}


def test_parameters_that_an_own_gradient_moves_are_trained(tmp_path: Path) -> None:
    run = start_run(config(algorithm=MovesByHook, rounds=1, **{"local.epochs": 2}), tmp_path)
    assert not run.summary["warnings"]


class NewGenerator(Own):
    def __init__(self, spec):
        super().__init__(spec)
        self.order = np.random.default_rng().permutation(64)

    def forward(self, x):
        return super().forward(x.flatten(1)[:, self.order])


class DrawsAtTheServer(FedAvg):
    def server_step(self, state, update, round):
        stepped = super().server_step(state, update, round)
        noise = 0.1 * np.random.default_rng().standard_normal()
        return {**stepped, "params": {name: p + noise for name, p in stepped["params"].items()}}


def test_new_generators_of_numpy_follow_from_the_seed(tmp_path: Path) -> None:
    """Also where nobody gives them one; a run that is resumed would go on with another model."""
    settings = {"model": {"name": NewGenerator}, "algorithm": {"name": DrawsAtTheServer}, "rounds": 3}
    one, other = (start_run(config(**settings), tmp_path / name) for name in ("one", "other"))
    assert one.rounds["loss"].to_pylist() == other.rounds["loss"].to_pylist()
    assert one.rounds["loss"].to_pylist() != start_run(config(**settings, seed=1), tmp_path).rounds["loss"].to_pylist()
    run = Run.create(config(**settings), tmp_path / "pieces")
    run.advance(1)
    run.close()
    assert resume_run(tmp_path / "pieces" / "small").rounds["loss"].to_pylist() == one.rounds["loss"].to_pylist()
    assert np.random.default_rng().random() != np.random.default_rng().random()


def test_torch_is_left_as_it_was(tmp_path: Path) -> None:
    modes = []
    for mode in ("default", "warn"):
        torch.set_deterministic_debug_mode(mode)
        try:
            start_run(config(model={"name": Own}, name=mode, rounds=1), tmp_path)
            modes.append(torch.get_deterministic_debug_mode())
        finally:
            torch.set_deterministic_debug_mode("default")
    assert modes == [0, 1]

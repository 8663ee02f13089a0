"""Own parts that remember in themselves what no checkpoint has: a resumed run would go another way, so they end it."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import config
from torch import nn
from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.metrics import Mean, MetricInfo
from fedarena.runs.run import start_run
from fedarena.simulate import Selector
from fedarena.train.memories import refusing_memories
from fedarena.transforms import Aggregator, Partial, Transform


class OwnMomentum(FedAvg):
    momentum = None

    def server_step(self, state, mean_update, round):
        update = mean_update["params"]
        before = self.momentum or update
        self.momentum = {name: 0.9 * before[name] + u for name, u in update.items()}
        return super().server_step(state, {**mean_update, "params": self.momentum}, round)


class TellsClients(FedAvg):
    """A hook of clients reads what a step of the server wrote: recorded programs would not notice."""

    scale = 1.0

    def server_step(self, state, mean_update, round):
        self.scale = 1 / round
        return super().server_step(state, mean_update, round)

    def local_gradient(self, grad, params, client):
        return {name: self.scale * g for name, g in grad.items()}


class CountsClients(FedAvg):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def train(self, client, model, data):
        self.seen[client] = self.seen.get(client, 0) + 1


class CountsSteps(Transform):
    def __init__(self):
        self.steps = 0

    def at_server(self, update, kept, context):
        self.steps += 1
        return update, kept


class LastOnes(Aggregator):
    def __init__(self):
        self.last = deque(maxlen=2)

    def add_up(self, rows):
        return Partial({"params": {name: t.sum(0) for name, t in rows.update["params"].items()}})

    def finish(self, total):
        self.last.append(total.tensors["params"])
        return {"params": {name: 0.1 * t for name, t in total.tensors["params"].items()}}


class OwnGenerator(Selector):
    def prepare(self, clients, samples, cohort, seed):
        self.random = np.random.default_rng(0)

    def select(self, number, candidates, round):
        return self.random.permutation(candidates.draw(2 * number))[:number]


class Forgets(FedAvg):
    def server_step(self, state, mean_update, round):
        state["params"] = mean_update["params"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"algorithm": OwnMomentum}, r"OwnMomentum.server_step remembers something in self\.momentum, which would be"),
        ({"algorithm": TellsClients, "rounds": 3}, r"TellsClients.server_step remembers something in self\.scale"),
        ({"algorithm": CountsClients}, r"CountsClients.train remembers something in self\.seen"),
        ({"transforms": [CountsSteps]}, r"CountsSteps.at_server remembers something in self\.steps"),
        ({"aggregator": LastOnes, "algorithm": "fedavg"}, r"LastOnes.finish remembers something in self\.last"),
        ({"selector": OwnGenerator}, r"OwnGenerator.select remembers something in self\.random, .* observe change a"),
        ({"algorithm": Forgets}, "server_step of Forgets must return the server's next state, .* and not None"),
    ],
)
def test_what_no_checkpoint_has_ends_the_run(tmp_path: Path, parts, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(**{"rounds": 2, **parts}), tmp_path)


class Holder:
    def __init__(self, value):
        self.value = value


def add_one(value) -> None:
    value += 1


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (np.zeros(100_000), add_one),
        (torch.zeros(3), add_one),
        ([{"a": 1}], lambda value: value[0].update(a=2)),
        (nn.Linear(2, 2), lambda layer: layer.weight.data.zero_()),
        (torch.Generator(), lambda generator: torch.rand(1, generator=generator)),
        (np.random.RandomState(0), lambda generator: generator.rand()),
        (Holder(Holder(1)), lambda held: setattr(held.value, "value", 2)),
    ],
)
def test_memories_of_every_kind_are_seen(value, change) -> None:
    part = Holder(value)
    with refusing_memories(part, "method", "do not"):
        float(np.float64(np.nan))
    with (
        pytest.raises(BadInputError, match=r"Holder.method remembers something in self\.value"),
        refusing_memories(part, "method", "do not"),
    ):
        change(value)


def test_what_does_not_change_is_no_memory() -> None:
    part = Holder([np.nan, np.array([np.nan]), torch.tensor(torch.nan), {1, 2}])
    part.value.append(part)  # it may refer to itself
    with refusing_memories(part, "method", "do not"):
        part.method = F.relu  # nor is a function


class Misspelt(FedAvg):
    def sever_step(self, state, mean_update, round):
        return state

    def helper(self):
        return None


def test_a_method_that_is_nearly_a_hook_is_told(tmp_path: Path) -> None:
    run = start_run(config(algorithm=Misspelt, rounds=1), tmp_path)
    told = "Misspelt has a method 'sever_step', which no engine calls; did you mean 'server_step'?"
    assert [note for note in run.summary["warnings"] if "Misspelt" in note] == [told]


class Detached(FedAvg):
    def local_loss(self, task, params, batch, client):
        return task.loss(params, batch).detach()


class LosesAParameter(FedAvg):
    def server_step(self, state, mean_update, round):
        stepped = super().server_step(state, mean_update, round)
        return {**stepped, "params": {name: p for name, p in stepped["params"].items() if "bias" not in name}}


class InDouble(FedAvg):
    def server_step(self, state, mean_update, round):
        stepped = super().server_step(state, mean_update, round)
        return {**stepped, "params": {name: p.double() for name, p in stepped["params"].items()}}


class ScoresHalfAModel(FedAvg):
    def evaluation_params(self, state):
        return {"1.weight": state["params"]["1.weight"]}


class HalfUpdates(FedAvg):
    def client_update(self, params, client, work):
        update, kept = super().client_update(params, client, work)
        return {"params": {name: u.half() for name, u in update["params"].items()}}, kept


class KeepsEverMore(FedAvg):
    def client_init(self, broadcast):
        return {"losses": {"all": torch.zeros(1)}}

    def client_update(self, params, client, work):
        update, kept = super().client_update(params, client, work)
        return update, {"losses": {"all": torch.cat([kept["losses"]["all"], torch.zeros(1)])}}


class PlainNumber(FedAvg):
    def server_init(self, params):
        return {"params": params, "steps": {"made": 0}}


class Halves(Transform):
    def at_client(self, rows, kept, server):
        return {"params": {name: t.half() for name, t in rows.update["params"].items()}}, kept


class OwnRound(Mean):
    info = MetricInfo("round", "the round")

    def each(self, outputs, batch):
        return outputs.amax(-1)


class Percentile(OwnRound):
    info = MetricInfo("accuracy_p10", "a percentile")


class TakesNothing(OwnRound):
    def __init__(self):
        super().__init__(1)


@pytest.mark.parametrize(
    ("parts", "message", "begins"),
    [
        ({"algorithm": Detached}, "Detached.local_loss gives a number that does not depend on the parameters", False),
        ({"algorithm": LosesAParameter}, r"LosesAParameter.server_step gives no parameter '1\.bias'", True),
        ({"algorithm": InDouble}, r"server_step gives the parameter '1\.weight' as torch\.float64 of shape", True),
        ({"algorithm": ScoresHalfAModel}, r"evaluation_params gives no parameter '1\.bias'", False),
        ({"algorithm": HalfUpdates}, r"client_update gives params/1\.weight as torch\.float16, in which", False),
        (
            {"algorithm": KeepsEverMore},
            r"keeps losses/all in the form torch.float32 \[2\], and client_init made it torch.float32 \[1\]",
            False,
        ),
        ({"algorithm": PlainNumber}, "has 0 as 'made' in the group 'steps' of its server's state; a group has", False),
        ({"transforms": [Halves]}, "Halves.at_client must give params/1.weight as torch.float32, as it gets it", True),
        ({"task": {"metrics": ["accuracy", OwnRound]}}, "come to a column 'round' that the tables of a run", False),
        ({"task": {"metrics": ["accuracy", Percentile]}}, "come to a column 'accuracy_p10' that the tables", False),
        ({"task": {"metrics": [TakesNothing]}}, r"must be made with how many numbers a model puts out, def", False),
    ],
)
def test_what_would_be_wrong_gets_a_sentence(tmp_path: Path, parts, message, begins) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(**{"rounds": 2, "algorithm": "fedavg", **parts}), tmp_path)
    assert (tmp_path / "small").exists() == begins


def test_what_is_only_written_may_be_remembered() -> None:
    class Notes:
        write_only = ("norms",)

        def __init__(self):
            self.norms, self.steps = [], 0

    part = Notes()
    with refusing_memories(part, "at_server", "keep it elsewhere"):
        part.norms.append(1.0)
    sentence = r'self\.steps, .*; keep it elsewhere, or, if nothing depends on it, say write_only = \("steps",\)'
    with pytest.raises(BadInputError, match=sentence), refusing_memories(part, "at_server", "keep it elsewhere"):
        part.steps += 1

from __future__ import annotations

import functools
import importlib
from enum import Enum
from pathlib import Path

import pytest
import torch
from torch import nn

from fedarena.algorithms import FedAvg, FedProx
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry, make_part
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import build_model
from fedarena.runs.config import resolve
from fedarena.runs.parts import NAMED_PARTS
from fedarena.runs.run import start_run

PARTS: Registry[object] = Registry("gadget")


def test_a_path_gives_the_thing_itself() -> None:
    assert PARTS.get("fedarena.core.registry:Registry") is Registry


@pytest.mark.parametrize("path", [":x", "..:C", "os:", "os:nothing", "nowhere.at.all:C", "os:path:join"])
def test_paths_to_nothing_are_refused(path: str) -> None:
    with pytest.raises(BadInputError, match=f"Cannot import the gadget '{path}', .*'package.module:Name'"):
        PARTS.get(path)


@pytest.mark.parametrize(("path", "kind"), [("os:path", "module"), ("os:name", "str")])
def test_what_cannot_be_called_is_refused(path: str, kind: str) -> None:
    with pytest.raises(BadInputError, match=f"'{path}' must be a class or a function, but it is a {kind}"):
        PARTS.get(path)


def test_what_hides_its_parameters_is_refused() -> None:
    with pytest.raises(BadInputError, match="gadget 'builtins:int' cannot be used: its options cannot be read"):
        PARTS.get("builtins:int")


@pytest.mark.parametrize("kind", NAMED_PARTS)
@pytest.mark.parametrize(
    "path",
    ["os:system", "os:removedirs", "os:popen", "subprocess:call", "builtins:eval", "os:abort", "threading:settrace"],
)
def test_what_is_no_part_is_never_called(kind: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = path.partition(":")
    original = getattr(importlib.import_module(module), name)

    @functools.wraps(original)
    def never(*arguments: object, **options: object) -> None:
        pytest.fail(f"{path} was called")

    monkeypatch.setattr(f"{module}.{name}", never)
    sentence = f"The {NAMED_PARTS[kind].kind} '{path}' (must take|must be a subclass of|cannot be used)"
    with pytest.raises(BadInputError, match=sentence):
        start_run(resolve({"federation": "digits", "rounds": 1, "cohort": 2, kind: path}), Path("nowhere"))


def test_what_takes_more_than_it_is_given_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"must take spec, and all else as options .* takes in_features, out_feat"):
        NAMED_PARTS["model"].get("torch.nn:Linear")
    with pytest.raises(BadInputError, match=f"The algorithm '{__name__}:Needy' must need nothing, .* it takes mu"):
        resolve({"algorithm": Needy})


def test_what_needs_nothing_has_its_parameters_as_options() -> None:
    assert resolve({"algorithm": {"name": Proximal, "mu": 0.3}}).algorithm == {
        "name": f"{__name__}:Proximal",
        "mu": 0.3,
    }
    assert resolve({"model": {"name": Plain}}).model == {"name": f"{__name__}:Plain", "hidden": 8}
    with pytest.raises(BadInputError, match=r"model\.width: .* has no option 'width'; put a \* before it"):
        resolve({"model": {"name": handed, "width": 3}})


class HandsOn(FedProx):
    def __init__(self, *, decay: float = 0.5, **options: float):
        super().__init__(**options)
        self.decay = decay


def test_an_option_that_a_constructor_only_hands_on_is_told_how_to_declare() -> None:
    how = r"mu: .* of FedProx .* \*\*options .* names them \(\*, mu=0.01, \*\*options\) .* \(mu=mu, \*\*options\)$"
    with pytest.raises(BadInputError, match=how):
        resolve({"algorithm": {"name": HandsOn, "mu": 0.1}})
    with pytest.raises(BadInputError, match="did you mean 'decay'"):
        resolve({"algorithm": {"name": HandsOn, "decoy": 0.1}})


def test_a_plain_module_is_a_model() -> None:
    spec = DataSpec("classification", 10, (64,))
    module = build_model(f"{__name__}:Plain", spec, {"hidden": 5}, seed=0)
    assert module.first.out_features == 5
    assert torch.equal(build_model(f"{__name__}:Plain", spec, {"hidden": 5}, seed=0).first.weight, module.first.weight)
    with pytest.raises(
        BadInputError, match=r"Plain' does not work on this federation's .* shapes cannot be multiplied"
    ):
        build_model(f"{__name__}:Plain", DataSpec("classification", 10, (63,)), {"hidden": 5}, seed=0)


def test_a_module_that_is_made_already_gets_a_sentence() -> None:
    with pytest.raises(BadInputError, match=r"model\.name must be a name, .*; give the class, or a function"):
        resolve({"model": Plain()})


class Plain(nn.Module):
    """The way a module is usually written: it knows its own shapes."""

    def __init__(self, hidden: int = 8):
        super().__init__()
        self.first, self.last = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(torch.relu(self.first(x)))
        return scores


def handed(spec: DataSpec, width: int = 4) -> nn.Module:
    return nn.Linear(spec.input_shape[0], width)


class Proximal(FedAvg):
    def __init__(self, mu: float = 0.1):
        super().__init__()
        self.mu = mu


class Needy(FedAvg):
    def __init__(self, mu: float):
        super().__init__()


def odd_options(spec: object, *, width: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has an annotation that is not there."""


def test_options_that_cannot_be_read_get_a_sentence() -> None:
    with pytest.raises(BadInputError, match=r"model: the options of the model .* cannot be read"):
        resolve({"model": f"{__name__}:odd_options"})
    with pytest.raises(BadInputError, match=r"model\.name must be a name, not functools.partial"):
        resolve({"model": functools.partial(odd_options, width=3)})


@pytest.mark.parametrize("content", ["1 / 0", "import sys; sys.exit(3)", "x = = 3", "raise KeyError('\\x1b[31m')"])
def test_modules_that_cannot_be_imported_get_a_sentence(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{len(content)}"
    (tmp_path / f"{name}.py").write_text(f"{content}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInputError, match=f"Cannot import the gadget '{name}:X'") as caught:
        PARTS.get(f"{name}:X")
    assert str(caught.value).isprintable()
    assert f"{name}.py" in str(caught.value)


class ForgetsTheClient(FedAvg):
    def local_loss(self, task, params, batch):
        return task.loss(params, batch)


class WantsMore(FedAvg):
    def server_step(self, state, mean_update, round, momentum):
        return super().server_step(state, mean_update, round)


class Inherits(WantsMore):
    pass


class TakesAnything(FedAvg):
    def local_loss(self, *arguments):
        return super().local_loss(*arguments)

    def server_step(self, state, mean_update, round, momentum=0.9, **others):
        return super().server_step(state, mean_update, round)

    def own_helper(self):
        return 3


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            ForgetsTheClient,
            "local_loss must take self, task, params, batch, client, .* takes self, task, params, batch",
        ),
        (WantsMore, "server_step must take self, state, mean_update, round, .* round, momentum"),
        (Inherits, "server_step must take self, state, mean_update, round, .* round, momentum"),
    ],
)
@pytest.mark.parametrize("registered", [False, True], ids=["by its path", "registered"])
def test_methods_that_cannot_be_called_are_refused(kind: type, sentence: str, registered: bool) -> None:
    parts: Registry[object] = Registry("algorithm", base=FedAvg)
    name = "mine" if registered else f"{kind.__module__}:{kind.__qualname__}"
    if registered:
        parts.register(name)(kind)
    with pytest.raises(BadInputError, match=f"The algorithm '.*': its method {sentence}"):
        parts.get(name)


def test_methods_that_take_more_than_they_get_are_fine() -> None:
    assert Registry("algorithm", base=FedAvg).get(f"{__name__}:TakesAnything") is TakesAnything


class Penalty(Enum):
    ABSOLUTE = "absolute"
    SQUARE = "square"


class Many(FedAvg):
    def __init__(
        self,
        *,
        penalty: Penalty = Penalty.SQUARE,
        perhaps: Penalty | None = None,
        penalties: tuple[Penalty, ...] = (Penalty.ABSOLUTE,),
        size: tuple[int, str] | int = (3, "m"),
        folder: Path = Path("here"),
        text: str | Penalty = "square",
        some=frozenset({2}),
        unannotated=Penalty.SQUARE,
    ):
        super().__init__()
        self.given = (penalty, perhaps, penalties, size, folder, text, some, unannotated)


@pytest.mark.parametrize("given", [Penalty.ABSOLUTE, "absolute"])
def test_options_are_what_a_signature_declares(given: object) -> None:
    """And not what a file has of them: a text that is compared with a member of an enumeration would never be it."""
    settings = {"name": Many, "penalty": given, "perhaps": given, "unannotated": given}
    resolved = resolve({"algorithm": settings}).algorithm
    assert (resolved["penalty"], resolved["penalties"], resolved["size"]) == ("absolute", ["absolute"], [3, "m"])
    made = make_part(NAMED_PARTS["algorithm"], resolved, FedAvg, "an algorithm", 0)
    absolute = Penalty.ABSOLUTE
    assert made.given == (
        absolute,
        absolute,
        (absolute,),
        (3, "m"),
        Path("here"),
        "square",
        frozenset({2}),
        absolute,
    )


class Chooses(nn.Module):
    def __init__(self, *, penalty: Penalty = Penalty.SQUARE):
        super().__init__()
        assert penalty is Penalty.SQUARE
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1))


def test_models_get_members_of_enumerations() -> None:
    settings = resolve({"federation": "digits", "model": Chooses}).model
    spec = DataSpec("classification", 10, (1, 8, 8))
    assert isinstance(build_model(settings.pop("name"), spec, settings, seed=0), Chooses)

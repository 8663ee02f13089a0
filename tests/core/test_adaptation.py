"""What of a model is trained: what travels, what is merged, and how it goes with everything else."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import StopAfter, config, content, interrupt
from test_cohort import ClientsInMemory, assert_same, train
from torch import Tensor, nn

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import ADAPTATIONS, MODELS, DataSpec, Task, build_model, make_task, trainable_parameters
from fedarena.models.adaptation import adapt, merge_low_rank
from fedarena.models.imagenet.layers import norm_maker
from fedarena.models.imagenet.mobilenet import InvertedResidual
from fedarena.models.imagenet.resnet import BasicBlock
from fedarena.runs.building import prepare
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.runs.trained_model import export_model
from fedarena.runs.weights import start_from
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine

IMAGES = DataSpec("classification", 4, (1, 8, 8))
TWEETS = DataSpec("classification", 3, (7,), padding=0, unknown=1, tokens=15)
ON_DIGITS = {
    "model": {"name": "mlp", "hidden": (12, 7)},
    "engine": "reference",
    "algorithm": "fedavg",
    "rounds": 3,
    "evaluation.every": 1,
}
LORA = {"name": "lora", "rank": 2}
ADAPTER = {"name": "adapter", "size": 3, "layers": ["2"]}
HEAD = {"5.weight", "5.bias"}


def blocks(spec: DataSpec) -> nn.Module:
    make_norm = norm_maker("frozen_batch", 1)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, 2, 1),
        BasicBlock(6, 8, 2, make_norm),
        InvertedResidual(8, 8, 1, 2, make_norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, spec.classes),
    )


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._parts, "blocks", blocks)


def adapted(model: str, spec: DataSpec, name: str, seed: int = 0, **options: Any) -> Task:
    of_model = {"vit": {"width": 6, "heads": 2, "layers": 1}, "bert_tiny": {"width": 6, "positions": 9}}.get(model, {})
    task = make_task(build_model(model, spec, of_model, seed=0), spec)
    adapt(task, ADAPTATIONS.get(name)(**options), name, seed)
    return task


def layers_trained(task: Task) -> set[str]:
    return {name.rpartition(".")[0] for name in trainable_parameters(task.module)}


def disturbed(task: Task) -> None:
    """What is added starts at zero, which would hide what it does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in trainable_parameters(task.module).values():
            p += 0.3 * torch.randn(p.shape, generator=generator)


def test_what_is_trained() -> None:
    assert layers_trained(adapted("vit", IMAGES, "head_only")) == {"head"}
    norms = adapted("vit", IMAGES, "norms_and_biases")
    trained = trainable_parameters(norms.module)
    assert {name for name, p in trained.items() if p.ndim > 1} == {"head.weight"}
    assert "blocks.0.attention.1.queries.bias" in trained
    lora = adapted("vit", IMAGES, "lora", layers=["*.queries", "*.values"])
    assert layers_trained(lora) == {"head", "blocks.0.attention.1.queries", "blocks.0.attention.1.values"}
    assert not lora.module.blocks[0].attention[1].queries.weight.requires_grad
    everywhere = layers_trained(adapted("blocks", IMAGES, "lora"))
    assert everywhere == {"0", "1.conv1", "1.conv2", "1.downsample.0", "2.conv.0.0", "2.conv.2", "5"}  # not 2.conv.1.0
    places = {name.partition(".adapter")[0] for name in layers_trained(adapted("bert_tiny", TWEETS, "adapter"))}
    assert places == {"classifier"} | {
        f"bert.encoder.layer.{n}.{part}.dense" for n in (0, 1) for part in ("output", "attention.output")
    }


def test_what_a_model_froze_itself_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_frozen(spec: DataSpec) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, spec.classes))
        model[1].bias.requires_grad_(False)
        return model

    monkeypatch.setitem(MODELS._parts, "half_frozen", half_frozen)
    assert set(trainable_parameters(adapted("half_frozen", IMAGES, "norms_and_biases").module)) == {
        "2.weight",
        "2.bias",
    }


def test_low_rank_matrices_are_beside_frozen_weights_only_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen_features(spec: DataSpec) -> nn.Module:
        frozen = nn.Linear(64, 6).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), frozen, nn.Linear(6, 6), nn.Linear(6, spec.classes))

    def all_frozen_but_the_head(spec: DataSpec) -> nn.Module:
        model = frozen_features(spec)
        model[2].requires_grad_(False)
        return model

    monkeypatch.setitem(MODELS._parts, "frozen_features", frozen_features)
    monkeypatch.setitem(MODELS._parts, "all_frozen", all_frozen_but_the_head)
    assert layers_trained(adapted("frozen_features", IMAGES, "lora")) == {"2", "3"}
    assert layers_trained(adapted("frozen_features", IMAGES, "lora", layers=["1"])) == {"1", "3"}
    with pytest.raises(BadInputError, match=r"no usual place in the model; adaptation\.layers names some of 1, 2"):
        adapted("all_frozen", IMAGES, "lora")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["vit", "blocks", "bert_tiny"])
@pytest.mark.parametrize("name", ["lora", "adapter"])
def test_a_model_begins_as_it_was_and_what_is_added_counts(model: str, name: str) -> None:
    spec = TWEETS if model == "bert_tiny" else IMAGES
    plain, task = adapted(model, spec, "all"), adapted(model, spec, name)
    before, after = plain.module.state_dict(), task.module.state_dict()
    assert all(torch.equal(after[key], t) for key, t in before.items())
    batch = plain.meaningless(plain.batch(plain.example(3)), torch.Generator().manual_seed(0))
    plain.module.eval()
    task.module.eval()
    expected = plain.predict({}, batch)
    torch.testing.assert_close(task.predict({}, batch), expected)
    twin = copy.deepcopy(task.module)
    disturbed(task)
    assert not torch.allclose(task.predict({}, batch), expected, atol=1e-3)
    torch.testing.assert_close(twin(batch["x"]), expected)  # a copy has its own
    other = trainable_parameters(adapted(model, spec, name, seed=1).module)
    again = trainable_parameters(adapted(model, spec, name).module)
    drawn = [key for key, p in again.items() if key not in before and p.count_nonzero()]
    assert drawn
    assert not any(torch.equal(again[key], other[key]) for key in drawn)


@pytest.mark.parametrize("layers", [None, ["*conv*"]], ids=["usual", "depthwise as well"])
def test_merged_weights_compute_the_same(layers: list[str] | None) -> None:
    task = adapted("blocks", IMAGES, "lora", rank=3, alpha=5.0, layers=layers)
    assert ("2.conv.1.0" in layers_trained(task)) == (layers is not None)
    task.module.double().eval()
    disturbed(task)
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    expected = task.module(x)
    merged = merge_low_rank(task.module)
    torch.testing.assert_close(merged(x), expected, rtol=0, atol=1e-12)
    assert [*merged.state_dict()] == [*adapted("blocks", IMAGES, "all").module.state_dict()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lora", "adapter"])
@pytest.mark.parametrize("model", ["blocks", "bert_tiny"])
def test_many_clients_train_as_one_at_a_time(name: str, model: str) -> None:
    spec = TWEETS if model == "bert_tiny" else IMAGES
    local, clients, found = LocalTraining(epochs=1, batch_size=8, lr=0.1), [1, 2, 3, 4, 6], []
    for kind in (ReferenceEngine, CohortEngine):
        algorithm = FedAvg()
        algorithm.prepare(len(clients), local)
        task = adapted(model, spec, name)
        disturbed(task)
        engine = kind(task, algorithm, local, ClientsInMemory(spec), seed=3, dtype="float64")
        params = engine.initial_params()
        assert params.keys() == trainable_parameters(task.module).keys()
        found.append(train(engine, clients, {"params": params}, {}))
        assert not engine.notes
    assert_same(*found)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(config(**ON_DIGITS | {"name": "pretrained"}), tmp_path_factory.mktemp("pretrained")).path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adaptation", ["head_only", "norms_and_biases", LORA, ADAPTER], ids=str)
def test_only_what_is_trained_travels_and_changes(adaptation: Any, tmp_path: Path, pretrained: Path) -> None:
    name = adaptation if isinstance(adaptation, str) else adaptation["name"]
    run = start_run(config(**ON_DIGITS | {"adaptation": adaptation, "weights": str(pretrained)}), tmp_path)
    log = (run.path / "log.txt").read_text()
    trained = int(log.partition(f"adaptation={name} trains ")[2].partition(" ")[0].replace(",", ""))
    assert "starts from scratch" not in log
    for direction in ("bytes_down", "bytes_up"):
        assert run.rounds[direction].to_pylist()[1:] == [4 * 4 * trained] * 3
    before, after = (fedarena.load(path).model().state_dict() for path in (pretrained, run.path))
    changed = {key for key, t in after.items() if key not in before or not torch.equal(t, before[key])}
    assert changed >= HEAD
    if name == "head_only":
        assert changed == HEAD
        assert trained == 7 * 10 + 10
    if name == "adapter":
        assert all("adapter" in key for key in changed - HEAD)
    if name == "lora":
        assert not any("lora" in key for key in after)


@pytest.mark.filterwarnings("ignore:adaptation", "ignore:biasprompt")
def test_phones_take_no_time_for_what_is_frozen() -> None:
    """Also those that tell seconds per sample: biases take as long by an adaptation as by the method that trains them.

    Multiplications of a sample, of 64 x 12, 12 x 7 and 7 x 10 weights: forward, and for the gradients of weights and
    of what layers get.
    """

    def seconds(**settings: Any) -> float:
        simulation = prepare(config(**ON_DIGITS | {"fleet": "uniform"} | settings), Observer()).simulation
        clients = simulation.training_clients
        jobs = simulation.world(None).phones.plan(clients, clients, np.zeros(len(clients)), 0)
        return float(jobs.compute_seconds.sum())

    whole = seconds()
    forward = 64 * 12 + 12 * 7 + 7 * 10
    gradients = forward + 12 * 7 + 7 * 10
    thin = 2 * (64 + 12) + 2 * (12 + 7)  # LoRA's matrices
    of_lora = 2 * 7 * 10 + 12 * 7 + 2 * (7 + 7 + 12 + 12) + 2 * (12 + 12 + 64)
    assert seconds(adaptation="head_only") == pytest.approx(whole * (forward + 7 * 10) / (forward + gradients))
    assert seconds(adaptation=LORA) == pytest.approx(whole * (forward + thin + of_lora) / (forward + gradients))
    assert seconds(adaptation="norms_and_biases") == seconds(algorithm="biasprompt") < whole


@pytest.mark.parametrize("adaptation", ["all", "head_only", LORA], ids=str)
def test_what_is_trained_has_its_share_of_the_size_that_a_model_is_taken_to_have(
    adaptation: Any, tmp_path: Path, pretrained: Path
) -> None:
    settings = {"adaptation": adaptation, "weights": str(pretrained), "clock.model_bytes": 10**6}
    run = start_run(config(**ON_DIGITS | settings), tmp_path)
    _, _, said = (run.path / "log.txt").read_text().partition(" trains ")
    trained, all_ = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said)[:2]) if said else (1, 1)
    sent = 4 * round(10**6 * trained / all_)
    assert run.rounds["bytes_down"].to_pylist()[1:] == run.rounds["bytes_up"].to_pylist()[1:] == [sent] * 3
    assert (sent == 4 * 10**6) == (adaptation == "all")


def test_a_model_that_knows_nothing_is_said(tmp_path: Path) -> None:
    run = start_run(config(**ON_DIGITS | {"adaptation": "head_only", "rounds": 1}), tmp_path)
    assert "adaptation=head_only is for pretrained models, and this one starts from scratch" in (
        (run.path / "log.txt").read_text()
    )


@pytest.fixture(scope="module")
def with_lora(tmp_path_factory: pytest.TempPathFactory, pretrained: Path) -> Any:
    settings = {"name": "lora", "adaptation": LORA, "weights": str(pretrained), "local.lr": 0.1}
    return start_run(config(**ON_DIGITS | settings), tmp_path_factory.mktemp("lora"))


@pytest.mark.parametrize(
    "adaptation", [LORA, LORA | {"rank": 3}, LORA | {"alpha": 1.0}, "head_only", "all"], ids=lambda a: str(a)
)
def test_what_it_learned_is_where_others_begin(adaptation: Any, with_lora: Any, tmp_path: Path) -> None:
    settings = ON_DIGITS | {"adaptation": adaptation, "rounds": 1, "weights": str(with_lora.path)}
    run = start_run(config(**settings), tmp_path)
    assert run.rounds["loss"][0].as_py() == pytest.approx(with_lora.rounds["loss"][-1].as_py(), rel=1e-5)
    text = (run.path / "log.txt").read_text()
    assert ("lora_down" in text) == (adaptation in (LORA | {"rank": 3}, LORA | {"alpha": 1.0}))  # that it is fresh


def test_it_is_exported_as_a_plain_model(with_lora: Any, tmp_path: Path) -> None:
    export_model(with_lora.path, tmp_path / "plain.safetensors")
    names = safetensors.torch.load_file(tmp_path / "plain.safetensors").keys()
    assert not any("lora" in name for name in names)
    settings = {"weights": str(tmp_path / "plain.safetensors"), "rounds": 1}
    run = start_run(config(**ON_DIGITS | settings), tmp_path)
    assert run.rounds["loss"][0].as_py() == pytest.approx(with_lora.rounds["loss"][-1].as_py(), rel=1e-5)


def test_adapters_are_not_left_out_in_silence(tmp_path: Path, pretrained: Path) -> None:
    settings = ON_DIGITS | {"adaptation": ADAPTER, "weights": str(pretrained), "rounds": 2}
    first = start_run(config(**settings | {"name": "first"}), tmp_path)
    again = start_run(config(**settings | {"weights": str(first.path), "rounds": 1}), tmp_path)
    assert again.rounds["loss"][0] == first.rounds["loss"][-1]
    with pytest.raises(BadInputError, match="first does not fit the model: it was trained with adaptation=adapter"):
        start_run(config(**ON_DIGITS | {"weights": str(first.path), "name": "plain"}), tmp_path)


def test_a_resumed_run_equals_one_that_was_never_interrupted(tmp_path: Path, pretrained: Path) -> None:
    settings = ON_DIGITS | {"adaptation": LORA, "weights": str(pretrained), "name": "run"}
    whole = start_run(config(**settings), tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path / "b", StopAfter(2, interrupt))
    resume_run(tmp_path / "b" / "run")
    assert content(tmp_path / "b" / "run") == content(whole.path)


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("adaptation", ["all", LORA, ADAPTER], ids=str)
def test_a_caller_without_gradients_gets_the_same_run(without_gradients: Any, adaptation: Any, tmp_path: Path) -> None:
    settings = ON_DIGITS | {"adaptation": adaptation, "name": "run", "rounds": 2}
    whole = start_run(config(**settings), tmp_path / "a")
    with without_gradients():
        with pytest.raises(KeyboardInterrupt):
            start_run(config(**settings), tmp_path / "b", StopAfter(1, interrupt))
        with Run.reopen(tmp_path / "b" / "run") as run:
            run.fork({"local.lr": 0.01}, name="fork").advance(1).close()
            models = [run.model()]
            run.advance().close()
        models.append(fedarena.load(tmp_path / "b" / "run").model())
    assert content(tmp_path / "b" / "run") == content(whole.path)
    assert not any(p.is_inference() for model in models for p in model.parameters())


def test_clipping_and_noise_are_of_what_is_trained(tmp_path: Path, pretrained: Path) -> None:
    private = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "clip_norm": 1e-6}, "selector": "poisson"}
    run = start_run(config(**ON_DIGITS | private | {"adaptation": "head_only", "weights": str(pretrained)}), tmp_path)
    assert run.summary["privacy"]["epsilon"] > 0
    before, after = (fedarena.load(path).model().state_dict() for path in (pretrained, run.path))
    moved = {key: (t - before[key]).abs().max().item() for key, t in after.items()}
    assert {key for key, most in moved.items() if most} == HEAD
    assert max(moved.values()) < 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["ditto", "fedbn", "scaffold", "fedkd"])
def test_personal_and_stateful_methods_keep_what_is_trained(algorithm: str, tmp_path: Path, pretrained: Path) -> None:
    settings = {"algorithm": algorithm, "adaptation": LORA, "weights": str(pretrained), "rounds": 2}
    run = start_run(config(**ON_DIGITS | settings), tmp_path)
    if algorithm in ("ditto", "fedbn"):
        took_part = run.jobs["client"][0].as_py()
        own, common = (fedarena.load(run.path).model(**which).state_dict() for which in ({"client": took_part}, {}))
        assert own.keys() == common.keys()
        assert not torch.equal(own["5.weight"], common["5.weight"])


class Uncalled(nn.Module):
    """Uses the weights of a layer without calling it."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.first, self.last = nn.Linear(64, 5), nn.Linear(5, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(x.flatten(1) @ self.first.weight.t())
        return scores


class Unused(nn.Module):
    """Has a layer that it does not use in every call."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.idle, self.last = nn.Linear(64, 5), nn.Linear(64, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(x.flatten(1) if x.mean() < 1e6 else self.idle(x.flatten(1)))
        return scores


class TiedDecoder(nn.Module):
    """Calls a layer, and uses its weights once more."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.encode, self.middle, self.last = nn.Linear(64, 5), nn.Linear(64, 6), nn.Linear(6, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        decoded = nn.functional.linear(self.encode(x.flatten(1)).relu(), self.encode.weight.t())
        scores: Tensor = self.last(self.middle(decoded))
        return scores


def test_a_layer_with_used_weights_elsewhere_can_be_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._parts, "tied_decoder", TiedDecoder)
    assert layers_trained(adapted("tied_decoder", IMAGES, "lora", layers=["middle"])) == {"middle", "last"}


@pytest.mark.parametrize("use", [nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook])
def test_hooks_of_a_model_see_what_merged_weights_compute(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def hooked(spec: DataSpec) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, spec.classes))
        is_before = use is nn.Module.register_forward_pre_hook
        use(model[1], lambda layer, given, *out: given[0].sin() if is_before else out[0].relu())
        return model

    monkeypatch.setitem(MODELS._parts, "hooked", hooked)
    task = adapted("hooked", IMAGES, "lora")
    disturbed(task)
    x = torch.randn(5, 1, 8, 8)
    expected = task.module(x)
    torch.testing.assert_close(merge_low_rank(task.module)(x), expected)


@pytest.mark.parametrize(
    ("model", "name", "options", "complaint"),
    [
        ("vit", "lora", {"rank": 0}, "adaptation.rank must be at least 1, not 0"),
        ("vit", "lora", {"alpha": 0.0}, "adaptation.alpha must be above 0, not 0"),
        ("vit", "adapter", {"size": 0}, "adaptation.size must be at least 1, not 0"),
        ("vit", "lora", {"layers": ["nobody"]}, "adaptation.layers: 'nobody' matches no layer .* there are patches"),
        ("vit", "adapter", {"layers": ["head"]}, "adaptation.layers: 'head' matches no layer that can be adapted"),
        ("logistic_regression", "lora", {}, "This adaptation has no usual place in the model"),
        ("cnn", "adapter", {}, "no usual place in the model; adaptation.layers names some of 0, 1"),
        ("uncalled", "lora", {}, "LoRA does not fit first: the model uses these weights without calling"),
        ("uncalled", "adapter", {"layers": ["first"]}, "adaptation.layers: 'first' matches no layer that can be"),
        ("unused", "lora", {}, r"adaptation=lora cannot reach idle\.lora_down, idle\.lora_up"),
        ("tied_decoder", "lora", {}, "LoRA does not fit encode: .* name other layers in adaptation.layers"),
        ("tied_decoder", "lora", {"layers": ["encode", "middle"]}, "LoRA does not fit encode: the model uses"),
    ],
)
def test_what_cannot_be_adapted_is_refused(
    model: str, name: str, options: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"uncalled": Uncalled, "unused": Unused, "tied_decoder": TiedDecoder}
    for own_name, kind in own.items():
        monkeypatch.setitem(MODELS._parts, own_name, kind)
    with pytest.raises(BadInputError, match=complaint):
        adapted(model, IMAGES, name, **options)


class HeadFirst(nn.Module):
    """Declares its layers in another order than it calls them."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.classifier, self.features = nn.Linear(5, spec.classes), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x.flatten(1)).relu())
        return scores


class CosineHead(nn.Module):
    """Uses the weights of its last layer without calling it."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.features, self.head = nn.Linear(64, 5), nn.Linear(5, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.features(x.flatten(1)), nn.functional.normalize(self.head.weight))


class SideBranch(nn.Module):
    """Calls a layer after the head that has nothing to do with the scores' form."""

    def __init__(self, spec: DataSpec):
        super().__init__()
        self.gate, self.features, self.head = nn.Linear(64, 1), nn.Linear(64, 5), nn.Linear(5, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x.flatten(1)))
        return scores * self.gate(x.flatten(1))


@pytest.mark.parametrize(
    ("model", "settings", "who"),
    [
        (HeadFirst, {"adaptation": "head_only"}, "adaptation=head_only"),
        (HeadFirst, {"algorithm": "local_head"}, "local_head"),
        (HeadFirst, {}, None),
        (HeadFirst, {"algorithm": {"name": "local_head", "head_layers": ["classifier.*"]}}, None),
        (CosineHead, {"adaptation": "head_only"}, None),
        (SideBranch, {"adaptation": "head_only"}, None),
        (blocks, {"adaptation": "head_only"}, None),
    ],
)
def test_a_layer_called_after_the_one_declared_last_is_said(
    model: Any, settings: dict[str, Any], who: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS._parts, "own", model)
    warnings = prepare(config(**ON_DIGITS | {"model": "own"} | settings), Observer()).warnings
    said = [text for text in warnings if "for the last layer" in text]
    assert len(said) == (who is not None)
    if who:
        assert said[0].startswith(f"{who} takes features for the last layer, as the model declares it last, but it ")
        assert "calls classifier after it" in said[0]


def test_options_need_a_name() -> None:
    with pytest.raises(BadInputError, match=r"To set options of adaptation \('rank'\), name it: adaptation=lora"):
        config(adaptation={"rank": 4})
    with pytest.raises(BadInputError, match="did you mean 'lora'"):
        config(adaptation="lor")


def test_other_networks_are_refused_with_adaptation_too(tmp_path: Path) -> None:
    task = adapted("blocks", IMAGES, "lora")
    torch.save({"elsewhere.weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(BadInputError, match=r"other\.pt does not fit the model: it has no '0\.weight'"):
        start_from(task.module, tmp_path / "other.pt")

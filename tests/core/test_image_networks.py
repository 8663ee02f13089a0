"""Networks for photographs: sizes that are published, the same numbers as torchvision's, both norms, both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from test_cohort import ClientsInMemory, assert_same, train
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import MODELS, DataSpec, build_model, make_task
from fedarena.models.imagenet.layers import FrozenBatchNorm, NormalizedColours, norm_maker
from fedarena.models.imagenet.mobilenet import InvertedResidual
from fedarena.models.imagenet.resnet import BasicBlock, Bottleneck
from fedarena.models.imagenet.shufflenet import ShuffleBlock
from fedarena.runs.weights import start_from
from fedarena.train import CohortEngine, Engine, LocalTraining, ReferenceEngine

IMAGENET = DataSpec("classification", 1000, (3, 224, 224))
PHOTOS = DataSpec("multi_label", 17, (3, 32, 32))
SOME_CLIENTS = [1, 2, 3, 4, 6]
# By name and options: parameters at 1,000 classes as torchvision publishes them, and its function.
PUBLISHED: dict[str, tuple[str, dict[str, Any], int]] = {
    "resnet18": ("resnet18_imagenet", {}, 11_689_512),
    "resnet34": ("resnet34_imagenet", {}, 21_797_672),
    "resnet50": ("resnet50_imagenet", {}, 25_557_032),
    "mobilenet_v2": ("mobilenet_v2", {}, 3_504_872),
    "shufflenet_v2_x0_5": ("shufflenet_v2", {"size": "x0.5"}, 1_366_792),
    "shufflenet_v2_x1_0": ("shufflenet_v2", {}, 2_278_604),
    "shufflenet_v2_x1_5": ("shufflenet_v2", {"size": "x1.5"}, 3_503_624),
    "shufflenet_v2_x2_0": ("shufflenet_v2", {"size": "x2.0"}, 7_393_996),
}


def make(model: str, spec: DataSpec = PHOTOS, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = MODELS.get(model)(spec, **options)
    return network


def made_up(network: nn.Module) -> dict[str, Tensor]:
    """Weights of a pretraining that never was, as torch would save them with BatchNorm."""
    generator = torch.Generator().manual_seed(1)
    found: dict[str, Tensor] = {}
    for name, t in network.state_dict().items():
        noise = torch.randn(t.shape, generator=generator)
        found[name] = noise.abs() + 0.5 if name.endswith("running_var") else t.detach() + 0.1 * noise
        if name.endswith("running_var"):
            found[name.replace("running_var", "num_batches_tracked")] = torch.tensor(100)
    return found


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
@pytest.mark.parametrize("published", PUBLISHED)
def test_sizes_are_those_that_are_published(published: str, norm: str) -> None:
    name, options, parameters = PUBLISHED[published]
    with torch.device("meta"):
        assert sum(p.numel() for p in make(name, IMAGENET, norm=norm, **options).parameters()) == parameters


@pytest.mark.parametrize("published", PUBLISHED)
def test_every_layer_computes_what_torchvisions_does(published: str, tmp_path: Path) -> None:
    theirs = getattr(pytest.importorskip("torchvision.models"), published)().double().eval()
    name, options, _ = PUBLISHED[published]
    ours = make(name, IMAGENET, norm="frozen_batch", **options).double().eval()
    theirs.load_state_dict(made_up(ours))
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    start_from(ours, tmp_path / "weights.pth")
    outputs: dict[str, list[Tensor]] = {}
    in_both = dict(ours.named_modules()).keys() & dict(theirs.named_modules()).keys()
    for network in (ours, theirs):
        for path in in_both:
            layer = network.get_submodule(path)
            keep = outputs.setdefault(path, [])
            layer.register_forward_hook(lambda _, __, output, keep=keep: keep.append(output.detach().clone()))
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    ours(x)
    theirs(NormalizedColours(3).double()(x))
    shared = [both for both in outputs.values() if len(both) == 2]
    assert len(shared) >= sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in ours.modules())
    for here, there in shared:
        torch.testing.assert_close(here, there, rtol=0, atol=1e-12 * there.abs().max().item())


class Plain:
    """The same networks as plain functions of named tensors, after the papers' figures and torchvision's names."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.t = tensors

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.t[f"{name}.weight"]
        return F.conv2d(x, weight, None, stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1])

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance, *affine = (
            self.t[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, *affine)

    def head(self, x: Tensor, name: str) -> Tensor:
        return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), self.t[f"{name}.weight"], self.t[f"{name}.bias"])

    def numbers(self, prefix: str) -> Iterator[str]:
        """The names ``prefix.0``, ``prefix.1`` and so on that there are."""
        places = {
            int(name.removeprefix(f"{prefix}.").partition(".")[0]) for name in self.t if name.startswith(f"{prefix}.")
        }
        yield from (f"{prefix}.{place}" for place in sorted(places))

    def resnet18(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x, "conv1", 2), "bn1")), 3, 2, 1)
        for stage in range(1, 5):
            for place, block in enumerate(self.numbers(f"layer{stage}")):
                stride = 2 if stage > 1 and place == 0 else 1
                change = F.relu(self.norm(self.conv(x, f"{block}.conv1", stride), f"{block}.bn1"))
                change = self.norm(self.conv(change, f"{block}.conv2"), f"{block}.bn2")
                if stride > 1:
                    x = self.norm(self.conv(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
                x = F.relu(change + x)
        return self.head(x, "fc")

    def mobilenet_v2(self, x: Tensor) -> Tensor:
        blocks = list(self.numbers("features"))
        x = F.relu6(self.norm(self.conv(x, f"{blocks[0]}.0", 2), f"{blocks[0]}.1"))
        for place, block in enumerate(blocks[1:-1], 1):
            change, halves = x, place in (2, 4, 7, 14)
            *filters, narrow, last = self.numbers(f"{block}.conv")
            for layer in filters:
                change = self.conv(change, f"{layer}.0", 2 if halves and layer == filters[-1] else 1)
                change = F.relu6(self.norm(change, f"{layer}.1"))
            change = self.norm(self.conv(change, narrow), last)
            x = x + change if not halves and x.shape == change.shape else change
        x = F.relu6(self.norm(self.conv(x, f"{blocks[-1]}.0"), f"{blocks[-1]}.1"))
        return self.head(x, "classifier.1")

    def shufflenet_v2_x0_5(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x, "conv1.0", 2), "conv1.1")), 3, 2, 1)
        for stage in ("stage2", "stage3", "stage4"):
            for place, block in enumerate(self.numbers(stage)):
                first, second, stride = (x, x, 2) if place == 0 else (*x.chunk(2, 1), 1)
                if stride == 2:
                    first = self.norm(self.conv(first, f"{block}.branch1.0", 2), f"{block}.branch1.1")
                    first = F.relu(self.norm(self.conv(first, f"{block}.branch1.2"), f"{block}.branch1.3"))
                second = F.relu(self.norm(self.conv(second, f"{block}.branch2.0"), f"{block}.branch2.1"))
                second = self.norm(self.conv(second, f"{block}.branch2.3", stride), f"{block}.branch2.4")
                second = F.relu(self.norm(self.conv(second, f"{block}.branch2.5"), f"{block}.branch2.6"))
                channels = first.shape[1]
                order = [half * channels + place for place in range(channels) for half in range(2)]
                x = torch.cat([first, second], 1)[:, order]
        return self.head(F.relu(self.norm(self.conv(x, "conv5.0"), "conv5.1")), "fc")


@pytest.mark.parametrize("published", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5"])
def test_it_computes_what_plain_functions_do(published: str, tmp_path: Path) -> None:
    name, options, _ = PUBLISHED[published]
    ours = make(name, norm="frozen_batch", **options)
    weights = made_up(ours)
    safetensors.torch.save_file(weights, tmp_path / "weights.safetensors")
    start_from(ours, tmp_path / "weights.safetensors")
    x = torch.rand(2, 3, 64, 48, dtype=torch.float64)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    plain = getattr(Plain({key: t.double() for key, t in weights.items()}), published)
    expected = plain((x - mean.float().double()) / deviation.float().double())
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours.double().eval()(x), expected, rtol=1e-9, atol=1e-9)


def test_frozen_batch_norm_is_torchs_in_evaluation_with_its_gradients() -> None:
    theirs, ours = nn.BatchNorm2d(5).double(), FrozenBatchNorm(5).double()
    theirs(3 * torch.randn(50, 5, 2, 2, dtype=torch.float64) + 1)  # gathers statistics
    with torch.no_grad():
        theirs.weight.normal_()
        theirs.bias.normal_()
    ours.load_state_dict({name: t for name, t in theirs.eval().state_dict().items() if name != "num_batches_tracked"})
    x = torch.randn(3, 5, 4, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in (theirs, ours.train()):
        y = layer(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, layer.weight, layer.bias])])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


class OfAllBlocks(nn.Module):
    """One block of every kind, so that an engine meets all of their operations in little time."""

    def __init__(self, spec: DataSpec, norm: Any):
        super().__init__()
        make_norm = norm_maker(norm, 2)
        self.layers = nn.Sequential(
            NormalizedColours(spec.input_shape[0]),
            nn.Conv2d(spec.input_shape[0], 4, 7, 2, 3, bias=False),
            nn.MaxPool2d(3, 2, 1),
            BasicBlock(4, 8, 2, make_norm),
            Bottleneck(8, 2, 1, make_norm),
            InvertedResidual(8, 8, 1, 3, make_norm),
            InvertedResidual(8, 12, 2, 2, make_norm),
            ShuffleBlock(12, 16, 2, make_norm),
            ShuffleBlock(16, 16, 1, make_norm),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, spec.classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


def all_blocks(spec: DataSpec, *, norm: str) -> nn.Module:
    network = OfAllBlocks(spec, norm)
    for layer in network.modules():
        if isinstance(layer, FrozenBatchNorm):
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 2)
    return network


def engine_for_all_blocks(kind: Any, norm: str, **options: Any) -> Engine:
    spec = DataSpec("classification", 4, (3, 18, 18))
    local, algorithm = LocalTraining(epochs=1, batch_size=8, lr=0.05), FedAvg()
    algorithm.prepare(len(SOME_CLIENTS), local)
    task = make_task(build_model("all_blocks", spec, {"norm": norm}, seed=0), spec)
    return kind(task, algorithm, local, ClientsInMemory(spec), seed=3, **{"dtype": "float64", **options})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_many_clients_train_as_one_at_a_time(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._parts, "all_blocks", all_blocks)
    found = []
    for kind in (ReferenceEngine, CohortEngine):
        engine = engine_for_all_blocks(kind, norm)
        found.append(train(engine, SOME_CLIENTS, {"params": engine.initial_params()}, {}))
        assert not engine.notes
    assert_same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18_imagenet", "mobilenet_v2", "shufflenet_v2"])
@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_whole_networks_train_as_one_at_a_time(name: str, norm: str) -> None:
    spec = DataSpec("classification", 4, (3, 16, 16))
    local, clients, found = LocalTraining(epochs=None, steps=2, batch_size=8, lr=0.01), [1, 3, 6], []
    for kind in (ReferenceEngine, CohortEngine):
        algorithm = FedAvg()
        algorithm.prepare(len(clients), local)
        task = make_task(build_model(name, spec, {"norm": norm}, seed=0), spec)
        engine = kind(task, algorithm, local, ClientsInMemory(spec), seed=3, dtype="float64")
        found.append(train(engine, clients, {"params": engine.initial_params()}, {}))
        assert not engine.notes
    assert_same(*found)


@pytest.mark.parametrize("name", ["resnet18_imagenet", "mobilenet_v2", "shufflenet_v2"])
def test_small_images_are_halved_less_often(name: str) -> None:
    sizes = []
    for small in (False, True):
        network = make(name, small_images=small).eval()
        maps: list[int] = []
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(lambda _, __, output, maps=maps: maps.append(output.shape[-1]))
        network(torch.rand(1, 3, 32, 32))
        sizes.append(maps[-1])
    assert sizes == [1, 4]


def test_colours_are_normalized_unless_told_otherwise() -> None:
    x = torch.rand(2, 3, 32, 32)
    plain = make("shufflenet_v2", normalize=False)
    plain_colours = NormalizedColours(3)(x)
    assert abs(plain_colours.mean()) < 0.5
    torch.testing.assert_close(make("shufflenet_v2")(x), plain(plain_colours))
    gray = NormalizedColours(1)(torch.full((1, 1, 1, 1), 0.449))
    assert abs(gray.item()) < 1e-6


def test_a_head_for_other_classes_is_fresh_and_it_is_said(tmp_path: Path) -> None:
    published, ours = make("shufflenet_v2", IMAGENET, norm="frozen_batch"), make("shufflenet_v2", norm="frozen_batch")
    fresh = ours.fc.weight.detach().clone()
    torch.save(made_up(published), tmp_path / "weights.pth")
    notes = start_from(ours, tmp_path / "weights.pth").notes
    assert len(notes) == 1
    assert notes[0].endswith("freshly drawn: fc.weight, fc.bias")
    assert torch.equal(ours.fc.weight, fresh)
    assert torch.equal(ours.conv5[1].running_var, made_up(published)["conv5.1.running_var"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("of", "norm", "into", "into_norm", "complaint"),
    [
        (
            "resnet34_imagenet",
            "frozen_batch",
            "resnet18_imagenet",
            "frozen_batch",
            "of another network, which has 'layer1.2",
        ),
        (
            "resnet18_imagenet",
            "frozen_batch",
            "resnet34_imagenet",
            "frozen_batch",
            "of another network, which has no 'layer1.2",
        ),
        (
            "mobilenet_v2",
            "frozen_batch",
            "resnet18_imagenet",
            "group",
            "of another network, which has 'features.0.0.weight'",
        ),
        (
            "shufflenet_v2",
            "frozen_batch",
            "shufflenet_v2",
            "group",
            "statistics of BatchNorm .* model.norm=frozen_batch",
        ),
        (
            "shufflenet_v2",
            "group",
            "shufflenet_v2",
            "frozen_batch",
            "of a network with other norms and has no 'conv1.1.running",
        ),
        ("resnet18_imagenet", "group", "resnet34_imagenet", "group", "it has no 'layer1.2.conv1.weight'"),
    ],
)
def test_weights_of_another_network_are_refused(
    of: str, norm: str, into: str, into_norm: str, complaint: str, tmp_path: Path
) -> None:
    weights = {name: t.clone() for name, t in make(of, norm=norm).state_dict().items()}
    torch.save(weights, tmp_path / "other.pth")
    model = make(into, norm=into_norm)
    with pytest.raises(BadInputError, match=rf"other\.pth does not fit the model: .*{complaint}"):
        start_from(model, tmp_path / "other.pth")


def test_statistics_that_are_none_are_refused(tmp_path: Path) -> None:
    model = make("shufflenet_v2", norm="frozen_batch")
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    weights["conv1.1.running_var"][3] = -1
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(
        BadInputError, match=r"w\.pth does not fit the model: 'conv1.1.running_var' holds no statistics"
    ):
        start_from(model, tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("resnet18_imagenet", {"groups": 48}, "model.groups is 48, but a layer of the model has 64 channels to divide"),
        ("shufflenet_v2", {"groups": 0}, "model.groups must be at least 1, not 0"),
        ("mobilenet_v2", {"width": 0.0}, "model.width must be above 0 and at most 10, not 0"),
        ("mobilenet_v2", {"dropout": 1.0}, "model.dropout must be at least 0 and below 1, not 1"),
    ],
)
def test_options_that_make_no_network_are_refused(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError) as refusal:
        make(name, **options)
    assert str(refusal.value) == complaint

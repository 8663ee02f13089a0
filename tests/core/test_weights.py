"""Starting from weights: files in every naming, other heads and grids, runs, and files that do not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from small_runs import StopAfter, config, content, interrupt
from torch import Tensor, nn
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.models import DataSpec, build_model
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.weights import start_from

Tensors = dict[str, Tensor]
IMAGES = DataSpec("classification", 4, (2, 6, 6))
WIDTH, HIDDEN, HEADS, LAYERS, PATCH = 8, 12, 2, 2, 3
OPTIONS = {"patch": PATCH, "width": WIDTH, "layers": LAYERS, "heads": HEADS, "mlp_ratio": 1.5}


def make(classes: int = 4, size: int = 6, prompts: int = 0, seed: int = 0, **options: Any) -> nn.Module:
    spec = DataSpec("classification", classes, (2, size, size))
    return build_model("vit", spec, {**OPTIONS, "prompts": prompts, **options}, seed)


class PublishedViT(nn.Module):
    """A ViT out of torch's own layers, with the parameters of which the files below are written."""

    def __init__(self, classes: int = 4, size: int = 6):
        super().__init__()
        self.projection = nn.Conv2d(2, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.empty(1, 1 + (size // PATCH) ** 2, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, HIDDEN, 0, nn.functional.gelu, 1e-6, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.last_norm = nn.LayerNorm(WIDTH, 1e-6)
        self.classifier = nn.Linear(WIDTH, classes)
        torch.manual_seed(5)
        for p in self.parameters():
            nn.init.normal_(p, std=0.4)
        self.eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        states = self.projection(x).flatten(2).transpose(1, 2)
        states = torch.cat([self.token.expand(len(x), -1, -1), states], 1) + self.positions
        for layer in self.layers:
            states = layer(states)
        return self.classifier(self.last_norm(states[:, 0]))


def both(name: str, layer: nn.Module) -> Tensors:
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


def as_timm(model: PublishedViT) -> Tensors:
    named = {"cls_token": model.token, "pos_embed": model.positions, **both("patch_embed.proj", model.projection)}
    for number, layer in enumerate(model.layers):
        block = f"blocks.{number}"
        named |= {f"{block}.attn.qkv.weight": layer.self_attn.in_proj_weight}
        named |= {f"{block}.attn.qkv.bias": layer.self_attn.in_proj_bias}
        named |= both(f"{block}.attn.proj", layer.self_attn.out_proj)
        named |= both(f"{block}.norm1", layer.norm1) | both(f"{block}.norm2", layer.norm2)
        named |= both(f"{block}.mlp.fc1", layer.linear1) | both(f"{block}.mlp.fc2", layer.linear2)
    return named | both("norm", model.last_norm) | both("head", model.classifier)


def as_torchvision(model: PublishedViT) -> Tensors:
    named = {"class_token": model.token, "encoder.pos_embedding": model.positions}
    named |= both("conv_proj", model.projection)
    for number, layer in enumerate(model.layers):
        block = f"encoder.layers.encoder_layer_{number}"
        named |= {f"{block}.self_attention.in_proj_weight": layer.self_attn.in_proj_weight}
        named |= {f"{block}.self_attention.in_proj_bias": layer.self_attn.in_proj_bias}
        named |= both(f"{block}.self_attention.out_proj", layer.self_attn.out_proj)
        named |= both(f"{block}.ln_1", layer.norm1) | both(f"{block}.ln_2", layer.norm2)
        named |= both(f"{block}.mlp.0", layer.linear1) | both(f"{block}.mlp.3", layer.linear2)
    return named | both("encoder.ln", model.last_norm) | both("heads.head", model.classifier)


def as_hugging_face(model: PublishedViT) -> Tensors:
    named = {"vit.embeddings.cls_token": model.token, "vit.embeddings.position_embeddings": model.positions}
    named |= both("vit.embeddings.patch_embeddings.projection", model.projection)
    for number, layer in enumerate(model.layers):
        block = f"vit.encoder.layer.{number}"
        attention = layer.self_attn
        for place, part in enumerate(("query", "key", "value")):
            rows = slice(place * WIDTH, (place + 1) * WIDTH)
            named[f"{block}.attention.attention.{part}.weight"] = attention.in_proj_weight[rows]
            named[f"{block}.attention.attention.{part}.bias"] = attention.in_proj_bias[rows]
        named |= both(f"{block}.attention.output.dense", attention.out_proj)
        named |= both(f"{block}.layernorm_before", layer.norm1) | both(f"{block}.layernorm_after", layer.norm2)
        named |= both(f"{block}.intermediate.dense", layer.linear1) | both(f"{block}.output.dense", layer.linear2)
    return named | both("vit.layernorm", model.last_norm) | both("classifier", model.classifier)


def as_transformers_5(model: PublishedViT) -> Tensors:
    """The names that Hugging Face's library has since its version 5."""
    renamed = {
        "encoder.layer.": "layers.",
        "attention.output.dense": "attention.o_proj",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }
    named = {}
    for name, t in as_hugging_face(model).items():
        for before, after in renamed.items():
            name = name.replace(before, after)
        named[name] = t
    return named


CONVENTIONS = {
    "timm": as_timm,
    "torchvision": as_torchvision,
    "Hugging Face": as_hugging_face,
    "Hugging Face (new)": as_transformers_5,
}


def write(tensors: Tensors, path: Path) -> Path:
    plain = {name: t.detach().clone() for name, t in tensors.items()}
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(plain, path)
    else:
        torch.save(plain, path)
    return path


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("library", CONVENTIONS)
def test_a_published_vit_computes_the_same_here(library: str, ending: str, tmp_path: Path) -> None:
    published, model = PublishedViT(), make()
    path = write(CONVENTIONS[library](published), tmp_path / f"vit{ending}")
    notes = start_from(model, path).notes
    x = torch.randn(5, 2, 6, 6)
    torch.testing.assert_close(model(x), published(x), rtol=0, atol=1e-5)
    names = library.removesuffix(" (new)")
    assert notes == [f"The model starts from {path}, which has the names of {names}: all parameters were taken"]


@pytest.mark.parametrize("library", CONVENTIONS)
def test_another_head_and_prompts_stay_fresh(library: str, tmp_path: Path) -> None:
    published, model = PublishedViT(classes=9), make(prompts=3)
    fresh = copy.deepcopy(model)
    path = write(CONVENTIONS[library](published), tmp_path / "vit.pt")
    (note,) = start_from(model, path).notes
    # patches, positions, token, the last norm, and in each block four projections, two norms, two layers
    taken = 2 + 1 + 1 + 2 + LAYERS * 16
    assert note.endswith(
        f": {taken} of its {taken + 3} parameters were taken; freshly drawn: prompts, head.weight, head.bias"
    )
    for name, p in model.named_parameters():
        assert torch.equal(p, fresh.get_parameter(name)) == (name in ("prompts", "head.weight", "head.bias"))
    # with the published head and no prompts the rest is the published function
    model.prompts, model.head = None, published.classifier
    x = torch.randn(3, 2, 6, 6)
    torch.testing.assert_close(model(x), published(x), rtol=0, atol=1e-5)


def test_a_file_without_a_head_will_do(tmp_path: Path) -> None:
    found = {name.removeprefix("vit."): t for name, t in as_hugging_face(PublishedViT()).items()}
    found = {name: t for name, t in found.items() if "classifier" not in name}
    pooler = {"pooler.dense.weight": torch.zeros(WIDTH, WIDTH)}
    path = write(found | pooler, tmp_path / "vit.safetensors")
    notes = start_from(make(), path).notes
    assert notes[0].endswith("freshly drawn: head.weight, head.bias")
    assert notes[1] == f"The model has no use for pooler.dense.weight of {path}"


def test_positions_of_another_grid_are_interpolated(tmp_path: Path) -> None:
    published, model = PublishedViT(size=6), make(size=12)
    # A ramp stays one, except where the border is near.
    ramp = torch.arange(2.0).repeat(2, 1)
    published.positions.data[0, 1:] = ramp.reshape(4, 1)
    notes = start_from(model, write(as_timm(published), tmp_path / "vit.pt")).notes
    assert "Positions of 2 x 2 patches were interpolated to 4 x 4" in notes
    assert torch.equal(model.position[0], published.positions[0, 0])
    grid = model.position[1:].detach().view(4, 4, WIDTH)
    assert torch.allclose(grid, grid[:1])  # nothing changes from row to row
    columns = grid[0, :, 0]
    assert (columns.diff() > 0).all()
    assert columns.mean() == pytest.approx(0.5, abs=1e-5)


def test_wrapped_and_parallel_and_half_precision_files(tmp_path: Path) -> None:
    published = PublishedViT()
    named = {f"module.{name}": t.detach().half() for name, t in as_timm(published).items()}
    torch.save({"epoch": 3, "model": named}, tmp_path / "vit.pth")
    model = make()
    start_from(model, tmp_path / "vit.pth")
    assert torch.equal(model.head.weight, published.classifier.weight.half().float())
    assert model.head.weight.dtype == torch.float32
    spec = DataSpec("classification", 3, (6,))
    first, second = (build_model("mlp", spec, {"hidden": (4,)}, seed) for seed in (0, 1))
    path = write({f"module.{name}": p for name, p in first.named_parameters()}, tmp_path / "mlp.pt")
    assert start_from(second, path).notes[0].endswith(": all parameters were taken")


def test_a_grid_of_another_form_is_another_grid(tmp_path: Path) -> None:
    model = build_model("vit", DataSpec("classification", 4, (2, 3, 12)), OPTIONS, 0)
    notes = start_from(model, write(as_timm(PublishedViT(size=6)), tmp_path / "vit.pt")).notes
    assert "Positions of 2 x 2 patches were interpolated to 1 x 4" in notes


def test_any_model_takes_its_own_names(tmp_path: Path) -> None:
    first, second = (build_model("cnn", DataSpec("classification", 10, (1, 8, 8)), {}, seed) for seed in (0, 1))
    start = start_from(second, write(dict(first.named_parameters()), tmp_path / "cnn.safetensors"))
    assert all(torch.equal(p, second.get_parameter(name)) for name, p in first.named_parameters())
    assert start.notes[0].endswith(": all parameters were taken")
    others = build_model("cnn", DataSpec("classification", 3, (1, 8, 8)), {}, 2)
    (note,) = start_from(others, tmp_path / "cnn.safetensors").notes
    assert note.endswith("6 of its 8 parameters were taken; freshly drawn: 9.weight, 9.bias")


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda named: {key: t for key, t in named.items() if key != name}


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        (without("blocks.1.norm2.bias"), {}, "it has no 'blocks.1.network.0.bias'; it holds class_token, position,"),
        (lambda named: named, {"layers": 3}, "it has no 'blocks.2.attention.0.weight'"),
        (lambda named: named, {"width": 16}, r"'class_token' has the shape \[8\] there and \[16\] here"),
        (lambda named: named, {"patch": 2}, r"'patches.weight' has the shape \[8, 18\] there and \[8, 8\] here"),
        (lambda named: {"a": torch.zeros(1)}, {}, "it has no 'class_token'; it holds a"),
        (
            lambda named: named | {"pos_embed": torch.zeros(1, 4, WIDTH)},
            {},
            r"'position' has the shape \[4, 8\] there and \[5, 8\] here",
        ),
        (
            lambda named: named | {"blocks.0.attn.qkv.weight": torch.zeros(5, WIDTH)},
            {},
            "it has no 'blocks.0.attention.1.queries.weight'",
        ),
        (
            lambda named: named | {"head.bias": torch.tensor(1.0)},
            {},
            r"'head.bias' has the shape \[\] there and \[4\] here",
        ),
        (
            lambda named: named | {"cls_token": torch.full((1, 1, WIDTH), torch.nan)},
            {},
            "'class_token' holds something else than finite numbers",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = write(change(as_timm(PublishedViT())), tmp_path / "vit.pt")
    with pytest.raises(BadInputError, match=complaint) as refusal:
        start_from(make(**options), path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.to_sparse(), "'1.weight' is a tensor of the layout sparse_coo; save plain, dense tensors"),
        (lambda t: t.to_sparse_csr(), "'1.weight' is a tensor of the layout sparse_csr"),
        (lambda t: t.to("meta"), "'1.weight' is a tensor without numbers"),
        (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "'1.weight' is a quantized tensor"),
        (lambda t: torch.nested.nested_tensor([t, t[:2]]), "'1.weight' is a tensor of the layout|cannot be read"),
        (lambda t: torch.zeros(1, 1).expand(4, 6), "'1.weight' is a tensor that repeats its numbers"),
        (lambda t: t.to(torch.complex64), "'1.weight' holds something else than finite numbers"),
        (lambda t: t.to(torch.float64) * 1e300, "'1.weight' holds something else than finite numbers"),
        (lambda t: (t + torch.inf).to(torch.float8_e5m2), "'1.weight' holds something else than finite numbers"),
        (lambda t: torch.zeros(4, 6, dtype=torch.int8), "'1.weight' holds something else than finite numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's about layouts that it calls prototypes
def test_tensors_that_do_not_simply_hold_numbers_are_refused(change: Any, complaint: str, tmp_path: Path) -> None:
    model = build_model("mlp", DataSpec("classification", 3, (6,)), {"hidden": (4,)}, 0)
    named = {name: p.detach() for name, p in model.named_parameters()}
    assert "1.weight" in named
    torch.save(named | {"1.weight": change(named["1.weight"])}, tmp_path / "odd.pt")
    with pytest.raises(BadInputError, match=complaint):
        start_from(model, tmp_path / "odd.pt")


def test_small_floats_are_taken(tmp_path: Path) -> None:
    model = build_model("mlp", DataSpec("classification", 3, (6,)), {"hidden": (4,)}, 0)
    named = {name: p.detach().to(torch.float8_e5m2) for name, p in model.named_parameters()}
    torch.save(named, tmp_path / "small.pt")
    start_from(model, tmp_path / "small.pt")
    assert torch.equal(model.get_parameter("1.weight"), named["1.weight"].float())


def test_positions_without_numbers_are_refused(tmp_path: Path) -> None:
    path = write(as_timm(PublishedViT()) | {"pos_embed": torch.zeros(1, 10, 0)}, tmp_path / "vit.pt")
    with pytest.raises(BadInputError, match=r"'position' has the shape \[10, 0\] there"):
        start_from(make(), path)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    model = make()
    for ending in (".safetensors", ".pt"):
        path = write(as_timm(PublishedViT()), tmp_path / f"cut{ending}")
        path.write_bytes(path.read_bytes()[:-300])
        with pytest.raises(DamagedFileError, match=f"cut{ending} cannot be read"):
            start_from(model, path)
    torch.save(print, tmp_path / "code.pt")
    with pytest.raises(DamagedFileError, match=r"code\.pt cannot be read as a file of named tensors"):
        start_from(model, tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(BadInputError, match="must hold named tensors, but it holds a list"):
        start_from(model, tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(BadInputError, match="must hold named tensors, but it has none"):
        start_from(model, tmp_path / "none.pt")
    (tmp_path / "weights.npz").touch()
    with pytest.raises(BadInputError, match=r"must be a \.safetensors, \.pt, \.pth or \.bin file or a run folder"):
        start_from(model, tmp_path / "weights.npz")
    with pytest.raises(BadInputError, match="is not a run folder"):
        start_from(model, tmp_path)


@pytest.mark.parametrize("adaptation", ["all", "head_only"])
def test_a_run_in_double_precision_begins_with_every_digit_of_another(adaptation: str, tmp_path: Path) -> None:
    double = {"engine.name": "reference", "engine.dtype": "float64", "evaluation.every": 1}
    first = start_run(config(name="first", rounds=2, **double), tmp_path)
    settings = {"rounds": 2, "weights": str(first.path), "adaptation": adaptation, **double}
    whole = start_run(config(name="whole", **settings), tmp_path / "a")
    assert whole.rounds["loss"][0] == first.rounds["loss"][-1]
    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="whole", **settings), tmp_path / "b", StopAfter(1, interrupt))
    resume_run(tmp_path / "b" / "whole")
    assert content(tmp_path / "b" / "whole") == content(whole.path)


def test_the_same_file_has_the_same_fingerprint_in_every_precision(tmp_path: Path) -> None:
    safetensors.torch.save_file(make(seed=1).state_dict(), tmp_path / "file.safetensors")
    prints = [start_from(model, tmp_path / "file.safetensors").fingerprint for model in (make(), make().double())]
    assert prints[0] == prints[1]


def test_a_run_goes_on_from_another_and_resumes(tmp_path: Path) -> None:
    first = start_run(config(name="first", rounds=3, engine="reference"), tmp_path)
    settings = {"rounds": 4, "engine": "reference", "algorithm": "fedavg", "seed": 7, "weights": str(first.path)}
    whole = start_run(config(name="whole", **settings), tmp_path / "a")
    assert whole.rounds["accuracy"][0] == first.rounds["accuracy"][-1]
    log = (whole.path / "log.txt").read_text()
    assert f"The model starts from {first.path}: all parameters were taken" in log

    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="whole", **settings), tmp_path / "b", StopAfter(2, interrupt))
    resume_run(tmp_path / "b" / "whole")
    assert content(tmp_path / "b" / "whole") == content(whole.path)

    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="whole", **settings), tmp_path / "c", StopAfter(2, interrupt))
    first.path.rename(tmp_path / "moved")
    start_run(config(name="first", rounds=2, engine="reference"), tmp_path)
    with pytest.raises(BadInputError, match=r"does not hold the weights that the run .* began with"):
        resume_run(tmp_path / "c" / "whole")


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", "federation=digits", "weights=nowhere.pt", "rounds=1"])
    assert result.exit_code == 2
    assert f"weights: there is no file or run folder {tmp_path}/nowhere.pt" in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()

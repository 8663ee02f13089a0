"""The vision transformer against torch's own layers, and against the sizes that are published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedarena.models import DataSpec, build_model
from fedarena.models.blocks import Block
from fedarena.models.vit import VisionTransformer, vit

PICTURES = DataSpec("classification", 5, (2, 6, 12))


def torchs_layer(block: Block, width: int, heads: int, hidden: int) -> nn.TransformerEncoderLayer:
    """A layer of torch's with the numbers of one of our blocks."""
    layer = nn.TransformerEncoderLayer(
        width, heads, hidden, 0, nn.functional.gelu, 1e-6, batch_first=True, norm_first=True, dtype=torch.float64
    )
    attention = block.attention[1]
    parts = (attention.queries, attention.keys, attention.values)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    layer.self_attn.out_proj.load_state_dict(attention.output.state_dict())
    layer.norm1.load_state_dict(block.attention[0].state_dict())
    layer.norm2.load_state_dict(block.network[0].state_dict())
    layer.linear1.load_state_dict(block.network[1].state_dict())
    layer.linear2.load_state_dict(block.network[3].state_dict())
    return layer.eval()


def make(prompts: int = 0, seed: int = 0) -> VisionTransformer:
    options = {"patch": 3, "width": 12, "layers": 3, "heads": 2, "mlp_ratio": 1.5, "prompts": prompts}
    model = build_model("vit", PICTURES, options, seed)
    assert isinstance(model, VisionTransformer)
    return model.double()


def by_torch(model: VisionTransformer, x: Tensor) -> Tensor:
    """The same function out of torch's convolution and encoder layers."""
    convolution = nn.Conv2d(2, 12, 3, stride=3, dtype=torch.float64)
    with torch.no_grad():
        convolution.weight.copy_(model.patches.weight.view(12, 2, 3, 3))
        convolution.bias.copy_(model.patches.bias)
        states = convolution(x).flatten(2).transpose(1, 2)
        states = torch.cat([model.class_token.repeat(len(x), 1, 1), states], 1) + model.position
        for number, block in enumerate(model.blocks):
            count = 0 if model.prompts is None else model.prompts.shape[1]
            # after the patches here: without a position it makes no difference where they stand
            extra = [] if model.prompts is None else [model.prompts[number].repeat(len(x), 1, 1)]
            states = torchs_layer(block, 12, 2, 18)(torch.cat([states, *extra], 1))
            states = states[:, : states.shape[1] - count]
        features = nn.functional.layer_norm(states[:, 0], (12,), model.norm.weight, model.norm.bias, 1e-6)
        return features @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("prompts", [0, 3])
def test_it_computes_what_torchs_layers_compute(prompts: int) -> None:
    model, x = make(prompts), torch.randn(4, 2, 6, 12, dtype=torch.float64)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    torch.testing.assert_close(model(x), by_torch(model, x), rtol=0, atol=1e-12)


def test_prompts_change_nothing_else_in_a_fresh_model() -> None:
    without, with_prompts = make(0).state_dict(), make(2).state_dict()
    assert set(with_prompts) - set(without) == {"prompts"}
    assert with_prompts["prompts"].shape == (3, 2, 12)
    assert all(torch.equal(with_prompts[name], p) for name, p in without.items())


def test_every_prompt_and_every_patch_matters() -> None:
    model, x = make(2), torch.randn(1, 2, 6, 12, dtype=torch.float64, requires_grad=True)
    pixels, prompts = torch.autograd.grad(model(x).square().sum(), [x, model.prompts])
    assert (pixels != 0).all()
    assert (prompts != 0).any(-1).all()


def test_vit_b_has_as_many_parameters_as_the_published_one() -> None:
    imagenet = DataSpec("classification", 1000, (3, 224, 224))
    with torch.device("meta"):
        model = vit(imagenet, patch=16, width=768, layers=12, heads=12)
        tiny = vit(DataSpec("classification", 1000, (3, 224, 224)), patch=16, width=192, layers=12, heads=3)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656
    assert sum(p.numel() for p in tiny.parameters()) == 5_717_416

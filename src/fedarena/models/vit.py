"""The vision transformer (Dosovitskiy et al., "An Image Is Worth 16x16 Words", ICLR 2021), in any size.

With width 768, 12 layers, 12 heads and patches of 16 on pictures of 224 it is ViT-B/16, parameter by parameter; patches
are cut out and multiplied with a matrix, which is what its convolution with stride 16 does. Deep prompts are those of
Jia et al., "Visual Prompt Tuning", ECCV 2022 (VPT-Deep): before every block there are some learned vectors beside
the patches, and after it they are dropped.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import Block, check_heads
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_EPSILON = 1e-6  # of the normalization in published ViTs, ten times less than torch's default


class VisionTransformer(nn.Module):
    """Patches of a picture and a class token pass blocks of attention; the head reads the class token."""

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        patch: int,
        width: int,
        layers: int,
        heads: int,
        hidden: int,
        prompts: int,
    ):
        super().__init__()
        channels, self.rows, self.columns = image[0], image[1] // patch, image[2] // patch
        self.patch = patch
        features = channels * patch**2
        self.class_token = nn.Parameter(torch.empty(width))
        self.position = nn.Parameter(torch.empty(1 + self.rows * self.columns, width))
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.position, std=0.02)
        self.patches = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, causal=False, epsilon=_EPSILON) for _ in range(layers))
        self.norm = nn.LayerNorm(width, _EPSILON)
        self.head = nn.Linear(width, classes)
        self.prompts: nn.Parameter | None = None
        if prompts:  # drawn last, so that the rest of the model is the same with and without
            self.prompts = nn.Parameter(torch.empty(layers, prompts, width))
            bound = sqrt(6 / (features + width))
            nn.init.uniform_(self.prompts, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        cut = x.reshape(*x.shape[:2], self.rows, self.patch, self.columns, self.patch)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        states = torch.cat([_for_all(self.class_token[None], x), self.patches(patches)], 1) + self.position
        for number, block in enumerate(self.blocks):
            if self.prompts is None:
                states = block(states)
            else:
                prompts = self.prompts[number]
                states = block(torch.cat([_for_all(prompts, x), states], 1))[:, len(prompts) :]
        logits: Tensor = self.head(self.norm(states[:, 0]))
        return logits


def _for_all(vectors: Tensor, samples: Tensor) -> Tensor:
    return vectors.expand(len(samples), *vectors.shape)


@MODELS.register("vit")
def vit(
    spec: DataSpec,
    *,
    patch: int = 4,
    width: int = 64,
    layers: int = 4,
    heads: int = 4,
    mlp_ratio: float = 4.0,
    prompts: int = 0,
) -> nn.Module:
    """A vision transformer on patches of `patch` x `patch` pixels: `layers` blocks of `heads` heads, `width` features.

    The networks in the blocks have `mlp_ratio` times as many. `prompts` vectors are put before every block (VPT-Deep).
    With patch 16, width 768 and 12 layers of 12 heads it is ViT-B/16.
    """
    require(spec.is_image, "vit", "images (channels, height, width)", spec)
    at_least_one(patch=patch, width=width, layers=layers, heads=heads)
    check_heads(width, heads)
    if prompts < 0:
        raise BadInputError(f"model.prompts must be at least 0, not {prompts}")
    hidden = int(width * mlp_ratio)
    if hidden < 1:
        raise BadInputError(f"model.mlp_ratio must leave at least one of {width} features, but {mlp_ratio:g} does not")
    channels, image_height, image_width = spec.input_shape
    if image_height % patch or image_width % patch:
        raise BadInputError(
            f"model.patch must divide the height and the width of the images, "
            f"but {patch} does not divide {image_height} x {image_width}"
        )
    image = channels, image_height, image_width
    return VisionTransformer(image, spec.classes, patch, width, layers, heads, hidden, prompts)

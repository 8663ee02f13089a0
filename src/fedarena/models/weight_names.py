"""The names under which timm, torchvision and Hugging Face store the parameters of a ViT, and ours for them.

A BERT has the names of Hugging Face here, too, in one of several ways in which its files were written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedarena.models import Tensors


@dataclass(frozen=True)
class Convention:
    """How one library names layers; names end with ``.weight`` or ``.bias`` unless they are parameters themselves."""

    library: str
    block: re.Pattern[str]  # of names within blocks: the block's number and the rest
    inside: Mapping[str, str]  # layers within a block
    outside: Mapping[str, str]
    fused: str | None = None  # what holds queries, keys and values in one tensor
    prefix: str = ""  # that may be before all names


_QKV = ("attention.1.queries", "attention.1.keys", "attention.1.values")
_CONVENTIONS = (
    Convention(
        library="timm",
        block=re.compile(r"blocks\.(\d+)\.(.+)"),
        inside={
            "norm1": "attention.0",
            "attn.proj": "attention.1.output",
            "norm2": "network.0",
            "mlp.fc1": "network.1",
            "mlp.fc2": "network.3",
        },
        outside={"cls_token": "class_token", "pos_embed": "position", "patch_embed.proj": "patches"},
        fused="attn.qkv.",
    ),
    Convention(
        library="torchvision",
        block=re.compile(r"encoder\.layers\.encoder_layer_(\d+)\.(.+)"),
        inside={
            "ln_1": "attention.0",
            "self_attention.out_proj": "attention.1.output",
            "ln_2": "network.0",
            "mlp.0": "network.1",
            "mlp.3": "network.3",
            "mlp.linear_1": "network.1",  # in older files
            "mlp.linear_2": "network.3",
        },
        outside={
            "class_token": "class_token",
            "encoder.pos_embedding": "position",
            "conv_proj": "patches",
            "encoder.ln": "norm",
            "heads.head": "head",
        },
        fused="self_attention.in_proj_",
    ),
    Convention(
        library="Hugging Face",
        block=re.compile(r"(?:encoder\.layer|layers)\.(\d+)\.(.+)"),
        inside={
            "layernorm_before": "attention.0",
            "attention.attention.query": _QKV[0],
            "attention.attention.key": _QKV[1],
            "attention.attention.value": _QKV[2],
            "attention.output.dense": "attention.1.output",
            "layernorm_after": "network.0",
            "intermediate.dense": "network.1",
            "output.dense": "network.3",
            "attention.q_proj": _QKV[0],  # since transformers 5
            "attention.k_proj": _QKV[1],
            "attention.v_proj": _QKV[2],
            "attention.o_proj": "attention.1.output",
            "mlp.fc1": "network.1",
            "mlp.fc2": "network.3",
        },
        outside={
            "embeddings.cls_token": "class_token",
            "embeddings.position_embeddings": "position",
            "embeddings.patch_embeddings.projection": "patches",
            "layernorm": "norm",
            "classifier": "head",
        },
        prefix="vit.",
    ),
)
_BERT, _ALBERT, _BERT_PARTS = "bert.", "albert.", ("embeddings.", "encoder.", "pooler.")
_PARALLEL = "module."  # what torch's DataParallel puts before every name


def without_prefix(found: Tensors) -> Tensors:
    """The tensors of a model, also if it was trained on several GPUs."""
    if found and all(name.startswith(_PARALLEL) for name in found):
        return {name.removeprefix(_PARALLEL): t for name, t in found.items()}
    return found


def to_our_names(found: Tensors) -> tuple[Tensors, str | None]:
    """The tensors under our names and in our shapes, and the library whose names they had; None: they had ours."""
    for convention in _CONVENTIONS:
        named: Tensors = {}
        translated = 0
        for name, t in found.items():
            ours = _translate(convention, name.removeprefix(convention.prefix), t)
            translated += bool(ours)
            named |= ours or {name: t}
        # One tensor in a block tells the library: names outside of blocks are common to several.
        if any(convention.block.fullmatch(name.removeprefix(convention.prefix)) for name in found) and translated:
            return {name: _in_our_shape(name, t) for name, t in named.items()}, convention.library
    return dict(found), None


def to_names_of_bert(found: Tensors) -> Tensors:
    """The tensors of a BERT as a classifier has them: also those of a BERT alone, and of files from before 2019."""
    is_alone = not any(name.startswith(_BERT) for name in found)
    inside = {name: is_alone and name.startswith(_BERT_PARTS) for name in found}
    return {
        (_BERT if inside[name] else "") + _renamed_ending(name): t
        for name, t in found.items()
        if not name.endswith("position_ids")  # which only counts positions
    }


def to_names_of_albert(found: Tensors) -> Tensors:
    """The tensors of an ALBERT as a classifier or one that predicts tokens has them, also those of an ALBERT alone.

    What is there twice, because vectors of tokens are used for scores as well, is left out.
    """
    is_alone = not any(name.startswith(_ALBERT) for name in found)
    return {
        (_ALBERT if is_alone and name.startswith(_BERT_PARTS) else "") + name: t
        for name, t in found.items()
        if not name.endswith(("position_ids", ".decoder.weight", ".decoder.bias"))
    }


def _renamed_ending(name: str) -> str:
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _translate(convention: Convention, name: str, t: Tensor) -> Tensors:
    """A tensor under our name, or three; nothing if the convention does not know it."""
    match = convention.block.fullmatch(name)
    if match is None:
        ours = _renamed(convention.outside, name)
        return {ours: t} if ours else {}
    block = f"blocks.{match[1]}."
    if convention.fused and match[2].startswith(convention.fused) and t.dim() and len(t) % 3 == 0:
        kind = match[2].removeprefix(convention.fused)
        return {f"{block}{part}.{kind}": piece for part, piece in zip(_QKV, t.chunk(3), strict=True)}
    ours = _renamed(convention.inside, match[2])
    return {block + ours: t} if ours else {}


def _renamed(names: Mapping[str, str], name: str) -> str | None:
    if name in names:
        return names[name]
    layer, _, kind = name.rpartition(".")
    return f"{names[layer]}.{kind}" if layer in names else None


def _in_our_shape(name: str, t: Tensor) -> Tensor:
    """Without the dimension that stands for samples; a convolution over patches as a matrix."""
    if name == "class_token":
        return t.flatten()
    if name == "position" and t.dim() == 3:
        return t.flatten(0, 1)
    return t.flatten(1) if name == "patches.weight" and t.dim() == 4 else t

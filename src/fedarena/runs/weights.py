"""Starting a model from the weights in a file, or from where another run ended.

Names are those of our models. A `vit` also takes the names under which published ViTs are stored (see
`fedarena.models.weight_names`), position embeddings of another grid of patches, and no prompts. A BERT or an ALBERT
takes the files and folders that Hugging Face's library writes; networks for photographs have torchvision's names. The
last layer of any model may be for another number of classes; then it stays as freshly drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedarena.algorithms import ALGORITHMS
from fedarena.algorithms.layers import last_layer
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.core.own import is_own
from fedarena.core.registry import make_part
from fedarena.core.user_warnings import warn_user
from fedarena.core.words import some
from fedarena.models import Tensors
from fedarena.models.adaptation.adapter import is_of_adapter
from fedarena.models.adaptation.lora import is_low_rank, merged_for
from fedarena.models.albert import Albert
from fedarena.models.bert import Bert
from fedarena.models.imagenet import ImageNetwork
from fedarena.models.vit import VisionTransformer
from fedarena.models.weight_names import to_names_of_albert, to_names_of_bert, to_our_names, without_prefix
from fedarena.runs.config import read_settings, resolve
from fedarena.runs.own_source import changed_source_of
from fedarena.simulate import ClientStates
from fedarena.storage.checkpoint import read_snapshot, read_state
from fedarena.storage.run_files import CONFIG_FILE, RunFiles, read_constants
from fedarena.train import Algorithm, Groups
from fedarena.train.own_code import prepare_algorithm

# Under which files of whole trainings keep the model.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_HUGGING_FACE_FILES = ("model.safetensors", "pytorch_model.bin")  # the first one is preferred
_CHECKSUM = "fedarena_checksum"  # of all tensors, among what a file says about itself
_MOST_NAMED = 6


@dataclass(frozen=True)
class StartingWeights:
    """What a model was given: what the user should know about it, and a fingerprint of the numbers."""

    notes: list[str]
    fingerprint: str


def start_from(module: nn.Module, path: Path) -> StartingWeights:
    """Puts the weights of a file or a run folder into a model."""
    found = merged_for(module.state_dict(), without_prefix(read_weights(path)))
    _check_adapters(module, found, path)
    named, library, notes = found, None, []
    if isinstance(module, VisionTransformer):
        named, library = to_our_names(found)
        notes = _resample_positions(module, named)
    if isinstance(module, Bert):
        named = to_names_of_bert(found)
    if isinstance(module, Albert):
        named = to_names_of_albert(found)
    if isinstance(module, Bert | Albert):
        _check_vocabulary(module, named, path)
    if isinstance(module, ImageNetwork):
        named = module.without_counters(found)
        if (reason := module.why_not(named)) is not None:
            raise BadInputError(f"{path} does not fit the model: {reason}")
    own: Tensors = dict(module.named_parameters())
    fresh = _left_out(own, named)
    taken = {name: _fitting(name, p, named, path) for name, p in own.items() if name not in fresh}
    if not taken:
        raise BadInputError(f"{path} does not fit the model, which has {_some(own)}; it holds {_some(found)}")
    buffers = {name: t for name, t in module.state_dict().items() if name not in own and name in named}
    kept = {name: _same_shape(name, buffer, named[name], path) for name, buffer in buffers.items()}
    with torch.no_grad():
        for name, value in (taken | kept).items():
            (own | buffers)[name].copy_(value)
    source = f"{path}, which has the names of {library}" if library else f"{path}"
    amount = f"{len(taken)} of its {len(own)} parameters were taken" if fresh else "all parameters were taken"
    notes = [f"The model starts from {source}: {amount}", *notes]
    if fresh:
        notes[0] += f"; freshly drawn: {_some(fresh)}"
    unused = [name for name in named if name not in own and name not in buffers]
    if unused:
        notes.append(f"The model has no use for {_some(unused)} of {path}")
    return StartingWeights(notes, _fingerprint(taken | kept))


def _check_adapters(module: nn.Module, found: Tensors, path: Path) -> None:
    """Refuses a model whose adapters would be left out: without them its other layers were never meant to be."""
    own = module.state_dict()
    if any(is_of_adapter(name) and name not in own for name in found):
        raise BadInputError(
            f"{path} does not fit the model: it was trained with adaptation=adapter; set that here, too"
        )


def _check_vocabulary(module: Bert | Albert, named: Tensors, path: Path) -> None:
    """Refuses a BERT that knows other tokens than the federation has."""
    here = {name: p for name, p in module.named_parameters() if name.endswith("word_embeddings.weight")}
    ((name, own),) = here.items()
    there = named.get(name)
    if there is not None and there.dim() == 2 and len(there) != len(own):
        raise BadInputError(
            f"{path} knows {len(there):,} tokens and the federation has {len(own):,}; make the federation with the "
            "model's own vocabulary, as federation=glue does with federation.tokenizer=…/vocab.txt"
        )


def _left_out(own: Tensors, named: Tensors) -> list[str]:
    """What stays as it was drawn.

    A head that is not there or for other classes, and what is added to a model that a file has without: prompts,
    adapters, LoRA's matrices.
    """
    head = last_layer(own)
    of_other_classes = any(
        name not in named
        or (named[name].dim() == p.dim() and named[name].shape[1:] == p.shape[1:] and named[name].shape != p.shape)
        for name, p in own.items()
        if name in head
    )
    added = {n for n in own if (n == "prompts" or is_of_adapter(n) or is_low_rank(n)) and n not in named}
    return [name for name in own if (name in head and of_other_classes) or name in added]


def _fitting(name: str, p: Tensor, named: Tensors, path: Path) -> Tensor:
    """The value for a parameter."""
    value = named.get(name)
    if value is None:
        raise BadInputError(f"{path} does not fit the model: it has no {name!r}; it holds {_some(named)}")
    value = _same_shape(name, p, value, path)
    # Small floats know no isfinite. What a file has in float32 stays so: its fingerprint is that of the same numbers.
    is_coarser = p.dtype == torch.float64 and value.dtype != torch.float64
    dtype = torch.float32 if is_coarser else p.dtype
    converted = value.to(dtype) if value.is_floating_point() else None
    if converted is None or not torch.isfinite(converted).all():
        raise BadInputError(f"{path} cannot be used: {name!r} holds something else than finite numbers")
    return converted


def _same_shape(name: str, here: Tensor, value: Tensor, path: Path) -> Tensor:
    if value.shape != here.shape:
        shapes = f"{list(value.shape)} there and {list(here.shape)} here"
        raise BadInputError(f"{path} does not fit the model: {name!r} has the shape {shapes}")
    return value


def read_weights(path: Path) -> Tensors:
    """The named tensors of a file (``.safetensors``, ``.pt``, ``.pth``, ``.bin``), or the latest model of a run folder.

    A folder that Hugging Face's library wrote stands for the file of weights that is in it.
    """
    if path.is_dir():
        saved = [path / name for name in _HUGGING_FACE_FILES if (path / name).is_file()]
        if not saved or (path / CONFIG_FILE).exists():
            return _from_run(path)
        path = saved[0]
    if not path.exists():
        raise BadInputError(f"weights: there is no file or run folder {path}")
    ending = path.suffix.lower()
    if ending == ".safetensors":
        return _from_safetensors(path)
    if ending in (".pt", ".pth", ".bin"):
        return _from_torch(path)
    raise BadInputError(f"weights must be a .safetensors, .pt, .pth or .bin file or a run folder, not {path}")


def _from_run(folder: Path) -> Tensors:
    if not (folder / CONFIG_FILE).exists():
        raise BadInputError(f"weights: {folder} is not a run folder: it has no {CONFIG_FILE}")
    state = read_state(folder)
    if state is None:
        raise BadInputError(f"weights: the run {folder} has no finished round yet")
    files = RunFiles.open(folder)
    files.check_first_files()
    server = read_snapshot(folder, state, ClientStates()).state
    return _evaluated(folder, server) | read_constants(files)


def _evaluated(folder: Path, server: Groups) -> Tensors:
    """The parameters that a run scores, which an algorithm of somebody's own may make of the server's state."""
    settings = read_settings(folder / CONFIG_FILE)
    if settings.get("algorithm", {}).get("name") in ALGORITHMS.names():
        return server["params"]
    config = resolve(settings)
    kind = ALGORITHMS.get(config.algorithm["name"])
    if not (is_own(kind.evaluation_params) or is_own(kind.broadcast)):
        return server["params"]
    if changed := changed_source_of(config, folder):
        warn_user(f"{some(changed)} changed since the run {folder} began: its weights are what is made of them now")
    algorithm = make_part(ALGORITHMS, config.algorithm, Algorithm, "an algorithm", config.seed)
    prepare_algorithm(algorithm, config.seed, config.cohort or 1, config.local, config.horizon or config.rounds)
    return algorithm.evaluation_params(server)


def safetensors_bytes(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """A file of weights, with a checksum of them among what it says `about` itself."""
    return safetensors.torch.save(tensors, {"format": "pt", **about, _CHECKSUM: _checksum(tensors)})


def _checksum(tensors: Tensors) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {list(t.shape)}\n".encode())
        digest.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _from_safetensors(path: Path) -> Tensors:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            checksum = (file.metadata() or {}).get(_CHECKSUM)  # in files that were written here
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except Exception as error:  # also about kinds of numbers that torch does not know
        raise DamagedFileError(f"{path} cannot be read as safetensors: {_one_line(error)}") from None
    if checksum is not None and checksum != _checksum(tensors):
        raise DamagedFileError(f"{path} is damaged: its weights do not match their checksum")
    return tensors


def _from_torch(path: Path) -> Tensors:
    """Tensors alone: a file that would have other objects made is refused."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets in a damaged file
        detail = f": {_one_line(error)}" if isinstance(error, OSError) else ", as torch.save writes it"
        raise DamagedFileError(f"{path} cannot be read as a file of named tensors{detail}") from None
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise BadInputError(f"{path} must hold named tensors, but it holds a {type(content).__name__}")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise BadInputError(f"{path} must hold named tensors, but it has none")
    for name, value in tensors.items():
        if (kind := _unusable(value)) is not None:
            raise BadInputError(f"{path} cannot be used: {quoted(name)} is {kind}; save plain, dense tensors")
    return tensors


def _unusable(value: Tensor) -> str | None:
    """What a tensor is, if it does not simply hold its numbers one after the other."""
    if value.is_meta:
        return "a tensor without numbers (on the device meta)"
    if value.is_quantized:
        return "a quantized tensor"
    if value.is_nested or value.layout is not torch.strided:
        return f"a tensor of the layout {str(value.layout).removeprefix('torch.')}"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "a tensor that repeats its numbers"  # a small file could stand for any size
    return None


def _resample_positions(module: VisionTransformer, named: Tensors) -> list[str]:
    """Makes position embeddings of a square grid of patches those of the model's grid, and says so."""
    position = named.get("position")
    if position is None or position.dim() != 2 or not position.numel() or not position.is_floating_point():
        return []
    patches, target = len(position) - 1, (module.rows, module.columns)
    side = isqrt(max(0, patches))
    if side < 1 or side**2 != patches or (side, side) == target:
        return []  # there is nothing to do, or nothing that can be done
    grid = position[1:].float().T.reshape(1, -1, side, side)
    resized = nn.functional.interpolate(grid, size=target, mode="bicubic", antialias=True)
    named["position"] = torch.cat([position[:1].float(), resized[0].flatten(1).T])
    return [f"Positions of {side} x {side} patches were interpolated to {module.rows} x {module.columns}"]


def _fingerprint(tensors: Tensors) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, t in tensors.items():
        digest.update(name.encode())
        digest.update(t.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _some(names: Mapping[str, Any] | list[str]) -> str:
    shown = list(names)[:_MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:160]

"""Choosing and building a model for a federation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.core.registry import Registry
from fedarena.core.seeding import all_seeded, other_generators, seeded
from fedarena.core.streams import torch_seed
from fedarena.models.dropout import with_keyed_dropout
from fedarena.models.own_parameters import (
    check_is_built_alike,
    check_keeps_nothing_of_the_first_call,
    check_uses_what_it_is_given,
)
from fedarena.models.probes import check_scores_apart
from fedarena.models.spec import DataSpec
from fedarena.models.tasks import Task, Tensors, make_task
from fedarena.models.trainable import trainable_parameters

ModelBuilder = Callable[..., nn.Module]

MODELS: Registry[ModelBuilder] = Registry("model", takes=("spec",), may_need_nothing=nn.Module)


def default_model(spec: DataSpec) -> str:
    """The model that trains well on such data within minutes."""
    for_kind = {
        "next_token": "char_mlp",
        "masked_token": "albert",
        "translation": "seq2seq",
        "transcription": "deepspeech_small",
    }
    if spec.kind in for_kind:
        return for_kind[spec.kind]
    if spec.is_text:
        return "bag_of_words"
    if spec.graph_shape is not None:
        return "gcn"
    if spec.inputs:
        are_codes = all(part.values and not part.shape for part in spec.inputs)
        can_match = are_codes and (len(spec.inputs) == 2 or (spec.kind == "rating" and len(spec.inputs) == 1))
        has_codes = any(part.values for part in spec.inputs)
        return "embedding_mlp" if has_codes and not can_match else "matrix_factorization"
    if spec.is_audio:
        return "speech_cnn"
    if spec.is_image:
        return "cnn"
    if spec.is_sequence:
        return "gru"
    return "linear" if spec.kind in ("regression", "rating") else "logistic_regression"


def build_model(
    name: str, spec: DataSpec, options: dict[str, Any], seed: int, task: Callable[[nn.Module], Task] | None = None
) -> nn.Module:
    """A freshly initialized model; the same seed gives the same weights.

    It is tried out with the `task` that is made of it, or else with the one that such data asks for.
    """
    builder = MODELS.get(name)
    form = (spec,) if "spec" in inspect.signature(builder).parameters else ()  # a plain module knows its own shapes

    def build() -> nn.Module:
        with all_seeded(torch_seed(seed, "model")), _unwritten_memory_is_nan() if is_own(builder) else nullcontext():
            return builder(*form, **as_declared(builder, options))

    module = build()
    if not isinstance(module, nn.Module):
        raise BadInputError(f"The model {name!r} must give a torch module, but it gives a {type(module).__name__}")
    if not trainable_parameters(module):
        frozen = " but frozen ones (requires_grad=False)" if next(module.parameters(), None) is not None else ""
        raise BadInputError(f"The model {name!r} has no parameters{frozen}, so there is nothing to train")
    _refuse_what_engines_cannot_take(name, module)
    _refuse_unknown_parameters(name, module)
    if not inspect.isclass(builder) and is_own(builder):
        module = copy.deepcopy(module)  # it may give the same one every time, which others use as well
    module = with_keyed_dropout(module)
    never_called = copy.deepcopy(module) if is_own(builder) else None
    for samples in (2, 1):
        made = task(module) if task else make_task(module, spec)
        _try_out(name, made, samples)
    if never_called is not None:
        check_keeps_nothing_of_the_first_call(name, made, never_called)
        del never_called  # it may be large
        check_uses_what_it_is_given(name, made)
        again = with_keyed_dropout(build())
        check_is_built_alike(name, made, task(again) if task else make_task(again, spec))
    check_scores_apart(made)
    return module


@contextmanager
def _unwritten_memory_is_nan() -> Iterator[None]:
    """Within this context, numbers of tensors that nobody has written are NaN, and not what was in memory before."""
    filling = torch.utils.deterministic
    before = filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    filling.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        filling.fill_uninitialized_memory = before  # type: ignore[attr-defined]
        torch.set_deterministic_debug_mode(mode)


def _refuse_what_engines_cannot_take(name: str, module: nn.Module) -> None:
    """Engines copy a model, and record what it computes."""
    for path, part in module.named_modules():
        is_script = isinstance(part, torch.jit.ScriptModule)
        if is_script or hasattr(part, "_orig_mod"):  # what torch.compile puts around a module
            by = "torch.jit" if is_script else "torch.compile"
            where = f"its layer {path!r} is" if path else "it is"
            raise BadInputError(
                f"The model {name!r} cannot be recorded, because {where} compiled by {by}; "
                "leave that out: engines compile what they record"
            )
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for path, tensor in named:
        if is_lazy(tensor):
            raise BadInputError(
                f"The model {name!r} has {path!r}, of which nobody knows the shape yet; give layers their sizes, "
                "and take no lazy ones"
            )
        if tensor.is_floating_point() and tensor.isnan().any():
            raise BadInputError(
                f"The model {name!r} has {path!r} with numbers that are not a number, such as those of torch.empty, "
                "which are whatever was in memory; initialize it (nn.init, torch.zeros)"
            )
        if tensor.is_complex():
            raise BadInputError(
                f"The model {name!r} has {path!r} of complex numbers, of which engines keep the real part alone; keep "
                "both parts as real numbers (torch.view_as_real)"
            )
    try:
        copy.deepcopy(module)
    except Exception as error:  # somebody's own model can fail in any way
        reason = " ".join(str(error).split())
        raise BadInputError(
            f"The model {name!r} cannot be copied ({reason}); instead of torch.nn.utils.weight_norm, "
            "take torch.nn.utils.parametrizations.weight_norm"
            if "weight_norm" in reason
            else f"The model {name!r} cannot be copied with copy.deepcopy, which engines do: {reason}"
        ) from error


def _refuse_unknown_parameters(name: str, module: nn.Module) -> None:
    """What torch does not know as a parameter would be neither trained nor sent nor kept, without a word."""
    known = {id(p) for p in module.parameters()}
    for path, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute.startswith("_"):  # where torch keeps what it knows
                continue
            collection = value.values() if isinstance(value, dict) else value
            entries = list(collection) if isinstance(value, (dict, list, tuple)) else [value]
            held: list[Tensor] = [p for entry in entries if isinstance(entry, nn.Module) for p in entry.parameters()]
            held += [entry for entry in entries if isinstance(entry, Tensor) and entry.requires_grad]
            if any(id(p) not in known for p in held):
                where = f"{path}.{attribute}" if path else attribute
                raise BadInputError(
                    f"The model {name!r} has parameters in {where!r} that torch does not know, so they would be "
                    "neither trained nor sent; take nn.ModuleList, nn.ModuleDict or nn.Parameter there"
                )


def _try_out(name: str, task: Task, samples: int) -> None:
    """Refuses a model that cannot be trained on such data, or that remembers what it was trained on."""
    module, spec = task.module, task.spec
    batch = task.batch(task.example(samples))
    buffers = dict(module.named_buffers())
    before = {path: buffer.clone() for path, buffer in buffers.items()}
    params: Tensors = dict(module.named_parameters())
    versions = {path: (p._version, p.detach().clone()) for path, p in params.items()}
    training = {part: part.training for part in module.modules()}
    failure: Exception | None = None
    repeats = True
    module.train()
    with seeded(0), torch.no_grad():
        # Different values in every place: statistics of constants could stay as they are.
        drawn = task.meaningless(batch)
        generators = other_generators()
        try:
            keyed = {**drawn, "key": torch.zeros((), dtype=torch.int64)}
            with seeded(1):
                outputs = task.predict(params, keyed)
            if not isinstance(outputs, Tensor):
                raise TypeError(f"it must put out one tensor, and puts out a {type(outputs).__name__}")
            task.check_outputs(outputs, drawn)
            with seeded(1):
                repeats = torch.equal(torch.nan_to_num(task.predict(params, keyed)), torch.nan_to_num(outputs))
            with torch.enable_grad():
                trained = {name: p.detach().requires_grad_(p.requires_grad) for name, p in params.items()}
                wanted = [p for p in trained.values() if p.requires_grad]
                loss = task.loss(trained, drawn)
                if not loss.requires_grad:
                    raise ValueError("the loss depends on none of its parameters; look for detach(), .data and no_grad")
                gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
                if any(g is not None and g.is_sparse for g in gradients):
                    raise ValueError("gradients of embeddings must not be sparse; leave out sparse=True")
        except Exception as error:  # somebody's own model can fail in any way
            failure = error
        after = {path: buffer.clone() for path, buffer in module.named_buffers()}
        for path, buffer in buffers.items():
            layer, _, attribute = path.rpartition(".")
            if not torch.equal(buffer, before[path]):
                buffer.copy_(before[path])
            setattr(module.get_submodule(layer), attribute, buffer)
    for part, mode in training.items():
        part.training = mode
    for path, value in after.items():
        if path not in before or not torch.equal(value, before[path]):
            layer = path.rpartition(".")[0]
            kind = type(module.get_submodule(layer)).__name__
            where = f"its layer {layer!r} ({kind})" if layer else f"its buffer {path!r}"
            raise BadInputError(
                f"The model {name!r} keeps running statistics in {where}, "
                "which would leak from one client to the next; use GroupNorm instead, "
                "or a layer that stays in evaluation mode (override `train`)"
            )
    for path, (version, value) in versions.items():
        # A row that is short enough is written, but not changed, by an embedding with max_norm.
        if params[path]._version != version or not torch.equal(params[path], value):
            raise BadInputError(
                f"The model {name!r} changes its parameter {path!r} in place when it is called, as an embedding with "
                "max_norm does, which would reach other clients; compute with a copy that is changed"
            )
    if other_generators() != generators:
        raise BadInputError(
            f"The model {name!r} draws random numbers from the global generator of NumPy or Python; use torch's, which "
            "is seeded for every client and round"
        )
    if not repeats:
        raise BadInputError(
            f"The model {name!r} puts out something else when it is called again with the same samples; it must "
            "remember nothing between calls, change nothing in what it is given (x = x - 1, and not x -= 1), and draw "
            "from no generator but torch's"
        )
    if failure is not None:
        reason = " ".join(f"{type(failure).__name__}: {failure}".split())
        raise BadInputError(f"The model {name!r} does not work on this federation's {spec}: {reason}") from failure


def at_least_one(**options: int | Sequence[int]) -> None:
    """Refuses options that count something (or list such counts) and are below 1."""
    for name, given in options.items():
        for number in [given] if isinstance(given, int) else given:
            if number < 1:
                raise BadInputError(f"model.{name} must be at least 1, not {number}")


def require(condition: bool, model: str, needs: str, spec: DataSpec) -> None:
    """Refuses a federation that the model cannot be built for."""
    if not condition:
        raise BadInputError(
            f"The model {model!r} needs {needs}, but this federation has {spec}; try model={default_model(spec)}"
        )

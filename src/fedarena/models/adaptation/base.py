"""What an adaptation is: it decides which tensors of a model are trained, and may add some.

Whatever is frozen stays as the model was built or as `weights` made it, on every client and at the server: it is
neither sent nor clipped nor disturbed by noise, and it does not count. So a private run adds noise to little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.core.seeding import seeded
from fedarena.core.streams import torch_seed
from fedarena.core.words import some
from fedarena.models.parameter_names import last_layer, layer_of, matching
from fedarena.models.tasks import Task, Tensors
from fedarena.models.trainable import trainable_parameters


class Adaptation:
    """What of a model is trained. One of your own overrides `adapt`; keyword-only arguments are its options."""

    expects_weights: ClassVar[bool] = True  # whether there is little to learn with a model that starts from scratch

    def adapt(self, task: Task) -> None:
        """Freezes parameters of the task's model, or adds some; the model must compute the same as before.

        Parameters that are frozen already stay so. Names that a model had stay, too, so that weights find it.
        """
        raise NotImplementedError


ADAPTATIONS: Registry[type[Adaptation]] = Registry("adaptation", base=Adaptation, takes=())


@ADAPTATIONS.register("all")
class TrainAll(Adaptation):
    """Everything is trained that a model does not freeze itself."""

    expects_weights: ClassVar[bool] = False

    def adapt(self, task: Task) -> None:
        """There is nothing to do."""


def adapt(task: Task, adaptation: Adaptation, name: str, seed: int) -> None:
    """Adapts a task's model, drawing what is added from the seed; refuses what could never learn."""
    if isinstance(adaptation, TrainAll):
        return
    before = dict(task.module.named_parameters())
    with seeded(torch_seed(seed, "adaptation")):
        adaptation.adapt(task)
    trained = trainable_parameters(task.module)
    if not trained:
        raise BadInputError(f"adaptation={name} leaves nothing of the model to train")
    added = {key: p for key, p in trained.items() if key not in before}
    if added:
        _check_reached(task, added, name)


def _check_reached(task: Task, added: dict[str, Tensor], name: str) -> None:
    """Refuses tensors that outputs do not depend on: a model may use a layer's weights without calling the layer."""
    gradients = torch.autograd.grad(outputs_of_example(task).sum(), list(added.values()), allow_unused=True)
    idle = [key for key, gradient in zip(added, gradients, strict=True) if gradient is None]
    if idle:
        raise BadInputError(
            f"adaptation={name} cannot reach {some(idle)}: the model uses these layers without calling them; name "
            "others in adaptation.layers"
        )


def outputs_of_example(task: Task, params: Tensors | None = None) -> Tensor:
    """What the model puts out for two meaningless samples, with other parameters than its own where some are given."""
    with seeded(0):
        return task.predict(params or {}, task.meaningless(task.batch(task.example(2))))


def output_shapes(task: Task) -> dict[str, torch.Size]:
    """By name, in the order of calls, the shapes of what layers put out for two samples, where it is one tensor."""
    shapes: dict[str, torch.Size] = {}

    def note(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.ndim > 1:
            shapes[name] = output.shape

    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, layer in task.module.named_modules()
    ]
    try:
        with torch.no_grad():
            outputs_of_example(task)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def freeze_all_but(module: nn.Module, names: Iterable[str]) -> None:
    """Parameters of these names are trained on, unless they were frozen; all others stay as they are."""
    kept = set(names)
    for name, p in module.named_parameters():
        if name not in kept:
            p.requires_grad_(False)


def head_of(module: nn.Module) -> list[str]:
    """The parameters of the last layer, which is for the federation's classes and thus always new."""
    return last_layer(name for name, _ in module.named_parameters())


def called_instead_of_last(task: Task, params: Iterable[str]) -> tuple[str, str] | None:
    """The layer that is taken for the last one, and the one that the model calls last, if that is another.

    A layer that the model does not call, or that alone puts out as much as the model, is believed to be the last.
    """
    shapes, declared = output_shapes(task), layer_of(last_layer(params)[0])
    of_parameters = {name for name, layer in task.module.named_modules() if layer._parameters and not layer._modules}
    *_, called = [None, *(name for name in shapes if name in of_parameters)]
    if called is None or declared not in shapes or called == declared:
        return None
    outputs = shapes[""][-1] if "" in shapes else None
    return None if shapes[declared][-1] == outputs != shapes[called][-1] else (declared, called)


def chosen_layers(usual: Sequence[str], possible: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """The layers that patterns name among those that are possible; without patterns the usual ones."""
    if patterns is None:
        if not usual:
            known = f"; adaptation.layers names some of {some(list(possible))}" if possible else ""
            raise BadInputError(f"This adaptation has no usual place in the model{known}")
        return list(usual)
    for pattern in patterns:
        if not matching(possible, [pattern]):
            raise BadInputError(
                f"adaptation.layers: {pattern!r} matches no layer that can be adapted; there are {some(list(possible))}"
            )
    return matching(possible, patterns)

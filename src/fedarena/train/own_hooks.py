"""Hooks of an algorithm of somebody's own, tried out before a run: what would go wrong without a word is refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors, seeded, trainable_parameters
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import Client, newcomer
from fedarena.train.layers import LayerTracker
from fedarena.train.memories import ENTRIES, changed_memories, memories_of, memory_refused
from fedarena.train.own_code import check_group_names, check_same_form, corrected_gradient, is_own, refusing_draws
from fedarena.train.tensors import Groups

_NEARLY = 0.85  # how alike two names are, from 0 to 1
_LEAST_BITS = 32  # of numbers that are added up over clients
_DRAWS = 'client.job.normal("purpose", like=tensor) or client.job.uniform'
_KEPT = "client.broadcast has what was downloaded, and client_init's groups what a client keeps from job to job"


def check_client_weight(algorithm: Algorithm) -> None:
    """Refuses a weight of a client that depends on who else is counted with it, which only the engine decides."""
    if not is_own(type(algorithm).client_weight):
        return
    who = f"client_weight of {type(algorithm).__name__}"
    numbers = np.array([3, 5])

    def weights(chosen: Any) -> Any:
        some = numbers[chosen]
        found = algorithm.client_weight(Work(some, some, some, some.astype(np.float64)))
        return np.broadcast_to(np.asarray(found, dtype=np.float64), len(some))

    try:
        together, apart = weights([0, 1]), [weights([0])[0], weights([1])[0]]
    except Exception as error:
        raise BadInputError(
            f"{who} is called with arrays that have an entry per client, and fails there: {type(error).__name__}: "
            f"{str(error)[:160]}; write it in NumPy, such as np.minimum(work.samples, 50)"
        ) from error
    if not np.allclose(together, apart):
        raise BadInputError(
            f"{who} gives a client another weight when others are with it; give every client its own, the mean divides "
            "by their sum"
        )


def misspelt_hooks(algorithm: Algorithm) -> list[str]:
    """What the user should know about methods that nothing calls, but whose names are nearly those of hooks."""
    hooks = [name for name in dir(Algorithm) if not name.startswith("_")]
    kinds = [kind for kind in type(algorithm).__mro__ if is_own(kind)]
    own = {name for kind in kinds for name, value in vars(kind).items() if callable(value)}
    found = {name: difflib.get_close_matches(name, hooks, 1, _NEARLY) for name in sorted(own - set(hooks))}
    return [
        f"{type(algorithm).__name__} has a method {name!r}, which no engine calls; did you mean {near[0]!r}?"
        for name, near in found.items()
        if near and not name.startswith("_")
    ]


def check_own_hooks(algorithm: Algorithm, task: Task) -> None:
    """Refuses an algorithm of somebody's own that draws from a global generator, remembers something in itself, changes
    what it is given, has a loss of other parameters, or groups that cannot be stored.
    """
    kind = type(algorithm)
    if not is_own(kind):
        return
    check_client_weight(algorithm)
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    with _unchanged(f"{kind.__name__}.server_init", {"the parameters that it gets": params}):
        state = algorithm.server_init(params)
    check_group_names(algorithm, state, "server's state")
    with _unchanged(f"{kind.__name__}.broadcast", {"the server's state": state}):
        broadcast = algorithm.broadcast(state)
    with _unchanged(f"{kind.__name__}.evaluation_params", {"the server's state": state}):
        check_same_form(algorithm.evaluation_params(state), params, f"{kind.__name__}.evaluation_params")
    check_group_names(algorithm, algorithm.client_init(broadcast), "clients' state")
    if not algorithm.trains_freely:
        with LayerTracker(task.module) as tracker:
            _Trial(algorithm, task, tracker).hooks_of_clients(broadcast, params)


class _Trial:
    """An algorithm whose hooks are called with made-up samples, each twice."""

    def __init__(self, algorithm: Algorithm, task: Task, tracker: LayerTracker):
        self._algorithm, self._task, self._tracker = algorithm, task, tracker
        self._name = type(algorithm).__name__

    def hooks_of_clients(self, broadcast: Groups, params: Tensors) -> None:
        """Tries all hooks in the order in which a client calls them."""
        algorithm, name = self._algorithm, self._name
        state = self._tried("client_init", lambda: algorithm.client_init(broadcast), {"broadcast": broadcast})
        client = newcomer(broadcast, state)
        given = {"client.broadcast": broadcast, "client.state": state}
        start = self._tried("local_start", lambda: algorithm.local_start(client), given)
        batch = self._batch(next(iter(params.values())).device)
        with torch.enable_grad():
            leaves = {name: p.detach().clone().requires_grad_() for name, p in start.items()}
            seen = {**given, "batch": batch, "params": leaves}
            loss = self._tried("local_loss", lambda: algorithm.local_loss(self._task, leaves, batch, client), seen)
            grad = self._gradient(loss, leaves)
        with torch.no_grad():
            seen = {**given, "params": start}

            def corrected() -> Tensors:
                return corrected_gradient(algorithm, {name: g.clone() for name, g in grad.items()}, start, client)

            self._tried("local_gradient", corrected, seen)
            sent = self._tried("client_update", lambda: algorithm.client_update(start, client, Work(2, 1, 2)), seen)
        if not isinstance(sent, tuple) or len(sent) != 2 or not all(_are_groups(groups) for groups in sent):
            raise BadInputError(
                f"{name}.client_update must give an update and what the client keeps, both groups of tensors, such as "
                f'return {{"params": update}}, client.state; it gives {sent!r:.60}'
            )
        update, kept = sent
        if (after := _forms(kept)) != (before := _forms(state)):
            changed = next(name for name in {**before, **after} if before.get(name) != after.get(name))
            raise BadInputError(
                f"{name}.client_update keeps {changed} in the form {after.get(changed)}, and client_init made it "
                f"{before.get(changed)}; what a client keeps has the same names, types and shapes after every round"
            )
        self._check_update(update, next(iter(params.values())).dtype)
        if is_own(type(algorithm).personal_models):
            self._check_personal_models(algorithm.personal_models(client), params)
        if algorithm.keeps_sample_gradients:
            self._check_mean_of_samples(start, batch, client)

    def _check_personal_models(self, models: Any, params: Tensors) -> None:
        if not isinstance(models, (list, tuple)) or not models:
            raise BadInputError(f"{self._name}.personal_models must give a list of models, not {models!r:.40}")
        for model in models:
            check_same_form(model, params, f"{self._name}.personal_models")

    def _check_mean_of_samples(self, params: Tensors, batch: Tensors, client: Client) -> None:
        """Refuses a loss that is not the mean of what it is for single samples, where it is taken of these."""
        samples = {name: values for name, values in batch.items() if name != "key"}  # without which nothing is drawn
        number = len(samples["y"])
        each = torch.arange(number, device=samples["y"].device).view(-1, *[1] * (samples["y"].dim() - 1))
        # Labels that differ, as what a sample weighs may depend on them.
        labels = 2 if samples["y"].is_floating_point() else max(self._task.spec.classes, 1)
        samples["y"] = (samples["y"] + each) % labels
        modes = {part: part.training for part in self._task.module.modules()}
        self._task.module.eval()
        try:
            with torch.no_grad():
                together, *apart = (
                    self._algorithm.loss_of_samples(
                        self._task, params, {name: values[some] for name, values in samples.items()}, client
                    )
                    for some in (slice(None), *(slice(place, place + 1) for place in range(number)))
                )
        finally:
            for part, mode in modes.items():
                part.training = mode
        if not torch.allclose(together, torch.stack(apart).mean(), rtol=1e-3, atol=1e-5):
            raise BadInputError(
                f"The loss of {self._name} is not the mean of what it is for single samples ({float(together):.4g} and "
                f"{float(torch.stack(apart).mean()):.4g}), of which gradients are taken here, so that something else "
                "would be trained; let every sample count by itself, and the loss be their mean"
            )

    def _batch(self, device: torch.device) -> Tensors:
        task = self._task
        example = task.batch({name: values.to(device) for name, values in task.example(3).items()})
        key = torch.zeros((), dtype=torch.int64, device=device)
        return {**task.meaningless(example, torch.Generator().manual_seed(0)), "key": key}

    def _tried(self, hook: str, call: Callable[[], Any], given: dict[str, Any]) -> Any:
        """What a hook gives; it is not tried if it is not somebody's own."""
        if not is_own(getattr(type(self._algorithm), hook)):
            return call()
        who = f"{self._name}.{hook}"
        memories = [memories_of(self._algorithm)]
        found = []
        with refusing_draws(who, _DRAWS, self._tracker), _unchanged(who, given):
            for _ in range(2):
                with seeded(0):  # for layers of the model, which may draw from torch's generator
                    found.append(call())
                memories.append(memories_of(self._algorithm))
        if not _same(*found):
            raise BadInputError(
                f"{who} remembers something between its calls, or has a generator of its own: called again with the "
                f"same arguments it does something else. Use {_DRAWS} for random numbers, and client_init or "
                "server_init for what is to be kept"
            )
        # What is found out once and stays, such as names of layers, harms nobody; numbers that clients have do.
        for place in changed_memories(*memories[:2]):
            is_number = isinstance(memories[1].get(place), (Tensor, np.ndarray, np.generic, bool, int, float, complex))
            if is_number and not place.endswith(ENTRIES):
                raise memory_refused(self._algorithm, hook, place, _KEPT)
        for place in changed_memories(*memories[1:]):
            raise memory_refused(self._algorithm, hook, place, _KEPT)
        return found[0]

    def _gradient(self, loss: Any, leaves: Tensors) -> Tensors:
        """The gradient of a loss, which must be one number and depend on these parameters alone."""
        who = f"{self._name}.local_loss"
        if not isinstance(loss, Tensor) or loss.dim():
            given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.40}"
            raise BadInputError(f"{who} must give one number, a tensor of no dimension, not {given}")
        instead = "compute it from task.predict(params, batch) or task.loss, without detach or no_grad"
        if not loss.requires_grad:
            raise BadInputError(
                f"{who} gives a number that does not depend on the parameters, so there is no gradient; {instead}"
            )
        # What a client does not train may well be the model's.
        own = [p for name, p in trainable_parameters(self._task.module).items() if name in leaves]
        if own and any(g is not None for g in torch.autograd.grad(loss, own, retain_graph=True, allow_unused=True)):
            raise BadInputError(
                f"{who} depends on the parameters that task.module has, which are not those that a client trains; "
                f"{instead}"
            )
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, found, strict=True))

    def _check_update(self, update: Groups, dtype: torch.dtype) -> None:
        check_group_names(self._algorithm, update, "update")
        for group, tensors in update.items():
            for name, t in tensors.items():
                coarse = t.is_floating_point() and torch.finfo(t.dtype).bits < _LEAST_BITS
                if coarse or (group == "params" and t.dtype != dtype):
                    raise BadInputError(
                        f"{self._name}.client_update gives {group}/{name} as {t.dtype}, in which updates would be "
                        f"added up, and not as {dtype}; end with .to({dtype})"
                    )


@contextmanager
def _unchanged(who: str, given: dict[str, Any]) -> Iterator[None]:
    """Nothing of what a method is given may be changed within the block."""

    def copied(tree: Any) -> Any:
        return pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, tree)

    before = copied(given)
    yield
    for word, tree in given.items():
        if not _same(tree, before[word]):
            raise BadInputError(
                f"{who} changes {word} in place, which others use as well; make new tensors and dictionaries instead "
                "(a + b, and not a += b)"
            )


def _are_groups(found: Any) -> bool:
    return isinstance(found, Mapping) and all(isinstance(group, Mapping) for group in found.values())


def _same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the bit; what is undefined equals itself."""
    first, second = (pytree.tree_flatten(value) for value in (one, other))
    if first[1] != second[1]:
        return False
    return all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if isinstance(a, Tensor) else a == b
        for a, b in zip(first[0], second[0], strict=True)
    )


def _forms(groups: Groups) -> dict[str, str]:
    """Types and shapes of all tensors, by their names."""
    return {f"{group}/{name}": f"{t.dtype} {list(t.shape)}" for group, own in groups.items() for name, t in own.items()}

"""Hooks of an algorithm of somebody's own, tried out before a run: what would go wrong without a word is refused."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedarena.core.errors import BadInputError
from fedarena.core.own import check_hooks_are_in_class, is_own
from fedarena.core.words import some
from fedarena.models import Task, Tensors, seeded, trainable_parameters
from fedarena.models.probes import has_own_layers, made_up_batch
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import Client, Job, JobArrays, context_of, newcomer
from fedarena.train.layers import LayerTracker
from fedarena.train.memories import ENTRIES, attribute_of, changed_memories, memories_of, memory_refused
from fedarena.train.own_code import check_group_names, check_same_form, corrected_gradient, refusing_draws
from fedarena.train.tensors import Groups, map_groups, moved

_NEARLY = 0.85  # how alike two names are, from 0 to 1
_NUMBERS = (Tensor, np.ndarray, np.generic, bool, int, float, complex)
_LEAST_BITS = 32  # of numbers that are added up over clients
_DRAWS = 'client.job.normal("purpose", like=tensor) or client.job.uniform'
_KEPT = (
    "client.broadcast has what was downloaded, client_init's groups what a client keeps from job to job, and __init__ "
    "or prepare is the place for what never changes"
)
_AT_SERVER = "numbers that server_init or server_step drew into a group of the server's state"


def check_client_weight(algorithm: Algorithm) -> None:
    """Refuses a weight of a client that depends on who else is counted with it, which only the engine decides."""
    if not is_own(type(algorithm).client_weight):
        return
    who = f"client_weight of {type(algorithm).__name__}"
    numbers = np.array([1, 3, 5, 500])

    def weights(chosen: Any) -> Any:
        some = numbers[chosen]
        found = algorithm.client_weight(Work(some, some, some, some.astype(np.float64)))
        return np.broadcast_to(np.asarray(found, dtype=np.float64), len(some))

    try:
        together, apart = weights(slice(None)), [weights([client])[0] for client in range(len(numbers))]
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
    what it is given, has a loss of other parameters, hooks that are not in its class, or groups that cannot be stored.
    """
    kind = type(algorithm)
    if is_own(type(task)):
        _check_own_loss(task)
    if not is_own(kind):
        return
    check_hooks_are_in_class(algorithm)
    check_client_weight(algorithm)
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    with _unchanged(f"{kind.__name__}.server_init", {"the parameters that it gets": params}):
        state = algorithm.server_init(params)
    check_group_names(algorithm, state, "server's state")
    with _at_server(algorithm, "broadcast", state):
        broadcast = algorithm.broadcast(state)
    with _at_server(algorithm, "evaluation_params", state):
        check_same_form(algorithm.evaluation_params(state), params, f"{kind.__name__}.evaluation_params")
    kept = algorithm.client_init(broadcast)
    check_group_names(algorithm, kept, "clients' state")
    if algorithm.trains_freely:
        start = algorithm.local_start(newcomer(broadcast, kept))
        if strange := [name for name in start if name not in params]:
            raise BadInputError(
                f"{kind.__name__}.train gets one model, and local_start gives {strange[0]!r}, which is no parameter of "
                "it; let local_start give the model that is trained, and keep others in the client's state"
            )
    else:
        with LayerTracker(task.module) as tracker:
            _Trial(algorithm, task, tracker).hooks_of_clients(broadcast, params)


def _check_own_loss(task: Task) -> None:
    """Refuses a task whose loss remembers something in it, or is of parameters that nobody trains."""
    who = f"{type(task).__name__}.loss"
    params = {name: p.detach().clone().requires_grad_() for name, p in trainable_parameters(task.module).items()}
    first, second = (made_up_batch(task, samples=3, seed=seed) for seed in (3, 4))

    def loss_of(batch: Tensors) -> Tensor:
        with torch.enable_grad(), seeded(0):
            return task.loss(params, {name: values.clone() for name, values in batch.items()})

    before, loss = loss_of(first), loss_of(second)
    if not torch.allclose(before, loss_of(first), rtol=1e-5, equal_nan=True):  # a GPU may add up in another order
        raise BadInputError(
            f"{who} gives something else when it is called again with the same batch; what it remembers in self would "
            "leak from one client to the next, and be lost when the run is interrupted: let an algorithm keep it, in "
            "its client_init or server_init"
        )
    if not loss.requires_grad:  # which is told with the model's parameters
        return
    own = list(trainable_parameters(task.module).values())
    if any(g is not None for g in torch.autograd.grad(loss, own, allow_unused=True)):
        raise BadInputError(
            f"{who} depends on the parameters that self.module has, which nobody trains; compute it from the params "
            "that it is given, and detach() what shall stay as the model was built"
        )


def untrained_notes(algorithm: Algorithm, task: Task) -> list[str]:
    """A sentence about parameters on which the loss of somebody's own model or method does not depend."""
    if algorithm.trains_freely or not (
        has_own_layers(task.module) or is_own(type(algorithm).local_loss) or is_own(type(task))
    ):
        return []
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    broadcast = algorithm.broadcast(algorithm.server_init(params))
    client = newcomer(broadcast, algorithm.client_init(broadcast))
    batch = made_up_batch(task, samples=3, seed=3)
    with torch.enable_grad(), seeded(0):
        leaves = {name: p.detach().clone().requires_grad_() for name, p in algorithm.local_start(client).items()}
        loss = algorithm.local_loss(task, leaves, batch, client)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    grad = dict(zip(leaves, found, strict=True))
    moved = _moved_by_hook(algorithm, client, leaves, grad)
    untrained = [repr(name) for name, gradient in grad.items() if gradient is None and name not in moved]
    if not untrained:
        return []
    return [
        f"The loss does not depend on {some(untrained)}, so nobody trains what is there; look for detach(), .data and "
        "layers that forward leaves out, or freeze it (requires_grad_(False)), which saves sending it"
    ]


def _moved_by_hook(
    algorithm: Algorithm, client: Client, params: Tensors, grad: Mapping[str, Tensor | None]
) -> set[str]:
    """What somebody's own `local_gradient` moves whether the loss depends on it or not, in every step or in some."""
    if not is_own(type(algorithm).local_gradient):
        return set()
    start = {name: p.detach() for name, p in params.items()}
    moved: set[str] = set()
    for step in (0, 1):  # of a hook that does something every so many steps, one is its turn
        given = {name: torch.zeros_like(p) if (g := grad[name]) is None else g.clone() for name, p in start.items()}
        at_step = replace(client, job=client.job.at_step(torch.tensor(step)))
        with seeded(0):
            steps = algorithm.local_gradient(given, start, at_step)
        moved |= {name for name, g in steps.items() if g.any()}
    return moved


@contextmanager
def _at_server(algorithm: Algorithm, hook: str, state: Groups) -> Iterator[None]:
    """In which a hook must give the same of the same state, whoever asks how often."""
    who = f"{type(algorithm).__name__}.{hook}"
    drawing = refusing_draws(who, _AT_SERVER) if is_own(getattr(type(algorithm), hook)) else nullcontext()
    with drawing, _unchanged(who, {"the server's state": state}):
        yield


@dataclass(frozen=True)
class _Given:
    """What hooks of one client are called with."""

    client: Client
    batch: Tensors
    params: Tensors
    grad: Tensors
    work: Work

    def seen(self) -> dict[str, Any]:
        """What no hook may change, by what it is called; a gradient is the hook's own."""
        return {
            "client.broadcast": self.client.broadcast,
            "client.state": self.client.state,
            "batch": self.batch,
            "params": self.params,
        }

    def another(self, batch: Tensors) -> _Given:
        """Another client in another job, of which everything is different but the form."""
        like = next(iter(self.client.broadcast["params"].values()))
        jobs = JobArrays.of([Job(1, 2, share=0.5, version=1)]).tensors(like, seed=1)
        job = context_of({name: t[0] for name, t in jobs.items()}).at_step(torch.tensor(2, device=like.device))
        client = newcomer(map_groups(moved, self.client.broadcast), map_groups(moved, self.client.state), job)
        params, grad = ({name: moved(t) for name, t in own.items()} for own in (self.params, self.grad))
        return _Given(client, batch, params, grad, Work(7, 3, 11, 1.5))


_Call = Callable[[Algorithm, _Given], Any]


class _Trial:
    """An algorithm whose hooks are called with made-up samples, each twice."""

    def __init__(self, algorithm: Algorithm, task: Task, tracker: LayerTracker):
        self._algorithm, self._task, self._tracker = algorithm, task, tracker
        self._name = type(algorithm).__name__

    def hooks_of_clients(self, broadcast: Groups, params: Tensors) -> None:
        """Tries all hooks in the order in which a client calls them."""
        algorithm, name, task = self._algorithm, self._name, self._task
        dtype = next(iter(params.values())).dtype
        work = Work(2, 1, 2, torch.ones((), dtype=dtype) if algorithm.needs_start_loss else None)
        given = _Given(newcomer(broadcast, {}), made_up_batch(task, samples=3, seed=3), {}, {}, work)
        state = self._tried("client_init", lambda own, at: own.client_init(at.client.broadcast), given)
        given = replace(given, client=newcomer(broadcast, state))
        start = self._tried("local_start", lambda own, at: own.local_start(at.client), given)
        with torch.enable_grad():
            leaves = {name: p.detach().clone().requires_grad_() for name, p in start.items()}
            given = replace(given, params=leaves)
            loss = self._tried(
                "local_loss", lambda own, at: own.local_loss(task, at.params, at.batch, at.client), given
            )
            grad = self._gradient(loss, leaves)
        # Not those at the beginning, from which the way is 0.
        given = replace(given, params={name: moved(p) for name, p in start.items()}, grad=grad)
        with torch.no_grad():

            def corrected(own: Algorithm, at: _Given) -> Tensors:
                return corrected_gradient(own, {name: g.clone() for name, g in at.grad.items()}, at.params, at.client)

            self._tried("local_gradient", corrected, given)
            sent = self._tried("client_update", lambda own, at: own.client_update(at.params, at.client, at.work), given)
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
        self._check_update(update, dtype)
        if is_own(type(algorithm).personal_models):
            models = self._tried("personal_models", lambda own, at: own.personal_models(at.client), given)
            self._check_personal_models(models, params)
        if algorithm.keeps_sample_gradients:
            self._check_mean_of_samples(start, given.batch, given.client)

    def _check_personal_models(self, models: Any, params: Tensors) -> None:
        if not isinstance(models, (list, tuple)) or not models:
            raise BadInputError(f"{self._name}.personal_models must give a list of models, not {models!r:.40}")
        for model in models:
            check_same_form(model, params, f"{self._name}.personal_models")

    def _check_mean_of_samples(self, params: Tensors, batch: Tensors, client: Client) -> None:
        """Refuses a loss that is not the mean of what it is for single samples, where it is taken of these."""
        samples = {name: values for name, values in batch.items() if name != "key"}  # without which nothing is drawn
        number = len(samples["y"])
        samples["y"] = self._other_labels(samples["y"])  # what a sample weighs may depend on them
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

    def _other_labels(self, y: Tensor) -> Tensor:
        """Labels that differ from sample to sample."""
        each = torch.arange(1, len(y) + 1, device=y.device).view(-1, *[1] * (y.dim() - 1))
        return (y + each) % (2 if y.is_floating_point() else max(self._task.spec.classes, 1))

    def _tried(self, hook: str, call: _Call, given: _Given) -> Any:
        """What a hook gives; it is not tried if it is not somebody's own."""
        algorithm = self._algorithm
        if not is_own(getattr(type(algorithm), hook)):
            return call(algorithm, given)
        who = f"{self._name}.{hook}"
        as_before = _copy_of(algorithm)
        memories = [memories_of(algorithm)]
        found = []
        with refusing_draws(who, _DRAWS, self._tracker), _unchanged(who, given.seen()):
            for _ in range(2):
                with seeded(0):  # for layers of the model, which may draw from torch's generator
                    found.append(call(algorithm, given))
                memories.append(memories_of(algorithm))
        changed = next(changed_memories(algorithm, *memories[1:]), None)
        if not _same(*found):
            where = f" (in self.{attribute_of(changed)})" if changed else ""
            raise BadInputError(
                f"{who} remembers something between its calls{where}, or has a generator of its own: called again with "
                f"the same arguments it does something else. Use {_DRAWS} for random numbers, and client_init or "
                "server_init for what is to be kept"
            )
        if changed:
            raise memory_refused(algorithm, hook, changed, _KEPT)
        # What is found out once and stays, such as names of layers, harms nobody; numbers that clients have do.
        numbers = [
            place
            for place in changed_memories(algorithm, *memories[:2])
            if isinstance(memories[1].get(place), _NUMBERS) and not place.endswith(ENTRIES)
        ]
        if numbers and not self._stays_for_others(as_before, call, given, memories):
            raise memory_refused(algorithm, hook, numbers[0], _KEPT)
        return found[0]

    def _stays_for_others(
        self, as_before: Algorithm | None, call: _Call, given: _Given, memories: list[dict[str, Any]]
    ) -> bool:
        """Whether an algorithm that another client had called first would remember the same."""
        if as_before is None or any(changed_memories(as_before, memories[0], memories_of(as_before))):
            return False  # also where something is remembered in a class, which has no copy
        try:
            batch = made_up_batch(self._task, samples=4, seed=4)
            with seeded(1):
                call(as_before, given.another({**batch, "y": self._other_labels(batch["y"])}))
        except Exception:  # it may not know what to do with made-up numbers
            return False
        return not any(changed_memories(as_before, memories[1], memories_of(as_before)))

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


def _copy_of(algorithm: Algorithm) -> Algorithm | None:
    try:
        return copy.deepcopy(algorithm)
    except Exception:  # somebody's own may hold anything
        return None


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

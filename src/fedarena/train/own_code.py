"""Code of somebody's own: what may go wrong with it without a word, and is refused instead."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors, seeded, trainable_parameters
from fedarena.models.dropout import several_passes
from fedarena.models.seeding import other_generators
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import Client, newcomer
from fedarena.train.layers import LayerTracker
from fedarena.train.tensors import Groups
from fedarena.train.without_compiler import DispatchMode

_COHORT_GROUP = "cohort"  # which the server gets beside an algorithm's own
_NEARLY = 0.85  # how alike two names are, from 0 to 1
_LEAST_BITS = 32  # of numbers that are added up over clients
_HOOKS = ("client_init", "local_start", "local_loss", "local_gradient", "client_update")


def is_own(function: Any) -> bool:
    """Whether a function or a class is somebody's own, and not this package's."""
    return not str(getattr(function, "__module__", "")).startswith("fedarena.")


def has_own_code(part: object) -> bool:
    """Whether something in a part is somebody's own, if only in a class that it extends."""
    return any(is_own(kind) for kind in type(part).__mro__ if kind is not object)


class _RefusedDraws(DispatchMode):
    """Refuses operations that draw random numbers, unless a layer of a model does."""

    def __init__(self, who: str, instead: str, tracker: LayerTracker | None):
        super().__init__()  # type: ignore[no-untyped-call]
        self._who, self._instead, self._tracker = who, instead, tracker

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        in_layer = self._tracker is not None and self._tracker.inside
        if torch.Tag.nondeterministic_seeded in function.tags and not in_layer:
            raise _refusal(self._who, f"torch ({function.overloadpacket.__name__})", self._instead)
        return function(*arguments, **(named or {}))


def _refusal(who: str, generator: str, instead: str) -> BadInputError:
    return BadInputError(
        f"{who} draws random numbers from the global generator of {generator}, which would give others when the run is "
        f"interrupted, or on another engine; use {instead}, which depend on seed, round and client"
    )


@contextmanager
def refusing_draws(who: str, instead: str, tracker: LayerTracker | None = None) -> Iterator[None]:
    """Code in the block may not draw random numbers from a global generator."""
    *numpy_state, python_state = other_generators()
    with _RefusedDraws(who, instead, tracker):
        yield
    *numpy_now, python_now = other_generators()
    if numpy_now != numpy_state:
        raise _refusal(who, "NumPy", instead)
    if python_now != python_state:
        raise _refusal(who, "Python", instead)


def refusing_own_draws(part: object, method: str) -> Any:
    """The same for one method of a transform or an aggregator, if it is not this package's."""
    if not is_own(type(part)):
        return nullcontext()
    context = {"at_server": "context", "conclude": "step.context"}.get(method, "rows.context")
    return refusing_draws(f"{type(part).__name__}.{method}", f'{context}.normal("purpose", like=tensor)')


def passes_of(algorithm: Algorithm) -> AbstractContextManager[None]:
    """In which a loss of somebody's own may send a batch through the model several times, as R-Drop does."""
    return several_passes() if is_own(type(algorithm).local_loss) else nullcontext()


def corrected_gradient(algorithm: Algorithm, grad: Tensors, params: Tensors, client: Client) -> Tensors:
    """What `local_gradient` makes of a gradient: of every parameter, in their order, and in their shapes."""
    corrected = algorithm.local_gradient(grad, params, client)
    if list(corrected) == list(params) and not is_own(type(algorithm).local_gradient):
        return corrected
    who = f"local_gradient of {type(algorithm).__name__}"
    for name, p in params.items():
        if name not in corrected:
            raise BadInputError(f"{who} gives no gradient of {name!r}; give zeros where a parameter shall stay")
        if corrected[name].shape != p.shape:
            shapes = f"{list(corrected[name].shape)} for a parameter of shape {list(p.shape)}"
            raise BadInputError(f"{who} gives a gradient of {name!r} of shape {shapes}")
    if strange := [name for name in corrected if name not in params]:
        raise BadInputError(f"{who} gives a gradient of {strange[0]!r}, which is no parameter that is trained")
    return {name: corrected[name] for name in params}


def check_same_form(found: Tensors, params: Tensors, who: str) -> None:
    """Refuses parameters that are not those of the model: it would take its first ones for what is missing."""
    if strange := [name for name in {**params, **found} if name not in params or name not in found]:
        verb = "gives no" if strange[0] in params else "invents a"
        raise BadInputError(f"{who} {verb} parameter {strange[0]!r}; it must give all that it gets, and no others")
    for name, p in params.items():
        if found[name].shape != p.shape or found[name].dtype != p.dtype:
            forms = [f"{t.dtype} of shape {list(t.shape)}" for t in (found[name], p)]
            raise BadInputError(f"{who} gives the parameter {name!r} as {forms[0]}, but it is {forms[1]}")


def check_group_names(algorithm: Algorithm, groups: Groups, what: str) -> None:
    """Refuses groups whose names mean something else in files, or in what the server gets."""
    for group in groups:
        if "/" in group or ":" in group or group == _COHORT_GROUP:
            raise BadInputError(
                f"{type(algorithm).__name__} calls a group of its {what} {group!r}; choose a name without slashes and "
                f"colons, other than {_COHORT_GROUP!r}"
            )
        for name, t in groups[group].items():
            if not isinstance(t, Tensor):
                raise BadInputError(
                    f"{type(algorithm).__name__} has {t!r:.40} as {name!r} in the group {group!r} of its {what}; "
                    "a group has tensors, such as torch.tensor(0)"
                )


def _numbers_of(algorithm: Algorithm) -> dict[str, Any]:
    """What an algorithm might count in."""
    kept = (bool, int, float, str, Tensor)
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in vars(algorithm).items()
        if isinstance(value, kept)
    }


def _same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the bit; what is undefined equals itself."""
    first, second = (pytree.tree_flatten(value) for value in (one, other))
    if first[1] != second[1]:
        return False
    return all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if isinstance(a, Tensor) else a == b
        for a, b in zip(first[0], second[0], strict=True)
    )


def _forms(groups: Groups) -> dict[str, list[int]]:
    """The shapes of all tensors, by their names."""
    return {f"{group}/{name}": list(t.shape) for group, tensors in groups.items() for name, t in tensors.items()}


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
    """Refuses an algorithm of somebody's own that draws from a global generator, or whose groups cannot be stored."""
    kind = type(algorithm)
    if not is_own(kind):
        return
    check_client_weight(algorithm)
    own = [hook for hook in _HOOKS if is_own(getattr(kind, hook))]
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    device = next(iter(params.values())).device
    example = task.batch({name: values.to(device) for name, values in task.example(3).items()})
    key = torch.zeros((), dtype=torch.int64, device=device)
    batch = {**task.meaningless(example, torch.Generator().manual_seed(0)), "key": key}
    state = algorithm.server_init(params)
    check_group_names(algorithm, state, "server's state")
    broadcast = algorithm.broadcast(state)
    check_same_form(algorithm.evaluation_params(state), params, f"{kind.__name__}.evaluation_params")
    check_group_names(algorithm, algorithm.client_init(broadcast), "clients' state")
    if algorithm.trains_freely:
        return
    with LayerTracker(task.module) as tracker:

        def tried(hook: str, call: Callable[[], Any]) -> Any:
            instead = 'client.job.normal("purpose", like=tensor) or client.job.uniform'
            if hook not in own:
                return call()
            before = _numbers_of(algorithm)
            with refusing_draws(f"{kind.__name__}.{hook}", instead, tracker):
                with seeded(0):  # for layers of the model, which may draw from torch's generator
                    found = call()
                with seeded(0):
                    again = call()
            if not _same(found, again) or not _same(before, _numbers_of(algorithm)):
                raise BadInputError(
                    f"{kind.__name__}.{hook} remembers something between its calls, or has a generator of its own: "
                    f"called again with the same arguments it does something else. Use {instead} for random numbers, "
                    "and client_init or server_init for what is to be kept"
                )
            return found

        state = tried("client_init", lambda: algorithm.client_init(broadcast))
        client = newcomer(broadcast, state)
        start = tried("local_start", lambda: algorithm.local_start(client))
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in start.items()}
            loss = tried("local_loss", lambda: algorithm.local_loss(task, leaves, batch, client))
            if not isinstance(loss, Tensor) or loss.dim():
                given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.40}"
                raise BadInputError(
                    f"{kind.__name__}.local_loss must give one number, a tensor of no dimension, not {given}"
                )
            if not loss.requires_grad:
                raise BadInputError(
                    f"{kind.__name__}.local_loss gives a number that does not depend on the parameters, so there is no "
                    "gradient; compute it from task.predict(params, batch) or task.loss, without detach or no_grad"
                )
            found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        grad = dict(zip(leaves, found, strict=True))
        with torch.no_grad():
            tried("local_gradient", lambda: corrected_gradient(algorithm, grad, start, client))
            update, kept = tried("client_update", lambda: algorithm.client_update(start, client, Work(2, 1, 2)))
        if (after := _forms(kept)) != (before := _forms(state)):
            changed = next(name for name in {**before, **after} if before.get(name) != after.get(name))
            raise BadInputError(
                f"{kind.__name__}.client_update keeps {changed} in the form {after.get(changed)}, and client_init made "
                f"it {before.get(changed)}; what a client keeps has the same names and shapes after every round"
            )
        check_group_names(algorithm, update, "update")
        dtype = next(iter(params.values())).dtype
        for group, tensors in update.items():
            for name, t in tensors.items():
                coarse = t.is_floating_point() and torch.finfo(t.dtype).bits < _LEAST_BITS
                if coarse or (group == "params" and t.dtype != dtype):
                    raise BadInputError(
                        f"{kind.__name__}.client_update gives {group}/{name} as {t.dtype}, in which updates would be "
                        f"added up, and not as {dtype}; end with .to({dtype})"
                    )

"""Code of somebody's own: what may go wrong with it without a word, and is refused instead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedarena.core.errors import BadInputError
from fedarena.models import Task, trainable_parameters
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import newcomer
from fedarena.train.layers import LayerTracker
from fedarena.train.tensors import Groups

_COHORT_GROUP = "cohort"  # which the server gets beside an algorithm's own
_HOOKS = ("client_init", "local_start", "local_loss", "local_gradient", "client_update")


def is_own(function: Any) -> bool:
    """Whether a function or a class is somebody's own, and not this package's."""
    return not str(getattr(function, "__module__", "")).startswith("fedarena.")


class _RefusedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    numpy_state, python_state = _numpy_state(), random.getstate()
    with _RefusedDraws(who, instead, tracker):
        yield
    if _numpy_state() != numpy_state:
        raise _refusal(who, "NumPy", instead)
    if random.getstate() != python_state:
        raise _refusal(who, "Python", instead)


def _numpy_state() -> tuple[bytes, int]:
    _, keys, position, *_ = np.random.get_state()
    return np.asarray(keys).tobytes(), int(position)


def refusing_own_draws(part: object, method: str) -> Any:
    """The same for one method of a transform, if it is not this package's."""
    if not is_own(type(part)):
        return nullcontext()
    context = "rows.context" if method == "at_client" else "context"
    return refusing_draws(f"{type(part).__name__}.{method}", f'{context}.normal("purpose", like=tensor)')


def check_group_names(algorithm: Algorithm, groups: Groups, what: str) -> None:
    """Refuses groups whose names mean something else in files, or in what the server gets."""
    for group in groups:
        if "/" in group or ":" in group or group == _COHORT_GROUP:
            raise BadInputError(
                f"{type(algorithm).__name__} calls a group of its {what} {group!r}; choose a name without slashes and "
                f"colons, other than {_COHORT_GROUP!r}"
            )


def check_own_hooks(algorithm: Algorithm, task: Task) -> None:
    """Refuses an algorithm of somebody's own that draws from a global generator, or whose groups cannot be stored."""
    kind = type(algorithm)
    if not is_own(kind):
        return
    own = [hook for hook in _HOOKS if is_own(getattr(kind, hook))]
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    device = next(iter(params.values())).device
    batch = task.batch({name: values.to(device) for name, values in task.example(2).items()})
    state = algorithm.server_init(params)
    check_group_names(algorithm, state, "server's state")
    broadcast = algorithm.broadcast(state)
    check_group_names(algorithm, algorithm.client_init(broadcast), "clients' state")
    if algorithm.trains_freely:
        return
    with LayerTracker(task.module) as tracker:

        def tried(hook: str, call: Callable[[], Any]) -> Any:
            instead = 'client.job.normal("purpose", like=tensor) or client.job.uniform'
            with refusing_draws(f"{kind.__name__}.{hook}", instead, tracker) if hook in own else nullcontext():
                return call()

        try:
            state = tried("client_init", lambda: algorithm.client_init(broadcast))
            client = newcomer(broadcast, state)
            start = tried("local_start", lambda: algorithm.local_start(client))
            with torch.enable_grad():
                leaves = {name: p.detach().requires_grad_() for name, p in start.items()}
                loss = tried("local_loss", lambda: algorithm.local_loss(task, leaves, batch, client))
                found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            grad = dict(zip(leaves, found, strict=True))
            with torch.no_grad():
                tried("local_gradient", lambda: algorithm.local_gradient(grad, start, client))
                update, _ = tried("client_update", lambda: algorithm.client_update(start, client, Work(2, 1, 2)))
            check_group_names(algorithm, update, "update")
        except BadInputError:
            raise
        except Exception:  # what else may go wrong shows, with its traceback, when clients train
            return

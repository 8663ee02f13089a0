"""Code of somebody's own: what may go wrong with it without a word, and is refused instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.core.seeding import all_seeded, other_generators
from fedarena.models import Tensors
from fedarena.models.dropout import several_passes
from fedarena.train.algorithm import Algorithm
from fedarena.train.jobs import Client
from fedarena.train.layers import LayerTracker
from fedarena.train.optimizers import LocalTraining
from fedarena.train.tensors import Groups
from fedarena.train.without_compiler import DispatchMode

_COHORT_GROUP = "cohort"  # which the server gets beside an algorithm's own


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


def seeded_if_own(part: object, seed: int, purpose: str, *numbers: int) -> AbstractContextManager[None]:
    """The same numbers on every engine, and in a run that is resumed, where somebody's own part may draw some."""
    if not has_own_code(part):
        return nullcontext()
    return all_seeded(streams.torch_seed(seed, purpose, *numbers))


def prepare_algorithm(algorithm: Algorithm, seed: int, population: int, local: LocalTraining, horizon: int) -> None:
    """Tells an algorithm about a run; what somebody's own draws then follows from the run's seed."""
    with seeded_if_own(algorithm, seed, "own algorithm"):
        algorithm.prepare(population, local, horizon)


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

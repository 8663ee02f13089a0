"""The server's core: it takes what clients send and makes its steps. It knows neither clocks nor devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedarena.core.errors import BadInputError, DivergedError
from fedarena.core.own import is_own
from fedarena.models import Tensors
from fedarena.train import Groups, is_finite
from fedarena.train.examples import example_update
from fedarena.train.late import LateChecks, copied_numbers
from fedarena.train.memories import refusing_memories
from fedarena.train.own_code import check_same_form, has_own_code, seeded_if_own
from fedarena.train.tensors import map_groups
from fedarena.transforms import Partial, ShardResult, UpdatePath
from fedarena.transforms.aggregators.base import VERDICT
from fedarena.transforms.downlink import Downlink
from fedarena.transforms.fixed_point import SATURATED

_IN_STATE = "let server_init give the server's state a group for it, which server_step changes"


class Server:
    """Where training stands at the server. Whoever has updates gives them to `accept`, and then has it `step`."""

    def __init__(
        self,
        path: UpdatePath,
        state: Groups,
        transform_states: Sequence[Groups] = (),
        version: int = 0,
        older_broadcasts: Mapping[int, Groups] | None = None,
        aggregator_state: Groups | None = None,
        downlink: Downlink | None = None,
        download_state: Groups | None = None,
        checks: LateChecks | None = None,
    ):
        """With `checks`, whether its state stays finite is noted there, and found out later."""
        self._checks = checks
        self.path, self.algorithm = path, path.algorithm
        self.state, self.transform_states = state, list(transform_states)
        self.aggregator_state = aggregator_state or {}
        self.version = version  # steps made so far
        self._downlink, self.download_state = downlink, download_state or {}
        self.broadcasts = {**(older_broadcasts or {}), version: self._broadcast()}
        self._accepted: dict[int, Partial] = {}
        self._observed: dict[str, float | Tensor] = {}
        self._to_measure: Callable[[], tuple[Sequence[Groups], Mapping[str, float | Tensor]]] | None = None
        self._steps_made = 0  # since this server was made
        self.verdicts: dict[int, Tensors] = {}  # by step: how much of whose update a defence used
        self.steps_left_out = 0  # for which a defence had too few updates

    def accept(self, result: ShardResult) -> None:
        """Adds updates to those that came before, each to the step it is for."""
        for step, partial in result.partials.items():
            before = self._accepted.get(step)
            self._accepted[step] = partial if before is None else self.path.merge(before, partial)
        for name, value in result.observed.items():
            self._observed[name] = self._observed.get(name, 0.0) + value

    def step(self, round: int, lr_scale: float = 1.0, trusted: Groups | None = None) -> None:
        """Makes the next step with the updates that were accepted for it.

        `trusted` is the update that the server trained itself, if it has samples.
        """
        accepted = self._accepted.pop(self._steps_made, None)
        if accepted is None:  # a private server lets nobody see that no update came
            total = self.path.nothing(example_update(self.algorithm, self.state["params"]), self.transform_states)
        else:
            total = self.path.settle(accepted, self.transform_states)
            if SATURATED in total.numbers:
                self._observed[SATURATED] = self._observed.get(SATURATED, 0.0) + total.numbers[SATURATED]
        update, self.aggregator_state = self.path.aggregate(total, self.aggregator_state, round, self.version, trusted)
        if verdict := update.pop(VERDICT, None):
            self.verdicts[self._steps_made] = verdict
        if verdict and not update:
            self.steps_left_out += 1
        else:
            self._move(update, total, round, lr_scale)
        self._steps_made += 1
        self.version += 1
        if self._downlink is not None:
            self.download_state = self._downlink.advance(self.state, self.download_state, self.version)
        self.broadcasts[self.version] = self._broadcast()

    def _broadcast(self) -> Groups:
        if self._downlink is None:
            with refusing_memories(self.algorithm, "broadcast", _IN_STATE):
                return self.algorithm.broadcast(self.state)
        return self._downlink.broadcast(self.state, self.download_state)

    def _move(self, update: Groups, total: Partial, round: int, lr_scale: float) -> None:
        update, self.transform_states = self.path.finish(update, self.transform_states, round, self.version)

        def take(state: Groups, update: Groups) -> Groups:
            if has_own_code(self.algorithm):  # which may change in place what clients still train from
                state, update = map_groups(_copied, state), map_groups(_copied, update)
            seeded = seeded_if_own(self.algorithm, self.path.seed, "server step", self.version)
            with seeded, refusing_memories(self.algorithm, "server_step", _IN_STATE):
                stepped = self.algorithm.server_step(state, update, round)
            if not isinstance(stepped, Mapping):
                raise BadInputError(
                    f"server_step of {type(self.algorithm).__name__} must return the server's next state, groups of "
                    f"tensors, and not {stepped!r:.40}"
                )
            if lost := [group for group in state if group not in stepped]:
                raise BadInputError(
                    f"server_step of {type(self.algorithm).__name__} loses {', '.join(lost)} of the server's state; "
                    "begin what it returns with **state"
                )
            if is_own(type(self.algorithm)):
                who = f"{type(self.algorithm).__name__}.server_step"
                check_same_form(stepped["params"], state["params"], who)
                # What an optimizer of torch moved remembers that it did, and would be no leaf in the next step.
                stepped = map_groups(lambda t: t.detach() if isinstance(t, Tensor) else t, stepped)
            return stepped

        before = self.state["params"]
        _check_shapes(update.get("params", {}), before, self.path)
        self.state = self.path.aggregator.move_server(self.state, update, total, self.broadcasts, take)
        if lr_scale != 1.0:
            there = self.state["params"]
            moved = {name: p + lr_scale * (there[name] - p) for name, p in before.items()}
            self.state = {**self.state, "params": moved}
        if self._checks is not None:
            self._checks.note(self.state)
        elif not is_finite(self.state):
            raise DivergedError("The server's state became infinite or undefined", round, None)

    def measure_later(self) -> None:
        """Has what `measure` looks at copied to the host: it would wait for all that a GPU is told meanwhile."""
        states = [copied_numbers(state) for state in self.transform_states]
        numbers = {name: value for name, value in self._observed.items() if not isinstance(value, Tensor)}
        noted = copied_numbers({"": {name: t for name, t in self._observed.items() if isinstance(t, Tensor)}})
        self._to_measure = lambda: ([read() for read in states], {**numbers, **noted()[""]})

    def measure(self) -> dict[str, float]:
        """What transforms have to say about the steps since this server was made, by the names of columns."""
        late = self._to_measure
        states, observed = (self.transform_states, self._observed) if late is None else late()
        return self.path.measure(states, observed)


def _copied(value: Tensor) -> Tensor:
    return value.clone() if isinstance(value, Tensor) else value


def _check_shapes(update: Tensors, params: Tensors, path: UpdatePath) -> None:
    """A part of somebody's own may give numbers of another shape, which would be spread over the model in silence."""
    for name, t in update.items():
        if name in params and t.shape != params[name].shape:
            raise BadInputError(
                f"The aggregator {type(path.aggregator).__name__} and what comes after it gave {name!r} of shape "
                f"{list(t.shape)} for a parameter of shape {list(params[name].shape)}"
            )

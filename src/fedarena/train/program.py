"""A training step made ready to be taken very often.

`vmap` and `grad` cost about as much as a small model's arithmetic, every time. Tracing records the plain operations
they come to, once for every number of lanes; from then on those run without Python, and change the lanes in place: as a
script on a CPU, as a captured graph on a GPU, there compiled before if there is a compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from fedarena.models import Tensors
from fedarena.train.captured import Packing, capture, capture_packed, captured_graph, step_for_gpu
from fedarena.train.graphs import clean, separate_updates
from fedarena.train.recording import NotPlainError, record_plainly
from fedarena.train.scripts import Script
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import Groups, all_tensors, map_groups, moved

TRACING = threading.Lock()  # torch cannot trace in two threads at once
_LAST_BITS = 4  # as often the smallest difference of numbers


@dataclass(frozen=True)
class Changing:
    """What a step changes; everything has a row per lane."""

    params: Tensors
    optimizer: Groups
    numbers: Tensor  # of the next step of the lane's client, from 1
    loss_sums: Tensor  # over the samples its client has processed

    def first(self, lanes: int) -> Changing:
        """The first lanes, in the same memory."""
        params = {name: p[:lanes] for name, p in self.params.items()}
        return Changing(
            params, map_groups(lambda t: t[:lanes], self.optimizer), self.numbers[:lanes], self.loss_sums[:lanes]
        )

    def only(self, lane: int) -> Changing:
        """One lane, in the same memory."""
        params = {name: p[lane : lane + 1] for name, p in self.params.items()}
        optimizer = map_groups(lambda t: t[lane : lane + 1], self.optimizer)
        return Changing(params, optimizer, self.numbers[lane : lane + 1], self.loss_sums[lane : lane + 1])

    def of(self, lanes: Tensor) -> Changing:
        """Copies of the lanes with these numbers."""
        params = {name: p[lanes] for name, p in self.params.items()}
        return Changing(
            params, map_groups(lambda t: t[lanes], self.optimizer), self.numbers[lanes], self.loss_sums[lanes]
        )

    def put(self, lanes: Tensor, changed: Changing) -> None:
        """Writes such copies back."""
        for t, new in zip(self.tensors(), changed.tensors(), strict=True):
            t[lanes] = new

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [*self.params.values(), *all_tensors(self.optimizer), self.numbers, self.loss_sums]

    def like(self, tensors: list[Tensor]) -> Changing:
        """The same with other tensors, in that order."""
        structure = pytree.tree_structure((self.params, self.optimizer, self.numbers, self.loss_sums))
        return Changing(*pytree.tree_unflatten(tensors, structure))


@dataclass(frozen=True)
class Batch:
    """The samples of one step; everything has a row per lane."""

    columns: Tensors
    mask: Tensor  # samples that count
    keys: Tensor  # of what the model draws at random
    packed: Tensor | None = None  # the same of many steps, a row for each, to be given to a GPU in one piece

    def of(self, lanes: Tensor, samples: int) -> Batch:
        """The first samples of the lanes with these numbers."""
        columns = {name: values[lanes, :samples] for name, values in self.columns.items()}
        return Batch(columns, self.mask[lanes, :samples], self.keys[lanes])

    def at(self, steps: slice | int) -> Batch:
        """Those of some steps or of one, if these are the batches of many."""
        return Batch({name: values[steps] for name, values in self.columns.items()}, self.mask[steps], self.keys[steps])

    def each(self) -> list[Batch]:
        """Those of all steps, one by one."""
        return [self.at(step) for step in range(len(self.mask))]

    def with_packed(self) -> Batch:
        """The same batches of many steps, packed as well."""
        return replace(self, packed=Packing(self.at(0).tensors()).pack(self.tensors()))

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [*self.columns.values(), self.mask, self.keys]


@dataclass(frozen=True)
class Given:
    """What steps read besides the batch; everything has a row per lane, but for a broadcast that all lanes share."""

    states: Groups  # what the lanes' clients keep
    broadcast: Groups
    jobs: Tensors  # what is known about their jobs, see `JobArrays.tensors`
    shared: bool = True  # whether all clients have downloaded the same

    def first(self, lanes: int) -> Given:
        """The first lanes, in the same memory."""
        states = map_groups(lambda t: t[:lanes], self.states)
        broadcast = self.broadcast if self.shared else map_groups(lambda t: t[:lanes], self.broadcast)
        return Given(states, broadcast, {name: t[:lanes] for name, t in self.jobs.items()}, self.shared)

    def only(self, lane: int) -> Given:
        """One lane, in the same memory."""
        states = map_groups(lambda t: t[lane : lane + 1], self.states)
        broadcast = self.broadcast if self.shared else map_groups(lambda t: t[lane : lane + 1], self.broadcast)
        return Given(states, broadcast, {name: t[lane : lane + 1] for name, t in self.jobs.items()}, self.shared)

    def of(self, lanes: Tensor) -> Given:
        """What the lanes with these numbers read."""
        broadcast = self.broadcast if self.shared else map_groups(lambda t: t[lanes], self.broadcast)
        jobs = {name: t[lanes] for name, t in self.jobs.items()}
        return Given(map_groups(lambda t: t[lanes], self.states), broadcast, jobs, self.shared)

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [*all_tensors(self.states), *all_tensors(self.broadcast), *self.jobs.values()]


Step = Callable[[Changing, Given, Batch], Changing]
Program = Callable[[Batch], None]
StepsProgram = Callable[[Batch, slice], None]  # takes some of the steps whose batches it is given


@dataclass(frozen=True)
class BoundStep:
    """A step that takes its batch from a fixed place, for whoever writes it there directly."""

    batch: Batch
    run: Callable[[], None]


class StepPrograms:
    """Makes programs of a step, which must be a pure function of the tensors in its arguments.

    On a CPU, their products may be made `natively`, by our own kernels.
    """

    def __init__(self, step: Step, natively: bool = False):
        self._step, self._natively = step, natively
        self._scripts: dict[Any, Script] = {}
        self._repeated: dict[Any, Callable[..., None]] = {}
        self._made: dict[Any, Callable[..., None]] = {}  # what is captured, by form and whether it is compiled

    def take(self, changing: Changing, given: Given, batch: Batch) -> Changing:
        """One step without a program, for lanes and batches of a form that is too rare to be worth one."""
        with TRACING:  # the model serves one thread at a time
            return self._step(changing, given, batch)

    def try_recording(self, changing: Changing, given: Given, batch: Batch) -> None:
        """Raises what a program of such a step would, or if it is not the step for parameters and groups like these."""
        with TRACING:
            step, tensors = self._flat(changing, given, batch)
            recorded = record(step, tensors)
            params = {name: moved(p) for name, p in changing.params.items()}
            states, broadcast = (map_groups(_moved_numbers, groups) for groups in (given.states, given.broadcast))
            others = replace(changing, params=params), replace(given, states=states, broadcast=broadcast), batch
            _, tensors = self._flat(*others)
            if not all(map(_nearly_equal, recorded(*tensors), step(tensors))):
                raise NotPlainError(
                    "it reads tensors by other ways than operations of torch, such as NumPy, tolist, copy, "
                    "nn.Parameter and .data (write .detach()), and a recorded step would not read them again"
                )

    def bind(
        self,
        changing: Changing,
        given: Given,
        example: Batch,
        *,
        compile: bool = False,
        stream: LaneStream | None = None,
        after: Callable[[int], None] | None = None,
    ) -> Program:
        """A program for these lanes, which it changes in place, and batches like the example.

        On a GPU it may be compiled and have a stream of its own, and something to do `after` every step.
        """
        with TRACING:
            if changing.numbers.device.type != "cuda":
                script, lanes = self._script_for(changing, given, example), [*changing.tensors(), *given.tensors()]
                return lambda batch: script(*lanes, *batch.tensors())
            step = self._step_in_place(changing, given, example, compile)
            tensors = changing.tensors(), given.tensors(), example.tensors()
            run = capture(step, *tensors, stream or self._stream, after=after)
            return lambda batch: run(batch.tensors())

    def bind_several(
        self,
        changing: Changing,
        given: Given,
        example: Batch,
        *,
        compile: bool,
        stream: LaneStream | None,
        times: int,
        after: Callable[[int], None] | None = None,
    ) -> StepsProgram:
        """The same on a GPU for so many steps at once, of batches that are packed and like the example."""
        with TRACING:
            step = self._step_in_place(changing, given, example, compile)
            tensors = changing.tensors(), given.tensors(), example.tensors()
            run = capture_packed(step, *tensors, stream or self._stream, times, after)

        def take(batches: Batch, some: slice) -> None:
            assert batches.packed is not None
            run(batches.packed[some])

        return take

    def bind_any_number(self, changing: Changing, given: Given, example: Batch) -> StepsProgram:
        """The same on a CPU for any number of steps: it is given the batches of all, of which the example is one."""
        lasting, of_step = [*changing.tensors(), *given.tensors()], len(example.tensors())
        with TRACING:
            form = _form(changing, given, example)
            if form not in self._repeated:
                script = self._script_for(changing, given, example)
                names = [f"lasting_{number}" for number in range(len(lasting))]
                batches = [f"batches_{number}" for number in range(of_step)]
                parameters = dict.fromkeys([*names, *batches], "Tensor")
                self._repeated[form] = script.repeated(parameters, [*names, *(f"{name}[i]" for name in batches)])
            steps = self._repeated[form]

        def take(batches: Batch, some: slice) -> None:
            batch = batches.at(some)
            steps(len(batch.mask), *lasting, *batch.tensors())

        return take

    def bind_alone(self, changing: Changing, given: Given, columns: Tensors, stream: LaneStream | None) -> BoundStep:
        """A program for a single lane and as many samples as the columns have, which on a GPU has its own stream.

        It is captured there as it is.
        """
        samples, device = next(iter(columns.values())).shape[1], changing.numbers.device
        mask = torch.ones(1, samples, dtype=torch.bool, device=device)
        batch = Batch(columns, mask, torch.zeros(1, dtype=torch.int64, device=device))
        with TRACING:
            if stream is not None:
                step = self._plain_step(changing, given, batch)
                changed, read = changing.tensors(), given.tensors()
                return BoundStep(batch, captured_graph(step, changed, read, [batch.tensors()], stream))
            script, lanes = self._script_for(changing, given, batch), [*changing.tensors(), *given.tensors()]
        return BoundStep(batch, lambda: script(*lanes, *batch.tensors()))

    def _script_for(self, changing: Changing, given: Given, example: Batch) -> Script:
        form = _form(changing, given, example)
        if form not in self._scripts:
            self._scripts[form] = self._script(changing, given, example)
        return self._scripts[form]

    @cached_property
    def _stream(self) -> LaneStream:
        """For graphs that never run at the same time."""
        return LaneStream()

    def _flat(
        self, changing: Changing, given: Given, batch: Batch
    ) -> tuple[Callable[[list[Tensor]], list[Tensor]], list[Tensor]]:
        """The step as a function of a list of tensors, and the list for these arguments."""
        parts = (
            *(changing.params, changing.optimizer, changing.numbers, changing.loss_sums),
            *(given.states, given.broadcast, given.jobs, batch.columns, batch.mask, batch.keys),
        )
        structure = pytree.tree_structure(parts)

        def flat_step(tensors: list[Tensor]) -> list[Tensor]:
            parts = pytree.tree_unflatten(tensors, structure)
            now = replace(given, states=parts[4], broadcast=parts[5], jobs=parts[6])
            return self._step(Changing(*parts[:4]), now, Batch(*parts[7:])).tensors()

        return flat_step, _leaves(parts)

    def _script(self, changing: Changing, given: Given, example: Batch) -> Script:
        pure, updates = separate_updates(record(*self._flat(changing, given, example)), len(changing.tensors()))
        return Script(
            pure, updates, [*changing.tensors(), *given.tensors(), *example.tensors()], natively=self._natively
        )

    def _plain_step(self, changing: Changing, given: Given, example: Batch) -> Callable[..., None]:
        """The step as it is, without being traced: nothing in it has to be undone for a single lane."""
        flat_step, _ = self._flat(changing, given, example)
        changed = len(changing.tensors())

        def step(*tensors: Tensor) -> None:
            found = zip(tensors[:changed], flat_step(list(tensors)), strict=True)
            olds, news = zip(*((old, new) for old, new in found if old.data_ptr() != new.data_ptr()), strict=True)
            torch._foreach_copy_(list(olds), list(news))

        return step

    def _step_in_place(self, changing: Changing, given: Given, example: Batch, compile: bool) -> Callable[..., None]:
        form = (_form(changing, given, example), compile)
        if form not in self._made:
            recorded = record(*self._flat(changing, given, example))
            tensors = [*changing.tensors(), *given.tensors(), *example.tensors()]
            self._made[form] = step_for_gpu(recorded, tensors, len(changing.tensors()), compile)
        return self._made[form]


def _moved_numbers(t: Tensor) -> Tensor:
    return moved(t) if t.is_floating_point() else t  # others may be places


def _nearly_equal(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by no more than the last bits of the largest number; what is undefined equals itself."""
    one, other = torch.nan_to_num(one), torch.nan_to_num(other)
    largest = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=_LAST_BITS * torch.finfo(other.dtype).eps * largest)


def record(function: Callable[[list[Tensor]], list[Tensor]], tensors: list[Tensor]) -> GraphModule:
    """The plain operations that a pure function comes to, to be called with the tensors; `TRACING` must be held."""
    if all(t.device.type == "cpu" for t in tensors):
        try:
            traced = record_plainly(function, tensors)
        except Exception:  # whatever it is, torch's recorder can do it or says what is wrong
            traced = _record_thoroughly(function, tensors)
    else:
        traced = _record_thoroughly(function, tensors)
    clean(traced.graph)
    return traced


def _record_thoroughly(function: Callable[[list[Tensor]], list[Tensor]], tensors: list[Tensor]) -> GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, which only who records should pay

    with _noting_forms_only():
        traced: GraphModule = make_fx(function)(tensors)
    for node in traced.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:  # torch 2.6 notes no forms of constants
            node.meta["val"] = getattr(traced, node.target)
    traced.graph.set_codegen(CodeGen())  # takes the tensors themselves, not a list of them
    traced.recompile()
    return traced


@contextmanager
def _noting_forms_only() -> Iterator[None]:
    """Torch makes a fake tensor of every result it records, and a mode of fake tensors for each.

    Here nobody asks for more than shapes, strides and types, and without the rest tracing takes half as long.
    """
    from torch.fx.experimental import proxy_tensor

    usual = getattr(proxy_tensor, "set_meta", None)
    if usual is None:  # in a version that has it elsewhere, tracing takes longer
        yield
        return
    proxy_tensor.set_meta = _set_form  # type: ignore[assignment]
    try:
        yield
    finally:
        proxy_tensor.set_meta = usual


def _set_form(proxy: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    proxy.node.meta["val"] = value
    return proxy


def _form(changing: Changing, given: Given, batch: Batch) -> Any:
    """What a program depends on: shapes, types, and names in their order, too, since tensors may look alike."""
    named = (changing.params, changing.optimizer, given.states, given.broadcast, given.jobs, batch.columns)
    tensors = [*changing.tensors(), *given.tensors(), *batch.tensors()]
    return (given.shared, str(pytree.tree_structure(named)), *((t.shape, t.dtype) for t in tensors))


def _leaves(parts: Any) -> list[Tensor]:
    leaves: list[Tensor] = pytree.tree_leaves(parts)
    return leaves

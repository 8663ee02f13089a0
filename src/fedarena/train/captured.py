"""Recorded steps on a GPU: compiled if there is a compiler, and captured as graphs that run without Python."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedarena.train.graphs import (
    compare_instead_of_scattering,
    in_place,
    reshape_instead_of_viewing,
    separate_updates,
    update_within,
)
from fedarena.train.small_products import sum_small_products
from fedarena.train.streams import LaneStream

_MOST_COMPILED = 5000  # operations, since the compiler's time grows with them
HELPERS = "TORCH_WARM_POOL"  # whether torch's compiler starts processes as soon as it is imported
_ALIGNED_BYTES = 16
_UNIT_BYTES = 8  # in which bytes are copied where that is possible
# The compiler computes what is used twice again each time if that takes no more operations than this. A number drawn at
# random takes about as many, but whether it is above a threshold is to be known once, and not its hash be kept.
_OPERATIONS_OF_A_MASK = 40
# Otherwise the compiler measures which blocks of numbers and which padding of matrices are fastest here and now, and
# these decide how sums are rounded: the same seed would not always give the same bits. The first three are what it does
# by itself, the others what a script or the environment may have asked it for.
_NOTHING_MEASURED = {
    "triton.autotune_pointwise": False,
    "dynamic_scale_rblock": False,
    "shape_padding": False,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "benchmark_fusion": False,
    "triton.multi_kernel": 0,
}
_WARM_UPS = 2  # calls before a capture, in which libraries set themselves up


def capture(
    step: Callable[..., None],
    changed: list[Tensor],
    read: list[Tensor],
    example: list[Tensor],
    on: LaneStream,
    times: int = 1,
    after: Callable[[int], None] | None = None,
) -> Callable[[list[Tensor]], None]:
    """A graph of a step that changes some tensors, reads others, and is given more, such as a batch, every time.

    Taken several `times` in a row, it is given the tensors of all times at once, as rows. What is to be done `after`
    each of these, which are numbered, is part of the graph.
    """
    rooms = [_room(t, times) for t in example]  # a graph always reads from the same memory
    place = [room for room, _ in rooms]
    given_at = list(zip(*(each for _, each in rooms), strict=True))
    replay = captured_graph(step, changed, read, given_at, on, after)

    def run(given: list[Tensor]) -> None:
        torch._foreach_copy_(place, [t.reshape(times, -1) for t in given])
        replay()

    return run


class Packing:
    """Where tensors like some examples lie in a row of bytes, so that one copy moves all of them.

    Each begins where compiled code expects tensors to begin.
    """

    def __init__(self, examples: Sequence[Tensor]):
        self._forms = [(t.shape, t.dtype) for t in examples]
        self._sizes = [t.numel() * t.element_size() for t in examples]
        aligned = (-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in self._sizes)
        *self._begins, self._row_bytes = accumulate(aligned, initial=0)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Rows of bytes, one for each row of the tensors; these rows are like the examples."""
        packed = tensors[0].new_zeros(len(tensors[0]), self._row_bytes, dtype=torch.uint8)
        for t, begin, size in zip(tensors, self._begins, self._sizes, strict=True):
            unit = torch.int64 if size % _UNIT_BYTES == 0 else torch.uint8
            packed[:, begin : begin + size].view(unit).copy_(t.reshape(len(t), -1).view(unit))
        return packed

    def unpack(self, row: Tensor) -> list[Tensor]:
        """The tensors of a row, in its memory."""
        places = zip(self._forms, self._begins, self._sizes, strict=True)
        return [row[begin : begin + size].view(dtype).view(shape) for (shape, dtype), begin, size in places]


def capture_packed(
    step: Callable[..., None],
    changed: list[Tensor],
    read: list[Tensor],
    example: list[Tensor],
    on: LaneStream,
    times: int,
    after: Callable[[int], None] | None = None,
) -> Callable[[Tensor], None]:
    """Such a graph of several steps that is given what `Packing` makes of the tensors of all."""
    packing = Packing(example)
    room = packing.pack([t.unsqueeze(0) for t in example]).repeat(times, 1)
    replay = captured_graph(step, changed, read, [packing.unpack(row) for row in room], on, after)

    def run(rows: Tensor) -> None:
        room.copy_(rows)
        replay()

    return run


def captured_graph(
    step: Callable[..., None],
    changed: list[Tensor],
    read: list[Tensor],
    given_at: Sequence[Sequence[Tensor]],
    on: LaneStream,
    after: Callable[[int], None] | None = None,
) -> Callable[[], None]:
    """A graph of a step for each of the tensors that it is given, which it always reads from the same memory."""
    copies = [t.clone() for t in changed]  # they are in use already
    on.stream.wait_stream(torch.cuda.current_stream())
    with on:
        for _ in range(_WARM_UPS):
            step(*copies, *read, *given_at[0])
    torch.cuda.current_stream().wait_stream(on.stream)
    del copies
    graph = torch.cuda.CUDAGraph()

    def take_all() -> None:
        for number, given in enumerate(given_at):
            step(*changed, *read, *given)
            if after is not None:
                after(number)

    try:
        # Other threads may copy samples meanwhile.
        with torch.cuda.graph(graph, pool=on.pool, stream=on.stream, capture_error_mode="thread_local"):
            take_all()
        on.pool = on.pool or graph.pool()
    except RuntimeError as error:
        torch.cuda.synchronize()
        warnings.warn(f"The training step could not be captured as a CUDA graph ({_first_line(error)})", stacklevel=2)
        return take_all
    return partial(_replay, graph, (step, changed, read, given_at))


def _replay(graph: torch.cuda.CUDAGraph, _in_use: Any) -> None:
    """Does what was captured; what that reads and writes, such as a step's constants, must not be given up before."""
    graph.replay()


def _room(example: Tensor, times: int) -> tuple[Tensor, list[Tensor]]:
    """Memory for as many tensors like the example, as rows of numbers, and as themselves.

    Each begins where compiled code expects tensors to begin.
    """
    unit, size = _ALIGNED_BYTES // example.element_size(), example.numel()
    rows = example.new_zeros(times, -(-size // unit) * unit)[:, :size]
    rows.copy_(example.reshape(1, -1))
    return rows, [row.view(example.shape) for row in rows]


def step_for_gpu(recorded: GraphModule, tensors: list[Tensor], replaced: int, compile: bool) -> Callable[..., None]:
    """A recorded step as a function of tensors like these, of which it replaces the first; compiled if that is wanted.

    It takes far fewer kernels then, each of which would have to wait for the one before.
    """
    graph = recorded.graph
    compare_instead_of_scattering(graph, tensors[0].device)
    compile = compile and len(graph.nodes) <= _MOST_COMPILED
    if compile:
        sum_small_products(graph)
    pure, updates = separate_updates(recorded, replaced)
    if not compile:
        return in_place(pure, updates)
    outside = update_within(pure, updates)
    return in_place(compiled(pure, [_copy_as_it_lies(t) for t in tensors]), outside)  # compiling it takes a step


def _copy_as_it_lies(tensor: Tensor) -> Tensor:
    """A copy with the same gaps in memory, without which the compiler would have to begin again for the original."""
    if 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def compiled(pure: GraphModule, tensors: list[Tensor]) -> Callable[..., Any]:
    """A recorded computation that is made for tensors like these; as it is where there is no compiler for it."""
    reshape_instead_of_viewing(pure.graph)
    pure.recompile()
    mark = _mark(pure, tensors)
    try:
        options: dict[str, Any] = dict(_NOTHING_MEASURED)
        if _draws(pure):
            options["realize_opcount_threshold"] = _OPERATIONS_OF_A_MASK
        with warnings.catch_warnings(), _helpers(wanted=mark is None or not mark.exists()):
            # The compiler's advice on how to be faster is for its users, not for ours.
            warnings.filterwarnings("ignore", module=r"torch\._inductor")
            made: Callable[..., Any] = torch.compile(pure, dynamic=False, options=options)
            made(*tensors)
        if mark is not None:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except Exception as error:  # no compiler on this machine, or one that fails on this model
        warnings.warn(f"The training step runs without being compiled ({_first_line(error)})", stacklevel=2)
        return pure
    return made


def _draws(pure: GraphModule) -> bool:
    """Whether random numbers are hashed in it."""
    return any(node.target == torch.ops.aten.bitwise_xor.Tensor for node in pure.graph.nodes)


def _mark(pure: GraphModule, tensors: list[Tensor]) -> Path | None:
    """A file that is there once a computation like this has been compiled: torch finds that in the folder beside it.

    Nothing but the time to get it depends on whether that is still so.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder is None:
        return None
    forms = [(t.shape, t.stride(), t.dtype, t.device.type) for t in tensors]
    name = hashlib.sha256(repr((torch.__version__, pure.code, forms)).encode()).hexdigest()
    return Path(folder) / "fedarena" / name


@contextmanager
def _helpers(wanted: bool) -> Iterator[None]:
    """Lets torch's compiler start processes that help it or not: each takes seconds, as it imports torch itself.

    They are worth it only if there is something to compile.
    """
    from torch._inductor import config

    before = os.environ.get(HELPERS)
    os.environ[HELPERS] = "1" if wanted else "0"
    try:
        with nullcontext() if wanted else config.patch(compile_threads=1):
            yield
    finally:
        if before is None:
            del os.environ[HELPERS]
        else:
            os.environ[HELPERS] = before


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"

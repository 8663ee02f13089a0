"""Numbers that a GPU has still to compute. They are copied to the host when they are there, and nobody waits for them.

So the host can plan and begin the next round while the GPU is busy with the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.train.tensors import Groups, all_tensors, sums_by_device

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

_FEW_NUMBERS = 1024


class LateArray:
    """An array for NumPy that is read when somebody first looks at it."""

    def __init__(self, read: Callable[[], FloatArray]):
        self._read = read
        self._found: FloatArray | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        if self._found is None:
            self._found = self._read()
        return np.array(self._found, dtype=dtype, copy=copy) if dtype is not None or copy else self._found

    def __getitem__(self, chosen: Any) -> FloatArray:
        found: FloatArray = self.__array__()[chosen]
        return found


Numbers = FloatArray | LateArray


def copied(tensor: Tensor) -> Callable[[], Array]:
    """Begins to copy a tensor to the host; gives what waits for that, though not for anything that begins later."""
    if not tensor.is_cuda:
        return tensor.numpy
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    room.copy_(tensor, non_blocking=True)
    is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_there.record()

    def read() -> Array:
        is_there.synchronize()
        # In memory of its own: the other kind is scarce.
        return room.numpy().copy()

    return read


def copied_numbers(groups: Groups) -> Callable[[], Groups]:
    """Begins to copy what is small in groups to the host; gives what waits for that. The rest stays where it is."""
    coming = {
        (group, name): copied(t)
        for group, tensors in groups.items()
        for name, t in tensors.items()
        if t.numel() <= _FEW_NUMBERS
    }

    def read() -> Groups:
        there = {place: torch.from_numpy(np.asarray(numbers())) for place, numbers in coming.items()}
        return {g: {name: there.get((g, name), t) for name, t in tensors.items()} for g, tensors in groups.items()}

    return read


def late_array(tensor: Tensor, finish: Callable[[Array], FloatArray]) -> Numbers:
    """What `finish` makes of a tensor's numbers: at once on a CPU, else when somebody looks."""
    if not tensor.is_cuda:
        return finish(tensor.numpy())
    read = copied(tensor)
    return LateArray(lambda: finish(read()))


def concatenated(arrays: Sequence[Numbers]) -> Numbers:
    """One after the other; to be read late if one of them is."""
    if not any(isinstance(array, LateArray) for array in arrays):
        return np.concatenate([np.asarray(array) for array in arrays])
    return arrays[0] if len(arrays) == 1 else LateArray(lambda: np.concatenate([np.asarray(a) for a in arrays]))


class LateChecks:
    """Whether numbers are finite, asked after the fact."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._arrays: list[Numbers] = []
        self._read: Callable[[], Array] | None = None

    def note(self, groups: Groups) -> None:
        """These tensors should be finite."""
        if tensors := all_tensors(groups):
            self._sums += sums_by_device(tensors)

    def note_array(self, array: Numbers) -> None:
        """And so should these numbers."""
        self._arrays.append(array)

    def seal(self) -> None:
        """There is nothing more to be noted."""
        if self._sums:
            device = next((t.device for t in self._sums if t.is_cuda), torch.device("cpu"))
            self._read = copied(torch.cat([t.to(device).double() for t in self._sums]))
        self._sums = []

    def found_nothing(self) -> bool:
        """Whether all is finite; if not, somebody should look closely, as a sum may overflow though no term does."""
        sums_fine = self._read is None or bool(np.isfinite(self._read()).all())
        return sums_fine and all(bool(np.isfinite(array).all()) for array in self._arrays)

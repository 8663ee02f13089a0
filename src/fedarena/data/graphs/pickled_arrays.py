"""Reading pickled arrays and sparse matrices without running anything, as `fedarena.core.pickles` reads plain data.

NumPy's arrays and SciPy's matrices of compressed rows are recognized by the exact form that these libraries write, and
made anew from their bytes; of a dictionary with a default value, the dictionary is left.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes
from fedarena.core.later import later
from fedarena.core.pickles import KNOWN_NAMES, NumberType, PlainUnpickler, parse_pickle, refuse

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

_ARRAY, _MATRIX, _LIST = "numpy.ndarray", "scipy.sparse.csr_matrix", "list"  # what stands for these types


class _PickledArray:
    """An array, which is empty until its state comes."""

    values: np.ndarray[Any, Any] | None = None

    def set(self, state: Any) -> None:
        """Fills it with the state that NumPy writes: a version, shape, type, order of axes and bytes."""
        if type(state) is not tuple or type(state[1]) is not tuple or type(state[2]) is not NumberType:
            raise TypeError("not the state of an array")
        _, shape, number_type, columns_first, content = state
        data = content.encode("latin-1") if type(content) is str else content
        if type(data) is not bytes or not all(type(size) is int and size >= 0 for size in shape):
            raise TypeError("not the bytes of an array")
        if number_type.layout.size * math.prod(shape) != len(data):
            raise ValueError("more or fewer bytes than the array has numbers")
        found = np.frombuffer(data, np.dtype(number_type.layout.format))
        self.values = found.reshape(shape, order="F" if columns_first else "C")


class _PickledMatrix:
    """A matrix of compressed rows, which is empty until its state comes."""

    state: dict[str, Any] | None = None

    def set(self, state: Any) -> None:
        """Keeps what it is made of."""
        if type(state) is not dict:
            raise TypeError("not the state of a matrix")
        self.state = state


def _new_array(kind: Any, _shape: Any, _code: Any) -> _PickledArray:
    if kind != _ARRAY:
        raise TypeError("not an array")
    return _PickledArray()


def _new_dictionary(_kind: Any) -> dict[Any, Any]:
    return {}


class _ArrayUnpickler(PlainUnpickler):
    """The machine for plain data, with a few names and instructions more."""

    allowed = "such files may hold arrays, sparse matrices, numbers, texts, lists and dictionaries only"
    known_names: ClassVar[dict[str, Any]] = {
        **KNOWN_NAMES,
        "numpy.ndarray": _ARRAY,
        "numpy.core.multiarray._reconstruct": _new_array,
        "numpy._core.multiarray._reconstruct": _new_array,
        "scipy.sparse.csr.csr_matrix": _MATRIX,
        "scipy.sparse._csr.csr_matrix": _MATRIX,
        "collections.defaultdict": _new_dictionary,
        "__builtin__.list": _LIST,
        "builtins.list": _LIST,
    }

    def new_object(self) -> None:
        """Nothing but a matrix is created."""
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind != _MATRIX or arguments != ():
            refuse(self, "wants to create an object")
        self.append(_PickledMatrix())

    def set_state(self) -> None:
        """Arrays and matrices have a state, beside types of numbers."""
        if type(self.stack[-2]) not in (_PickledArray, _PickledMatrix):
            super().set_state()
            return
        state = self.stack.pop()
        self.stack[-1].set(state)

    def checked(self, value: Any) -> Any:
        """An array or a matrix, plain data, or a dictionary in which texts name such."""
        if type(value) is dict and any(type(entry) in (_PickledArray, _PickledMatrix) for entry in value.values()):
            if not all(type(name) in (str, bytes) for name in value):
                raise TypeError("not a dictionary of arrays")
            return {name: self._checked_entry(entry) for name, entry in value.items()}
        return self._checked_entry(value)

    def _checked_entry(self, value: Any) -> Any:
        if type(value) is _PickledArray and value.values is not None:
            return value.values
        if type(value) is _PickledMatrix:
            return self._matrix(value.state or {})
        return super().checked(value)

    def _matrix(self, state: dict[str, Any]) -> sparse.csr_matrix:
        pieces = [state.get(name) for name in ("data", "indices", "indptr")]
        arrays = [piece.values for piece in pieces if type(piece) is _PickledArray]
        shape = state.get("_shape")
        if len(arrays) < len(pieces) or type(shape) is not tuple:
            raise BadInputError(f"{self.path} holds a sparse matrix that lacks its numbers or its shape")
        return checked_matrix(arrays, shape, self.path)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **PlainUnpickler.dispatch,
        ord(pickle.NEWOBJ): new_object,
        ord(pickle.BUILD): set_state,
    }


def checked_matrix(arrays: Sequence[Any], shape: Any, path: str | Path) -> sparse.csr_matrix:
    """A matrix of compressed rows from what a file has of it: its numbers, their columns, and where rows begin."""
    try:
        matrix = sparse.csr_matrix(tuple(arrays), shape=tuple(int(size) for size in shape))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise BadInputError(f"{path} holds a sparse matrix that makes no sense: {error}") from None
    return matrix


def read_pickled_arrays(path: Path) -> Any:
    """The array, sparse matrix or plain value in a pickle."""
    return parse_pickled_arrays(read_bytes(path), path)


def parse_pickled_arrays(content: bytes, path: Path | str) -> Any:
    """The same of a pickle's bytes; `path` names it in errors."""
    return parse_pickle(content, path, _ArrayUnpickler)

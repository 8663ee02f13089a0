"""TensorFlow Federated's HDF5 files: a group ``examples`` with a group for every client, which has equally long lists.

Groups are read in the order of their names, a client at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.flair.hdf5 import need_h5py

if TYPE_CHECKING:
    import h5py

_EXAMPLES = "examples"


@dataclass(frozen=True)
class ClientExamples:
    """The texts of one client by the names of their lists."""

    client: str
    number: int  # from 1
    lists: dict[str, list[str]]
    done: float  # of all clients


def hdf5_clients(path: Path, federation: str, wanted: Sequence[str]) -> Iterator[ClientExamples]:
    """All clients with the lists that are wanted."""
    need_h5py(federation)
    with _opened(path) as file:
        examples = file.get(_EXAMPLES)
        if examples is None or not hasattr(examples, "keys") or not len(examples):
            raise BadInputError(f"{path} has no clients: its group {_EXAMPLES} is missing or empty")
        for number, client in enumerate(examples, 1):
            group = examples[client]
            lists: dict[str, list[str]] = {}
            for name in wanted:
                if not hasattr(group, "keys") or name not in group:
                    raise BadInputError(f"{path}: the client {quoted(client)} has no {name}")
                values = group[name][()]
                if getattr(values, "ndim", 0) != 1:
                    raise BadInputError(f"{path}: {name} of the client {quoted(client)} must be a list of texts")
                lists[name] = [
                    value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                    for value in values.tolist()
                ]
            if len({len(values) for values in lists.values()}) > 1:
                counts = ", ".join(f"{len(values)} {name}" for name, values in lists.items())
                raise BadInputError(f"{path}: the client {quoted(client)} has unequal numbers of texts: {counts}")
            yield ClientExamples(client, number, lists, number / len(examples))


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        raise DamagedFileError(
            f"{path} is damaged: HDF5 cannot read it ({' '.join(str(error).split())[:120]})"
        ) from None

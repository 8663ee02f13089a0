"""Batches that were filled up with samples that do not count, and how they are kept from code that would count them.

Clients that train together need batches of the same size. Our own losses leave out what fills a batch up; somebody's
own loss, written the obvious way, would count it without a word. So it gets a sealed batch: it may be handed on to
`Task.loss`, which opens it, but nobody else can look inside. Where a loss tries to, its engine makes no use of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from torch import Tensor

Tensors = dict[str, Tensor]


class SealedBatchError(Exception):
    """A loss of somebody's own looked at samples, of which some are padding."""


class SealedBatch(Mapping[str, Tensor]):
    """A batch that can be handed on, but not looked at."""

    def __init__(self, batch: Tensors):
        self._batch = batch

    def opened(self) -> Tensors:
        """The batch, for code that leaves out padding."""
        return self._batch

    def _refuse(self) -> NoReturn:
        raise SealedBatchError("This batch is padded; it can be given to task.loss, but not be looked at")

    def __getitem__(self, name: str) -> Tensor:
        self._refuse()

    def __contains__(self, name: object) -> bool:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


def opened(batch: Mapping[str, Tensor]) -> Tensors:
    """The batch itself, whether it was sealed or not."""
    return batch.opened() if isinstance(batch, SealedBatch) else dict(batch)

"""Reading encoded columns: files that lie in a table are decoded by several threads, or were before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.raw.images import need_pillow
from fedarena.data.store.decoded import decoded_cache
from fedarena.data.store.encoding import decode
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray
from fedarena.data.store.side_by_side import for_each
from fedarena.data.store.table import TableReader

_CHECKED_AT_ONCE = 4096


class StoredPictures:
    """The encoded columns of the table of samples; that of clients says whose they are."""

    def __init__(self, table: TableReader, clients: TableReader, federation: str, fingerprint: str):
        self._table, self._clients, self._federation, self._fingerprint = table, clients, federation, fingerprint

    def take(self, column: str, rows: IntArray) -> AnyArray:
        """The decoded pictures at `rows`, in their order. Only these are read, each of them once."""
        distinct, place = np.unique(rows, return_inverse=True)
        if len(distinct) < len(rows):
            return self.take(column, distinct)[place]
        spec, cache = self._spec(column), decoded_cache()
        result = np.empty((len(rows), *spec.shape), dtype=spec.dtype)
        numbers, decode_at = rows.tolist(), self._sound_decoder(column, rows)

        def read(index: int) -> None:
            key = (self._fingerprint, column, numbers[index])
            if not cache.read(key, result[index]):
                decode_at(index, result[index])
                cache.put(key, result[index])

        for_each(read, len(rows))
        return result

    def check(self) -> None:
        """Decodes every picture; raises for the first one that cannot be decoded."""
        table = self._table.unchecked()
        for column, spec in table.columns.items():
            if isinstance(spec, ColumnSpec) and spec.encoding is not None:
                for start in range(0, table.rows, _CHECKED_AT_ONCE):
                    self._check_rows(table, column, np.arange(start, min(start + _CHECKED_AT_ONCE, table.rows)))

    def _check_rows(self, table: TableReader, column: str, rows: IntArray) -> None:
        spec, decode_at = self._spec(column), self._decoder(table, column, rows)
        for_each(lambda index: decode_at(index, np.empty(spec.shape, spec.dtype)), len(rows))

    def _sound_decoder(self, column: str, rows: IntArray) -> Callable[[int, AnyArray], None]:
        """The same for rows that are what was written; if some are not, says whose picture it is that is damaged."""
        try:
            return self._decoder(self._table, column, rows)
        except DamagedFileError:
            self._check_rows(self._table.unchecked(), column, rows)
            raise

    def _decoder(self, table: TableReader, column: str, rows: IntArray) -> Callable[[int, AnyArray], None]:
        """A function that puts the pixels of one of these rows, counted from 0, into an array."""
        need_pillow(self._federation)
        spec, contents = self._spec(column), table.take_encoded(column, rows)

        def decode_at(index: int, target: AnyArray) -> None:
            try:
                decode(contents[index], spec, target, "It")
            except BadInputError as error:
                row = int(rows[index])
                raise DamagedFileError(
                    f"{self._table.path} is damaged in row {row}, column {column!r}, a picture of client "
                    f"{self._owner(row)!r}. {error}"
                ) from None

        return decode_at

    def _owner(self, row: int) -> str:
        """The id of the client whose sample is in a row."""
        begins = self._clients.take("start", np.arange(self._clients.rows))
        client = int(np.searchsorted(begins, row, side="right")) - 1
        return self._clients.take_strings("id", np.array([client]))[0]

    def _spec(self, column: str) -> ColumnSpec:
        spec = self._table.columns[column]
        assert isinstance(spec, ColumnSpec)
        return spec

"""Bytes for Arrow to read from."""

from __future__ import annotations

import pyarrow as pa


def arrow_file(content: bytes) -> pa.BufferReader:
    """These bytes as a file, in memory of Arrow's own.

    Arrow reads Parquet with threads, which may let go of a file a moment after it has been read. If the memory were
    Python's, they would need Python's lock for that, and in a process that is about to end nobody gets it any more: the
    process would abort.
    """
    memory = pa.allocate_buffer(len(content))
    memoryview(memory).cast("B")[:] = content
    return pa.BufferReader(memory)

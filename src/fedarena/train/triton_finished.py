"""The kernel of `finished_lanes`, in Triton's language, which looks like Python but is compiled for a GPU."""

# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_finished_kernel(numbers, last, table, TENSORS: tl.constexpr, WORDS: tl.constexpr):
    """Copies a part of a lane's row of all tensors if the lane has taken its last step.

    The table says of each tensor where it is, where its copy is, and how many words of 4 bytes a row has.
    """
    lane = tl.program_id(0).to(tl.int64)
    if tl.load(numbers + lane) == tl.load(last + lane):
        first, step = tl.program_id(1).to(tl.int64) * WORDS, tl.num_programs(1).to(tl.int64) * WORDS
        for tensor in range(TENSORS):
            words = tl.load(table + 3 * tensor + 2)
            source = tl.load(table + 3 * tensor).to(tl.pointer_type(tl.int32)) + lane * words
            target = tl.load(table + 3 * tensor + 1).to(tl.pointer_type(tl.int32)) + lane * words
            for begin in range(first, words, step):
                at = begin + tl.arange(0, WORDS)
                tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)

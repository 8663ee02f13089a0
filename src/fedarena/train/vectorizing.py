"""What torch says about operations that it cannot vectorize, in words for somebody who brought a model of his own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_SLOW_OPERATION = re.compile(r"There is a performance drop because .* the batching rule for aten::(\w+)")


@contextmanager
def noting_slow_operations(notes: list[str]) -> Iterator[None]:
    """Notes, once, which operations are computed for one client after the other; torch's own warnings end with that."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    slow = set()
    for warning in caught:
        found = _SLOW_OPERATION.match(str(warning.message))
        if found is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            slow.add(found[1].removesuffix("_backward"))
    if slow:
        notes.append(f"Torch computes {', '.join(sorted(slow))} for one client after the other, which takes longer")
    warnings.filterwarnings("ignore", message="There is a performance drop because .* the batching rule")

"""Torch's operations that compute several gradients, of which some can be left out, as scripts of their own.

Which ones are wanted is a list of flags, and torch's recorder of scripts (`torch.jit.trace`) refuses those. What is a
script already it takes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node


def script_masked_gradients(graph: Graph) -> None:
    """Has such operations of a recorded computation computed by scripts."""
    for node in graph.nodes:
        place = _place_of_flags(node.target)
        if place is None or node.kwargs or place >= len(node.args) or not any(node.args[place]):
            continue
        literals = tuple(None if isinstance(arg, Node) else _literal(arg) for arg in node.args)
        if any(literal is None and not isinstance(arg, Node) for literal, arg in zip(literals, node.args, strict=True)):
            continue
        node.target = _script(node.target.overloadpacket.__name__, literals, tuple(node.args[place]))
        node.args = tuple(arg for arg in node.args if isinstance(arg, Node))


def _place_of_flags(target: Any) -> int | None:
    """Which argument of an operation is a list of flags."""
    schema = getattr(target, "_schema", None)
    if schema is None or not str(target).startswith("aten."):
        return None
    kinds = [str(argument.type) for argument in schema.arguments]
    return kinds.index("List[bool]") if "List[bool]" in kinds else None


def _literal(value: Any) -> str | None:
    """A constant as it is written in a script; None for what is not one."""
    is_plain = value is None or isinstance(value, bool | int | float)
    is_list = isinstance(value, list | tuple) and all(isinstance(entry, bool | int) for entry in value)
    return repr(list(value)) if is_list else repr(value) if is_plain else None


@lru_cache(maxsize=1024)
def _script(name: str, literals: tuple[str | None, ...], wanted: tuple[bool, ...]) -> Callable[..., Any]:
    """The operation with these constants, as a function of the tensors between them.

    In the place of a gradient that is not wanted, which nobody asks for, there is one that is.
    """
    tensors = [f"t{place}" for place, literal in enumerate(literals) if literal is None]
    arguments = ", ".join(literal or f"t{place}" for place, literal in enumerate(literals))
    results = [f"r{place}" for place in range(len(wanted))]
    given = [
        result if is_wanted else results[wanted.index(True)] for result, is_wanted in zip(results, wanted, strict=True)
    ]
    source = (
        f"def compute({', '.join(f'{tensor}: Tensor' for tensor in tensors)}):\n"
        f"    {', '.join(results)} = torch.ops.aten.{name}({arguments})\n"
        f"    return {', '.join(given)}\n"
    )
    compute = torch.jit.CompilationUnit(source).compute

    def gradients(*tensors: torch.Tensor) -> Any:
        return compute(*tensors)

    return gradients

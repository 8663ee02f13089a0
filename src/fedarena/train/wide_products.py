"""Matrix products by oneDNN instead of MKL, on processors where that is faster.

Torch multiplies matrices on a CPU by MKL. On processors that are not Intel's, MKL keeps to instructions on 256 bits;
oneDNN, which torch has for convolutions, uses those on 512 bits where there are some, and is about twice as fast. Its
calls cost more, so small products stay MKL's. Which library it is follows from the processor and from sizes alone.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx import Graph, GraphModule
from torch.nn import Parameter
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedarena.train.graphs import Update, write_products
from fedarena.train.operations import calling, script_of

aten = torch.ops.aten

# Multiplications of a product from which on oneDNN is faster, although its calls take longer.
FEWEST: int = 1 << 20
# For how many multiplications a number of a product that is subtracted is better written down first: MKL subtracts
# while it multiplies.
_FEWEST_SUMMED = 32
_AMD, _FIRST_FAMILY = "AuthenticAMD", 26  # Zen 5, whose units are 512 bits wide; before, both libraries are as fast


@cache
def are_faster_here() -> bool:
    """Whether this machine is one of those."""
    usable = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not usable or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    vendor, family = _processor()
    return vendor == _AMD and family >= _FIRST_FAMILY


def _processor() -> tuple[str, int]:
    """Who made this machine's processor, and its family; nothing and 0 where nobody tells."""
    table = Path("/proc/cpuinfo")
    told = table.read_text() if table.is_file() else platform.processor()
    family = re.search(r"^cpu family\s*:\s*(\d+)|Family (\d+)", told, re.MULTILINE)
    vendor = re.search(r"AuthenticAMD|GenuineIntel", told)
    return vendor.group() if vendor else "", int(family.group(1) or family.group(2)) if family else 0


# These are parts of scripts, too, which know what is given to them and nothing else.
def _wide(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    in_order = right.stride(1) == 1 and right.stride(0) >= right.size(1)
    turned = right.stride(0) == 1 and right.stride(1) >= right.size(0)
    weight = right if in_order or turned else right.contiguous()  # it refuses rows that share numbers
    return torch.ops.mkldnn._linear_pointwise(left, weight.t(), bias, "none", [], "")  # type: ignore[no-any-return]


def _product(left: Tensor, right: Tensor, fewest: int = FEWEST) -> Tensor:
    if left.dtype != torch.float32 or left.size(0) * left.size(1) * right.size(1) < fewest:
        return torch.mm(left, right)
    return _wide(left, right)


def _products_of_lanes(left: Tensor, right: Tensor, fewest: int = FEWEST) -> Tensor:
    lanes, rows, inner, columns = left.size(0), left.size(1), left.size(2), right.size(2)
    if left.dtype != torch.float32 or rows * inner * columns < fewest:
        return torch.bmm(left, right)
    if lanes == 1 or right.stride(0) == 0:
        return _wide(left.reshape(lanes * rows, inner), right[0]).view(lanes, rows, columns)
    found = torch.empty([lanes, rows, columns], dtype=left.dtype, device=left.device)
    for lane in range(lanes):
        found[lane].copy_(_wide(left[lane], right[lane]))
    return found


# Of matrices in all lanes on a CPU, for scripts.
products_of_lanes: Callable[[Tensor, Tensor], Tensor] = _products_of_lanes if are_faster_here() else torch.bmm


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two matrices, or of those in lanes; nobody may ask for its gradient."""
    if left.device.type != "cpu" or not are_faster_here():
        return left @ right
    return (_product if left.dim() == 2 else _products_of_lanes)(left, right)


@cache
def _scripts() -> dict[Any, Callable[..., Tensor]]:
    functions = {aten.mm.default: _product, aten.bmm.default: _products_of_lanes}
    return {target: calling(script_of(function)) for target, function in functions.items()}


def multiply_widely(graph: Graph) -> None:
    """Has large products of a computation that was recorded on a CPU made in this way."""
    if not are_faster_here():
        return
    for node in graph.nodes:
        if node.target in _scripts() and _are_large(*(operand.meta["val"] for operand in node.args)):
            node.target = _scripts()[node.target]


def write_large_products(pure: GraphModule, updates: list[Update]) -> list[Update]:
    """The updates, with large products that they subtract computed before, in this way."""
    if not are_faster_here():
        return updates
    return write_products(
        pure, updates, lambda left, right: left.shape[-1] >= _FEWEST_SUMMED and _are_large(left, right)
    )


def _are_large(rows: Tensor, columns: Tensor) -> bool:
    """Whether the product of such matrices, or of those in every lane, is large, and in single precision."""
    size: int = rows.shape[-2:].numel() * columns.shape[-1]
    return rows.dtype == torch.float32 and size >= FEWEST


def wide_dense_layers(device: torch.device) -> AbstractContextManager[Any]:
    """Within this context, dense layers on such a device multiply in this way where nobody asks for gradients."""
    return _WideLayers() if device.type == "cpu" and are_faster_here() else nullcontext()


class _WideLayers(TorchFunctionMode):
    """Replaces large dense layers, and leaves everything else alone."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs and _is_large_layer(*args):
            input, weight, bias = (*args, None)[:3]
            return _wide(input, weight.t(), bias)
        return function(*args, **(kwargs or {}))


def _is_large_layer(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether it is nothing but a large product of numbers in single precision, and a number for every output."""
    given = [t for t in (input, weight, bias) if t is not None]
    if not all(_is_plain(t) for t in given) or _is_differentiated() or torch.is_autocast_enabled("cpu"):
        return False
    if input.dim() < 2 or weight.dim() != 2 or input.size(-1) != weight.size(1):
        return False
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_contiguous()):
        return False  # oneDNN reads as many numbers in a row, whatever there are
    return input.numel() * len(weight) >= FEWEST


def _is_plain(t: Tensor) -> bool:
    if type(t) not in (Tensor, Parameter) or torch._C._functorch.is_functorch_wrapped_tensor(t):
        return False
    return (t.device.type, t.dtype, t.layout) == ("cpu", torch.float32, torch.strided)


def _is_differentiated() -> bool:
    """Whether somebody may ask for gradients, also forward ones: no mode turns those off, and they would get lost."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0

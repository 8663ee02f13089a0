"""Kernels are compiled for a GPU that need not be there: a script, as the interpreter accepts what compilers do not.

python tests/core/compiled_kernels.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fedarena.train import (
    convolution_kernels,
    depthwise_gradient_kernels,
    depthwise_kernels,
    finished_lanes,
    group_norm_kernels,
    overlaps,
    picture_kernels,
    small_group_norm_kernels,
)

H100 = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int64: "*i64"}
ALIGNED = [["tt.divisibility", 16]]


def compile_instead(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """What Triton does when a kernel is first started with such arguments, but for starting it."""
    options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
    values = dict(zip(kernel.arg_names, given, strict=False)) | named
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        is_one = not parameter.do_not_specialize and not isinstance(value, torch.Tensor) and value == 1
        if parameter.is_constexpr or is_one:
            signature[name], constants[(place,)] = "constexpr", value
            continue
        signature[name] = TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or (not parameter.do_not_specialize and value % 16 == 0):
            attributes[(place,)] = ALIGNED
    triton.compile(ASTSource(kernel, signature, constants, attributes), target=H100, options=options)


def main() -> None:
    """Compiles what pictures in bf16 need, and what many clients' convolutions and dense layers do."""
    JITFunction.run = compile_instead
    x, filters, weight, statistic = (
        torch.empty(size, dtype=dtype)
        for size, dtype in (
            ((2, 20, 20, 24), torch.bfloat16),
            *(((24, 9), torch.float32), ((24,), torch.float32), ((2, 8), torch.float32)),
        )
    )
    for stride, ceiling in ((1, 6.0), (2, 0.0)):
        output = depthwise_kernels.filtered(x, filters, stride)
        norm = depthwise_gradient_kernels.Norm(weight, weight, statistic, statistic, ceiling)
        for before in (None, norm):
            depthwise_gradient_kernels.gradients(output, x, filters, stride, before)
    for kernels, pixels in ((group_norm_kernels, 400), (small_group_norm_kernels, 196)):
        rows = torch.empty(2, pixels, 24, dtype=torch.bfloat16)
        kernels.normalized(rows, 8, weight, weight, 1e-5, 6.0)
        kernels.gradients(rows, rows, weight, weight, statistic, statistic, 6.0)
    pictures, places = torch.empty(2, 3, 20, 20, dtype=torch.uint8), torch.zeros(2, 9, dtype=torch.int64)
    picture_kernels.picked(pictures, places, places)
    picture_kernels.patches(pictures, 3, 2, 1, 32, torch.bfloat16)
    of_lanes, own = torch.empty(2, 3, 9, 9, 32), torch.empty(2, 64, 3, 3, 32)
    slopes = convolution_kernels.convolve(of_lanes, own, (1, 1), exact=False)
    convolution_kernels.weight_gradient(of_lanes, slopes, (3, 3), (1, 1), exact=False)
    convolution_kernels.bias_gradient(slopes)
    rows = torch.empty(2, 10, 1024)
    overlaps.in_parts(rows, rows, 2, exact=False)
    finished_lanes.FinishedLanes({"rows": rows}, torch.ones(2, dtype=torch.int64))


if __name__ == "__main__":
    main()

"""How long many clients' convolutions take on a GPU, layer by layer, each client with weights of its own.

    python benchmarks/gpu_convolutions.py [--layers "LEAF 2" ...] [--precision tf32]

*products* lays out patches as rows and multiplies, compiled as a training step is; *grouped* is torch's grouped
convolution by cuDNN, with channels first or last; *kernels* are our own (`fedarena/train/triton_convolution.py`).
Milliseconds for all lanes: forwards, and both gradients. Errors are relative to float64. Needs torch and NumPy alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn import functional as F

from fedarena.train.captured import compiled
from fedarena.train.convolution_kernels import convolve, weight_gradient
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import TRACING, record

# Lanes, samples of each, pixels along a side, channels in and out, width of the kernel.
LAYERS = {
    "LEAF 1": (256, 10, 28, 1, 32, 5),
    "LEAF 2": (256, 10, 14, 32, 64, 5),
    "CIFAR 1": (256, 10, 32, 3, 32, 3),
    "CIFAR 2": (256, 10, 16, 32, 64, 3),
    "ResNet 32 px": (16, 16, 32, 64, 64, 3),
    "ResNet 16 px": (16, 16, 16, 128, 128, 3),
    "ResNet 8 px": (16, 16, 8, 256, 256, 3),
    "ResNet 4 px": (16, 16, 4, 512, 512, 3),
}
REPETITIONS = 5


def milliseconds(run: Callable[[], Any]) -> float:
    """How long it takes on the GPU, on average."""
    for _ in range(2):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPETITIONS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPETITIONS


def products(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forwards alone, and all of it, as programs of training steps do it."""
    padding = weight.shape[-1] // 2

    def forwards(tensors: list[Tensor]) -> list[Tensor]:
        with LayersAsProducts():
            return [vmap(lambda x, weight: torch.conv2d(x, weight, padding=padding))(*tensors[:2])]

    def everything(tensors: list[Tensor]) -> list[Tensor]:
        _, backwards = vjp(lambda *given: forwards(list(given))[0], *tensors[:2])
        return list(backwards(tensors[2]))

    made = []
    tensors = [x, weight, grad]
    for function in (forwards, everything):
        with TRACING:
            recorded = record(function, tensors)
        recorded.graph.set_codegen(torch.fx.graph.CodeGen())
        recorded.recompile()
        made.append(compiled(recorded, tensors))
    return lambda: made[0](*tensors), lambda: made[1](*tensors)


def grouped(
    x: Tensor, weight: Tensor, grad: Tensor, layout: torch.memory_format
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One convolution with a group for every lane; pictures are given as it wants them."""
    lanes, padding = len(x), weight.shape[-1] // 2
    x, grad = (t.transpose(0, 1).flatten(1, 2).contiguous(memory_format=layout) for t in (x, grad))
    weight = weight.flatten(0, 1).contiguous(memory_format=layout)
    options = [1, 1], [padding, padding], [1, 1], False, [0, 0], lanes, [True, True, False]

    def forwards() -> Tensor:
        return F.conv2d(x, weight, padding=padding, groups=lanes)

    def everything() -> Any:
        forwards()
        return torch.ops.aten.convolution_backward(grad, x, weight, None, *options)

    return forwards, everything


def kernels(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Our own, with channels innermost; turning the weights around is part of the gradient."""
    exact, size = not torch.backends.cuda.matmul.allow_tf32, weight.shape[-1]
    padding, back = (size // 2,) * 2, (size - 1 - size // 2,) * 2
    x, weight, grad = (t.permute(0, 1, 3, 4, 2).contiguous() for t in (x, weight, grad))

    def forwards() -> Tensor:
        return convolve(x, weight, padding, exact)

    def everything() -> Any:
        turned = weight.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()
        return (
            forwards(),
            convolve(grad, turned, back, exact),
            weight_gradient(x, grad, (size, size), padding, exact).sum(1),
        )

    return forwards, everything


WAYS = {
    "products": products,
    "first": partial(grouped, layout=torch.contiguous_format),
    "last": partial(grouped, layout=torch.channels_last),
    "kernels": kernels,
}


def main() -> None:
    """Measures the layers that were asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), help="names of layers")
    parser.add_argument("--precision", choices=["full", "tf32"], default="tf32")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.precision == "tf32"
    random = torch.Generator("cuda").manual_seed(0)
    print(f"{'milliseconds':14}{'GFLOP':>8}{'products':>16}{'grouped, first':>18}{'grouped, last':>18}{'kernels':>16}")
    for name in arguments.layers:
        lanes, samples, pixels, channels, outputs, size = LAYERS[name]
        pictures = samples, channels, pixels, pixels
        shapes = pictures, (outputs, channels, size, size), (samples, outputs, pixels, pixels)
        x, weight, grad = (torch.randn(lanes, *shape, device="cuda", generator=random) for shape in shapes)
        weight /= channels**0.5 * size
        times = {}
        for way, make in WAYS.items():
            forwards, everything = make(x, weight, grad)
            times[way] = f"{milliseconds(forwards):.2f} {milliseconds(everything):.2f}"
        flops = 2 * lanes * samples * pixels**2 * outputs * channels * size**2 / 1e9
        print(
            f"{name:14}{flops:8.1f}{times['products']:>16}{times['first']:>18}{times['last']:>18}{times['kernels']:>16}"
            f"   {_errors(x[:2], weight[:2], grad[:2])}",
            flush=True,
        )


def _errors(x: Tensor, weight: Tensor, grad: Tensor) -> str:
    """Of products and of kernels forwards, relative to float64."""
    padding = weight.shape[-1] // 2
    pairs = zip(x, weight, strict=True)
    right = torch.stack([F.conv2d(one.double(), own.double(), padding=padding) for one, own in pairs])
    found = {
        "kernels": kernels(x, weight, grad)[0]().permute(0, 1, 4, 2, 3),
        "products": vmap(lambda x, weight: _product(x, weight, padding))(x, weight),
    }
    return ", ".join(f"{way} {float((t - right).norm() / right.norm()):.1e}" for way, t in found.items())


def _product(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    with LayersAsProducts():
        return torch.conv2d(x, weight, padding=padding)


if __name__ == "__main__":
    main()

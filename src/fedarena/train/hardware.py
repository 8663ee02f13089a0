"""Where and how exactly an engine computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from fedarena.core.errors import BadInputError
from fedarena.train.tensors import Groups, map_groups

DeviceName = Literal["auto", "cpu", "cuda"]
AnyDeviceName = Literal["auto", "cpu", "cuda", "mps"]  # the last one is the GPU of Apple's computers
Precision = Literal["full", "tf32", "bf16"]
DtypeName = Literal["float32", "float64"]


class Hardware:
    """A device, and how numbers are kept and multiplied on it."""

    def __init__(self, device: AnyDeviceName, threads: int, dtype: DtypeName, precision: Precision):
        if not 1 <= threads <= 1024:
            raise BadInputError(f"engine.threads must be from 1 to 1024, not {threads}")
        if device == "cuda" and not torch.cuda.is_available():
            raise BadInputError("engine.device is cuda, but torch finds no CUDA GPU here; choose engine.device=cpu")
        if device == "mps" and not torch.backends.mps.is_available():
            raise BadInputError("engine.device is mps, but torch finds no such GPU here; choose engine.device=cpu")
        if device == "mps" and dtype != "float32":
            raise BadInputError(f"engine.device mps computes with float32, not with {dtype}; choose engine.device=cpu")
        if precision == "bf16" and dtype != "float32":
            raise BadInputError(f"engine.precision bf16 needs engine.dtype float32, not {dtype}")
        if precision == "tf32" and (device == "cpu" or not torch.cuda.is_available()):
            raise BadInputError("engine.precision tf32 needs a GPU; choose full or bf16")
        name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(name)
        self.threads = threads  # part of the configuration, because sums over several threads round differently
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.precision = precision

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def choices(self) -> dict[str, Any]:
        """What the automatic choice of a device came to."""
        return {"device": self.device.type}

    @property
    def options(self) -> dict[str, Any]:
        """The options that give the same hardware again."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"device": self.device.type, "threads": self.threads, "dtype": dtype, "precision": self.precision}

    def set_up(self) -> None:
        """Makes torch compute like this from now on; threads are those of the calling thread."""
        torch.set_num_threads(self.threads)
        if not self.is_gpu:  # a script may have allowed more for models of its own
            torch.set_float32_matmul_precision("highest")
        else:
            torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def rounding(self) -> AbstractContextManager[None]:
        """Within this context, products of matrices are rounded as the precision says."""
        if self.precision != "bf16":
            return nullcontext()
        # Parameters that were cast once must be cast again when they have changed, so nothing is cached.
        autocast: AbstractContextManager[None] = torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        return autocast

    def place(self, groups: Groups) -> Groups:
        """The same groups on this device."""
        return map_groups(lambda t: t.to(self.device), groups)

    def free_bytes(self) -> int:
        """Memory of the GPU that nobody uses."""
        free: int = torch.cuda.mem_get_info()[0]
        return free

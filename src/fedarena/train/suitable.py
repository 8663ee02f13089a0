"""How many clients train at once, and how, by the sizes of a model and of a batch and the memory of a GPU."""

from __future__ import annotations

import torch

from fedarena.models import Task
from fedarena.train import convolution_kernels
from fedarena.train.algorithm import Algorithm
from fedarena.train.hardware import Hardware
from fedarena.train.lane_pool import Convolutions, Kernels, Plan
from fedarena.train.native import why_absent
from fedarena.train.optimizers import LocalTraining
from fedarena.train.sizes import bytes_per_lane, gate_bytes, has_convolutions, has_recurrence
from fedarena.train.wide_products import are_faster_here

# Found by measuring: with more than this in use, wider is slower. A constant, so that all machines get the same bits.
_CACHE_BYTES = 1 << 23
_MOST_LANES = 256
# A GPU is busy from about so many bytes on; more lanes would not make it faster.
_GPU_BYTES = 1 << 32
# Of recurrent layers it has one step of the sequence at a time to do, so that it takes more to be busy.
_GPU_RECURRENT_BYTES = 1 << 34
_MOST_GPU_LANES = 4096
# Convolutions with patches written down are slower than a library's from about so many bytes of a lane on. Below and
# above, there is a range in which that depends on the model and the GPU, and is tried out.
_LARGE_LANE_BYTES = 1 << 28
_OPEN_LANE_BYTES = (1 << 26, 1 << 30)
_MOST_APART = 8  # more beside each other are not faster
# Of the GPU's memory that is free at the beginning.
_GPU_SHARE_FOR_LANES = 1 / 8  # there are several copies of their parameters
_GPU_SHARE_APART = 0.6  # steps in computations of their own take a third of what a lane is thought to take, or less


class Suitable:
    """What suits the training of a model by an algorithm on a device."""

    def __init__(self, task: Task, algorithm: Algorithm, local: LocalTraining, hardware: Hardware):
        self._task, self._algorithm, self._local, self._hardware = task, algorithm, local, hardware

    def lane_bytes(self) -> int:
        """What a lane takes with this algorithm."""
        of_model = bytes_per_lane(self._task, self._local.batch_size)
        if not self._algorithm.keeps_sample_gradients:
            return of_model
        parameters = sum(p.numel() * p.element_size() for p in self._task.module.parameters())
        return of_model + self._local.batch_size * parameters

    def leaves_plan_open(self) -> bool:
        """Whether sizes do not tell how clients train fastest."""
        if not self._hardware.is_gpu or not has_convolutions(self._task):
            return False
        least, most = _OPEN_LANE_BYTES
        return least <= self.lane_bytes() < most

    def lanes_and_plan(self, lanes: int | None, plan: Plan | None) -> tuple[int, Plan]:
        """How many clients train at once, and how, as far as sizes tell."""
        if lanes is not None:  # such as in runs from before there were plans
            return lanes, plan or "together"
        lane_bytes = self.lane_bytes()
        if plan is None:
            plan = self._plan(lane_bytes) if self._hardware.is_gpu else "together"
        if plan == "apart" and self._hardware.is_gpu:
            room = int(_GPU_SHARE_APART * self._hardware.free_bytes()) // lane_bytes
            return max(1, min(_MOST_APART, room)), plan
        return self._lanes(lane_bytes), plan

    def _plan(self, lane_bytes: int) -> Plan:
        if lane_bytes >= _LARGE_LANE_BYTES and has_convolutions(self._task):
            return "apart"
        # Programs of few lanes take a large model's compiler minutes.
        return "beside" if lane_bytes < _OPEN_LANE_BYTES[0] else "together"

    def convolutions(self, plan: Plan) -> Convolutions:
        """How many clients convolve at once, by what a GPU is told to do."""
        suit = self._hardware.is_gpu and self._hardware.precision == "tf32" and plan != "apart"
        suit = suit and has_convolutions(self._task) and not self._algorithm.keeps_sample_gradients
        return "kernels" if suit and convolution_kernels.available() else "products"

    def kernels(self) -> Kernels:
        """Whose kernels a CPU uses."""
        return "compiled" if self._kernels_would_be_faster() and why_absent() is None else "library"

    def kernel_notes(self) -> list[str]:
        """Why there are no kernels of our own where they would be faster."""
        reason = why_absent() if self._kernels_would_be_faster() else None
        if reason is None:
            return []
        return [f"Training takes longer without kernels of our own (engine.kernels), since {reason}"]

    def _kernels_would_be_faster(self) -> bool:
        hardware = self._hardware
        suit = not hardware.is_gpu and hardware.dtype == torch.float32 and hardware.precision == "full"
        return suit and are_faster_here()

    def _lanes(self, lane_bytes: int) -> int:
        """A power of two of lanes: on a CPU as fit into a cache, on a GPU as many as it takes to keep it busy."""
        if self._hardware.is_gpu:
            busy_bytes = _GPU_RECURRENT_BYTES if has_recurrence(self._task) else _GPU_BYTES
            most_bytes = min(busy_bytes, int(_GPU_SHARE_FOR_LANES * self._hardware.free_bytes()))
            lane_bytes += gate_bytes(self._task, self._local.batch_size)
            fitting = min(_MOST_GPU_LANES, most_bytes // lane_bytes)
        else:
            fitting = min(_MOST_LANES, _CACHE_BYTES // lane_bytes)
        return int(2 ** (max(1, fitting).bit_length() - 1))

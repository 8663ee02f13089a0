"""Kernels for GPUs are torch's layers, and can be compiled, also where there is no GPU, if there is Triton."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_COMPILER = HAS_TRITON and importlib.util.find_spec("triton.backends.nvidia") is not None


@pytest.mark.skipif(not HAS_TRITON, reason="there is no Triton")
def test_kernels_for_gpus_are_torchs_layers() -> None:
    run_script("interpreted_kernels.py", TRITON_INTERPRET="1")


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no Triton for such GPUs")
def test_kernels_for_gpus_can_be_compiled(tmp_path: Path) -> None:
    run_script("compiled_kernels.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    compiled = {path.stem for path in tmp_path.rglob("*.cubin")}
    assert {"_filter", "_gradient_at_each_pixel", "_gradient_at_every_other", "_normalize_groups", "_pick"} <= compiled
    assert {"convolve_kernel", "weight_gradient_kernel", "sum_of_pixels_kernel"} <= compiled
    assert {"overlaps_kernel", "copy_finished_kernel"} <= compiled


def run_script(name: str, **environment: str) -> None:
    """In a process of its own, as Triton is told when it is loaded what it is to do."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name))],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""Describing a machine without telling whose it is: no name of a host or user."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from fedarena.core.installation import installed_version
from fedarena.profiling.memory import total_memory_bytes
from fedarena.profiling.system_files import output_of, read_text

_CPU_INFO = Path("/proc/cpuinfo")
# What the processor is called, in the words of Intel and AMD, and of phones.
_PROCESSOR_KEYS = ("model name", "Hardware")


def describe_machine() -> dict[str, Any]:
    """System, processor, memory, GPU and versions."""
    return {
        "system": platform.system() or None,
        "release": platform.release() or None,
        "architecture": platform.machine() or None,
        "device": _phone_model(),
        "processor": processor_name(_CPU_INFO) or platform.processor() or None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": total_memory_bytes(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "fedarena": installed_version("fedarena"),
    }


def processor_name(cpu_info: Path) -> str | None:
    """The name of the processor in a file like ``/proc/cpuinfo``."""
    for line in (read_text(cpu_info) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _PROCESSOR_KEYS and value.strip():
            return value.strip()
    return None


def _phone_model() -> str | None:
    """The maker and model of an Android phone."""
    if "ANDROID_ROOT" not in os.environ:
        return None
    words = [output_of(["getprop", f"ro.product.{what}"]) for what in ("manufacturer", "model")]
    return " ".join(word for word in words if word) or None

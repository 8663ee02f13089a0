"""Kernels of our own for CPUs: made by the machine's C compiler, checked, and told to torch as operations.

The compiler takes a second or two. What it makes is kept among the user's other caches, for this source, processor,
compiler and version of torch alone; where nothing can be kept, every process makes it again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("kernels.c")
_NAMESPACE = "fedarena_cpu"
# No flag here may let the compiler change what is computed, but for joining multiplications and additions.
_FLAGS = ("-O2", "-ftree-vectorize", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_OF_THIS_PROCESSOR = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
_LONGEST_SECONDS = 300
_DIGEST_BYTES = 16  # after what the compiler made
_TOLERANCE = 1e-5  # of numbers around 1, in single precision
_FORMS = (
    "lstm(Tensor gates, Tensor weight, Tensor hidden, Tensor cell, Tensor(a!) states, Tensor(b!) cells, "
    "Tensor(c!) opened, Tensor(d!) squashed, int lanes, int length, int samples, int width, int gates_lane, "
    "int gates_time, int gates_sample) -> ()",
    "lstm_back(Tensor grad, Tensor grad_cell, Tensor weight, Tensor cells, Tensor opened, Tensor squashed, "
    "Tensor(a!) of_gates, Tensor(b!) of_hidden, Tensor(c!) of_cell, int lanes, int length, int samples, int width, "
    "int grad_lane, int grad_time, int grad_sample) -> ()",
    "products(Tensor left, Tensor right, Tensor(a!) out, int lanes, int rows, int depth, int columns, int left_lane, "
    "int left_row, int left_column, int right_lane, int right_row, int right_column, int out_lane, int out_row) -> ()",
    "subtract_products(Tensor(a!) weights, Tensor left, Tensor right, int lanes, int rows, int depth, int columns, "
    "int weights_lane, int weights_row, int left_lane, int left_row, int left_column, int right_lane, int right_row, "
    "float times) -> ()",
)
_LIBRARY = torch.library.Library(_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
for _form in _FORMS:
    _LIBRARY.define(_form)  # type: ignore[no-untyped-call]
_MAKING = threading.Lock()


class AbsentError(Exception):
    """Why there are no such kernels here."""


def why_absent() -> str | None:
    """Why these kernels cannot be used on this machine; None: they can, and torch knows them."""
    with _MAKING:
        return _why_absent()


@cache
def _why_absent() -> str | None:
    try:
        _load()
    except (AbsentError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return str(error).strip().partition("\n")[0]
    return None


def _load() -> None:
    arch = _OF_THIS_PROCESSOR.get(platform.machine())
    if sys.platform != "linux" or arch is None:
        raise AbsentError(f"they are for Linux on {' or '.join(_OF_THIS_PROCESSOR)}")
    torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not hasattr(ctypes.CDLL(str(torch_library)), "aoti_torch_library_impl"):
        raise AbsentError(f"torch {torch.__version__} has no interface for operations in C")
    compiler, flags = _compiler(), [arch, *_FLAGS]
    try:
        kept = _folder() / f"kernels-{_fingerprint(compiler, flags)}.so"
        kept.parent.mkdir(parents=True, exist_ok=True)
        if not _is_whole(kept):
            _compile(compiler, flags, torch_library, kept)
        _register(kept)
    except (OSError, RuntimeError):  # there is no such folder, or nothing can be written to it or loaded from it
        with tempfile.TemporaryDirectory(prefix="fedarena-kernels-") as private:
            made = Path(private) / "kernels.so"
            _compile(compiler, flags, torch_library, made)
            _register(made)  # which stays in memory without its file


def _folder() -> Path:
    """``$FEDARENA_CACHE``, as for everything that is kept, or the user's cache folder."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedarena"
    return Path(os.environ.get("FEDARENA_CACHE") or usual) / "kernels"


def _is_whole(path: Path) -> bool:
    """Whether it is there and as it was made; to load what is damaged could end the process."""
    if not path.is_file():
        return False
    made = path.read_bytes()
    return _digest(made[:-_DIGEST_BYTES]) == made[-_DIGEST_BYTES:]


def _digest(made: bytes) -> bytes:
    return hashlib.blake2b(made, digest_size=_DIGEST_BYTES).digest()


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CC", ""))
    for candidate in [given] if given else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise AbsentError("there is no C compiler (cc, gcc, clang or $CC)")


def _fingerprint(compiler: list[str], flags: list[str]) -> str:
    """What tells what is made here from what other sources, processors, compilers and versions of torch come to."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, timeout=_LONGEST_SECONDS, check=False
    ).stdout
    table = Path("/proc/cpuinfo")
    told = table.read_text(errors="replace").partition("\n\n")[0].splitlines() if table.is_file() else []
    processor = [line for line in told if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags"))]
    processor += [line for line in told if line.startswith(("CPU implementer", "CPU part", "Features"))]
    parts = [_SOURCE.read_bytes(), version, *(" ".join(p).encode() for p in (compiler, flags, processor))]
    hashed = hashlib.blake2b(torch.__version__.encode(), digest_size=12)
    for part in parts:
        hashed.update(hashlib.blake2b(part).digest())
    return hashed.hexdigest()


def _compile(compiler: list[str], flags: list[str], torch_library: Path, into: Path) -> None:
    """Made beside its name and renamed: others may be about to do the same."""
    handle, beside = tempfile.mkstemp(suffix=".so", prefix=".kernels-", dir=into.parent)
    os.close(handle)
    try:
        command = [*compiler, *flags, str(_SOURCE), "-o", beside, str(torch_library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
            raise AbsentError(f"{compiler[0]} could not make them ({lines[0].strip()})")
        with open(beside, "ab") as file:  # whoever loads it looks at the beginning alone
            file.write(_digest(Path(beside).read_bytes()))
        os.replace(beside, into)
    finally:
        Path(beside).unlink(missing_ok=True)


def _register(made: Path) -> None:
    """Loads the kernels, tells torch, and sees whether they compute what they should."""
    if ctypes.CDLL(str(made)).register_operations(_NAMESPACE.encode()):
        raise AbsentError("torch did not take them")
    from fedarena.train.native.trial import largest_difference

    if not (difference := largest_difference()) <= _TOLERANCE:
        raise AbsentError(f"they differ by {difference:.1e} from what they should compute")

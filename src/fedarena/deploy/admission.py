"""Admission: what is looked at before an update may be added to others. Whatever is wrong has one word and a sentence.

A device may be broken or hostile. Nothing that it sends is believed before it was checked here: who sent it and whether
it was asked for (the coordinator), how much it is, whether it is what was announced, whether it has the form of an
update, and whether its numbers make sense.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.client.secure_limits import MOST_MEMBERS
from fedarena.client.secure_messages import Traffic
from fedarena.core.outside_text import quoted
from fedarena.deploy.inbox import digest_of
from fedarena.deploy.update_form import BadEncodingError, BadTensorsError, UpdateForm
from fedarena.runs.deployed import DeployOptions
from fedarena.train import COVERAGE, Algorithm, LocalTraining
from fedarena.train.batches import count_processed
from fedarena.train.engine import steps_in_shares
from fedarena.train.optimizers import training_of

MOST_CHUNK_BYTES = 1 << 20  # of a model or an update, in one message
CHUNK_BYTES = 1 << 16  # that are usual: a message counts when all of it has come, and connections may be short
CONTROL_BYTES = 1 << 16  # of a message that is JSON
_HEADER_ROOM = 1 << 16  # by which others may write the same tensors with a longer header
_FEWEST_NORMS, _MOST_NORMS = 5, 101  # of accepted updates, that a median is made of
_MOST_OBSERVED = 256
_LARGEST = 1e300
_LONGEST_CERTIFICATE = 1 << 13


class RefusedError(Exception):
    """Something is wrong with what a device sent."""

    def __init__(self, word: str, sentence: str):
        self.word, self.sentence = word, sentence  # for tables, and for whoever can mend it
        super().__init__(sentence)


@dataclass(frozen=True)
class Announced:
    """The first message of an upload, checked."""

    task: str
    offset: int
    bytes: int
    sha256: str
    report: dict[str, Any]


class Norms:
    """How long updates are that were accepted lately."""

    def __init__(self, norms: list[float] | None = None):
        self._norms = deque(norms or [], maxlen=_MOST_NORMS)

    def add(self, norm: float) -> None:
        """One more was accepted."""
        self._norms.append(norm)

    def to_list(self) -> list[float]:
        """All of them, to be kept."""
        return list(self._norms)

    @property
    def median(self) -> float | None:
        """None, as long as they are too few to tell."""
        return statistics.median(self._norms) if len(self._norms) >= _FEWEST_NORMS else None


class Admission:
    """The checks of one run."""

    def __init__(
        self, form: UpdateForm, algorithm: Algorithm, local: LocalTraining, options: DeployOptions, secure: bool = False
    ):
        """With `secure` sums, nothing is uploaded but how much a device did."""
        self.form, self._algorithm, self._local, self._options = form, algorithm, local, options
        self.sums_securely = secure
        self.least_bytes, self.most_bytes = form.least_bytes, form.most_bytes + _HEADER_ROOM
        self.norms = Norms()

    def announced(self, message: Any) -> Announced:
        """What an upload begins with."""
        if not isinstance(message, dict):
            raise RefusedError("header", "An upload begins with a JSON object")
        task: Any = message.get("task")
        digest: Any = message.get("sha256")
        report: Any = message.get("report")
        if not _is_hex(task, 32):
            raise RefusedError("header", f"task must be 32 hexadecimal digits, not {quoted(task)}")
        if not _is_hex(digest, 64):
            raise RefusedError("header", f"sha256 must be 64 hexadecimal digits, not {quoted(digest)}")
        for name in ("offset", "bytes"):
            if not _is_count(message.get(name)):
                raise RefusedError("header", f"{name} must be a whole number, not {quoted(message.get(name))}")
        if not isinstance(report, dict):
            raise RefusedError("header", "report must be a JSON object")
        return Announced(task, message["offset"], message["bytes"], digest, report)

    def check_size(self, announced: Announced) -> None:
        """Whether the update can be what it should, by its size alone."""
        if not self.least_bytes <= announced.bytes <= self.most_bytes:
            raise RefusedError(
                "size", f"An update has from {self.least_bytes:,} to {self.most_bytes:,} bytes, not {announced.bytes:,}"
            )
        if announced.offset > announced.bytes:
            raise RefusedError("header", f"The offset {announced.offset:,} is behind the end of {announced.bytes:,}")

    def check_errand(self, announced: Announced, spec: Mapping[str, Any]) -> None:
        """Whether the answer in a phase of a secure sum can be what it should, by its size alone."""
        most = most_answer_bytes(spec)
        if announced.bytes > most or announced.offset > announced.bytes:
            raise RefusedError("size", f"This answer has at most {most:,} bytes, not {announced.bytes:,}")

    def checked_answer(self, path: Path, announced: Announced) -> bytes:
        """The complete answer in a phase of a secure sum, if it is what was announced."""
        if digest_of(path) != announced.sha256:
            raise RefusedError("digest", "What arrived is not what was announced: its SHA-256 is another one")
        return path.read_bytes()

    def check_report(self, report: Mapping[str, Any], spec: Mapping[str, Any], samples: int) -> None:
        """Whether a device can have done what it says, with so many samples, in a task."""
        found, steps, processed = (_count(report, name) for name in ("samples", "steps", "processed"))
        most = samples if self._options.max_samples is None else min(samples, self._options.max_samples)
        if not 0 < found <= most:
            raise RefusedError("samples", f"{found:,} samples were trained on, and there are at most {most:,}")
        local = training_of(self._local, spec["hyperparameters"])
        share, numbers = np.array([spec["share"]]), np.array([found])
        wanted = int(steps_in_shares(share, numbers, self._algorithm, local)[0])
        if steps != wanted:
            raise RefusedError("steps", f"{steps:,} steps were taken, and {found:,} samples take {wanted:,}")
        expected = int(count_processed(numbers, np.array([wanted]), local.batch_size)[0])
        if processed != expected:
            raise RefusedError("steps", f"{processed:,} samples were processed, and these steps take {expected:,}")
        judged = spec["decisions"] is not None  # then who diverged says so
        _number(report, "loss", or_nothing=judged or self.sums_securely)
        _number(report, "start_loss", or_nothing=not self._algorithm.needs_start_loss)
        for name in ("uploaded_bytes", "joules"):
            _number(report, name, or_nothing=True)
        self._check_more(report)

    def _check_more(self, report: Mapping[str, Any]) -> None:
        for name in ("observed", "seconds", "validated"):
            values = report.get(name)
            if values is None and name != "observed":
                continue
            if not isinstance(values, dict) or len(values) > _MOST_OBSERVED:
                raise RefusedError("report", f"{name} must be numbers by name")
            for key in values:
                _number(values, key, or_nothing=name == "validated", within=name)

    def check_body(self, path: Path, announced: Announced) -> float:
        """Whether a complete body is an update as it should be; its norm."""
        if digest_of(path) != announced.sha256:
            raise RefusedError("digest", "What arrived is not what was announced: its SHA-256 is another one")
        try:
            squares = sum((self._checked_squares(name, piece) for name, piece in self.form.pieces(path)), 0.0)
        except BadTensorsError as error:
            raise RefusedError("form", str(error)) from None
        except BadEncodingError as error:
            raise RefusedError("encoding", f"The update's parameters cannot be decoded: {error}") from None
        return self._checked_norm(math.sqrt(squares))

    def _checked_squares(self, name: str, piece: Tensor) -> float:
        """The sum of the squares of some numbers of a tensor, if they make sense."""
        if piece.dtype == torch.bool and int(piece.view(torch.uint8).max()) > 1:
            raise RefusedError("form", f"{quoted(name)} has truth values that are neither 0 nor 1")
        if not piece.is_floating_point():
            return 0.0
        if not bool(torch.isfinite(piece).all()):
            raise RefusedError("not finite", f"{quoted(name)} has numbers that are infinite or undefined")
        if name.startswith(f"{COVERAGE}/"):
            if not 0 <= float(piece.min()) <= float(piece.max()) <= 1:
                raise RefusedError("coverage", f"{quoted(name)} has numbers outside of 0 to 1")
            return 0.0
        return float(torch.linalg.vector_norm(piece.double())) ** 2

    def _checked_norm(self, norm: float) -> float:
        options, median = self._options, self.norms.median
        if options.norm_bound is not None and norm > options.norm_bound:
            raise RefusedError("norm", f"The update has the norm {norm:.4g}, and {options.norm_bound:g} is allowed")
        if options.norm_factor is not None and median and norm > options.norm_factor * median:
            raise RefusedError(
                "norm",
                f"The update has the norm {norm:.4g}, which is more than {options.norm_factor:g} times the median of "
                f"those accepted, {median:.4g}",
            )
        return norm


def most_answer_bytes(spec: Mapping[str, Any]) -> int:
    """How long the answer to a task of a secure sum may be."""
    session = spec["session"]
    if spec["phase"] == "mask":
        return int(session["length"]) * int(session["bits"]) // 8
    return Traffic(MOST_MEMBERS, _LONGEST_CERTIFICATE).keys_up


def _is_hex(value: Any, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and all(one in "0123456789abcdef" for one in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _count(values: Mapping[str, Any], name: str) -> int:
    value: Any = values.get(name)
    if not _is_count(value):
        raise RefusedError("report", f"{name} must be a whole number, not {quoted(value)}")
    return int(value)


def _number(values: Mapping[str, Any], name: str, or_nothing: bool, within: str | None = None) -> None:
    value: Any = values.get(name)
    if value is None and or_nothing:
        return
    if type(value) not in (int, float) or not abs(value) < _LARGEST:
        what = name if within is None else f"{within}.{name}"
        raise RefusedError("report", f"{quoted(what)} must be a finite number, not {quoted(value)}")

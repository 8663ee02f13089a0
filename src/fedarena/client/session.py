"""A device that takes part in runs: it joins, waits for tasks, does them and sends what came of them, until it is over.

It may be killed at any moment. When it is started again, it first finds out what became of the last job.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedarena.client import codec
from fedarena.client.at_work import AtWork, NotWantedError
from fedarena.client.building import build, column_form, data_spec, put_constants, refuse_another_model
from fedarena.client.conditions import Conditions
from fedarena.client.device import Device
from fedarena.client.kept import DeviceFolder, Pending, RunFolder, needing_room
from fedarena.client.link import Answer, GoneError, Link
from fedarena.client.samples import OwnSamples, RawSamples
from fedarena.core.errors import BadInputError, FedArenaError, SecureSumError
from fedarena.core.outside_text import harmless, quoted
from fedarena.core.secret_noise import SecretSource
from fedarena.core.version import VERSION
from fedarena.profiling.machine import describe_machine
from fedarena.profiling.power import find_power_meter

if TYPE_CHECKING:  # it needs the package cryptography, which other runs do without
    from fedarena.client.secure_device import SecureDevice

PROTOCOL = 1
_SHA256 = re.compile("[0-9a-f]{64}")
_CONDITIONS_SECONDS = 10.0  # after which a device that may not work looks again


@dataclass(frozen=True)
class Options:
    """What the user of a device wants."""

    device: str = "auto"
    threads: int | None = None
    allow: Sequence[str] = ()
    conditions: Conditions = field(default_factory=Conditions)
    secret_noise: bool = True  # else, that of a simulation: whoever knows the seed of the run can draw it again
    record: dict[str, Any] | None = None  # what `fedarena profile-device` found out about it
    only_secure: bool = False  # whether it takes part only in runs whose server gets sums of updates alone


class Session:
    """One device and its server. `say` takes sentences, `show` what it does at the moment."""

    def __init__(
        self,
        link: Link,
        folder: DeviceFolder,
        raw: RawSamples,
        options: Options,
        say: Callable[[str], None],
        show: Callable[[str], None],
    ):
        self._link, self._folder, self._raw, self._options = link, folder, raw, options
        self._say, self._show = say, show

    def take_part(self) -> str:
        """Goes on until the server says that it is over, and why."""
        while True:
            joined = self._join()
            over = self._in_run(joined)
            if over is not None:
                return over

    def _join(self) -> Answer:
        raw, options = self._raw, self._options
        about = {
            "protocol": PROTOCOL,
            "fedarena": VERSION,
            "torch": str(torch.__version__),
            "samples": raw.numbers(),
            "columns": raw.form(),
            "device": options.record or {"machine": describe_machine()},
        }
        self._show("joining")
        answer = self._link.call("Join", about)
        if "refused" in answer:
            raise BadInputError(f"The server refuses this device: {harmless(str(answer['refused']))}")
        if not isinstance(answer.get("run"), str) or type(answer.get("client")) is not int:
            raise _not_understood(answer)
        return answer

    def _in_run(self, joined: Answer) -> str | None:
        """Takes part in a run; what the server says when everything is over, or None if there is another run."""
        settings, limits = (_part(joined, name) for name in ("settings", "limits"))
        self._link.chunk_bytes = int(_number(limits, "chunk_bytes"))
        device = self._device(settings, joined["client"])
        kept = self._folder.run(joined["run"], self._link.invitation.name)
        run = _Run(
            self._link,
            joined["run"],
            device,
            kept,
            self._folder.blobs,
            self._say,
            self._show,
            self._options.conditions,
            _number(limits, "busy_seconds"),
            self._secure(device, kept.path),
        )
        self._say(f"Takes part in the run {harmless(joined['run'])} with {self._raw.numbers()['train']:,} samples")
        run.settle()
        poll_seconds = _number(limits, "poll_seconds")
        while True:
            why_not = self._options.conditions.why_not()
            self._show("waiting for a task" if why_not is None else f"not working: {why_not}")
            question = {"run": joined["run"], "busy": None, "ready": True if why_not is None else why_not}
            answer = self._link.call("Next", question, poll_seconds + 30.0)
            if "over" in answer:
                run.hear(answer)
                return harmless(str(answer["over"]))
            if "join" in answer:
                return None
            if isinstance(task := answer.get("task"), dict):
                run.do(task, answer)
            elif "wait" in answer:
                self._link.wait(max(_number(answer, "wait"), 0.0 if why_not is None else _CONDITIONS_SECONDS))

    def _device(self, settings: Mapping[str, Any], client: int) -> Device:
        """Builds everything that the run needs."""
        data = OwnSamples.given(self._raw, column_form(settings), data_spec(settings))
        options = self._options
        noise = SecretSource() if options.secret_noise else None
        parts = build(settings, data, allow=options.allow, device=options.device, threads=options.threads, noise=noise)
        if settings.get("fixed") is not None:
            fixed = _part(settings, "fixed")
            size = int(_number(fixed, "bytes"))
            path = self._link.download(_digest(fixed), size, self._folder.blobs, lambda done: None)
            put_constants(parts.task, codec.load(path), str(path))
        refuse_another_model(parts.task, settings)
        return Device(parts, client)

    def _secure(self, device: Device, folder: Path) -> SecureDevice | None:
        """What takes part in secure sums, in runs that have them."""
        if device.parts.path.sums is None:
            if self._options.only_secure:
                raise BadInputError(
                    "The server of this run would get this device's update itself, not only a secure sum of many, and "
                    "you want none of that (--only-secure)"
                )
            return None
        try:
            from fedarena.client.secure_device import SecureDevice
        except ImportError:
            raise BadInputError(
                "This run has secure sums, for which this device needs the package cryptography: pip install "
                "cryptography (in Termux: pkg install python-cryptography)"
            ) from None
        return SecureDevice(self._link.invitation, device.client, folder)


class _Run:
    """A run that a device takes part in."""

    def __init__(
        self,
        link: Link,
        name: str,
        device: Device,
        folder: RunFolder,
        blobs: Path,
        say: Callable[[str], None],
        show: Callable[[str], None],
        conditions: Conditions,
        busy_seconds: float,
        secure: SecureDevice | None = None,
    ):
        self._link, self._name, self._device, self._folder, self._blobs = link, name, device, folder, blobs
        self._say, self._show, self._busy_seconds, self._secure = say, show, busy_seconds, secure
        self._conditions = conditions

    def settle(self) -> None:
        """Finds out what became of a job before this client was stopped, and sends what is still wanted of it."""
        if (pending := self._folder.pending()) is not None:
            self._deliver(pending, "the last round")

    def hear(self, answer: Answer, goes_on: bool = False) -> None:
        """What became of the last update, if the server says so; whoever `goes_on` with the next must know."""
        task, last = self._folder.undecided(), answer.get("last")
        if task is None:
            return
        if isinstance(last, dict) and last.get("task") == task:
            used = last.get("used") is True
            self._folder.decided(task, used)
            if not used:
                self._say("The last update was not used; this device goes on with what it kept before")
        elif goes_on:
            self._folder.decided(task, used=False)

    def do(self, task: dict[str, Any], answer: Answer) -> None:
        """Does a task of an answer, unless it was done before and only has to be sent."""
        if not isinstance(task.get("task"), str):
            raise _not_understood(task)
        if task.get("kind") == "secure" and self._secure is not None:
            self._add_securely(task, self._secure)
            return
        if task.get("kind") not in ("train", "evaluate"):
            raise FedArenaError(f"The server wants {quoted(task.get('kind'))}, which this client cannot do")
        what = f"{'round' if task['kind'] == 'train' else 'evaluation'} {task.get('now')}"
        pending = self._folder.pending()
        if pending is not None and pending.task != task["task"]:
            self.settle()
            pending = None
        if pending is None:
            if task["kind"] == "train":
                self.hear(answer, goes_on=True)
            try:
                pending = self._trained(task, what)
            except GoneError:  # the server has gone on meanwhile
                return
        if pending is not None:
            self._deliver(pending, what)

    def _trained(self, task: dict[str, Any], what: str) -> Pending | None:
        begun = time.monotonic()
        size = int(_number(task, "bytes"))
        path = self._link.download(
            _digest(task),
            size,
            self._blobs,
            lambda done: self._show(f"{what}: downloading {100 * done // max(size, 1)} %"),
        )
        model = codec.load_groups(path)
        downloaded = time.monotonic()
        self._show(f"{what}: {'training' if task['kind'] == 'train' else 'scoring'}")
        engine = self._device.parts.engine
        meter = find_power_meter(engine.hardware.device.type)
        if meter is not None:
            meter.start()
        try:
            with self._at_work(task["task"], what) as work:
                engine.before_step = work.before_step
                trained = self._device.do(task, model, self._folder.current())
        except NotWantedError:
            self._say(f"{what[0].upper()}{what[1:]}: no longer wanted")
            return None
        finally:
            engine.before_step = None
            watts = None if meter is None else meter.stop()
        seconds = {"download": downloaded - begun, "train": time.monotonic() - downloaded}
        self._keep_only(path)
        trained.report["joules"] = None if watts is None else watts * seconds["train"]
        if trained.words is not None and self._secure is not None:
            self._secure.keep(task["task"], trained.words)
        return self._folder.keep(task["task"], trained, seconds)

    def _add_securely(self, task: dict[str, Any], secure: SecureDevice) -> None:
        """Answers in a phase of a secure sum; if that cannot be, the server hears that this device has left it."""
        what = f"round {task.get('now')}"
        self._show(f"{what}: secure sum ({task.get('phase')})")
        report: dict[str, Any] = {}
        try:
            message = b""
            if task.get("blob"):
                path = self._link.download(_digest(task), int(_number(task, "bytes")), self._blobs, lambda done: None)
                message = path.read_bytes()
                path.unlink()
            answer = secure.answer(task, message)
        except GoneError:
            return
        except SecureSumError as error:
            answer, report = b"", {"left": str(error)}
            self._say(f"{what[0].upper()}{what[1:]}: left the secure sum: {error}")
        pending = Pending(task["task"], report, hashlib.sha256(answer).hexdigest(), len(answer))
        path = self._folder.update(task["task"])
        with needing_room(self._folder.path):
            path.write_bytes(answer)
        try:
            self._link.upload(pending, path, lambda done: None)
        finally:
            path.unlink(missing_ok=True)

    def _at_work(self, task: str, what: str) -> AtWork:
        def show(doing: str) -> None:
            self._show(f"{what}: {doing}")

        return AtWork(self._link, self._name, task, self._busy_seconds, self._conditions, show)

    def _deliver(self, pending: Pending, what: str) -> None:
        def progress(done: int) -> None:
            self._show(f"{what}: uploading {100 * done // max(pending.bytes, 1)} %")

        answer = self._link.upload(pending, self._folder.update(pending.task), progress)
        if answer.get("accepted") is True:
            self._folder.delivered(pending.task)
            self._say(f"{what[0].upper()}{what[1:]}: accepted ({pending.bytes:,} bytes)")
            return
        self._folder.dropped(pending.task)
        reason = answer.get("refused") or answer.get("late") or answer
        self._say(f"{what[0].upper()}{what[1:]}: not used: {harmless(str(reason))}")

    def _keep_only(self, path: Path) -> None:
        """Models of rounds before are not needed any more; what is not trained lies in the model already."""
        for other in self._blobs.iterdir():
            if other != path:
                other.unlink(missing_ok=True)


def _part(answer: Mapping[str, Any], name: str) -> Answer:
    if not isinstance(value := answer.get(name), dict):
        raise _not_understood(answer)
    return value


def _number(answer: Mapping[str, Any], name: str) -> float:
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 48:
        raise _not_understood(answer)
    return float(value)


def _digest(answer: Mapping[str, Any]) -> str:
    """A SHA-256, which becomes the name of a file here."""
    if not isinstance(value := answer.get("blob"), str) or not _SHA256.fullmatch(value):
        raise _not_understood(answer)
    return value


def _not_understood(answer: Any) -> FedArenaError:
    return FedArenaError(f"The server answers {quoted(answer)}, which this client does not understand")

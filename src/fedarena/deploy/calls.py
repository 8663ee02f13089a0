"""The calls of devices: bytes in, answers out. What they ask is checked here; what that means the coordinator knows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedarena.core.outside_text import quoted
from fedarena.core.version import VERSION
from fedarena.core.words import counted
from fedarena.deploy.admission import CHUNK_BYTES, CONTROL_BYTES
from fedarena.deploy.coordinator import BUSY_SECONDS, POLL_SECONDS, Answer, Coordinator
from fedarena.deploy.devices import Joined
from fedarena.deploy.members import Member

PROTOCOL = 1
_CALLS_PER_SECOND, _CALLS_AT_ONCE = 20.0, 200.0
_PARTS = ("train", "validation", "test")


class BadCallError(Exception):
    """A message that nobody can understand. The sentence says why."""


@dataclass(frozen=True)
class Offer:
    """What devices are told when they join a run."""

    run: str
    settings: dict[str, Any]  # names and options, never code
    columns: dict[str, tuple[str, tuple[int, ...]]]  # of their samples: types and shapes
    clients: frozenset[int]  # who may take part
    max_samples: int | None = None


class Buckets:
    """How much every device may ask for: so many calls a second, and some at once."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Whether a device may make another call now."""
        now = self._now()
        left, since = self._left.get(name, (_CALLS_AT_ONCE, now))
        left = min(_CALLS_AT_ONCE, left + (now - since) * _CALLS_PER_SECOND)
        if left < 1:
            self._left[name] = left, now
            return False
        self._left[name] = left - 1, now
        return True


class Calls:
    """Answers devices that are known by their certificates."""

    def __init__(self, coordinator: Coordinator, joined: Joined, offer: Offer):
        self.coordinator, self._joined, self._offer = coordinator, joined, offer

    def join(self, member: Member, request: bytes) -> Answer:
        """A device wants to take part."""
        said = parse(request)
        if (sentence := self._unfit(member, said)) is not None:
            return {"refused": sentence}
        kept = {key: said.get(key) for key in ("samples", "device", "torch", "columns")}
        if self._joined.add(member.name, kept):
            there = f"{len(self._joined)} of {len(self._offer.clients)}"
            self.coordinator.log(f"{member.name} joined with {samples_of(kept)} ({there})")
        self.coordinator.has_joined()
        limits = {"chunk_bytes": CHUNK_BYTES, "poll_seconds": POLL_SECONDS, "busy_seconds": BUSY_SECONDS}
        offer = self._offer
        return {"run": offer.run, "client": member.number, "settings": offer.settings, "limits": limits}

    def next(self, member: Member, request: bytes) -> Answer | None:
        """A device has nothing to do, or says that it is at work; None: it is to wait."""
        said = parse(request)
        if said.get("run") != self._offer.run or self._joined.get(member.name) is None:
            return {"join": f"This is the run {self._offer.run}; join it first"}
        busy, ready = said.get("busy"), said.get("ready", True)
        if not (busy is None or isinstance(busy, str)) or not isinstance(ready, bool | str):
            raise BadCallError("busy must be a task or null, and ready true or a sentence")
        return self.coordinator.next(member, busy, ready)

    def status(self, member: Member, request: bytes) -> Answer:
        """A device asks what is known of a task."""
        return self.coordinator.status(member, parse(request).get("task"))

    def _unfit(self, member: Member, said: dict[str, Any]) -> str | None:
        """Why a device cannot take part; None: it can."""
        offer = self._offer
        if said.get("protocol") != PROTOCOL or said.get("fedarena") != VERSION:
            return (
                f"The server has FedArena {VERSION} (protocol {PROTOCOL}) and this device "
                f"{quoted(said.get('fedarena'))} (protocol {quoted(said.get('protocol'))}); install the same on both"
            )
        if member.number not in offer.clients:
            return f"The run {offer.run} began without {member.name}; it can take part in the next one"
        samples = said.get("samples")
        if not isinstance(samples, dict) or not all(_is_amount(samples.get(part, 0)) for part in _PARTS):
            return "samples must say how many there are to train, validate and test on"
        if not samples.get("train"):
            return f"{member.name} has no training sample; give it some with --data"
        if offer.max_samples is not None and samples["train"] > offer.max_samples:
            most = counted(offer.max_samples, "training sample")
            return f"{member.name} has {samples['train']:,} training samples, and the server believes at most {most}"
        return self._unfit_columns(said.get("columns"))

    def _unfit_columns(self, found: Any) -> str | None:
        if not isinstance(found, dict):
            return "columns must say the types and shapes of the samples"
        for name, (dtype, shape) in self._offer.columns.items():
            given = found.get(name)
            if given is None:
                return f"The samples have no {name!r}, which must be {dtype} of shape {list(shape)}"
            if not (isinstance(given, list) and len(given) == 2 and isinstance(given[1], list)):
                return f"columns must say a type and a shape for {name!r}, not {quoted(given)}"
            if tuple(given[1]) != shape:
                return f"{name!r} of a sample has the shape {quoted(given[1])}, and must have {list(shape)}"
        return None


def samples_of(said: dict[str, Any]) -> str:
    """How many training samples a device has, in words."""
    return counted(said["samples"]["train"], "training sample")


def parse(request: bytes) -> dict[str, Any]:
    """The JSON object in a message."""
    if len(request) > CONTROL_BYTES:
        raise BadCallError(f"A message has at most {CONTROL_BYTES:,} bytes")
    try:
        value = json.loads(request)
        json.dumps(value, ensure_ascii=False).encode()  # which halves of characters cannot be, so no file could hold it
    except (ValueError, RecursionError):
        raise BadCallError("A message must be JSON") from None
    if not isinstance(value, dict):
        raise BadCallError("A message must be a JSON object")
    return value


def _is_amount(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48

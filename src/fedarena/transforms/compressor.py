"""What compressors share: they send changes of the model's parameters in fewer bytes than raw numbers take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.models import Tensors
from fedarena.train import COVERAGE, Algorithm, Groups
from fedarena.transforms.encodings import Encoding, Message
from fedarena.transforms.encodings.base import packed_bytes
from fedarena.transforms.rows import Rows, flat, unflat
from fedarena.transforms.transform import TRANSFORMS, Transform
from fedarena.transforms.wire import PACKED, SENT, Wire, length_of

_ERROR = "error"
C = TypeVar("C", bound="type[Compressor]")


class Compressor(Transform):
    """All parameters of a client are one vector. `compress` makes a message of it, `restore` what the server sees.

    Subclasses say how messages become bytes (`encoding`). With `error_feedback`, a client keeps the difference between
    what it meant and what the server sees, and adds it to its next update. The same parts compress what clients
    download (`download`): one row then, of the server.
    """

    depends_on_data = True
    error_feedback = False

    def encoding(self, form: Tensors) -> Encoding:
        """How messages about parameters of this form (one client's tensors) become bytes."""
        raise NotImplementedError

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """The messages about these vectors, a row per client, and what clients keep beside the error."""
        raise NotImplementedError

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """The vectors that messages stand for, a row per client."""
        raise NotImplementedError

    def memory(self, form: Tensors) -> Groups:
        """What a client keeps beside the error before its first job."""
        return {}

    def planned_bytes(self, values: int, form: Tensors) -> int:
        """How many bytes to plan for, if so many coordinates may be other than zero afterwards."""
        return self.encoding(form).planned_bytes(values)

    def values_left(self, values: int, form: Tensors) -> int:
        """How many coordinates may be other than zero afterwards, if so many were before."""
        return values

    def check(self, form: Tensors) -> None:
        """Refuses options that do not fit a model of this form."""

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Coordinates must be those of a model, and all of them trained by everybody."""
        if not update.get("params") or "params" not in algorithm.change_groups:
            return "its clients do not send changes of the model's parameters"
        if type(algorithm).uploaded_bytes is not Algorithm.uploaded_bytes:
            return "its clients compress what they send already"
        if COVERAGE in update:
            return "some of its clients train only a part of the model"
        self.check(update["params"])
        return None

    def client_init(self, update: Groups) -> Groups:
        """What was not sent: nothing so far."""
        kept = self.memory(update["params"])
        if not self.error_feedback:
            return kept
        return {_ERROR: {name: torch.zeros_like(t) for name, t in update["params"].items()}, **kept}

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """What the server will see; what it will not stays at the client."""
        params = {"params": rows.update["params"]}
        form = {name: t[0] for name, t in params["params"].items()}
        whole = flat(params)
        if self.error_feedback:
            whole = whole + flat({_ERROR: kept[_ERROR]})
        messages, after = self.compress(whole, rows, kept)
        seen = self.restore(messages, form)
        if self.error_feedback:
            after = {_ERROR: unflat(whole - seen, params)["params"], **after}
        encoding = self.encoding(form)
        sent: Groups = {SENT: {"params": torch.from_numpy(encoding.sizes(messages))}}
        if rows.packs:
            sent[PACKED] = {"params": packed_bytes(encoding, {name: t[0] for name, t in messages.items()})}
        return rows.update | unflat(seen, params) | sent, after

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """The encoded messages."""
        before = wire["params"]
        values = self.values_left(before.values, before.form)
        size: Any
        size = self.planned_bytes(values, before.form) if updates is None else updates[SENT]["params"].numpy()
        return wire | {"params": replace(before, bytes=size, values=values, is_packed=True)}


USUAL_SHARE = 0.01  # of the coordinates, where a compressor sends some of them
DOWNLOADS: Registry[type[Compressor]] = Registry("download", base=Compressor)


@DOWNLOADS.register("none")
class Uncompressed(Compressor):
    """Clients download the whole model, as raw numbers."""


def compressor(name: str) -> Callable[[C], C]:
    """Registers a compressor for updates and for downloads."""

    def add(part: C) -> C:
        return DOWNLOADS.register(name)(TRANSFORMS.register(name)(part))

    return add


def check_share(name: str, share: float) -> None:
    """A share of the coordinates must be one."""
    if not 0 < share <= 1:
        raise BadInputError(f"{name}.share must be above 0 and at most 1, not {share}")


def check_amount(name: str, share: float, k: int | None) -> None:
    """A share of the coordinates, or a number of them, but not both."""
    check_share(name, share)
    if k is None:
        return
    if k < 1:
        raise BadInputError(f"{name}.k must be at least 1, not {k}")
    if share != USUAL_SHARE:
        raise BadInputError(f"{name}.k and {name}.share are both given, and each says how much is sent; leave one out")


def check_fits(name: str, k: int | None, form: Tensors) -> None:
    """There must be so many coordinates."""
    if k is not None and k > length_of(form):
        raise BadInputError(
            f"{name}.k is {k:,}, but the model has only {length_of(form):,} parameters; choose fewer, or a share"
        )


def number_sent(share: float, k: int | None, coordinates: int) -> int:
    """How many of the coordinates are sent."""
    return max(1, round(share * coordinates)) if k is None else k

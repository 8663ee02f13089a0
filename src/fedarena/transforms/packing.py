"""How the parameters of an update travel from a real device: as the bytes that its compressors' encoding gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import Compressor
from fedarena.transforms.encodings import Encoding, Message, Values
from fedarena.transforms.encodings.base import packed_bytes
from fedarena.transforms.rows import flat, unflat
from fedarena.transforms.transform import Transform
from fedarena.transforms.wire import PACKED, PARAMS, common_type, length_of


@dataclass(frozen=True)
class Packing:
    """Both directions, for one client's parameters of one form."""

    encoding: Encoding
    form: Tensors  # to see their shapes
    restore: Callable[[Message], Tensor]  # the vectors that messages stand for, a row per client

    def pack(self, params: Tensors) -> Tensor:
        """Parameters whose values are sent as they are, for which there is no message."""
        return packed_bytes(self.encoding, {"values": flat({PARAMS: params})[0]})

    def unpack(self, data: bytes) -> Tensors:
        """The parameters in bytes from outside; `BadEncodingError` if they are not what they should be."""
        message = {name: t.unsqueeze(0) for name, t in self.encoding.decode(data).items()}
        like = {PARAMS: {name: t.unsqueeze(0) for name, t in self.form.items()}}
        return {name: t[0] for name, t in unflat(self.restore(message), like)[PARAMS].items()}

    def unpacked(self, update: Groups) -> Groups:
        """An update as a device sends it, with its parameters instead of their bytes."""
        data = update[PACKED][PARAMS].numpy().tobytes()
        return {PARAMS: self.unpack(data), **{group: ts for group, ts in update.items() if group != PACKED}}


def packing_of(transforms: Sequence[Transform], params: Tensors) -> Packing | None:
    """How devices that execute these transforms send parameters of this form; None: as they are.

    After the last compressor nobody may have changed them, or they are sent as numbers, of which many may be zero. It
    is what `Transform.sent` counts.
    """
    last = max((place for place, one in enumerate(transforms) if isinstance(one, Compressor)), default=None)
    if last is None:
        return None
    form = {name: torch.empty_like(t, device="meta") for name, t in params.items()}
    compressor = transforms[last]
    assert isinstance(compressor, Compressor)
    if any(type(later).at_client is not Transform.at_client for later in transforms[last + 1 :]):
        return Packing(Values(length_of(form), common_type(form)), form, lambda message: message["values"])
    return Packing(compressor.encoding(form), form, lambda message: compressor.restore(message, form))

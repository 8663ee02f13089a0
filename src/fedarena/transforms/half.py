"""Numbers of 16 bits: IEEE 754's half precision, or bfloat16."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import Compressor, compressor
from fedarena.transforms.encodings import Message, Values
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of

_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


@compressor("half")
class Half(Compressor):
    """Rounds coordinates to the nearest number of 16 bits: `fp16` has 11 significant bits, `bf16` 8 and a wide range.

    What fp16 is too narrow for becomes the largest it has, 65,504. With `error_feedback`, a client keeps the rest.
    """

    def __init__(self, *, format: Literal["fp16", "bf16"] = "bf16", error_feedback: bool = False):
        self.format, self.error_feedback = format, error_feedback

    def encoding(self, form: Tensors) -> Values:
        """The rounded numbers."""
        return Values(length_of(form), _FORMATS[self.format])

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """The rounded numbers."""
        dtype = _FORMATS[self.format]
        most = torch.finfo(dtype).max
        # What is infinite stays so, for the run to see that it diverges.
        held = torch.where(vectors.isfinite(), vectors.clamp(-most, most), vectors)
        return {"values": held.to(dtype)}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """The same in the model's precision."""
        return messages["values"].to(common_type(form))

"""Top-k sparsification with error feedback. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.

(Also Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.) A client adds what it did not
send before to its update, sends the k coordinates of largest magnitude, and keeps the rest for its next job:
c = u + e;  sent = top_k(c);  e = c - sent.
"""

from __future__ import annotations

from typing import Any

import torch

from fedarena.core.errors import BadInputError
from fedarena.train import COVERAGE, Algorithm, Groups
from fedarena.transforms.rows import Rows, flat, unflat
from fedarena.transforms.transform import TRANSFORMS, Transform
from fedarena.transforms.wire import Sent, Wire, sparse

_PLACE_BITS = 32
_ERROR = "error"


@TRANSFORMS.register("top_k")
class TopK(Transform):
    """Sends the `share` of an update's coordinates that are largest, each with its place (4 bytes).

    With `error_feedback`, a client keeps what it has not sent, and adds it to its next update.
    """

    depends_on_data = True

    def __init__(self, *, share: float = 0.01, error_feedback: bool = True):
        if not 0 < share <= 1:
            raise BadInputError(f"transforms.top_k.share must be above 0 and at most 1, not {share}")
        self.share, self.error_feedback = share, error_feedback

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Coordinates must be those of a model, and all of them trained by everybody."""
        if not update.get("params") or "params" not in algorithm.change_groups:
            return "its clients do not send changes of the model's parameters"
        if type(algorithm).uploaded_bytes is not Algorithm.uploaded_bytes:
            return "its clients compress what they send already"
        return "some of its clients train only a part of the model" if COVERAGE in update else None

    def client_init(self, update: Groups) -> Groups:
        """What was not sent: nothing so far."""
        if not self.error_feedback:
            return {}
        return {_ERROR: {name: torch.zeros_like(t) for name, t in update["params"].items()}}

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """The largest coordinates; the others stay at the client."""
        params = {"params": rows.update["params"]}
        whole = flat(params)
        if self.error_feedback:
            whole = whole + flat(kept)
        largest = torch.topk(whole.abs(), self._count(whole.shape[1]), dim=1).indices
        sent = torch.zeros_like(whole).scatter(1, largest, whole.gather(1, largest))
        rest = {_ERROR: unflat(whole - sent, params)["params"]} if self.error_feedback else {}
        return rows.update | unflat(sent, params), rest

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """So many values with their places; in fact fewer where updates have zeros."""
        each = list(wire["params"].values())
        whole = Sent(sum(sent.values for sent in each), each[0].value_bits)
        values: Any
        if updates is None:
            values = self._count(whole.values)
        else:
            values = (flat({"params": updates["params"]}) != 0).sum(1).cpu().numpy()
        return wire | {"params": {"largest": sparse(whole, values, _PLACE_BITS)}}

    def _count(self, coordinates: int) -> int:
        return max(1, round(self.share * coordinates))

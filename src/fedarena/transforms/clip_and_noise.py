"""Clipping at the client and Gaussian noise at the server: what user-level differential privacy does to updates.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018. All that a client sends is taken
as one vector, or as one per layer, and shortened to the clipping norm C where it is longer. The server adds noise of
the standard deviation z C / n to the sum over n, the clients that are expected.

With an adaptive norm (Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021), clients
also send whether they were within the norm, minus 1/2, so that one client changes the sum of that by 1/2. The server
adds noise of the standard deviation σ_b to it, and moves the norm towards the quantile γ of clients' norms:
C = C exp(-η (b - γ)), where b is the noisy share of clients within it. So that both releases together are as
private as one with the multiplier z, updates get the multiplier (z^-2 - (2 σ_b)^-2)^(-1/2); the mechanism sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedarena.core.streams import purpose_bits
from fedarena.models.keyed_random import derived, keyed_normals
from fedarena.train import COVERAGE, Algorithm, Groups, JobContext
from fedarena.transforms.rows import Rows, ScaledRows, norms_of, whole_number
from fedarena.transforms.transform import SecretContext, Transform
from fedarena.transforms.wire import Sent, Wire

CLIPPING = "clipping"  # the group in which clients say whether they were within the norm, minus 1/2
_NOT_NOISED = frozenset({"cohort", CLIPPING})


@dataclass(frozen=True)
class Quantile:
    """How the clipping norm follows clients' norms."""

    quantile: float  # the share of clients that shall be within the norm
    lr: float  # how fast it moves there
    bit_deviation: float  # of the noise in the sum of what clients say about that, minus 1/2 each


class ClipAndNoise(Transform):
    """Clips whole uploads to `norm` and adds noise of `noise_multiplier` times that to their sum over `clients`.

    `noise_clients` is how many clients the noise is made for; it is another number than `clients` where the noise of a
    large cohort is simulated with a small one.
    """

    enforced = True
    counts_clients_equally = True
    takes_products = True

    def __init__(
        self,
        *,
        norm: float,
        noise_multiplier: float,
        clients: float,
        noise_clients: float | None = None,
        per_layer: bool = False,
        adaptive: Quantile | None = None,
    ):
        self.norm, self.noise_multiplier, self.clients = norm, noise_multiplier, clients
        self.noise_clients = clients if noise_clients is None else noise_clients
        self.per_layer, self.adaptive = per_layer, adaptive
        self.rounding_error = 0.0  # by which updates that are clipped may become longer again, on their way
        self._drawn: tuple[int, Tensor] | None = None  # of which key, and numbers

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """There must be something to clip, and nothing that clipping would break."""
        if not any(update.values()):
            return "its clients send nothing that could be protected"
        if COVERAGE in update:
            return (
                "its clients send which layers they have trained, by which the server divides, and clipping does not "
                "bound what one client does to a quotient"
            )
        if type(algorithm).uploaded_bytes is not Algorithm.uploaded_bytes:
            return "how much its clients send tells what they learned, and they send that number beside their update"
        if CLIPPING in update:
            return f"its clients call a group of their update {CLIPPING!r}, in which they say whether they were clipped"
        whole = whole_number(update)
        return f"its clients send {whole} as whole numbers, which cannot be shortened" if whole else None

    def server_init(self, update: Groups) -> Groups:
        """The norm, and what is measured in a step: the norm it was made with, and noise relative to the update."""
        norm = torch.tensor(self.norm, dtype=torch.float64)
        return {"clipping": {"norm": norm, "used_norm": norm.clone(), "noise_to_signal": torch.zeros_like(norm)}}

    def told_to_clients(self, server: Groups) -> Groups:
        """The norm alone: nobody may learn of the noise."""
        return {"clipping": {"norm": server["clipping"]["norm"]}}

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """Everything that a client sends, shortened, and whether it was within the norm."""
        scaled = self.scaled(rows, server)
        return scaled.rows(), kept

    def scaled(self, rows: Rows, server: Groups) -> ScaledRows:
        """The same as numbers to multiply tensors of clients by."""
        sent = {group: tensors for group, tensors in rows.update.items() if group != CLIPPING}
        pieces = layers_of(sent) if self.per_layer else [sent]
        norm = (server["clipping"]["norm"] - self.rounding_error).clamp(min=0)
        bound = norm / math.sqrt(len(pieces))  # such that all together are within the norm
        factors: Groups = {group: {} for group in sent}
        all_within: list[Tensor] = []
        for piece in pieces:
            norms = norms_of(piece)
            within = norms <= bound
            factor = torch.where(within, 1.0, bound / norms)
            of_types = {t.dtype: factor.to(t.dtype) for tensors in piece.values() for t in tensors.values()}
            for group, tensors in piece.items():
                factors[group] |= {name: of_types[t.dtype] for name, t in tensors.items()}
            all_within.append(within)
        some = next(t for tensors in sent.values() for t in tensors.values())
        said = {"within": torch.stack(all_within).all(0).to(some.dtype) - 0.5}
        return ScaledRows(sent | {CLIPPING: said}, factors)

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """How many clients were longer than the norm."""
        return {"clients": float(len(before)), "clipped": (after[CLIPPING]["within"] < 0).sum()}

    def draw_ahead(self, update: Groups, context: JobContext) -> None:
        """Draws the noise."""
        noised = [t for group, tensors in update.items() if group not in _NOT_NOISED for t in tensors.values()]
        numbers = normal_numbers(sum(t.numel() for t in noised), "updates", context, noised[0])
        self._drawn = int(context.key), numbers

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """Adds noise; an adaptive norm moves."""
        # Where the update is, also after a resumption: then nobody waits for a GPU before the round is over.
        noised = (tensors for group, tensors in update.items() if group not in _NOT_NOISED)
        norm = server["clipping"]["norm"].to(next(t.device for tensors in noised for t in tensors.values()))
        deviation = self.noise_multiplier * norm / self.noise_clients
        noisy, ratio = self.with_noise(update, deviation, context)
        kept = {"norm": norm, "used_norm": norm, "noise_to_signal": ratio.to(norm)}
        if self.adaptive is not None:
            kept["norm"] = self._moved(norm, update[CLIPPING]["within"], context)
        noisy.pop(CLIPPING, None)
        return noisy, {"clipping": kept}

    def with_noise(self, update: Groups, deviation: Tensor, context: JobContext) -> tuple[Groups, Tensor]:
        """The update with independent noise in all that depends on clients' data, and the noise relative to it."""
        noised = [(g, name, t) for g, tensors in update.items() if g not in _NOT_NOISED for name, t in tensors.items()]
        # All at once: every operation takes its time, however small the tensor.
        like = noised[0][2]
        values = torch.cat([t.reshape(-1).to(like.dtype) for _, _, t in noised])
        noise = self._normal_numbers(len(values), context, like).mul_(deviation)
        pieces = torch.split(values + noise, [t.numel() for _, _, t in noised])
        noisy = {group: dict(tensors) for group, tensors in update.items()}
        for (group, name, t), piece in zip(noised, pieces, strict=True):
            noisy[group][name] = piece.view(t.shape).to(t.dtype)
        return noisy, torch.linalg.vector_norm(noise).double() / torch.linalg.vector_norm(values).double()

    def _normal_numbers(self, count: int, context: JobContext, like: Tensor) -> Tensor:
        """Those that were drawn before, if they are the same."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            key, numbers = drawn
            is_like = numbers.dtype == like.dtype and numbers.device == like.device
            if key == int(context.key) and len(numbers) == count and is_like:
                return numbers
        return normal_numbers(count, "updates", context, like)

    def _moved(self, norm: Tensor, within: Tensor, context: JobContext) -> Tensor:
        assert self.adaptive is not None
        drawn = normal_like(torch.zeros_like(norm, device="cpu"), "quantile", context)  # a GPU takes longer for one
        noise = self.adaptive.bit_deviation / self.noise_clients * drawn
        share = within.to(norm) + 0.5 + noise
        return norm * torch.exp(-self.adaptive.lr * (share - self.adaptive.quantile))

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """The norm that was used, the share of the clients that were longer, and noise relative to the update."""
        kept = server["clipping"]
        measured = {"clip_norm": float(kept["used_norm"])}
        if observed.get("clients"):
            measured["clipped_share"] = observed["clipped"] / observed["clients"]
        ratio = float(kept["noise_to_signal"])
        return measured | ({"noise_to_signal": ratio} if math.isfinite(ratio) else {})

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """A byte more for the bit, if the norm is adaptive."""
        wire = super().sent(wire, updates)
        return wire if self.adaptive is None else wire | {CLIPPING: Sent(1, {"within": torch.zeros(())}, 1)}


def normal_like(tensor: Tensor, purpose: str, context: JobContext) -> Tensor:
    """Standard normal numbers of a step of the server, in the shape of a tensor; the same on every device."""
    return normal_numbers(tensor.numel(), purpose, context, tensor).view(tensor.shape)


def normal_numbers(count: int, purpose: str, context: JobContext, like: Tensor) -> Tensor:
    """So many of them, of the type and on the device of `like`; those of a real server are secret."""
    if isinstance(context, SecretContext):
        return torch.from_numpy(context.noise(purpose).standard_normal(count)).to(like)
    key = torch.as_tensor(context.key).to(like.device, non_blocking=True)  # so that nobody waits for a GPU
    return keyed_normals(derived(key, purpose_bits(f"noise {purpose}")), count, like.dtype)


def layers_of(rows: Groups) -> list[Groups]:
    """The tensors layer by layer: weights and bias of a layer in a group belong together."""
    layers: dict[tuple[str, str], Groups] = {}
    for group, tensors in rows.items():
        for name, t in tensors.items():
            layer = layers.setdefault((group, name.rpartition(".")[0]), {group: {}})
            layer[group][name] = t
    return list(layers.values())

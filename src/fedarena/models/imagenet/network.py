"""What a network for photographs is, whichever one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedarena.models.imagenet.layers import MakeNorm, NormalizedColours, frozen_batch_norm
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import require

_VARIANCE = ".running_var"
_STATISTICS = (".running_mean", _VARIANCE)
_COUNTER = ".num_batches_tracked"  # what BatchNorm counts while its statistics are not frozen


class ImageNetwork(nn.Module):
    """A network whose parameters have torchvision's names, so that its files of weights are taken as they are."""

    def __init__(self, spec: DataSpec, make_norm: MakeNorm, normalize: bool):
        super().__init__()
        self.colours: nn.Module = NormalizedColours(spec.input_shape[0]) if normalize else nn.Identity()
        self.expects_weights = make_norm is frozen_batch_norm  # statistics of nothing normalize nothing

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        raise NotImplementedError

    def why_not(self, found: Mapping[str, Tensor]) -> str | None:
        """Why these tensors of a file cannot be this network's, as the end of a sentence; None: nothing speaks for it.

        A deeper network has all names of a shallower one, with the same shapes, so names that are not used tell, too.
        """
        own, statistics = self.state_dict(), [name for name in found if name.endswith(_STATISTICS)]
        others = [name for name in found if name not in own and name not in statistics]
        if others:
            return f"it is of another network, which has {others[0]!r} (of {len(others)} tensors that this one lacks)"
        if statistics and not self.expects_weights:
            return f"it has statistics of BatchNorm ({statistics[0]!r}), for which it is model.norm=frozen_batch"
        for name in own if self.expects_weights else ():
            if name.endswith(_STATISTICS) and name not in found:
                kind = (
                    "it is of another network, which has"
                    if statistics
                    else "it is of a network with other norms and has"
                )
                return f"{kind} no {name!r}"
        for name in statistics:
            value = found[name]
            if not torch.isfinite(value).all() or (name.endswith(_VARIANCE) and (value < 0).any()):
                return f"{name!r} holds no statistics, which are finite numbers, and variances not below 0"
        return None

    @staticmethod
    def without_counters(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file but for those that say for how many batches statistics were gathered."""
        return {name: t for name, t in found.items() if not name.endswith(_COUNTER)}


def require_photographs(spec: DataSpec, model: str) -> None:
    """Refuses what is no picture."""
    require(spec.is_image, model, "images (channels, height, width)", spec)

"""Group normalization of which is known that a ReLU follows, so that both may be computed at once."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary


def group_norm_before_relu(
    input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float, ceiling: float
) -> Tensor:
    """Group normalization; whoever overrides this function may apply the ReLU that follows, too.

    To apply it twice is the same as once. It has the `ceiling`, or none if that is 0.
    """
    if has_torch_function_unary(input):
        layer = (input, num_groups, weight, bias, eps, ceiling)
        return handle_torch_function(group_norm_before_relu, (input,), *layer)
    return F.group_norm(input, num_groups, weight, bias, eps)


class GroupNormBeforeReLU(nn.GroupNorm):
    """GroupNorm whose output goes into a ReLU and nowhere else. What it computes is GroupNorm's, as everywhere."""

    def __init__(self, groups: int, channels: int, ceiling: float = 0.0):
        super().__init__(groups, channels)
        self.ceiling = ceiling

    def forward(self, input: Tensor) -> Tensor:
        """Feature maps of the same shape."""
        return group_norm_before_relu(input, self.num_groups, self.weight, self.bias, self.eps, self.ceiling)

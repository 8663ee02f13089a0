"""Which tensors of a model are trained, and which stay as they are: parameters that are frozen, and buffers."""

from __future__ import annotations

from torch import Tensor, nn

Tensors = dict[str, Tensor]


def trainable_parameters(module: nn.Module) -> Tensors:
    """What is trained, sent and counted: the parameters that ask for a gradient."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def constant_tensors(module: nn.Module) -> Tensors:
    """What stays as the model was built, on every client and at the server: frozen parameters, and buffers."""
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    named = module.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in named.items() if isinstance(t, Tensor) and id(t) not in trained}

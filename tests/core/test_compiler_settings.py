"""What a script or the environment has asked of torch's compiler does not change what runs compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

from fedarena.train import captured

MEASURES = ("max_autotune", "max_autotune_pointwise", "max_autotune_gemm", "coordinate_descent_tuning")
WAYS = (*MEASURES, "benchmark_fusion", "dynamic_scale_rblock", "shape_padding")


def now() -> Mapping[str, Any]:
    from torch._inductor import config

    return {name: getattr(config, name) for name in WAYS}


def test_nothing_is_measured_whatever_was_asked() -> None:
    from torch._inductor import config

    found: dict[str, Any] = {}

    def look(_graph: Any) -> None:
        found.update(now(), of_triton=(config.triton.autotune_pointwise, config.triton.multi_kernel))
        raise RuntimeError("seen enough")

    asked = dict.fromkeys(WAYS, True)
    product = symbolic_trace(lambda a, b: a @ b)
    with config.patch({**asked, "triton.multi_kernel": 1, "post_grad_custom_post_pass": look}):
        with pytest.warns(match="seen enough"):
            captured.compiled(product, [torch.ones(3, 3)] * 2)
        assert now() == asked
    assert found == {**dict.fromkeys(WAYS, False), "of_triton": (False, 0)}

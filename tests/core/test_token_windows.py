"""Windows of tokens by tables, against the products of windows as the model has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recurrent import TEXT, assert_equal, make_engine, two_rounds
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedarena.algorithms import ALGORITHMS
from fedarena.models import DataSpec, build_model
from fedarena.models.characters import WindowModel
from fedarena.train import CohortEngine, ReferenceEngine, token_windows
from fedarena.train.program import record
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.token_windows import suits_tables, window_sums


def as_the_model_has_it(model: WindowModel, params: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """A number in which every score has another weight."""
    scores: Tensor = functional_call(model, params, (tokens,))
    return (torch.linspace(-1, 2, scores.numel(), dtype=scores.dtype).view(scores.shape) * scores + scores**2).sum()


@settings(max_examples=25, deadline=None)
@given(
    lanes=st.integers(1, 3),
    samples=st.integers(1, 3),
    length=st.integers(1, 9),
    context=st.integers(1, 6),
    kinds=st.integers(2, 5),
)
def test_tables_and_their_gradients_are_those_of_windows(lanes, samples, length, context, kinds) -> None:
    model = WindowModel(DataSpec("next_token", kinds, (length,)), context, 3, 4).double()
    generator = torch.Generator().manual_seed(lanes)
    params = {
        name: torch.randn(lanes, *p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters()
    }
    tokens = torch.randint(kinds, (lanes, samples, length), generator=generator)
    of_many = vmap(grad(lambda params, tokens: as_the_model_has_it(model, params, tokens)))
    expected = of_many(params, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_windows, "_POSITIONS_PER_KIND", 0)
        with RecurrentLayers():
            found = of_many(params, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_where_they_are_used() -> None:
    model: Any = build_model("char_mlp", TEXT, {"context": 3, "embedding": 4, "hidden": 5}, seed=0)

    def operations(samples: int, **options: Any) -> str:
        def flat(tensors: list[Tensor]) -> list[Tensor]:
            with RecurrentLayers(**options):
                return [functional_call(model, dict(zip(names, tensors, strict=True)), (tokens,))]

        names, tokens = [name for name, _ in model.named_parameters()], torch.zeros(samples, 9, dtype=torch.int64)
        return str(record(flat, list(model.parameters())).graph)

    assert "fedarena.window_sums.default" in operations(samples=3)
    assert "window_sums" not in operations(samples=2)  # a row of the table would be used once or twice
    assert "window_sums" not in operations(samples=3, of_samples=True)
    model.window.register_forward_hook(lambda *_: None)  # somebody looks at what the layer puts out
    assert "window_sums" not in operations(samples=3)


def test_tokens_that_nobody_knows_are_refused_as_torch_does() -> None:
    embedding, weight, bias = torch.zeros(2, 3), torch.zeros(4, 6), torch.zeros(4)
    for token in (-1, 2):
        with pytest.raises(torch.jit.Error, match="index out of range"):
            window_sums(embedding, weight, bias, torch.tensor([[0, 1, token]]))
    assert not suits_tables(torch.zeros(3, dtype=torch.int64), embedding)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto"])
def test_both_engines_train_alike(algorithm: str) -> None:
    model = build_model("char_mlp", TEXT, {"context": 3, "embedding": 4, "hidden": 5}, seed=0)
    reference, cohort, again = (
        two_rounds(make_engine(engine, model, ALGORITHMS.get(algorithm)(), **options))
        for engine, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 2}), (CohortEngine, {"lanes": 2}))
    )
    assert_equal(cohort, reference, 1e-10)
    assert_equal(again, cohort, 0)

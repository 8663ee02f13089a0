"""Tokens that are hidden from the model: which ones, by what, and that nobody learns what is not to be predicted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, make_task
from fedarena.models.tasks.masked_token import MaskedToken

TEXT = DataSpec("next_token", 50, (99,), padding=0, unknown=1)


class Nothing(nn.Module):
    """A model that gives every token the same score."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(classes))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.level.expand(*tokens.shape, -1)


def task(spec: DataSpec = TEXT, **options: float) -> MaskedToken:
    made = make_task(Nothing(spec.classes), spec, "masked_token", **options)
    assert isinstance(made, MaskedToken)
    return made


def texts(number: int, lengths: int = 100) -> dict[str, Tensor]:
    tokens = torch.randint(2, 50, (number, 100), generator=torch.Generator().manual_seed(0))
    tokens[:, : 100 - lengths] = 0
    return {"tokens": tokens}


def keyed(number: int) -> dict[str, Tensor]:
    return {"key": torch.tensor(number, dtype=torch.int64)}


def test_of_hidden_tokens_eight_in_ten_are_masked_and_one_is_another() -> None:
    made = task()
    batch = made.batch(texts(2000)) | keyed(7)
    chosen, (seen,) = made._scored(batch), made.model_inputs(batch)
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.003)
    assert torch.equal(seen[~chosen], batch["x"][~chosen])
    hidden, right = seen[chosen], batch["x"][chosen]
    assert made.mask_token == 50  # the vocabulary has none, so there is one more
    assert (hidden == 50).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (hidden == right).float().mean().item() == pytest.approx(0.1 + 0.1 / 50, abs=0.01)
    others = hidden[(hidden != 50) & (hidden != right)]
    assert set(others.tolist()) == set(range(50))  # any token of the vocabulary


def test_every_text_has_a_token_to_predict_and_padding_is_none() -> None:
    made = task()
    batch = made.batch(texts(300, lengths=2)) | keyed(3)
    chosen = made._scored(batch)
    assert (chosen.sum(-1) >= 1).all()
    assert not chosen[batch["x"] == 0].any()


def test_what_is_hidden_depends_on_the_key_when_training_and_on_the_text_when_scoring() -> None:
    made = task()
    batch = made.batch(texts(8))
    first, again, other = (made.model_inputs(batch | keyed(key))[0] for key in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    together = made.model_inputs(batch)[0]
    alone = torch.cat([made.model_inputs({name: t[row : row + 1] for name, t in batch.items()})[0] for row in range(8)])
    assert torch.equal(together, alone)


def test_the_loss_is_the_mean_over_what_is_hidden() -> None:
    made = task(share=0.3)
    with torch.no_grad():
        made.module.level.normal_()
    batch = made.batch(texts(6)) | keyed(1)
    surprise = -made.module.level.log_softmax(-1)[batch["y"]]
    chosen = made._scored(batch)
    torch.testing.assert_close(made.loss({}, batch), surprise[chosen].mean())
    first = batch | {"mask": torch.tensor([1.0, 0, 0, 0, 0, 0])}
    torch.testing.assert_close(made.loss({}, first), surprise[0][chosen[0]].mean())
    scored = {name: t for name, t in batch.items() if name != "key"}
    measured = made.measure({}, scored)
    assert measured["count"].tolist() == made._scored(scored).sum(-1).tolist()


def test_a_vocabulary_may_have_its_own_token_for_what_is_hidden() -> None:
    names = tuple(f"w{number}" for number in range(49))
    spec = DataSpec("next_token", 50, (99,), padding=0, token_names=(*names[:4], "[MASK]", *names[4:]))
    made = task(spec)
    assert (made.mask_token, made.spec.vocabulary) == (4, 50)


def test_what_has_no_tokens_is_refused() -> None:
    with pytest.raises(
        BadInputError, match="masked_token is for sequences of tokens, and this federation has features"
    ):
        make_task(Nothing(3), DataSpec("classification", 3, (4,)), "masked_token")
    with pytest.raises(BadInputError, match=r"task.share must be above 0 and below 1, not 1"):
        task(share=1.0)

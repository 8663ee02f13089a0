"""Tokens that are hidden from the model. Devlin et al., "BERT", NAACL 2019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.metrics.totals import COUNT
from fedarena.models.augmentation import SAMPLE_KEYS, sample_keys
from fedarena.models.keyed_random import at_step, derived, uniform_of
from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import TASKS, Tensors
from fedarena.models.tasks.tokens import OfTokens

MASK = "[MASK]"  # what the token is called that stands for a hidden one
_CHOSEN, _CHANGED, _OTHER = 1, 2, 3  # purposes of random numbers


@TASKS.register("masked_token")
class MaskedToken(OfTokens):
    """Predict tokens that are hidden from the model from those on both sides; cross-entropy of these alone.

    `share` of the tokens of a text are predicted, at least one: 80 % of them are replaced by a token that stands for
    what is hidden, 10 % by any other one, 10 % stay. Which ones depends on the seed, the round, the client and the
    sample while a model is trained, and on nothing but the text when it is scored.
    """

    kinds: ClassVar[tuple[str, ...]] = ("masked_token",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "perplexity")

    def __init__(
        self,
        module: nn.Module,
        spec: DataSpec,
        *,
        share: float = 0.15,
        metrics: tuple[str, ...] | None = None,
        lead: str | None = None,
    ):
        if not 0 < share < 1:
            raise BadInputError(f"task.share must be above 0 and below 1, not {share:g}")
        self.share = share
        super().__init__(module, spec, metrics=metrics, lead=lead)

    @classmethod
    def model_spec(cls, spec: DataSpec) -> DataSpec:
        """Whole sequences, with one token more if the vocabulary has none for what is hidden."""
        if spec.kind != "next_token":
            raise BadInputError(f"The task masked_token is for sequences of tokens, and this federation has {spec}")
        has_mask = spec.token_names is not None and MASK in spec.token_names
        tokens = spec.classes if has_mask else spec.classes + 1
        return replace(spec, kind="masked_token", input_shape=(spec.input_shape[0] + 1,), tokens=tokens)

    @property
    def mask_token(self) -> int:
        """What a hidden token is replaced by."""
        names = self.spec.token_names
        return names.index(MASK) if names is not None and MASK in names else self.spec.classes

    def example(self, samples: int) -> Tensors:
        """Sequences of a token that is not padding."""
        return {"tokens": torch.full((samples, self.spec.input_shape[0]), self._padding + 1)}

    def meaningless(self, batch: Tensors, random: torch.Generator | None = None) -> Tensors:
        """Sequences of any tokens that a federation may have."""
        drawn = torch.randint(self.spec.classes, batch["x"].shape, generator=random).to(batch["x"].device)
        return {**batch, "x": drawn, "y": drawn}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The tokens, which are all known to whoever asks for them."""
        tokens = columns["tokens"].long()
        return {"x": tokens, "y": tokens}

    def model_inputs(self, batch: Tensors) -> tuple[Tensor, ...]:
        """The tokens, of which some are replaced."""
        tokens, keys = batch["x"], self._keys(batch)
        fate = uniform_of(_bits(keys, _CHANGED, tokens))
        other = torch.remainder(_bits(keys, _OTHER, tokens), self.spec.classes)
        changed = torch.where(fate < 0.8, self.mask_token, torch.where(fate < 0.9, other, tokens))
        return (torch.where(self._scored(batch), changed, tokens),)

    def _scored(self, batch: Tensors) -> Tensor:
        """Which tokens are to be predicted."""
        tokens = batch["x"]
        is_token = tokens != self._padding
        chance = torch.where(is_token, uniform_of(_bits(self._keys(batch), _CHOSEN, tokens)), 2.0)
        return is_token & ((chance < self.share) | (chance == chance.amin(-1, keepdim=True)))

    def _keys(self, batch: Tensors) -> Tensor:
        """A key for every text."""
        if SAMPLE_KEYS in batch:
            return batch[SAMPLE_KEYS]
        if "key" in batch:
            return sample_keys(batch["key"], len(batch["x"]))
        key = torch.zeros(len(batch["x"]), dtype=torch.int64, device=batch["x"].device)
        for token in batch["x"].unbind(-1):
            key = at_step(key, token)
        return key

    def seen(self, outputs: Tensor, batch: Tensors) -> Tensors:
        """What is right is -1 for tokens that the vocabulary lacks."""
        loss, count = self._sums(self.losses(outputs, batch), batch)
        right = torch.where(batch["y"] == self._unknown, -1, batch["y"])
        return {**batch, "y": right, "loss": loss, COUNT: count, "scored": self._scored(batch)}


def _bits(keys: Tensor, purpose: int, like: Tensor) -> Tensor:
    """A random int64 for every token, by the key of its text and its place in it."""
    return at_step(derived(keys, purpose).unsqueeze(-1), torch.arange(like.shape[-1], device=like.device))

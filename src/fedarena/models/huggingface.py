"""Encoders that Hugging Face's `transformers` saved in a folder, as models that classify a federation's texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.core.seeding import seeded
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, require

_CONFIG_FILE = "config.json"
# Every kind of model calls its own by another name. Attention weights are dropped by a function that draws from a
# global generator, which clients who train together cannot do.
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")


class HuggingFaceClassifier(nn.Module):
    """Scores for every class of a batch of token ids; padding is not attended to."""

    def __init__(self, encoder: nn.Module, padding: int | None):
        super().__init__()
        self.encoder, self.padding = encoder, padding

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``[texts, classes]``."""
        # A mask of four dimensions is taken as it is; from others the library decides by values, text by text.
        dtype = next(self.encoder.parameters()).dtype
        attended = torch.zeros(tokens.shape, dtype=dtype, device=tokens.device)
        if self.padding is not None:
            attended = attended.masked_fill(tokens == self.padding, torch.finfo(dtype).min)
        mask = attended[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        scores: Tensor = self.encoder(input_ids=tokens, attention_mask=mask).logits
        return scores


@MODELS.register("huggingface")
def huggingface(spec: DataSpec, *, folder: str, pretrained: bool = True) -> nn.Module:
    """The encoder in a `folder` (BERT, DistilBERT, RoBERTa …), with a new last layer unless it has one for the classes.

    Without `pretrained`, its weights are drawn anew. Tokens should be those of its own tokenizer. Its dropout is as it
    is configured, except on attention weights, where there is none.
    """
    require(spec.kind == "classification" and spec.is_text, "huggingface", "texts to classify", spec)
    path = Path(folder).expanduser()
    if not (path / _CONFIG_FILE).exists():
        raise BadInputError(f"model.folder: {path} has no {_CONFIG_FILE}; give a folder that save_pretrained wrote")
    encoder = _load(path, spec, pretrained)
    config: Any = encoder.config
    if spec.vocabulary > config.vocab_size:
        raise BadInputError(
            f"The federation has {spec.vocabulary} tokens and the model in {path} knows {config.vocab_size}; "
            "make the federation with the model's own tokenizer"
        )
    length = getattr(config, "max_position_embeddings", spec.input_shape[0])
    if spec.input_shape[0] > length:
        raise BadInputError(f"Texts have {spec.input_shape[0]} tokens, and the model in {path} takes at most {length}")
    module = HuggingFaceClassifier(encoder, spec.padding)
    _check_mask(module, spec, path)
    return module


def _load(path: Path, spec: DataSpec, pretrained: bool) -> nn.Module:
    try:
        from transformers import AutoConfig, AutoModelForSequenceClassification
        from transformers.utils import logging
    except ImportError:
        raise BadInputError("The model huggingface needs: pip install 'fedarena[huggingface]'") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, num_labels=spec.classes)
        for name in _ATTENTION_DROPOUT:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        # The plain way of attention is the one that can be computed for many clients at once.
        options = {"attn_implementation": "eager"}
        if not pretrained:
            made: nn.Module = AutoModelForSequenceClassification.from_config(config, **options)
            return made
        loaded: nn.Module = AutoModelForSequenceClassification.from_pretrained(
            path, config=config, local_files_only=True, ignore_mismatched_sizes=True, use_safetensors=True, **options
        )
        return loaded.float()
    except Exception as error:  # the library raises whatever it meets in a folder
        reason = " ".join(str(error).split())[:300]
        raise BadInputError(f"The model in {path} cannot be loaded for classifying texts: {reason}") from None


def _check_mask(module: HuggingFaceClassifier, spec: DataSpec, path: Path) -> None:
    """Refuses a model that does something else with the mask than to leave out padding, such as a causal one."""
    with seeded(0), torch.no_grad():
        tokens = torch.randint(spec.vocabulary, (2, spec.input_shape[0]))
        if spec.padding is not None:
            tokens = tokens.masked_fill(tokens == spec.padding, (spec.padding + 1) % spec.vocabulary)
            tokens[0, spec.input_shape[0] // 2 :] = spec.padding
        module.eval()
        attended = torch.ones_like(tokens) if spec.padding is None else (tokens != spec.padding).long()
        expected = module.encoder(input_ids=tokens, attention_mask=attended).logits
        found = module(tokens)
        module.train()
    if not torch.allclose(found, expected, atol=1e-4):
        kind = type(module.encoder).__name__
        raise BadInputError(f"The model in {path} ({kind}) is not an encoder that reads all of a text at once, as BERT")

"""New texts in the tokens of a federation, for a model that was trained on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AnyArray
from fedarena.data.text.own import SOURCE, TOKENIZER_FILE
from fedarena.data.text.sequences import rows_with_end
from fedarena.data.text.tokenizers import TOKENIZERS, Words, tokenizer_of
from fedarena.data.text.words import Vocabulary, WordCounts

_FIRST_WITH_MARKS = 2  # the version of stores since which accents and vowel signs stay in their words


def encode_texts(federation: Federation, texts: Sequence[str]) -> AnyArray:
    """Texts as the column ``x`` of a federation that `from_texts` made: ``[texts, length]``.

    >>> from fedarena.data.text.own import from_texts
    >>> said = {"who": list("aabb"), "text": ["so good", "too bad", "good", "bad"], "mood": list("+-+-")}
    >>> federation = from_texts(said, client="who", text="text", label="mood", length=3, train_fraction=1)
    >>> [federation.task.token_names[token] for token in encode_texts(federation, ["So strange"])[0]]
    ['<PAD>', 'so', '<UNK>']
    """
    task, source = federation.task, federation.source
    if source.name != SOURCE or task.tokens is None or task.token_names is None:
        raise BadInputError(f"{federation.name} is not made of texts with labels by from_texts.")
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise BadInputError(f"texts must be a list of texts, not {quoted(texts)}.")
    name = source.options["tokenizer"]
    tokenizer = tokenizer_of(name if name in TOKENIZERS else federation.path / TOKENIZER_FILE)
    if isinstance(tokenizer, Words):
        tokenizer = Words(keep_marks=source.version >= _FIRST_WITH_MARKS)
    vocabulary = Vocabulary(task.token_names)
    if not tokenizer.counts_tokens:
        vocabulary = tokenizer.vocabulary(WordCounts(pa.array([], pa.string()), np.zeros(0, dtype=np.int64)), 0)
    split = [tokens.split(" ") if tokens else [] for tokens in tokenizer.split(texts, ends=False)]
    tokens = vocabulary.tokens_of(pa.array([token for one in split for token in one], pa.string()))
    lengths = np.array([len(one) for one in split], dtype=np.int64)
    return rows_with_end(tokens, lengths, federation.columns["x"].shape[0], vocabulary.padding, tokenizer.closing)

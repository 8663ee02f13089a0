"""Pretrained vectors of words from a text file, as GloVe and word2vec publish them, for the embedding of a model.

A line has a token and its numbers, separated by spaces; word2vec's first line says how many lines and numbers follow.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.core.registry import FileName
from fedarena.models.spec import DataSpec

VectorsFile = Annotated[str | None, FileName()]


@dataclass(frozen=True)
class WordVectors:
    """The vectors that a file has of some tokens: of ``tokens[i]`` it is ``values[i]``."""

    path: Path
    width: int  # numbers of a vector
    tokens: Tensor
    values: Tensor

    @classmethod
    def read(cls, path: Path | str, names: Sequence[str]) -> WordVectors:
        """Looks for tokens by their names; of one that is there twice the first line counts."""
        file = Path(path).expanduser()
        wanted = {name: token for token, name in reversed(list(enumerate(names)))}
        width, found = 0, dict[int, list[float]]()
        for number, line in _lines(file):
            if not width:
                parts = line.split(" ")
                if len(parts) == 2 and all(part.isdecimal() for part in parts):
                    continue  # word2vec's first line
                width = len(parts) - 1
                if width < 1:
                    raise BadInputError(f"{file}, line {number} must have a word and its numbers, not {line[:40]!r}")
            word, *numbers = line.rsplit(" ", width)  # some files have tokens with spaces
            if len(numbers) != width:
                raise BadInputError(f"{file}, line {number} must have {width} numbers as the first, not {line[:40]!r}")
            token = wanted.pop(word, None)
            if token is not None:
                found[token] = _floats(numbers, file, number)
            if not wanted:
                break
        if not found:
            raise BadInputError(f"{file} has no vector of any of the federation's {len(names):,} tokens")
        tokens = torch.tensor(sorted(found))
        return cls(file, width, tokens, torch.tensor([found[token] for token in sorted(found)]))

    def put_into(self, embedding: nn.Embedding, freeze: bool) -> None:
        """Replaces the vectors of an embedding; if `freeze`, none of them is trained."""
        with torch.no_grad():
            embedding.weight[self.tokens] = self.values.to(embedding.weight.dtype)
        embedding.weight.requires_grad_(not freeze)

    def note(self, vocabulary: int) -> str:
        """What a user should know."""
        share = 1 - len(self.tokens) / vocabulary
        return (
            f"{self.path} has vectors of {len(self.tokens):,} of the {vocabulary:,} tokens; "
            f"the other {share:.1%} begin with random ones"
        )


def known_vectors(spec: DataSpec, path: Path | str | None, freeze: bool = False) -> WordVectors | None:
    """The vectors that a file has of a federation's tokens; None without a file."""
    if path is None:
        if freeze:
            raise BadInputError("model.freeze_vectors needs model.vectors, the file with the vectors to freeze")
        return None
    if spec.token_names is None:
        raise BadInputError(f"model.vectors is {path}, but the federation does not say what its tokens stand for")
    return WordVectors.read(path, spec.token_names)


def word_embedding(spec: DataSpec, path: Path | str, freeze: bool = False) -> nn.Embedding:
    """The first layer for a model of your own: a vector for every token, those of the file where it has one.

    All others are drawn as torch draws them. If `freeze`, none of them is trained.
    """
    known = known_vectors(spec, path, freeze)
    assert known is not None
    embedding = nn.Embedding(spec.vocabulary, known.width)
    known.put_into(embedding, freeze)
    return embedding


def with_vectors(module: nn.Module, embedding: nn.Embedding, known: WordVectors | None, freeze: bool) -> nn.Module:
    """A model whose embedding begins with the vectors that are known, and which says so."""
    if known is not None:
        known.put_into(embedding, freeze)
        module.notes = [known.note(embedding.num_embeddings)]  # type: ignore[assignment]
    return module


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and content of every line."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode().rstrip()
                if text:
                    yield number, text
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not text; vectors are read from text files, as GloVe's are") from None
    except FileNotFoundError:
        raise BadInputError(f"model.vectors: there is no file {path}") from None
    except (OSError, EOFError) as error:
        raise BadInputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _floats(numbers: list[str], path: Path, line: int) -> list[float]:
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise BadInputError(f"{path}, line {line} holds something else than numbers after the word")
    return values

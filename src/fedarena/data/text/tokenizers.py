"""Texts of somebody's own as tokens: characters, words, bytes, or those of a file of Hugging Face's `tokenizers`.

A tokenizer makes of every text its tokens, separated by spaces, so that all ways go through the same counting and
numbering. Tokens of characters and words are numbered by a vocabulary of those that occur most often in training;
bytes and the tokens of a file have numbers of their own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.store.schema import AnyArray
from fedarena.data.text.sequences import PADDING
from fedarena.data.text.words import Vocabulary, WordCounts, split_messages

END_OF_TEXT = "<EOS>"
SPACE = "<space>"  # no single character, so it cannot be mistaken for one
_PADDING_NAMES = ("[PAD]", "<pad>", "<PAD>", "<|padding|>", "<padding>")
_UNKNOWN_NAMES = ("[UNK]", "<unk>", "<UNK>")
_END_NAMES = ("</s>", "<|endoftext|>", "<eos>", "<EOS>", "<|im_end|>")
_WORDPIECE_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_BYTES = [str(value) for value in range(256)]


class TextTokenizer(ABC):
    """Makes tokens of texts, and a vocabulary of how often each occurs."""

    counts_tokens = True  # whether the vocabulary is made of the tokens that occur in training
    closing: int | None = None  # the token that ends every text, also one that is cut short
    expansion = 1  # how much more memory tokens take than those of words

    @abstractmethod
    def split(self, texts: Sequence[str], ends: bool) -> list[str]:
        """The tokens of every text, separated by spaces; if `ends`, a token that says that the text is over."""

    def vocabulary(self, counts: WordCounts, size: int) -> Vocabulary:
        """At most `size` tokens: padding, unknown and the most frequent ones."""
        return Vocabulary.of(counts, size)


class Words(TextTokenizer):
    """Words and marks in lower case, as in the project's own federations of messages, but in all scripts."""

    def __init__(self, keep_marks: bool = True):
        self._keep_marks = keep_marks  # whether accents and vowel signs stay with their letters

    def split(self, texts: Sequence[str], ends: bool) -> list[str]:
        """The words of every text."""
        # Lines within a text would be taken for texts.
        lines = [" ".join(text.splitlines()) for text in texts]
        found = split_messages(lines, keep_marks=self._keep_marks) if texts else []
        return [f"{words} {END_OF_TEXT}".lstrip(" ") for words in found] if ends else found


class Characters(TextTokenizer):
    """Every character is a token; a line break ends a text."""

    expansion = 6

    def split(self, texts: Sequence[str], ends: bool) -> list[str]:
        """The characters of every text."""
        closing = "\n" if ends else ""
        return [" ".join([SPACE if one == " " else one for one in text + closing]) for text in texts]


@dataclass(frozen=True)
class NumberedTokens(Vocabulary):
    """Tokens that have numbers of their own."""

    shift: int = 0  # what is added to a number

    def tokens_of(self, words: pa.Array) -> AnyArray:
        """The token of each of some numbers."""
        tokens: AnyArray = (words.cast(pa.int64()).to_numpy(zero_copy_only=False) + self.shift).astype(self.dtype)
        return tokens


class Bytes(TextTokenizer):
    """The bytes of a text in UTF-8, of which there are 256: nothing is ever unknown; a line break ends a text."""

    counts_tokens = False
    expansion = 6

    def split(self, texts: Sequence[str], ends: bool) -> list[str]:
        """The bytes of every text."""
        closing = b"\n" if ends else b""
        return [" ".join([_BYTES[value] for value in text.encode() + closing]) for text in texts]

    def vocabulary(self, counts: WordCounts, size: int) -> Vocabulary:
        """Padding and all bytes."""
        names = [chr(value) if 33 <= value < 127 else f"<0x{value:02X}>" for value in range(256)]
        return NumberedTokens(("<padding>", *names), PADDING, None, shift=1)


class TokenizerFile(TextTokenizer):
    """The tokenizer in a file of Hugging Face's library `tokenizers`, with the numbers that its tokens have there.

    If it has no token for padding, one is added behind all others.
    """

    counts_tokens = False

    def __init__(self, path: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise BadInputError(
                f"{path} is a file of Hugging Face's tokenizers, which are not installed: pip install 'fedarena[text]'"
            ) from None
        self.path = path
        self.content = self._read(path)
        try:
            self._tokenizer: Any = Tokenizer.from_str(self.content.decode())
        except Exception as error:  # the library raises nothing more special
            reason = " ".join(str(error).split())[:160]
            raise DamagedFileError(f"{path} is not a file that Hugging Face's tokenizers can read: {reason}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._end = _first_of(self._tokenizer, _END_NAMES)
        around_nothing = self._tokenizer.encode("").ids  # what is put before and after every text
        self.closing = around_nothing[-1] if around_nothing else None

    @staticmethod
    def _read(path: Path) -> bytes:
        """The tokenizer as the library writes it."""
        return read_bytes(path)

    def split(self, texts: Sequence[str], ends: bool) -> list[str]:
        """The numbers of every text's tokens."""
        found = []
        for encoded in self._tokenizer.encode_batch(list(texts)):
            ids = encoded.ids
            if ends and self._end is not None and (not ids or ids[-1] != self._end):
                ids = [*ids, self._end]
            found.append(" ".join(map(str, ids)))
        return found

    def vocabulary(self, counts: WordCounts, size: int) -> Vocabulary:
        """All tokens of the file."""
        numbers: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        names = [f"<{number}>" for number in range(max(numbers.values(), default=-1) + 1)]  # there may be gaps
        for token, number in numbers.items():
            names[number] = token
        padding = _first_of(self._tokenizer, _PADDING_NAMES)
        if padding is None:
            padding = len(names)
            names.append("<padding>")
        return NumberedTokens(tuple(names), padding, self._unknown())

    def _unknown(self) -> int | None:
        model = json.loads(self._tokenizer.to_str())["model"]
        unknown = model.get("unk_token")
        if isinstance(unknown, str):
            number: int | None = self._tokenizer.token_to_id(unknown)
            return number
        if isinstance(model.get("unk_id"), int):
            return int(model["unk_id"])
        return _first_of(self._tokenizer, _UNKNOWN_NAMES)


class WordPieceFile(TokenizerFile):
    """BERT's WordPiece by its list of tokens, one in every line; capitals count if it has any."""

    @staticmethod
    def _read(path: Path) -> bytes:
        from tokenizers import BertWordPieceTokenizer

        try:
            pieces = [line.rstrip("\r") for line in read_bytes(path).decode().removesuffix("\n").split("\n")]
        except UnicodeDecodeError as error:
            raise DamagedFileError(f"{path} is not UTF-8: {error.reason}") from None
        missing = [name for name in _WORDPIECE_NAMES if name not in pieces]
        if missing:
            raise BadInputError(f"{path} is no vocabulary of BERT, a token in every line: it has no {missing[0]}")
        has_capitals = any(piece.lower() != piece for piece in pieces if not piece.startswith("["))
        numbers = {piece: number for number, piece in enumerate(pieces)}
        made: Any = BertWordPieceTokenizer(numbers, lowercase=not has_capitals)
        content: str = made.to_str()
        return content.encode()


def _first_of(tokenizer: Any, names: Sequence[str]) -> int | None:
    return next((number for name in names if (number := tokenizer.token_to_id(name)) is not None), None)


TOKENIZERS: dict[str, type[TextTokenizer]] = {"words": Words, "characters": Characters, "bytes": Bytes}


def tokenizer_of(name: str | Path) -> TextTokenizer:
    """The tokenizer called `name`, or the one in a file of that name."""
    if isinstance(name, str) and name in TOKENIZERS:
        return TOKENIZERS[name]()
    if not isinstance(name, str | Path):
        raise BadInputError(f"tokenizer must be words, characters, bytes or a file's name, not {quoted(name)}.")
    path = Path(name).expanduser()
    for in_folder in ("tokenizer.json", "vocab.txt"):
        if path.is_dir() and (path / in_folder).is_file():
            path = path / in_folder
    if not path.is_file():
        raise BadInputError(
            f"There is no tokenizer {str(name)!r}; {nearest(str(name), TOKENIZERS)} "
            "(or the name of a file, such as tokenizer.json or BERT's vocab.txt)"
        )
    return WordPieceFile(path) if path.suffix == ".txt" else TokenizerFile(path)

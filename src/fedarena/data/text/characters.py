"""Texts as sequences of characters: alphabets, and the two ways of cutting a text into samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedarena.data.splits import Split
from fedarena.data.store.schema import AnyArray, ColumnSpec, Group, TaskSpec
from fedarena.data.text.sequences import cut_into_sequences, num_sequences

Tokens = npt.NDArray[np.uint8]
Parts = dict[str, dict[str, AnyArray]]  # columns of each part


def codes_of(text: str) -> AnyArray:
    """The Unicode numbers of the characters of a text."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


class Alphabet:
    """A token for every character of `characters`, and one for all others.

    >>> tiny = Alphabet("ab", before=("<padding>", "<unknown>"))
    >>> tiny.encode("bax").tolist()
    [3, 2, 1]
    """

    def __init__(self, characters: str, *, before: tuple[str, ...] = (), after: tuple[str, ...] = ()):
        self.names = (*before, *characters, *after)
        self.unknown = self.names.index("<unknown>")
        self.padding = self.names.index("<padding>") if "<padding>" in self.names else None
        # One more than the last code, so that everything beyond it can share an entry: unknown.
        self._token_of_code = np.full(max(map(ord, characters)) + 2, self.unknown, dtype=np.uint8)
        self._token_of_code[[ord(character) for character in characters]] = len(before) + np.arange(len(characters))

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> Tokens:
        """The tokens of a text; one for every character."""
        tokens: Tokens = self._token_of_code[np.minimum(codes_of(text), len(self._token_of_code) - 1)]
        return tokens


# Fixed, so that models trained on other texts keep their meaning: newline and the printable ASCII characters.
ASCII = Alphabet("\n" + "".join(chr(code) for code in range(32, 127)), before=("<padding>", "<unknown>"))

# The 80 characters of LEAF's Shakespeare, with the numbers they have there. LEAF has no token for others: it looks them
# up with str.find, whose -1 turns into the last letter when it is used as an index.
LEAF_LETTERS = Alphabet(
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}", after=("<unknown>",)
)


class Sequences:
    """Next-token samples: ``length + 1`` characters, of which the first is the last of the sample before."""

    alphabet = ASCII

    def __init__(self, length: int):
        self._length = length
        self.columns = {"tokens": ColumnSpec(dtype="uint8", shape=(length + 1,))}
        self.task = TaskSpec(
            kind="next_token", classes=len(ASCII), padding=ASCII.padding, unknown=ASCII.unknown, label_names=ASCII.names
        )

    def count(self, tokens: AnyArray) -> int:
        """How many samples a text gives."""
        return int(num_sequences(np.array([len(tokens)]), self._length)[0])

    def divide(self, tokens: AnyArray, division: Split, client: int, group: Group) -> Parts:
        """The samples of every part. No character of one part is in another, as input or as label."""
        # The text is divided, and only then cut: parts must not share the character where two sequences meet.
        texts = division.divide(client, group, {"tokens": tokens}, order="in_order")
        return {part: {"tokens": cut(columns["tokens"], self._length)} for part, columns in texts.items()}


class Windows:
    """LEAF's samples: any `length` characters in a row, and the one that follows as their label.

    What follows must be a letter of the alphabet, as there is no label for others.
    """

    alphabet = LEAF_LETTERS

    def __init__(self, length: int):
        self._length = length
        self.columns = {"x": ColumnSpec(dtype="uint8", shape=(length,)), "y": ColumnSpec(dtype="int64")}
        letters = len(LEAF_LETTERS) - 1
        self.task = TaskSpec(
            kind="classification",
            classes=letters,
            label_names=LEAF_LETTERS.names[:letters],
            tokens=len(LEAF_LETTERS),
            token_names=LEAF_LETTERS.names,
            unknown=LEAF_LETTERS.unknown,
        )

    def count(self, tokens: AnyArray) -> int:
        """How many samples a text gives."""
        return int((tokens[self._length :] != self.alphabet.unknown).sum())

    def divide(self, tokens: AnyArray, division: Split, client: int, group: Group) -> Parts:
        """The samples of every part. No character of one part is in another, as input or as label."""
        starts = np.arange(max(len(tokens) - self._length, 0))
        rows = tokens[starts[:, None] + np.arange(self._length + 1)]
        rows = rows[rows[:, -1] != self.alphabet.unknown]
        columns = {"x": rows[:, :-1], "y": rows[:, -1].astype(np.int64)}
        # With its label a sample covers length + 1 characters: the next that shares none of them begins as many later,
        # after `length` others. LEAF leaves out one less, and tests on a character that was the last label in training.
        return division.divide(client, group, columns, order="in_order", gap=self._length)


def cut(tokens: AnyArray, sequence_length: int) -> AnyArray:
    """A text cut into sequences of ``sequence_length + 1`` tokens, each starting with the last of the one before."""
    return cut_into_sequences(tokens, np.array([len(tokens)]), sequence_length)[0]

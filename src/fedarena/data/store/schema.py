"""What a federation is made of: its task, its columns, and the manifest that describes a store on disk."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from fedarena.core.errors import BadInputError

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

Group = Literal["train", "validation", "test"]
Part = Literal["train", "validation", "test"]
AttributeType = Literal["string", "int64", "float64"]

# The position in this tuple is the code on disk, for the groups of clients and for the parts of a client's
# samples.
GROUPS: tuple[Group, ...] = ("train", "validation", "test")
PARTS: tuple[Part, ...] = GROUPS

DTYPES = frozenset(
    {
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    }
)

FORMAT = "fedarena federation"
FORMAT_VERSION = 1

Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class TaskSpec(_Frozen):
    """What is to be learned from the samples.

    - ``classification``: columns ``x`` and ``y``, where ``y`` is one label. If `tokens` is given, ``x`` is text: a
      sequence of tokens, with padding in front of short ones, so that the last is always the end of the text.
    - ``multi_label``: columns ``x`` and ``y``, where ``y`` holds a 0 or a 1 for every label.
    - ``next_token``: column ``tokens``; the inputs are ``tokens[:-1]``, the labels ``tokens[1:]``.
    """

    kind: Literal["classification", "next_token", "multi_label"]
    classes: Annotated[int, Field(ge=2)]  # number of labels, or of tokens in the vocabulary
    padding: int | None = None  # the token that fills short sequences and is never a label
    unknown: int | None = None  # the token that stands for everything outside the vocabulary
    label_names: tuple[str, ...] | None = None
    tokens: Annotated[int, Field(ge=2)] | None = None  # number of tokens in the vocabulary of x, if it is text
    token_names: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        for role, token in (("padding", self.padding), ("unknown", self.unknown)):
            if token is None:
                continue
            if self.vocabulary is None:
                raise ValueError(f"{role} is a token, which a {self.kind} task without text does not have")
            if not 0 <= token < self.vocabulary:
                raise ValueError(f"{role} must be between 0 and {self.vocabulary - 1}, not {token}")
        if self.tokens is not None and self.kind == "next_token":
            raise ValueError("the tokens of a next_token task are its classes")
        if self.token_names is not None and len(self.token_names) != (self.tokens or 0):
            raise ValueError(f"token_names has {len(self.token_names)} names for {self.tokens or 0} tokens")
        if self.label_names is not None and len(self.label_names) != self.classes:
            raise ValueError(f"label_names has {len(self.label_names)} names for {self.classes} classes")
        return self

    @model_serializer(mode="wrap")
    def _without_absent_text(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stores from before there was text in classification keep their fingerprints."""
        content: dict[str, Any] = serialize(self)
        return {name: value for name, value in content.items() if value is not None or not name.startswith("token")}

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are, if samples are text."""
        return self.classes if self.kind == "next_token" else self.tokens

    @property
    def never_labels(self) -> tuple[int, ...]:
        """Classes that are never the right answer: what stands for missing or unknown tokens, if tokens are labels."""
        special = (self.padding, self.unknown) if self.kind == "next_token" else ()
        return tuple(token for token in special if token is not None)

    @property
    def label_column(self) -> str:
        """The column that holds the labels."""
        return "tokens" if self.kind == "next_token" else "y"

    def check_columns(self, columns: dict[str, ColumnSpec]) -> None:
        """Raises unless `columns` has what this kind of task needs."""
        needed = ("tokens",) if self.kind == "next_token" else ("x", "y")
        for name in needed:
            if name not in columns:
                raise BadInputError(
                    f"A {self.kind} federation needs the column {name!r}; it has: {', '.join(columns)}."
                )
        name, labels = self.label_column, columns[self.label_column]
        fits, shape = {
            "classification": (labels.shape == (), "[]"),
            "multi_label": (labels.shape == (self.classes,), f"[{self.classes}]"),
            "next_token": (len(labels.shape) == 1 and labels.shape[0] >= 2, "[length + 1]"),
        }[self.kind]
        if not fits:
            raise BadInputError(
                f"Column {name!r} must have shape {shape} in a {self.kind} federation, not {list(labels.shape)}."
            )
        if not np.issubdtype(labels.dtype, np.integer):
            raise BadInputError(f"Column {name!r} must hold integers, not {labels.dtype}.")
        if self.tokens is not None and (
            len(columns["x"].shape) != 1 or not np.issubdtype(columns["x"].dtype, np.integer)
        ):
            raise BadInputError(
                "Column 'x' must hold integers of shape [length] in a federation of text, "
                f"not {columns['x'].dtype} of shape {list(columns['x'].shape)}."
            )


class ColumnSpec(_Frozen):
    """The type and the shape of one sample in one column."""

    dtype: str
    shape: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} cannot be stored; valid: {', '.join(sorted(DTYPES))}")
        return dtype

    @property
    def bytes_per_sample(self) -> int:
        """How many bytes one sample takes in this column."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class SourceSpec(_Frozen):
    """Where the samples come from: the source's name, its version and the options it was called with."""

    name: str
    version: int = 1
    options: dict[str, Any] = {}


class FileSpec(_Frozen):
    """What a data file must look like, and how its rows are laid out."""

    bytes: Count
    crc32: Count
    rows: Count
    rows_per_batch: Annotated[int, Field(ge=1)]


class Manifest(_Frozen):
    """The content of ``federation.json``, from which a store opens without looking at its samples."""

    format: Literal["fedarena federation"] = "fedarena federation"
    version: Literal[1] = 1
    name: str
    task: TaskSpec
    columns: dict[str, ColumnSpec]
    attributes: dict[str, AttributeType]
    clients: dict[Group, Count]
    samples: dict[Group, dict[Part, Count]]
    label_counts: list[Count]
    source: SourceSpec
    files: dict[str, FileSpec]

    @property
    def fingerprint(self) -> str:
        """A hash of the content, including the checksums of the data files."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

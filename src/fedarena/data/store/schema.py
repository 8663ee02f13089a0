"""What a federation is made of: its task, its columns, and the manifest that describes a store on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from fedarena.core.errors import BadInputError
from fedarena.core.options import explain
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

Group = Literal["train", "validation", "test"]
Part = Literal["train", "validation", "test"]
AttributeType = Literal["string", "int64", "float64"]
Encoding = Literal["jpeg", "png"]

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

NUMBER_BINS = 10
NO_CHARACTER = 0  # in a transcript: behind its last character
UNLABELLED = -1  # in the place of the label of a node that is not to be learned from, or not in this part

FORMAT = "fedarena federation"
FORMAT_VERSION = 1

Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class _Spec(_Frozen):
    """What people describe their data with, and whose mistakes get one sentence."""

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise BadInputError(f"{type(self).__name__}: {_explained(error, type(self))}") from None

        # Only for those who make one by hand: in a file that is read, the place of a mistake matters, too.
        __init__.__pydantic_base_init__ = True


def _explained(error: ValidationError, spec: type[BaseModel]) -> str:
    problem = error.errors(include_url=False, include_context=False)[0]
    if problem["type"] == "extra_forbidden":
        name = str(problem["loc"][0])
        return f"there is no option {quoted(name)}; {nearest(name, spec.model_fields)}"
    return explain(error)


class TaskSpec(_Spec):
    """What is to be learned from the samples.

    - ``classification``: columns ``x`` and ``y``, where ``y`` is one label. If `tokens` is given, ``x`` is text: a
      sequence of tokens, with padding in front of short ones, so that the last is always the end of the text.
    - ``multi_label``: columns ``x`` and ``y``, where ``y`` holds a 0 or a 1 for every label.
    - ``next_token``: column ``tokens``; the inputs are ``tokens[:-1]``, the labels ``tokens[1:]``.
    - ``regression``: columns ``x`` and ``y``, where ``y`` is a number, or as many as there are `classes`.
    - ``rating``: the same with one number on a scale, `value_range`.
    - ``node_classification``: a sample is a graph, and ``y`` has a label for each of its nodes, or `UNLABELLED` where a
      node has none or belongs to another part. A graph has the inputs ``x``, features ``[nodes, features]``, and
      ``edges``, the numbers of the two nodes of every edge, ``[edges, 2]``; see `fedarena.data.graphs`.
    - ``transcription``: columns ``x``, what is heard, and ``y``, what is said: characters from 1 on, with zeros behind
      the last one. Class 0 stands for no character.
    - ``translation``: columns ``x``, a text of `tokens` as in classification, and ``y``, the same in another language,
      of tokens among `classes`: a token that begins every text, then its tokens, then padding.

    A waveform has a `sample_rate`: ``x`` holds its samples, numbers from -1 to 1, or integers of 16 bits.

    Where samples have other inputs than ``x``, `inputs` names their columns, each with the number of values it may have
    if it is a code, such as the number of an item, or with None.
    """

    kind: Literal[
        "classification",
        "next_token",
        "multi_label",
        "regression",
        "rating",
        "node_classification",
        "transcription",
        "translation",
    ]
    classes: Annotated[int, Field(ge=1)]  # number of labels, of tokens in the vocabulary, or of numbers to predict
    padding: int | None = None  # the token that fills short sequences and is never a label
    unknown: int | None = None  # the token that stands for everything outside the vocabulary
    label_names: tuple[str, ...] | None = None
    tokens: Annotated[int, Field(ge=2)] | None = None  # number of tokens in the vocabulary of x, if it is text
    token_names: tuple[str, ...] | None = None
    inputs: dict[str, Annotated[int, Field(ge=1)] | None] | None = None  # columns, if x is not the only one
    value_range: tuple[FiniteFloat, FiniteFloat] | None = None  # of the numbers to predict, if it is known
    sample_rate: Annotated[int, Field(ge=1)] | None = None  # samples of a second, if x is a waveform

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        if self.classes < 2 and not self.predicts_numbers and self.kind != "multi_label":
            raise ValueError(f"a {self.kind} task needs at least 2 classes, not {self.classes}")
        if self.kind == "rating" and (self.classes != 1 or self.value_range is None):
            raise ValueError("a rating task has 1 number to predict (classes=1) and a value_range")
        if self.value_range is not None:
            if not self.predicts_numbers:
                raise ValueError(f"value_range is of numbers to predict, which a {self.kind} task has none of")
            if self.value_range[0] >= self.value_range[1]:
                raise ValueError(f"value_range must rise, not go from {self.value_range[0]} to {self.value_range[1]}")
        if self.inputs is not None:
            if self.kind == "next_token" or self.tokens is not None:
                raise ValueError("a federation of text has no other inputs")
            if not self.inputs or {"y", "mask", "key"} & self.inputs.keys():
                raise ValueError("inputs must be columns of other names than y, mask and key")
        if self.kind == "translation" and self.tokens is None:
            raise ValueError("a translation task has tokens, the number of those in x")
        if self.sample_rate is not None and (self.vocabulary is not None or self.inputs is not None):
            raise ValueError("sample_rate is of a waveform x, which a federation of text or of other inputs has not")
        if self.kind == "node_classification" and not {"x", "edges"} <= (self.inputs or {}).keys():
            raise ValueError("a node_classification task has the inputs x and edges")
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
        """Stores from before there were these fields keep their fingerprints."""
        content: dict[str, Any] = serialize(self)
        newer = ("tokens", "token_names", "inputs", "value_range", "sample_rate")
        return {name: value for name, value in content.items() if value is not None or name not in newer}

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are, if samples are text."""
        return self.classes if self.kind == "next_token" else self.tokens

    @property
    def predicts_numbers(self) -> bool:
        """Whether numbers are to be predicted, and not labels."""
        return self.kind in ("regression", "rating")

    @property
    def bins(self) -> int:
        """How many labels are told apart when they are counted; numbers are put into bins of equal width."""
        if not self.predicts_numbers:
            return self.classes
        return 1 if self.value_range is None else NUMBER_BINS

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """What the labels are called that are told apart."""
        if not self.predicts_numbers:
            return self.label_names
        if self.value_range is None:
            return ("any number",)
        edges = np.linspace(*self.value_range, NUMBER_BINS + 1)
        return tuple(f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges.tolist()))

    @property
    def never_labels(self) -> tuple[int, ...]:
        """Classes that are never the right answer: what stands for missing or unknown tokens, if tokens are labels."""
        if self.kind == "transcription":
            return (NO_CHARACTER,)
        special = (self.padding, self.unknown) if self.kind in ("next_token", "translation") else ()
        return tuple(token for token in special if token is not None)

    @property
    def label_column(self) -> str:
        """The column that holds the labels."""
        return "tokens" if self.kind == "next_token" else "y"

    def check_columns(self, columns: dict[str, ColumnSpec]) -> None:
        """Raises unless `columns` has what this kind of task needs."""
        needed = ("tokens",) if self.kind == "next_token" else (*(self.inputs or ("x",)), "y")
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
            "regression": (
                labels.shape == (self.classes,) or (labels.shape == () and self.classes == 1),
                f"[{self.classes}]" + (" or []" if self.classes == 1 else ""),
            ),
            "rating": (labels.shape == (), "[]"),
            "node_classification": (labels.shape == columns["x"].shape[:1] if "x" in columns else False, "[nodes]"),
            "transcription": (len(labels.shape) == 1, "[length]"),
            "translation": (len(labels.shape) == 1 and labels.shape[0] >= 2, "[length + 1]"),
        }[self.kind]
        if not fits:
            raise BadInputError(
                f"Column {name!r} must have shape {shape} in a {self.kind} federation, not {list(labels.shape)}."
            )
        if not self.predicts_numbers and not np.issubdtype(labels.dtype, np.integer):
            raise BadInputError(f"Column {name!r} must hold integers, not {labels.dtype}.")
        if self.kind == "node_classification":
            _check_graphs(columns, self.inputs or {})
        for name, values in (self.inputs or {}).items():
            if values is not None and not np.issubdtype(columns[name].dtype, np.integer):
                raise BadInputError(f"Column {name!r} must hold integers, which are codes, not {columns[name].dtype}.")
        if self.sample_rate is not None and (
            len(columns["x"].shape) != 1 or columns["x"].dtype not in ("int16", "float16", "float32", "float64")
        ):
            raise BadInputError(
                "Column 'x' must hold int16 or floats of shape [samples] in a federation of waveforms, "
                f"not {columns['x'].dtype} of shape {list(columns['x'].shape)}."
            )
        if self.tokens is not None and (
            len(columns["x"].shape) != 1 or not np.issubdtype(columns["x"].dtype, np.integer)
        ):
            raise BadInputError(
                "Column 'x' must hold integers of shape [length] in a federation of text, "
                f"not {columns['x'].dtype} of shape {list(columns['x'].shape)}."
            )


def _check_graphs(columns: dict[str, ColumnSpec], inputs: dict[str, int | None]) -> None:
    """Raises unless the columns are those of graphs; there is one number more than nodes, for edges that are not."""
    x, edges = columns["x"], columns["edges"]
    if len(x.shape) != 2:
        raise BadInputError(f"Column 'x' must have shape [nodes, features], not {list(x.shape)}.")
    if len(edges.shape) != 2 or edges.shape[1] != 2 or inputs["edges"] != x.shape[0] + 1:
        raise BadInputError(
            f"Column 'edges' must have shape [edges, 2] and hold one of {x.shape[0] + 1} codes, the nodes and one "
            f"more, not have shape {list(edges.shape)} and hold one of {inputs['edges']}."
        )


class ColumnSpec(_Spec):
    """The type and the shape of one sample in one column; `names` says what its numbers are, if they are a list.

    With an `encoding`, samples are pictures ``[channels, height, width]`` that are stored as files of that kind;
    whoever reads them gets their pixels.
    """

    dtype: str
    shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    names: tuple[str, ...] | None = None
    encoding: Encoding | None = None

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} cannot be stored; valid: {', '.join(sorted(DTYPES))}")
        return dtype

    @model_validator(mode="after")
    def _a_name_for_each(self) -> ColumnSpec:
        if self.names is not None and self.shape != (len(self.names),):
            raise ValueError(f"names has {len(self.names)} names for numbers of shape {list(self.shape)}")
        return self

    @model_validator(mode="after")
    def _pictures_if_encoded(self) -> ColumnSpec:
        if self.encoding is None:
            return self
        channels = (1, 3) if self.encoding == "jpeg" else (1, 3, 4)
        if self.dtype != "uint8" or len(self.shape) != 3 or self.shape[0] not in channels:
            raise ValueError(
                f"a column of {self.encoding} files must be uint8 of shape [channels, height, width] with "
                f"{', '.join(map(str, channels[:-1]))} or {channels[-1]} channels, not {self.dtype} of shape "
                f"{list(self.shape)}"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stores from before there were names and encodings keep their fingerprints."""
        content: dict[str, Any] = serialize(self)
        newer = ("names", "encoding")
        return {name: value for name, value in content.items() if value is not None or name not in newer}

    @property
    def decoded(self) -> ColumnSpec:
        """The same column as those see it who read samples."""
        return self if self.encoding is None else ColumnSpec(dtype=self.dtype, shape=self.shape)

    @property
    def bytes_per_sample(self) -> int:
        """How many bytes one sample takes in this column, once it is decoded."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class SourceSpec(_Spec):
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
    notes: tuple[str, ...] = ()  # what was done to the samples, in sentences

    @model_serializer(mode="wrap")
    def _without_absent_notes(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stores from before there were notes keep their fingerprints."""
        content: dict[str, Any] = serialize(self)
        return {name: value for name, value in content.items() if value or name != "notes"}

    @property
    def fingerprint(self) -> str:
        """A hash of the content, including the checksums of the data files."""
        return _hash_of(self.model_dump(mode="json"))

    @property
    def content_fingerprint(self) -> str:
        """The same without what does not say which samples it holds: its name, where they came from, and notes."""
        return _hash_of(self.model_dump(mode="json", exclude={"name", "source", "notes"}))


def _hash_of(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()

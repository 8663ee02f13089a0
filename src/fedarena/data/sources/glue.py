"""Two tasks of GLUE (Wang et al., 2019) on single sentences, divided into a few clients as in FedHPO-Bench.

SST-2 (Socher et al., 2013) asks whether a sentence of a film review is positive, CoLA (Warstadt et al., 2019) whether a
sentence is English as linguists judge it. GLUE publishes no labels of its test sets, so its dev set is divided into
halves, one for validation and one for testing. Other files of the same data have labelled test sets, which are used as
they are: sentence-level SST-2 (whole sentences only, where GLUE trains on their phrases as well), and CoLA's own, whose
second dev set, from other publications than its training set, is for testing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.divided_by_labels import clients_by_labels, stratified_parts, write_divided
from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.trees import open_tree
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed
from fedarena.data.store.schema import PARTS, AnyArray, ColumnSpec, IntArray, Part
from fedarena.data.text.sequences import rows_with_end
from fedarena.data.text.tokenizers import Words, tokenizer_of
from fedarena.data.text.words import Vocabulary, WordCounts

GlueTask = Literal["sst2", "cola"]
FIRST, LAST = "[CLS]", "[SEP]"  # what every text begins and ends with, as BERT wants it
_ADDRESS = "https://dl.fbaipublicfiles.com/glue/data"


@dataclass(frozen=True)
class GlueData:
    """Where a task's sentences are, in both forms."""

    title: str
    archive: str  # as GLUE publishes it
    files: dict[Part, RawFile]  # as others do, with labels of all parts
    about_files: str  # which data that is
    label_names: tuple[str, str]

    @property
    def of_glue(self) -> RawFile:
        """The archive of GLUE, or the folder that is in it."""
        return RawFile(f"{self.archive}.zip", None, f"{_ADDRESS}/{self.archive}.zip", unpacked=self.archive)


TASKS: dict[GlueTask, GlueData] = {
    "sst2": GlueData(
        "SST-2",
        "SST-2",
        {
            "train": RawFile(
                "sst2_train.tsv", "sha256:5b56af66a194e685c0fbde5f58c4355ab00f5485a29bfcae1085b4b9f8b1a6c3"
            ),
            "validation": RawFile(
                "sst2_dev.tsv", "sha256:c9ddb67ce3068540c5bb6562e1f34788302dd06d570e6ca0d5e61f7d5ef2bfad"
            ),
            "test": RawFile("sst2_test.tsv", "sha256:5e133ae65857bb44629508a8924531a1e4dd2d64f2a831507803512b4bb49043"),
        },
        "This is sentence-level SST-2 with its own train, dev and test sets; GLUE's has 67,349 sentences and phrases "
        "to train on.",
        ("negative", "positive"),
    ),
    "cola": GlueData(
        "CoLA",
        "CoLA",
        {
            "train": RawFile(
                "cola_in_domain_train.tsv", "sha256:f320a10f92d3bce6b29152fde322a362eac39238e50d8de0c8815457fdf4fc12"
            ),
            "validation": RawFile(
                "cola_in_domain_dev.tsv", "sha256:77176f6a03faa5a1c4f23c69971fc1bff565931112fb65af47b2d6e24b7f42f7"
            ),
            "test": RawFile(
                "cola_out_of_domain_dev.tsv", "sha256:201b9c57b2a20f1282242eec0ed8995729e3be19c29a46c047b3727338836c05"
            ),
        },
        "This is CoLA as its authors publish it: its in-domain dev set is for validation, its out-of-domain dev set "
        "for testing.",
        ("unacceptable", "acceptable"),
    ),
}
_HALVES = (
    "GLUE does not publish labels of its test set: its dev set is divided into halves, for validation and testing."
)


class GlueFiles(RawFiles):
    """Both tasks in both forms; a task needs one form."""

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """The archives of GLUE that are not there."""
        found = self.found(given)
        return [file for key, file in self.files.items() if key not in found and file.url is not None]

    def of_task(self, given: str | None, task: GlueTask) -> tuple[dict[str, Path], bool]:
        """The files of a task by key, and whether they are GLUE's own, which are preferred."""
        found = self.find(given)
        if f"{task} glue" in found:
            return {f"{task} glue": found[f"{task} glue"]}, True
        files = {f"{task} {part}": file for part, file in TASKS[task].files.items()}
        missing = [file.name for key, file in files.items() if key not in found]
        if missing:
            raise BadInputError(
                f"{self.folder(given)} lacks {TASKS[task].title}: {TASKS[task].of_glue.name} (or the folder "
                f"{TASKS[task].archive}), or else {', '.join(missing)}; {self.advice}"
            )
        return {key: found[key] for key in files}, False


FILES = GlueFiles(
    "glue",
    "GLUE",
    {f"{task} glue": data.of_glue for task, data in TASKS.items()}
    | {f"{task} {part}": file for task, data in TASKS.items() for part, file in data.files.items()},
    "https://gluebenchmark.com/tasks has the .zip files",
    one_is_enough=True,
)


@FEDERATIONS.register("glue")
@cached_source(version=1, reads=FILES, files=("tokenizer",))
def glue(
    build: StoreBuild,
    *,
    task: GlueTask = "sst2",
    folder: PathOption | None = None,
    clients: Clients = 5,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 10,
    seed: Seed = 0,
    tokenizer: PathOption | None = None,
    vocabulary: Annotated[int, Field(ge=5, le=1_000_000)] = 10_000,
    length: Annotated[int, Field(ge=3, le=512)] = 64,
    verify: bool = True,
) -> None:
    """Sentences of film reviews that are negative or positive (`task` sst2), or that are English or not (cola).

    The files are in `folder`: GLUE's (SST-2.zip or the folder SST-2, with train.tsv and dev.tsv), or those with labels
    of all parts (sst2_train.tsv, …). Without a folder they are looked for in the cache; `fedarena data list` says
    where. Clients are made as in `openml`. A text is the first `length` tokens, which begin with [CLS] and end with
    [SEP]: those of a `tokenizer`, a vocab.txt of BERT or a file of Hugging Face's tokenizers; without one they are
    words, of which a `vocabulary` has the most frequent of the training texts.
    """
    data = TASKS[task]
    files, are_of_glue = FILES.of_task(folder, task)
    if verify:
        FILES.check(files, lambda done: build.progress(0.1 * done, "Checking"))
    build.progress(0.1, "Reading")
    if are_of_glue:
        texts, labels, parts = _read_glue(files[f"{task} glue"], task, seed)
    else:
        texts, labels, parts = _read_parts([(part, files[f"{task} {part}"]) for part in data.files], task)
    owners = clients_by_labels(labels, parts, clients=clients, alpha=alpha, min_samples=min_samples, seed=seed)
    build.progress(0.3, "Finding words")
    tokens, words = _tokens(texts, parts == PARTS.index("train"), tokenizer, vocabulary, length)
    columns = {"x": ColumnSpec(dtype=tokens.dtype.name, shape=(length,)), "y": ColumnSpec(dtype="int64")}
    spec = words.classification(2, data.label_names)
    notes = (_HALVES if are_of_glue else data.about_files,)
    with build.writer(task=spec, columns=columns, notes=notes) as writer:
        write_divided(writer, {"x": tokens, "y": labels}, owners, parts)


def _read_glue(path: Path, task: GlueTask, seed: int) -> tuple[list[str], IntArray, IntArray]:
    texts: list[str] = []
    labels: list[int] = []
    sizes = []
    with open_tree(path, re.compile(r"(?:^|/)(?:train|dev)\.tsv$")) as tree:
        for wanted in ("train", "dev"):
            place = next((n for n, name in enumerate(tree.names) if name.endswith(f"{wanted}.tsv")), None)
            if place is None:
                raise BadInputError(f"{path} lacks {wanted}.tsv, which GLUE's {TASKS[task].archive}.zip has")
            found = _sentences(tree.read(place), task, tree.where(place))
            texts += [text for text, _ in found]
            labels += [label for _, label in found]
            sizes.append(len(found))
    y = np.array(labels, dtype=np.int64)
    parts = np.full(len(y), PARTS.index("train"), dtype=np.int64)
    parts[sizes[0] :] = stratified_parts(y[sizes[0] :], (0.0, 0.5, 0.5), seed)
    return texts, y, parts


def _read_parts(files: Sequence[tuple[Part, Path]], task: GlueTask) -> tuple[list[str], IntArray, IntArray]:
    texts: list[str] = []
    labels: list[int] = []
    parts: list[int] = []
    for part, path in files:
        found = _sentences(read_bytes(path), task, str(path))
        texts += [text for text, _ in found]
        labels += [label for _, label in found]
        parts += [PARTS.index(part)] * len(found)
    return texts, np.array(labels, dtype=np.int64), np.array(parts, dtype=np.int64)


def _sentences(content: bytes, task: GlueTask, where: str) -> list[tuple[str, int]]:
    """The sentences of a table and their labels; tabs are between values, and quotation marks mean nothing."""
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{where} is not UTF-8: {error.reason}") from None
    rows = [line.rstrip("\r").split("\t") for line in lines]
    text_column, label_column, width = (3, 1, 4) if task == "cola" else (1, 0, 2)
    first = 0
    if {"sentence", "label"} <= set(rows[0]):
        text_column, label_column, width = rows[0].index("sentence"), rows[0].index("label"), len(rows[0])
        first = 1
    found = []
    for number, row in enumerate(rows[first:], first + 1):
        if row == [""]:
            continue
        if len(row) != width or row[label_column] not in ("0", "1"):
            raise BadInputError(
                f"{where}, line {number} must have {width} values with tabs between them, of which number "
                f"{label_column + 1} is a label 0 or 1, not {quoted(chr(9).join(row))}"
            )
        found.append((row[text_column].strip(), int(row[label_column])))
    if not found:
        raise BadInputError(f"{where} has no sentences")
    return found


def _tokens(
    texts: Sequence[str], is_training: AnyArray, file: str | None, size: int, length: int
) -> tuple[AnyArray, Vocabulary]:
    """Every text as a row of tokens, and what they stand for."""
    maker = Words() if file is None else tokenizer_of(Path(file))
    split = [tokens.split(" ") if tokens else [] for tokens in maker.split(texts, ends=False)]
    if file is None:
        split = [[FIRST, *tokens, LAST] for tokens in split]
    of_training = pa.array([token for text, is_one in zip(split, is_training, strict=True) if is_one for token in text])
    counted = of_training.value_counts()
    counts = WordCounts(counted.field("values"), counted.field("counts").to_numpy())
    words = maker.vocabulary(counts, size)
    tokens = words.tokens_of(pa.array([token for text in split for token in text], pa.string()))
    closing = words.names.index(LAST) if file is None else maker.closing
    lengths = np.array([len(text) for text in split], dtype=np.int64)
    return rows_with_end(tokens, lengths, length, words.padding, closing), words

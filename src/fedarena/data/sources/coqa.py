"""CoQA (Reddy, Chen and Manning, 2019): conversations about a text; a client is a conversation.

A sample is a question and its answer, which is written as a translation is, word by word; what the question is about is
not given. The publisher's files are coqa-train-v1.0.json and coqa-dev-v1.0.json, whose conversations are for training
and for testing. FedScale counts 7,685 clients and does not say what they are; the publisher's files have 7,199 and 500
conversations. Of FedScale's own form, maps and data/*.txt, every text must have the question in its first line and the
answer behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MapFiles, MapRow, existing, groups_of_maps, map_records
from fedarena.data.by_client.packed import opened
from fedarena.data.by_client.parallel import build_translations, pair
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import Length, TextFiles, VocabularySize, words_of
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

_GROUPS = {"coqa-train-v1.0.json": 0, "coqa-dev-v1.0.json": 2}  # with the place of the group
FILES = MapFiles(
    "coqa",
    "CoQA",
    {name: RawFile(name) for name in _GROUPS},
    "https://stanfordnlp.github.io/coqa has them; or FedScale's client_data_mapping and data (coqa.tar.gz)",
    one_is_enough=True,
    tarballs=("coqa.tar.gz",),
)


@FEDERATIONS.register("coqa")
@cached_source(version=1, reads=FILES)
def coqa(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: VocabularySize = 10_000,
    length: Length = 24,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Questions, and answers that are to be given, from the files in `folder`; a client is a conversation.

    Of both there are at most `length` words, of a `vocabulary` of the most frequent words of the training samples.
    """
    found = FILES.find(folder)
    if maps := FILES.maps(folder):
        root = FILES.root(folder)

        def text(row: MapRow) -> tuple[object, ...]:
            path = root / existing(root, row, [row.sample, f"data/{row.sample}"])
            question, _, answer = path.read_bytes().decode("utf-8", "ignore").strip().partition("\n")
            if not answer.strip():
                raise BadInputError(f"{path} must have a question in its first line and the answer behind it")
            return (pair(words_of(question), words_of(answer)),)

        texts = TextFiles.of(*map_records(maps, text), groups_of_maps(maps))
    else:
        files = {path: _GROUPS[name] for name, path in found.items()}
        names = {code: path for path, code in files.items()}
        groups = PublishedGroups(lambda group, line: f"conversation {line:,} of {names[group]}", len(names))
        texts = TextFiles.of(list(files), lambda path: _answers(path, files[path]), groups)
    build_translations(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        vocabulary,
        length,
    )


def _answers(path: Path, group: int) -> Iterator[Record]:
    import ijson

    with opened(path) as source:
        try:
            for number, conversation in enumerate(ijson.items(source.file, "data.item"), 1):
                where = f"{path}, conversation {number:,}"
                try:
                    name = conversation["id"]
                    pairs = list(zip(conversation["questions"], conversation["answers"], strict=True))
                    turns = [(question["input_text"], answer["input_text"]) for question, answer in pairs]
                except (KeyError, TypeError, ValueError):
                    raise BadInputError(f"{where} must have an id, questions, and an answer to each of them") from None
                if not isinstance(name, str) or not all(isinstance(text, str) for turn in turns for text in turn):
                    raise BadInputError(f"{where}, {quoted(name)}: ids, questions and answers must be texts")
                for question, answer in turns:
                    yield Record(name, (group, number, pair(words_of(question), words_of(answer))), source.fraction())
        except (ijson.JSONError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"{path} is damaged: it is no complete JSON ({error})") from None

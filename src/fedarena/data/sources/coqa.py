"""CoQA (Reddy, Chen and Manning, 2019): conversations about a text; a client is a conversation.

A sample is a question with its answer behind it, ``question <answer> answer <end>``, of which the next word is to be
predicted: so whoever predicts well answers well. The publisher's files are coqa-train-v1.0.json and
coqa-dev-v1.0.json, whose conversations are for training and for testing. FedScale counts 7,685 clients and does not
say what they are; the publisher's files have 7,199 and 500 conversations. FedScale's own form, maps and data/*.txt,
has a text for every sample.
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
from fedarena.data.by_client.parallel import with_marks
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import Length, TextFiles, VocabularySize, build_next_words, words_of
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
)


@FEDERATIONS.register("coqa")
@cached_source(version=1, reads=FILES)
def coqa(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: VocabularySize = 10_000,
    sequence_length: Length = 32,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Questions and answers about a text, of which the next word is to be predicted; a client is a conversation.

    A question with its answer becomes one sample or more, of ``sequence_length + 1`` words of a `vocabulary` of the
    most frequent words of the training samples.
    """
    found = FILES.find(folder)
    if maps := FILES.maps(folder):
        root = FILES.root(folder)

        def text(row: MapRow) -> tuple[object, ...] | None:
            path = root / existing(root, row, [row.sample, f"data/{row.sample}"])
            words = words_of(path.read_bytes().decode("utf-8", "ignore"))
            return (words,) if words else None

        texts = TextFiles.of(*map_records(maps, text), groups_of_maps(maps))
    else:
        files = {path: _GROUPS[name] for name, path in found.items()}
        names = {code: path for path, code in files.items()}
        groups = PublishedGroups(lambda group, line: f"conversation {line:,} of {names[group]}")
        texts = TextFiles.of(list(files), lambda path: _answers(path, files[path]), groups)
    build_next_words(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        vocabulary,
        sequence_length,
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
                    words = with_marks(words_of(question), words_of(answer), "<answer>")
                    yield Record(name, (group, number, words), source.fraction())
        except (ijson.JSONError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"{path} is damaged: it is no complete JSON ({error})") from None

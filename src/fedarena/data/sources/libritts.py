"""LibriTTS (Zen et al., 2019): sentences of audio books; a client is a reader.

The publisher's archives have ``train-clean-100/<speaker>/<chapter>/<speaker>_<chapter>_<paragraph>_<sentence>.wav`` at
24 kHz, and beside each recording a file ``.normalized.txt``. Lists of sentences, ``path|text|speaker`` in each line, as
programs for text to speech have them, do for ``inputs=text``. FedScale calls the task text to speech; here what is read
is written down, or the next character predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.audio import SampleRate
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.packed import PACKINGS, lines
from fedarena.data.by_client.transcripts import Characters, Inputs, Seconds, SpeechForm, Utterance, build_speech
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.folders import files_below
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

_SUBSETS = (
    "train-clean-100",
    "train-clean-360",
    "train-other-500",
    "dev-clean",
    "dev-other",
    "test-clean",
    "test-other",
)
_TEXT = ".normalized.txt"


class BookFiles(RawFiles):
    """The publisher's folders, or lists of sentences."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        place = self.folder(given)
        root = place / "LibriTTS" if (place / "LibriTTS").is_dir() else place
        if folders := {name: root / name for name in _SUBSETS if (root / name).is_dir()}:
            return folders
        names = [f"*text_sid*.txt{ending}" for ending in ("", *PACKINGS)]
        return {path.name: path for name in names for path in sorted(place.glob(name))}


FILES = BookFiles(
    "libritts",
    "LibriTTS",
    {"subset": RawFile("train-clean-100.tar.gz", unpacked="train-clean-100")},
    "unpacked, or any others of its subsets; https://www.openslr.org/60 has them",
    one_is_enough=True,
)


@FEDERATIONS.register("libritts")
@cached_source(version=1, reads=FILES)
def libritts(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    inputs: Inputs = "audio",
    sample_rate: SampleRate = 24_000,
    seconds: Seconds = 10.0,
    length: Characters = 200,
    alphabet: Characters = 40,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Sentences of audio books that are to be written down, from the files in `folder`; a client is a reader.

    Recordings of more than so many `seconds` and sentences of more than `length` characters are left out. The
    `alphabet` has so many characters, the most frequent ones. With ``inputs=text`` recordings are not needed, and the
    next character is to be predicted.
    """
    found = FILES.find(folder)
    if inputs == "audio" and not all(path.is_dir() for path in found.values()):
        raise BadInputError(f"{FILES.folder(folder)} has sentences without recordings; set federation.inputs=text")
    build_speech(
        build,
        list(found.values()),
        lambda path: _read(path) if path.is_dir() else _listed(path),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        SpeechForm(sample_rate, seconds, length, alphabet),
        inputs,
    )


def _read(folder: Path) -> Iterator[Utterance]:
    names = sorted(name for name, _ in files_below(folder) if name.endswith(_TEXT))
    if not names:
        raise BadInputError(f"{folder} has no sentences: no file that ends with {_TEXT}")
    for number, name in enumerate(names, 1):
        path = folder / name
        recording = path.with_name(path.name.removesuffix(_TEXT) + ".wav")
        text = path.read_bytes().decode("utf-8", "replace")
        yield Utterance(name.split("/")[0], text, recording, str(path), 0, number, number / len(names))


def _listed(path: Path) -> Iterator[Utterance]:
    for number, line, done in lines(path):
        values = line.split("|")
        if len(values) != 3 or not values[2].strip():
            raise BadInputError(f"{path}, line {number:,} must be path|text|speaker")
        yield Utterance(values[2].strip(), values[1], None, f"{path}, line {number:,}", 0, number, done)

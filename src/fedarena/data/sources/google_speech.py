"""Google's Speech Commands (Warden, 2018): 35 spoken words by who spoke them; a client is a speaker.

The publisher's archive has a folder for every word with files ``<speaker>_nohash_<number>.wav``, and two lists of those
for validation and testing, which keep every speaker in one group. FedScale's tarball has maps and files of the same
recordings, renamed. Words are numbered as in FedScale; of version 0.01, which has 30 of them, five never occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.by_client.audio import SampleRate, fixed_length, waveform
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, numbers
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MAPS, MapFiles, MapRow, existing, groups_of_maps, map_records
from fedarena.data.by_client.packed import members, read_whole
from fedarena.data.by_client.rows import Record, Records
from fedarena.data.by_client.transcripts import Seconds
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile
from fedarena.data.raw.folders import files_below
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import GROUPS, AnyArray, ColumnSpec, TaskSpec

WORDS = (
    *("up", "two", "sheila", "zero", "yes", "five", "one", "happy", "marvin", "no", "go", "seven", "eight", "tree"),
    *("stop", "down", "forward", "learn", "house", "three", "six", "backward", "dog", "cat", "wow", "left", "off"),
    *("on", "four", "visual", "nine", "bird", "right", "follow", "bed"),
)
_CLASS = {word: number for number, word in enumerate(WORDS)}
_RECORDING = re.compile(r"(?:^|/)([^/_]+)/([0-9a-z]+)_nohash_[0-9]+\.wav$")
_LIST = re.compile(r"(?:^|/)(validation|testing)_list\.txt$")
_GROUP_OF_LIST = {"validation": 1, "testing": 2}  # places of groups


class Recordings(MapFiles):
    """FedScale's maps, or the publisher's archive or folder."""

    def found(self, given: str | None) -> dict[str, Path]:
        """One of them."""
        if known := super().found(given):
            return known
        place = self.folder(given)
        archives = sorted(place.glob("speech_commands*")) if place.is_dir() else []
        if archives:
            return {"archive": archives[0]}
        return {"archive": place} if (place / "testing_list.txt").is_file() else {}


FILES = Recordings(
    "google_speech",
    "Speech Commands",
    {"archive": RawFile("speech_commands_v0.02.tar.gz", unpacked="speech_commands_v0.02")},
    "https://www.tensorflow.org/datasets/catalog/speech_commands says where it is; or FedScale's client_data_mapping "
    "with the folders train, val and test (google_speech.tar.gz)",
    one_is_enough=True,
    tarballs=("google_speech.tar.gz",),
)


@FEDERATIONS.register("google_speech")
@cached_source(version=1, reads=FILES)
def google_speech(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    sample_rate: SampleRate = 16_000,
    seconds: Seconds = 1.0,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Recordings of single words, of which 35 are to be told apart, from the files in `folder`; a client is a speaker.

    A sample is a waveform of so many `seconds`: of longer recordings their beginning, of shorter ones with silence
    behind. They must have the `sample_rate`.
    """
    found = FILES.find(folder)
    length = round(sample_rate * seconds)

    def samples(rows: pa.Table) -> dict[str, AnyArray]:
        x = np.empty((len(rows), length), dtype=np.int16)
        names, contents = (rows.column(name).to_pylist() for name in ("recording", "content"))
        for place, (name, content) in enumerate(zip(names, contents, strict=True)):
            x[place] = fixed_length(waveform(content or read_whole(name), sample_rate, name), length)
        return {"x": x, "y": numbers(rows, "label", "int64")}

    maps = FILES.maps(folder)
    if maps:
        root = FILES.root(folder)

        def record(row: MapRow) -> tuple[object, ...]:
            folders = [name.removesuffix(".csv") for name in MAPS[GROUPS[row.group]]]
            path = existing(root, row, [*(f"{place}/{row.sample}" for place in folders), row.sample])
            return f"{root}/{path}", b"", _label(row.label_name, row.where)

        files, records = map_records(maps, record)
        published = groups_of_maps(maps)
    else:
        archive = found["archive"]
        lists = _groups(archive)
        files, records = [archive], _recordings(lists)
        published = PublishedGroups(lambda group, line: f"file {line:,} of {archive}", 1 + len(set(lists.values())))
    task = TaskSpec(kind="classification", classes=len(WORDS), label_names=WORDS, sample_rate=sample_rate)
    build_from_rows(
        build,
        files,
        records,
        {**GROUP_COLUMNS, "recording": pa.string(), "content": pa.binary(), "label": pa.int64()},
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(task, {"x": ColumnSpec(dtype="int16", shape=(length,)), "y": ColumnSpec(dtype="int64")}, samples),
        published,
    )


def _recordings(groups: Mapping[str, int]) -> Records:
    """The recordings of a folder, which are read when they are written, or those of an archive, which are kept."""

    def records(path: Path) -> Iterator[Record]:
        if path.is_dir():
            names = sorted(name for name, _ in files_below(path) if _RECORDING.search(name))
            for number, name in enumerate(names, 1):
                word, speaker = _named(name)
                row = (groups.get(speaker, 0), number, str(path / name), b"", _label(word, str(path / name)))
                yield Record(speaker, row, number / len(names))
            return
        for number, member in enumerate(members(path, _RECORDING), 1):
            word, speaker = _named(member.name)
            row = (groups.get(speaker, 0), number, member.where, member.content, _label(word, member.where))
            yield Record(speaker, row, member.done)

    return records


def _label(word: str, where: str) -> int:
    if word not in _CLASS:
        raise BadInputError(f"{where}: there is no word {quoted(word)} among the 35; {nearest(word, _CLASS)}")
    return _CLASS[word]


def _named(name: str) -> tuple[str, str]:
    """The word and the speaker in the name of a recording."""
    found = _RECORDING.search(name)
    assert found is not None  # only such are read
    return found[1], found[2]


def _groups(archive: Path) -> dict[str, int]:
    """The group of every speaker who is in a list; all others are for training."""
    groups: dict[str, int] = {}
    for member in members(archive, _LIST):
        kind = _LIST.search(member.name)
        assert kind is not None
        group = _GROUP_OF_LIST[kind[1]]
        for line, name in enumerate(member.content.decode("utf-8", "replace").split(), 1):
            found = _RECORDING.search(name)
            if found is None:
                raise BadInputError(f"{member.where}, line {line:,} must name a recording, not {quoted(name)}")
            if groups.setdefault(found[2], group) != group:
                raise BadInputError(
                    f"{member.where}, line {line:,}: the speaker {found[2]} is in the other list, too, but a client is "
                    "in one group only"
                )
    return groups

"""Shakespeare: a client is a speaking role of a play, and the next character is to be predicted.

From McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017), as LEAF
(Caldas et al., 2018) has it. LEAF reads Gutenberg's edition of 1994; Bosak's XML has cleaner text, and a plain dialogue
is good for trying things out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.plays import Reading, Role, read_bosak, read_dialogue, read_gutenberg
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import PARTS, AttributeType
from fedarena.data.text.characters import Sequences, Windows

FILES = RawFiles(
    "shakespeare",
    "Shakespeare",
    {
        "gutenberg": RawFile(
            "1994-01-100.zip",
            url="https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
            other_names=("100.txt",),
        ),
        "xml": RawFile(
            "shakespeare.zip",
            "sha256:f1251d8c254710363254ba29c9dc0888d5cb13d5ac736ebc6fb14380f447cfc3",
            url="https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/shakespeare.zip",
            unpacked="shakespeare",
            other_names=("nltk_shakespeare_xml.zip",),
        ),
        "dialogue": RawFile(
            "tinyshakespeare.txt",
            "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        ),
    },
    "they are the complete works from Project Gutenberg, which LEAF reads, eight plays in XML from NLTK, and "
    "the dialogue of char-rnn",
    one_is_enough=True,
)

# auto: the first of the others that is there.
Format = Literal["auto", "gutenberg", "xml", "dialogue"]
# sequences: next-token samples, one after the other; windows: LEAF's samples, one for every character.
Samples = Literal["sequences", "windows"]


@FEDERATIONS.register("shakespeare")
@cached_source(version=1, reads=FILES)
def shakespeare(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    format: Format = "auto",
    reading: Reading = "speech",
    samples: Samples = "sequences",
    sequence_length: Annotated[int, Field(ge=1, le=100_000)] = 80,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    minimum_samples: MinimumSamples = 1,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """The words of every role, from the files in `folder`, or of the cache; attribute ``play`` names the play.

    ``samples="sequences"`` cuts them into sequences of ``sequence_length + 1`` characters for next-token prediction;
    ``windows`` makes a sample of every `sequence_length` characters and the one that follows, as LEAF does. Within
    clients, earlier text is for training and later text for testing, and no character is in both; roles that are too
    short for that are left out. ``reading="leaf"`` reads Gutenberg's text as LEAF does, stage directions and all.
    """
    kind, path = _choose(folder, format, reading)
    if verify:
        FILES.check({kind: path}, lambda done: build.progress(0.1 * done, "Checking"))
    build.progress(0.1, "Reading")
    roles = _read(kind, path, reading)
    maker = Sequences(sequence_length) if samples == "sequences" else Windows(sequence_length)
    sizes = np.array([maker.count(maker.alphabet.encode(role.text)) for role in roles], dtype=np.int64)
    kept = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed).choose(sizes)
    division = Split(split, train_fraction, validation_fraction, split_seed)
    needed = [part for part, share in zip(PARTS, division.fractions, strict=True) if share]
    attributes: dict[str, AttributeType] = {} if kind == "dialogue" else {"play": "string"}
    written = 0
    with build.writer(task=maker.task, columns=maker.columns, attributes=attributes) as writer:
        for client, (role, group) in enumerate(
            zip((roles[place] for place in kept), division.groups(len(kept)), strict=True)
        ):
            parts = maker.divide(maker.alphabet.encode(role.text), division, client, group)
            if split == "by_client" or all(len(next(iter(parts[part].values()))) for part in needed):
                writer.add_client(role.id, group=group, attributes={"play": role.play} if attributes else None, **parts)
                written += 1
            build.progress(0.3 + 0.7 * (client + 1) / len(kept), "Writing")
        if not written:
            raise BadInputError(
                f"No role of {path} has enough text for a {' and a '.join(needed)} part; choose other fractions, or "
                "federation.split=by_client"
            )


def _choose(folder: str | None, format: Format, reading: Reading) -> tuple[str, Path]:
    """Which form of the plays is read, and where it is."""
    found = FILES.find(folder)
    kind = next(iter(found)) if format == "auto" else format
    if kind not in found:
        raise BadInputError(
            f"federation.format is {kind}, but {FILES.folder(folder)} has no {FILES.files[kind].name}; "
            f"it has {', '.join(path.name for path in found.values())}"
        )
    if reading == "leaf" and kind != "gutenberg":
        raise BadInputError(f"federation.reading=leaf is a way to read Gutenberg's text, not {found[kind]}")
    return kind, found[kind]


def _read(kind: str, path: Path, reading: Reading) -> list[Role]:
    if kind == "gutenberg":
        return read_gutenberg(path, reading)
    return read_bosak(path) if kind == "xml" else read_dialogue(path)

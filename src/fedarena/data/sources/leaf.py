"""Federations in LEAF's JSON (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018), whoever made them.

Files are read user by user, so that those of any size fit into memory. What FedArena exported comes back with all
clients and samples as they were; only its name is another.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.class_labels import MOST_LABELS
from fedarena.data.divided_clients import DividedClients
from fedarena.data.leaf.division import dealt_clients, is_divided, natural_clients
from fedarena.data.leaf.files import LeafFolder, leaf_files
from fedarena.data.leaf.kinds import Kind, KindName, Numbers, told_from
from fedarena.data.leaf.staging import SampleTable, Users, list_users, read_heads, stage_samples
from fedarena.data.leaf.text_kinds import Characters, Tweets
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, Sampling
from fedarena.data.splits import Seed, Split, TrainFraction, ValidationFraction
from fedarena.data.text.words import Tokenizer

# auto: as the files are divided, and within clients if they are not.
LeafSplit = Literal["auto", "by_client", "within_client"]
Count = Annotated[int, Field(ge=1)]
# As in the federation sent140.
DEFAULT_WORDS = 40
DEFAULT_VOCABULARY = 10_000
# How many made-up users get all samples at random; below 1, as a fraction of the users there are.
IidUsers = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)]


@FEDERATIONS.register("leaf")
@cached_source(version=2, reads=LeafFolder())
def leaf(
    build: StoreBuild,
    *,
    folder: PathOption,
    kind: KindName = "auto",
    shape: tuple[Count, ...] | None = None,
    classes: Annotated[int, Field(ge=2, le=MOST_LABELS)] | None = None,
    length: Annotated[int, Field(ge=1, le=100_000)] | None = None,
    vocabulary: Annotated[int, Field(ge=3, le=1_000_000)] | None = None,
    tokenizer: Tokenizer | None = None,
    minimum_samples: Annotated[int, Field(ge=0)] = 0,
    fraction: Fraction = 1.0,
    iid_users: IidUsers | None = None,
    sampling_seed: Seed = 0,
    split: LeafSplit = "auto",
    train_fraction: TrainFraction = 0.9,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """LEAF's JSON files in `folder`: train/ and test/, or undivided ones.

    `kind` says what samples are, if the first does not tell; `shape` is that of pictures or features, `length` that of
    texts in characters or words, of which the `vocabulary` most frequent are told apart. `iid_users` deals all samples
    out to so many new users, or to that fraction of the number there are.
    """
    division = Split("within_client" if split == "auto" else split, train_fraction, validation_fraction, split_seed)
    sampling = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed)

    def choose(x: Any, y: Any) -> Kind:
        found = told_from(x, y) if kind == "auto" else kind
        if found == "characters":
            if not isinstance(x, str):
                raise BadInputError("x is no text, so samples cannot be characters")
            return Characters(x, length)
        if found == "tweets":
            words = vocabulary or DEFAULT_VOCABULARY
            return Tweets(x, length or DEFAULT_WORDS, words, tokenizer or "words", classes)
        return Numbers(x, tuple(shape) if shape else None, classes, are_pictures=found == "images")

    files = leaf_files(Path(folder))
    heads = read_heads(files, lambda done, words: build.progress(0.3 * done, words))
    users, places = list_users(files, heads)
    if users.description is not None:
        asked = {"shape": shape, "classes": classes, "length": length, "vocabulary": vocabulary, "tokenizer": tokenizer}
        given = [name for name, value in asked.items() if value is not None] + ["kind"] * (kind != "auto")
        if given:
            raise BadInputError(
                f"federation.{given[0]} cannot be chosen: the files in {folder} say themselves what their samples are"
            )
    build.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".leaf-", dir=build.path.parent) as work:
        table, found = stage_samples(
            files,
            heads,
            users,
            places,
            choose,
            Path(work) / "samples.arrow",
            lambda done, words: build.progress(0.3 + 0.4 * done, words),
        )
        if iid_users is not None:
            if found.gap and train_fraction < 1:
                raise BadInputError(
                    "federation.iid_users deals samples out at random, but these overlap with their neighbours, so "
                    "that text for testing would also be trained on; training=iid deals out those for training alone, "
                    "and federation.train_fraction=1 leaves none for testing"
                )
            wanted = iid_users if isinstance(iid_users, int) else max(round(iid_users * len(users.ids)), 1)
            clients = dealt_clients(table.rows, wanted, sampling, division)
        else:
            as_it_is = split == "auto" and is_divided(users)
            clients = natural_clients(users, sampling, None if as_it_is else division, found.gap)
        _write(build, table, found, users, clients)


def _write(build: StoreBuild, table: SampleTable, kind: Kind, users: Users, clients: DividedClients) -> None:
    try:
        finished = kind.finish(lambda column: table.count_values(column, clients.training_rows()))
    except BadInputError as error:
        raise BadInputError(f"{build.source.options['folder']}: {error}") from None
    attributes = {} if clients.users is None else users.attribute_types
    with build.writer(task=finished.task, columns=finished.columns, attributes=attributes) as writer:
        for some, rows in clients.pieces(table.rows_at_once):
            known = {} if clients.users is None else users.attributes_of(clients.users[some].tolist())
            writer.add_clients(
                clients.ids[some],
                counts=clients.counts[some],
                columns=finished.convert(table.take(rows)),
                groups=clients.groups[some],
                attributes=known,
            )
            build.progress(0.7 + 0.3 * some.stop / len(clients.ids), "Writing")

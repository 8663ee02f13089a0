"""Stack Exchange: questions and answers with tags, each user a client, from the dump of a site.

The same task as FLAIR's on text: any number of labels for a sample, by the people the samples come from. Which tags a
post belongs to is to be predicted from its words, as in the task of Reddi et al., "Adaptive Federated Optimization"
(2021), on Stack Overflow; an answer belongs to the tags of its question. Dumps of all sites are at
https://archive.org/details/stackexchange, under CC BY-SA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.many_users.clients import TextClients
from fedarena.data.many_users.posts import (
    UNPACKERS,
    PostCounts,
    PostKind,
    PostReader,
    TaggedPosts,
    labels_of_bits,
    tag_columns,
)
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.many_users.texts import TextIndex
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec
from fedarena.data.text.sequences import padded_in_front
from fedarena.data.text.words import Vocabulary

_POSTS = "Posts.xml"
_ENDINGS = tuple("" if ending == ".xml" else ending for ending in UNPACKERS)


class Dumps(RawFiles):
    """The posts of one site or of several."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them by the names of their sites; one that has no name is "posts"."""
        place = self.folder(given)
        found: dict[str, Path] = {}
        for ending in _ENDINGS:
            for path in sorted(place.glob(f"*{_POSTS}{ending}")):
                found.setdefault(path.name.removesuffix(_POSTS + ending).rstrip("_-.") or "posts", path)
            for path in sorted(place.glob(f"*/{_POSTS}{ending}")):
                found.setdefault(path.parent.name, path)
        return found

    def of_site(self, given: str | None, site: str | None) -> Path:
        """The posts of a site; without a name, of the only one there is."""
        found = self.find(given)
        if site is None:
            if "posts" in found or len(found) == 1:
                return found.get("posts") or next(iter(found.values()))
            raise BadInputError(
                f"{self.folder(given)} has the posts of {len(found)} sites; choose one with federation.site: "
                f"{', '.join(sorted(found))}"
            )
        if site not in found:
            raise BadInputError(
                f"{self.folder(given)} has no posts of a site called {quoted(site)}; {nearest(site, found)}"
            )
        return found[site]


FILES = Dumps(
    "stackexchange",
    "a Stack Exchange site",
    {"posts": RawFile(_POSTS)},
    f"also packed ({', '.join(ending for ending in _ENDINGS if ending)}), or several, SITE_{_POSTS} or SITE/{_POSTS}; "
    "https://archive.org/details/stackexchange has the dumps of all sites (unpack the .7z)",
    one_is_enough=True,
)


@FEDERATIONS.register("stackexchange")
@cached_source(version=1, reads=FILES)
def stackexchange(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    site: str | None = None,
    tags: Annotated[int, Field(ge=1, le=10_000)] = 20,
    posts: PostKind = "both",
    untagged: Literal["left_out", "kept"] = "left_out",
    vocabulary: Annotated[int, Field(ge=3, le=1_000_000)] = 5_000,
    length: Annotated[int, Field(ge=1, le=10_000)] = 100,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: SplitKind = "by_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.1,
    split_seed: Seed = 0,
) -> None:
    """Questions and answers of a Stack Exchange site with their tags, from its dump in `folder`; a client is a user.

    If posts of several sites are there, `site` says which. A sample has the first `length` words of a post, without
    markup and in front of them the title if it has one, as tokens of a `vocabulary`: padding, unknown, and the most
    frequent words of the training samples. Labels are the most frequent `tags`; an answer has those of its question.
    Posts with none of them are left out unless `untagged` says otherwise, and so are those whose owner or question was
    deleted. Some users are only tested on, as in FLAIR, unless `split` says otherwise.
    """
    division = Split(split, train_fraction, validation_fraction, split_seed)
    path = FILES.of_site(folder, site)
    reader = PostReader(path, length)
    with work_folder(build) as work:
        by_question = Buckets(_inside(work, "questions"), reader.total_bytes)
        by_question.fill(reader.read, lambda done: build.progress(0.6 * done, "Reading posts"))
        tagged = TaggedPosts(by_question, path, posts)
        counts = tagged.count(lambda done: build.progress(0.6 + 0.05 * done, "Counting tags"))
        names = _most_frequent(counts, tags, path)
        by_owner = Buckets(_inside(work, "owners"), reader.total_bytes)
        by_owner.fill(
            tagged.reader(names, keep_untagged=untagged == "kept"),
            lambda done: build.progress(0.65 + 0.1 * done, "Tagging posts"),
        )
        index = TextIndex(work / "owners", by_owner)
        index.build(lambda done: build.progress(0.75 + 0.1 * done, "Grouping by user"))
        sampling = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed)
        clients = TextClients(index, sampling, division)
        words = clients.training_words(lambda done: build.progress(0.85 + 0.05 * done, "Counting words"))
        _write(build, clients, Vocabulary.of(words, vocabulary), names, length, _notes(counts))


def _inside(work: Path, name: str) -> Path:
    folder = work / name
    folder.mkdir(exist_ok=True)
    return folder


def _most_frequent(counts: PostCounts, number: int, path: Path) -> tuple[str, ...]:
    """So many tags, the most frequent first, equally frequent ones by the alphabet."""
    if len(counts.tags) < number:
        raise BadInputError(
            f"{path} has posts with {len(counts.tags):,} different tags; federation.tags must not be above, "
            f"unlike {number:,}"
        )
    return tuple(sorted(counts.tags, key=lambda tag: (-counts.tags[tag], tag))[:number])


def _notes(counts: PostCounts) -> list[str]:
    notes = []
    if counts.without_owner:
        notes.append(f"Posts that were left out because their owner was deleted: {counts.without_owner:,}.")
    if counts.without_question:
        notes.append(f"Answers that were left out because their question is not there: {counts.without_question:,}.")
    return notes


def _write(
    build: StoreBuild, clients: TextClients, words: Vocabulary, tags: tuple[str, ...], length: int, notes: list[str]
) -> None:
    task = words.multi_label(tags)
    columns = {
        "x": ColumnSpec(dtype=words.dtype, shape=(length,)),
        "y": ColumnSpec(dtype="uint8", shape=(len(tags),)),
    }
    done = 0
    with build.writer(task=task, columns=columns, notes=notes) as writer:
        for chosen in clients:
            texts, rows = chosen.texts, chosen.rows
            x = padded_in_front(texts.tokens_at(rows, words), texts.lengths[rows], length)
            bits = [texts.columns[name][rows] for name in tag_columns(len(tags))]
            writer.add_clients(
                chosen.ids,
                counts=chosen.counts,
                columns={"x": x, "y": labels_of_bits(bits, len(tags))},
                groups=chosen.groups,
            )
            done += len(chosen.users)
            build.progress(0.9 + 0.1 * done / clients.number, "Writing")
